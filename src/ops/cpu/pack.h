// pack() of the cpu backend: checkpoint rows to the layout of ops/linear_layout.h, fast enough to do while
// loading.
#pragma once

#include <span>

#include "memory/weight.h"

namespace tensorfold::cpu {

/// Writes the packed matrix; the same bytes as the reference's pack(). Thread-safe, one thread.
void pack(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed);

}  // namespace tensorfold::cpu
