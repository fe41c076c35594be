// Rotary embeddings: from a config's rule to the frequencies that Ops::rope_table takes. Facts:
// specs/llama.md §4.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "formats/hf_config.h"

namespace tensorfold {

/// Angle of pair j at position p: p * inv_freq[j]; its cosine and sine are multiplied by `multiplier`.
struct Rotary {
  std::vector<double> inv_freq;  ///< [R/2], R being the rotary width.
  double multiplier = 1.0;       ///< Attention factor of yarn and longrope.

  int64_t num_pairs() const { return static_cast<int64_t>(inv_freq.size()); }
};

/// What the rule needs beside itself.
struct RotaryGeometry {
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  /// The length that `dynamic` and `longrope` take instead of the length so far, so that a row's angles do
  /// not depend on what comes after it (arithmetic.md, "The rest").
  int64_t context_tokens = 0;
};

/// Frequencies in f64 from the project's own functions (ops/contract_math.h), so that they are equal on every
/// machine. kUnsupported or kCorrupt, naming the key, where the rule and the geometry do not fit.
Result<Rotary> make_rotary(const RopeConfig& config, const RotaryGeometry& geometry);

}  // namespace tensorfold
