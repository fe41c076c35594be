// The definition of every op (arithmetic.md) in scalar fma and one thread: the oracle of the cpu backend, bit
// for bit. Each op is one file of this folder; layouts (packed weights, KV pages) are those of the cpu
// backend.
#pragma once

#include <memory>
#include <span>

#include "ops/ops.h"

namespace tensorfold {

/// Every op flushes denormals for its own duration, so any thread may call. Slow on purpose: no blocking, no
/// SIMD.
class ReferenceOps final : public Ops {
 public:
  /// short_sum_partials: those of the backend whose sums are wanted, 32 for the CPU's, 256 for CUDA's; tests
  /// of CUDA ops that have no other sum take their expectation from here.
  explicit ReferenceOps(int short_sum_partials = 32);

  // pack.cc
  Status check_linear(const LinearSpec& spec) const override;
  int64_t packed_bytes(const LinearSpec& spec) const override;
  void pack(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed) const override;

  const BackendInfo& info() const override { return info_; }
  Device& device() const override { return cpu_device(); }
  int64_t kv_page_bytes(const KvShape& shape) const override;
  void begin_pass(const RowBatch& rows) override;
  Status end_pass() override;

  void embed(View out, const LinearWeight& table, std::span<const int32_t> tokens, float scale) override;
  void rms_norm(View out, View x, View weight, const RmsNormOptions& options) override;
  void gated_rms_norm(const GatedRmsNormCall& call) override;
  void linear(View x, std::span<const LinearCall> calls) override;
  void rope_table(View cos, View sin, std::span<const int32_t> positions, std::span<const double> inv_freq,
                  double multiplier) override;
  void qk_norm_rope(const QkNormRopeCall& call) override;
  void append_kv(const KvPages& pages, View k, View v, const RowBatch& rows) override;
  void attention(const AttentionCall& call) override;
  void causal_conv(const CausalConvCall& call) override;
  void dynamic_conv(const DynamicConvCall& call) override;
  void gated_delta(const GatedDeltaCall& call) override;
  void mamba2(const Mamba2Call& call) override;
  void mlp_activation(View out, View gate, View up, const MlpActivation& activation) override;
  void sigmoid_mul(View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride) override;
  void add_gated(View out, View x, View gate) override;
  void softcap(View x, float limit) override;
  void route(const RouteCall& call) override;
  void experts(const ExpertsCall& call) override;
  void gather_rows(View out, View x, std::span<const int32_t> rows) override;
  void sample(std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows,
              std::span<float> probabilities) override;
  void top_tokens(std::span<int32_t> tokens, std::span<float> values, View logits, int64_t k) override;

 private:
  BackendInfo info_;
  int short_sum_partials_;
};

}  // namespace tensorfold
