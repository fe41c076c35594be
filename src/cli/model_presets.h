// The configs of published checkpoints, so that `demo create --like` can make random weights of their shapes
// without a download.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

/// Names as their makers publish them, without the owner: "Qwen3.8-27B".
std::vector<std::string> model_preset_names();

/// config.json of a preset, cut to its first num_layers layers (0: all). kInvalidArgument names an unknown
/// preset and the nearest one; the owner in front ("Qwen/...") may be there, and case does not matter.
Result<Json> model_preset_config(std::string_view name, int64_t num_layers);

}  // namespace tensorfold
