// How many bytes of weights a pass must read: the numerator of every claim about memory bandwidth.
#pragma once

#include <cstdint>

#include "engine/loaded_model.h"

namespace tensorfold {

/// Bytes of packed weights that a pass of one row with logits reads: every matrix that the forward pass
/// multiplies by (of experts the num_experts_per_tok chosen ones), one row of the embedding; vectors are left
/// out. Found by running the model's forward pass over ops that only count, so it is right for every family.
/// Host time and memory of a pass without its arithmetic. Not while an engine runs the model.
int64_t decode_weight_bytes(const LoadedModel& model);

/// Bytes of keys and values that attention reads for one row at a context of context_tokens, windows not
/// considered.
int64_t decode_kv_bytes(const LoadedModel& model, int64_t context_tokens);

}  // namespace tensorfold
