// Which architectures this program computes: for messages and listings of programs that never see `models`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

/// Hugging Face's `model_type` of each, in alphabetical order.
std::vector<std::string> supported_families();

bool is_supported_family(std::string_view model_type);

}  // namespace tensorfold
