// Counts weight bytes with ops that compute nothing (engine/weight_traffic.h).
#include "engine/weight_traffic.h"

#include <vector>

#include "base/arena.h"
#include "engine/kv_pages.h"
#include "engine/state_slots.h"

namespace tensorfold {
namespace {

/// Adds up the weights it is given. Its outputs are never written: only shapes matter here.
class CountingOps final : public Ops {
 public:
  explicit CountingOps(const Ops& real) : real_(real) {}
  const DecodeTraffic& traffic() const { return traffic_; }

  const BackendInfo& info() const override { return real_.info(); }
  Device& device() const override { return real_.device(); }
  int64_t kv_page_bytes(const KvShape& shape) const override { return real_.kv_page_bytes(shape); }
  Status check_linear(const LinearSpec& spec) const override { return real_.check_linear(spec); }
  int64_t packed_bytes(const LinearSpec& spec) const override { return real_.packed_bytes(spec); }
  void pack(const LinearSpec&, const LinearSource&, std::span<std::byte>) const override {}

  void begin_pass(const RowBatch&) override {}
  Status end_pass() override { return {}; }

  void embed(View, const LinearWeight& table, std::span<const int32_t> tokens, float) override {
    count(table.spec, std::ssize(tokens), table.spec.out);
  }
  void linear(View, std::span<const LinearCall> calls) override {
    for (const LinearCall& call : calls) count(call.weight.spec, 1, 1);
  }
  void experts(const ExpertsCall& call) override {
    const ExpertsWeight& w = call.weights;
    const int64_t k = call.expert_ids.dim(1);  // one row: the chosen experts are distinct
    if (!w.gate_proj.empty()) count(w.gate_proj[0].spec, k, 1);
    count(w.up_proj[0].spec, k, 1);
    count(w.down_proj[0].spec, k, 1);
  }

  void rms_norm(View, View, View, const RmsNormOptions&) override {}
  void rope_table(View, View, std::span<const int32_t>, std::span<const double>, double) override {}
  void qk_norm_rope(const QkNormRopeCall&) override {}
  void append_kv(const KvPages&, View, View, const RowBatch&) override {}
  void attention(const AttentionCall&) override {}
  void gated_rms_norm(const GatedRmsNormCall&) override {}
  void causal_conv(const CausalConvCall&) override {}
  void dynamic_conv(const DynamicConvCall&) override {}
  void gated_delta(const GatedDeltaCall&) override {}
  void mamba2(const Mamba2Call&) override {}
  void mlp_activation(View, View, View, const MlpActivation&) override {}
  void sigmoid_mul(View, View, View, int64_t, int64_t) override {}
  void add_gated(View, View, View) override {}
  void softcap(View, float) override {}
  void route(const RouteCall&) override {}
  void gather_rows(View, View, std::span<const int32_t>) override {}
  void sample(std::span<int32_t>, View, std::span<const SampleRow>, std::span<float>) override {}
  void top_tokens(std::span<int32_t>, std::span<float>, View, int64_t) override {}

 private:
  /// `numerator / denominator` of a matrix.
  void count(const LinearSpec& spec, int64_t numerator, int64_t denominator) {
    traffic_.weight_bytes += packed_bytes(spec) / denominator * numerator;
    traffic_.num_weights += spec.out * spec.in / denominator * numerator;
  }

  const Ops& real_;
  DecodeTraffic traffic_;
};

}  // namespace

DecodeTraffic decode_traffic(const Model& model, Weights& weights, const Ops& ops) {
  const ModelSpec& spec = model.spec();
  const int32_t token = 0, position = 0, row = 0, page = 0;
  const SequenceRows sequence{
      .first_row = 0, .num_rows = 1, .first_pos = 0, .page_table = &page, .state_slot = 0};
  const Pass pass{.tokens = {&token, 1},
                  .rows = {.positions = {&position, 1}, .sequences = {&sequence, 1}},
                  .logit_rows = {&row, 1}};
  std::vector<KvPages> layers;
  for (const KvShape& shape : spec.kv_layers) {
    layers.push_back({.shape = shape, .k = nullptr, .v = nullptr, .page_stride_bytes = 0, .num_pages = 1});
  }
  std::vector<RecurrentStates> recurrent;
  for (const RecurrentShape& shape : spec.recurrent_layers)
    recurrent.push_back({.shape = shape, .num_slots = 1});
  CountingOps counting(ops);
  Arena measuring(nullptr, 0);
  model.forward(pass, counting, weights, {.kv_layers = layers, .recurrent_layers = recurrent}, measuring,
                {.logits = View(nullptr, DType::kF32, {1, spec.vocab_size})});
  return counting.traffic();
}

int64_t decode_weight_bytes(const LoadedModel& model) {
  return decode_traffic(*model.model, *model.weights, *model.ops).weight_bytes;
}

int64_t decode_kv_bytes(const LoadedModel& model, int64_t context_tokens) {
  return kv_page_set_bytes(*model.ops, model.model->spec().kv_layers) * context_tokens / kPageTokens;
}

int64_t decode_state_bytes(const LoadedModel& model) {
  return 2 * state_slot_bytes(model.model->spec().recurrent_layers);
}

}  // namespace tensorfold
