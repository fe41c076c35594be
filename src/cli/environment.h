// The only reader of environment variables.
#pragma once

#include <optional>
#include <string>

#include "hub/model_path.h"

namespace tensorfold {

/// The variable, or nothing when it is unset or empty.
std::optional<std::string> environment_variable(const std::string& name);

/// $XDG_CACHE_HOME/tensorfold or ~/.cache/tensorfold; "" without a home.
std::string tensorfold_cache_folder();

/// $XDG_CONFIG_HOME/tensorfold/config.toml or ~/.config/tensorfold/config.toml; "" without a home.
std::string default_config_file();

/// The caches, the Hugging Face one by its own variables: HF_HUB_CACHE, HF_HOME, else the cache folder.
ModelSearch model_search();

}  // namespace tensorfold
