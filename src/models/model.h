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

struct TokenEnds;  // models/layers.h

/// One run through the model: a ragged batch of rows of any mix of sequences (design.md, "Pass").
struct Pass {
  std::span<const int32_t> tokens;      ///< [T] host; each in [0, vocab_size).
  RowBatch rows;                        ///< Positions and sequences of the T rows.
  std::span<const int32_t> logit_rows;  ///< [R] ascending rows whose logits are wanted.
  /// [D] ascending: the drafted rows of all sequences (SequenceRows::num_drafted). Recurrent layers keep
  /// their inputs for commit().
  std::span<const int32_t> drafted_rows = {};
};

/// The state a pass reads and extends: one entry per attention layer and one per recurrent layer, each in
/// layer order.
struct State {
  std::span<const KvPages> kv_layers;
  std::span<const RecurrentStates> recurrent_layers;
};

/// Residual streams between the layers, for drafters that read them.
struct Taps {
  std::span<const int32_t> layers =
      {};  ///< [n] of the model's, in the order of the columns. Empty: not wanted.
  std::span<const int32_t> rows = {};  ///< [N] ascending rows of the pass, host.
  /// [N, n*E] f32, or the activation dtype (rounded): columns [i*E, (i+1)*E) are what the layers up to
  /// layers[i] have added up to, before any later norm.
  View out = {};

  /// A family calls it after each of its layers; `h` [T, E] f32 is the residual stream.
  void take(Ops& ops, size_t layer, View h) const {
    const int64_t E = h.dim(1);
    for (int64_t i = 0; i < std::ssize(layers); ++i)
      if (layers[i] == static_cast<int64_t>(layer)) ops.gather_rows(out.columns(i * E, E), h, rows);
  }
};

/// What a pass computes, on the device.
struct Outputs {
  View logits;       ///< [R, V] f32: of Pass::logit_rows.
  View hidden = {};  ///< [T, E] f32: of every row, after the final norm, for a draft head. data == nullptr:
                     ///< not wanted.
  Taps taps = {};
};

/// What a layer does to the residual stream: for `info`, and to count states.
enum class MixerKind : uint8_t { kNone, kAttention, kWindowAttention, kGatedDelta, kMamba2 };
enum class MlpKind : uint8_t { kNone, kDense, kExperts };
struct LayerKind {
  MixerKind mixer = MixerKind::kAttention;
  MlpKind mlp = MlpKind::kDense;
  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

/// Of a layer whose rows see `window` keys; 0: all.
constexpr MixerKind attention_kind(int64_t window) {
  return window > 0 ? MixerKind::kWindowAttention : MixerKind::kAttention;
}

/// What the engine must know of a model to hold its state and bound its passes.
struct ModelSpec {
  std::string model_type;  ///< Hugging Face's `model_type`: "llama", "qwen3", ...
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;               ///< Rows of the embedding, padding included.
  int64_t max_position_embeddings = 0;  ///< Longest sequence the model can hold.
  DType activation_dtype = DType::kBF16;
  std::vector<KvShape> kv_layers;                ///< One per attention layer.
  std::vector<RecurrentShape> recurrent_layers;  ///< One per recurrent layer.
  std::vector<LayerKind> layers;                 ///< One per layer.
};

/// A head of the model's own that predicts one token further ("multi-token prediction"): row i combines the
/// hidden state of position p with the token at p + 1 and gives logits for position p + 2. It has a KV cache
/// of its own, whose entry for the row is p. Thread-safe as the model is.
class DraftHead {
 public:
  virtual ~DraftHead() = default;
  virtual std::span<const KvShape> kv_layers() const = 0;
  virtual int64_t scratch_bytes(int64_t num_rows) const = 0;

  /// pass.tokens are those at p + 1, pass.rows the positions p; `hidden` [T, E] f32 is Outputs::hidden of the
  /// model, or of this head for a chained draft, in which case p is that of the head's own last row plus one.
  virtual void forward(const Pass& pass, View hidden, Ops& ops, Weights& weights, const State& state,
                       Arena& scratch, const Outputs& outputs) const = 0;
};

/// An immutable loaded architecture. Thread-safe; its weights are leased from Weights.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelSpec& spec() const = 0;

  /// Scratch that forward() takes from its arena for up to num_rows rows.
  virtual int64_t scratch_bytes(int64_t num_rows) const = 0;

  /// Computes the rows of `pass`, extends `state` by them and writes `outputs`, on the device of `ops`. Does
  /// not wait for the device (Ops::end_pass does). What a row's bits depend on: arithmetic.md.
  virtual void forward(const Pass& pass, Ops& ops, Weights& weights, const State& state, Arena& scratch,
                       const Outputs& outputs) const = 0;

  /// Takes drafted rows of the last forward() into the recurrent states, with the bits that they would have
  /// had undrafted. Row i of `accepted` is that pass's drafted_rows[i]; a sequence has the first drafted rows
  /// of one of its entries there, as many as were accepted, and rows between belong to nobody. `scratch` as
  /// for forward(). In a pass of its own (Ops::begin_pass). Models without recurrent layers have nothing to
  /// do: their keys and values are written.
  virtual void commit(const RowBatch& accepted, Ops& ops, Weights& weights, const State& state,
                      Arena& scratch) const {
    static_cast<void>(accepted), static_cast<void>(ops), static_cast<void>(weights);
    static_cast<void>(state), static_cast<void>(scratch);
  }

  /// Embedding and head, for drafters that have none of their own; they are leased outside the layers of this
  /// model's weights. Null: not to be had.
  virtual const TokenEnds* token_ends() const { return nullptr; }

  /// The head that came with the checkpoint, or null.
  virtual const DraftHead* draft_head() const { return nullptr; }
};

}  // namespace tensorfold
