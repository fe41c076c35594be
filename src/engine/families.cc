// See families.h.
#include "engine/families.h"

#include <algorithm>

#include "models/registry.h"

namespace tensorfold {

std::vector<std::string> supported_families() {
  std::vector<std::string> names;
  for (const ModelFamily& family : model_families()) names.emplace_back(family.model_type);
  return names;
}

bool is_supported_family(std::string_view model_type) {
  const auto families = model_families();
  return std::any_of(families.begin(), families.end(),
                     [model_type](const ModelFamily& family) { return family.model_type == model_type; });
}

}  // namespace tensorfold
