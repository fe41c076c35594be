// Rules that the configs of several families share, each with its check; the families read everything else
// themselves. Facts: specs/llama.md §1. Errors go to the reader's status, naming key and value.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "formats/hf_config.h"
#include "memory/weight_table.h"
#include "models/rope.h"

namespace tensorfold {

/// Limits of sanity: a config beyond them is refused before anything is sized by it.
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeadDim = 4096;
/// Of recurrent layers; with kMaxHeadDim small enough that products of three of their sizes fit.
inline constexpr int64_t kMaxRecurrentHeads = 65536;
inline constexpr int64_t kMaxConvTaps = 64;

/// An integer from `least` to `most`; anything else is refused by key, and `least` is returned.
int64_t read_size(ConfigReader& config, std::string_view key, int64_t least, int64_t most);

/// `num_hidden_layers`, at most kMaxLayers.
int64_t read_num_layers(ConfigReader& config);

/// The heads of grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245).
struct HeadCounts {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  ///< Divides num_heads; num_attention_heads when the key is absent.
  int64_t head_dim = 0;      ///< Even.
};
/// default_head_dim: of families whose head_dim does not follow from the others; 0: hidden_size /
/// num_attention_heads.
HeadCounts read_head_counts(ConfigReader& config, int64_t hidden_size, int64_t default_head_dim = 0);

/// `rms_norm_eps`, 1e-6 when absent.
float read_rms_norm_eps(ConfigReader& config);

/// Refuses a `hidden_act` other than SiLU.
void require_silu(ConfigReader& config);

/// For each layer the number of keys it sees, or 0 for all: by `layer_types`, or, without it,
/// `sliding_window` from layer first_windowed on if `use_sliding_window`.
std::vector<int64_t> read_windows(ConfigReader& config, int64_t num_layers, int64_t first_windowed);

/// For each layer `window` where `layer_types` says sliding_attention, 0 where it says full_attention.
std::vector<int64_t> windows_by_type(ConfigReader& config, int64_t num_layers, int64_t window);

/// Rotary parameters of a family that rotates whole heads: another partial_rotary_factor is refused.
RopeConfig read_full_width_rope(ConfigReader& config, const RopeDefaults& defaults = {});

/// `tie_word_embeddings`; without the key, whether the checkpoint lacks an lm_head: readers differ in their
/// default.
bool read_tied(ConfigReader& config, const WeightTable& table);

/// What options and rope kind make of the length: the context that angles are computed for, and the positions
/// that the model serves.
struct ContextLengths {
  int64_t context_tokens = 0;
  int64_t max_position_embeddings = 0;
};
/// From `max_position_embeddings` and the requested context (0: all of it). Only `dynamic` reaches beyond the
/// former.
Result<ContextLengths> choose_context(int64_t max_position_embeddings, int64_t requested_tokens,
                                      RopeKind kind);

/// f32 when asked for or when the checkpoint computes in float32, else bf16 (arithmetic.md, "Numbers").
DType activation_dtype(const HfConfig& config, bool compute_f32);

}  // namespace tensorfold
