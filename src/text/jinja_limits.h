// Bounds of rendering a template.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::jinja {

/// Bounds of one render. Reaching one is an error that names it; the rest of the template is not evaluated.
struct Limits {
  /// Nodes evaluated, items visited, and 64-byte pieces of text made or read. A million messages with a
  /// 100-node loop body fit; at some 50 ns a step, the time of a render is bounded by seconds.
  int64_t max_steps = 100'000'000;
  size_t max_memory_bytes = size_t{256} << 20;  ///< Values alive at one time, the given messages included.
  size_t max_output_bytes = size_t{64} << 20;   ///< The rendered text, and any one captured block.
  int max_depth = 2000;  ///< Nested evaluation: expressions, statements, macro calls, iterators. Takes at
                         ///< most 2 MiB of stack.
};

}  // namespace tensorfold::jinja
