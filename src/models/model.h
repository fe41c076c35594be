// What the engine and a model family agree on: the pass, the state it reads and writes, and the forward
// function. A family implements Model in one file; the engine owns and fills Pass and State.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/view.h"
#include "memory/weights.h"
#include "ops/ops.h"

namespace tensorfold {

/// One run through the model: a ragged batch of rows of any mix of sequences (design.md, "Pass").
struct Pass {
  std::span<const int32_t> tokens;      ///< [T] host; each in [0, vocab_size).
  RowBatch rows;                        ///< Positions and sequences of the T rows.
  std::span<const int32_t> logit_rows;  ///< [R] ascending rows whose logits are wanted.
};

/// The state a pass reads and extends, one entry per attention layer in layer order.
struct State {
  std::span<const KvPages> kv_layers;
};

/// What the engine must know of a model to hold its state and bound its passes.
struct ModelSpec {
  std::string model_type;  ///< Hugging Face's `model_type`: "llama", "qwen3", ...
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;               ///< Rows of the embedding, padding included.
  int64_t max_position_embeddings = 0;  ///< Longest sequence the model can hold.
  DType activation_dtype = DType::kBF16;
  std::vector<KvShape> kv_layers;  ///< One per attention layer.
};

/// An immutable loaded architecture. Thread-safe; its weights are leased from Weights.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelSpec& spec() const = 0;

  /// Scratch that forward() takes from its arena for up to num_rows rows.
  virtual int64_t scratch_bytes(int64_t num_rows) const = 0;

  /// Computes the rows of `pass`, extends `state` by them and writes logits [R, V] f32 for pass.logit_rows,
  /// on the device of `ops`. Does not wait for the device (Ops::end_pass does). What a row's bits depend on:
  /// arithmetic.md.
  virtual void forward(const Pass& pass, Ops& ops, Weights& weights, const State& state, Arena& scratch,
                       View logits) const = 0;
};

}  // namespace tensorfold
