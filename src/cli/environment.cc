// See environment.h.
#include "cli/environment.h"

#include <cstdlib>

namespace tensorfold {
namespace {

/// An XDG base folder: the variable, or a folder of the home.
std::string base_folder(const std::string& variable, const std::string& below_home) {
  if (const auto folder = environment_variable(variable)) return *folder;
  const auto home = environment_variable("HOME");
  return home ? *home + below_home : "";
}

std::string below(const std::string& folder, const std::string& name) {
  return folder.empty() ? "" : folder + name;
}

}  // namespace

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::string tensorfold_cache_folder() {
  return below(base_folder("XDG_CACHE_HOME", "/.cache"), "/tensorfold");
}

std::string default_config_file() {
  return below(base_folder("XDG_CONFIG_HOME", "/.config"), "/tensorfold/config.toml");
}

ModelSearch model_search() {
  ModelSearch search;
  search.tensorfold_cache = tensorfold_cache_folder();
  if (const auto hub = environment_variable("HF_HUB_CACHE"))
    search.hugging_face_cache = *hub;
  else if (const auto home = environment_variable("HF_HOME"))
    search.hugging_face_cache = *home + "/hub";
  else
    search.hugging_face_cache = below(base_folder("XDG_CACHE_HOME", "/.cache"), "/huggingface/hub");
  return search;
}

}  // namespace tensorfold
