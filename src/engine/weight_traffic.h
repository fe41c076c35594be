// How many bytes of weights a pass must read: the numerator of every claim about memory bandwidth.
#pragma once

#include <cstdint>

#include "engine/loaded_model.h"

namespace tensorfold {

/// What a pass of one row with logits multiplies by: of experts the num_experts_per_tok chosen ones, of the
/// embedding one row; vectors are left out.
struct DecodeTraffic {
  int64_t weight_bytes = 0;  ///< As the backend packs them.
  int64_t num_weights = 0;
};

/// Found by running the model's forward pass over ops that only count, so it is right for every family. The
/// weights need no bytes. Host time and memory of a pass without its arithmetic.
DecodeTraffic decode_traffic(const Model& model, Weights& weights, const Ops& ops);

/// decode_traffic() of a loaded model. Not while an engine runs it.
int64_t decode_weight_bytes(const LoadedModel& model);

/// Bytes of keys and values that attention reads for one row at a context of context_tokens, windows not
/// considered.
int64_t decode_kv_bytes(const LoadedModel& model, int64_t context_tokens);

/// Bytes of recurrent state that one row of a sequence reads and writes.
int64_t decode_state_bytes(const LoadedModel& model);

}  // namespace tensorfold
