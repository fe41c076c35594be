// The cpu backend: which function of which file does each op. The instruction set belongs to the instance, so
// that one process can compare several.
//
// To add an op `foo` to this backend:
//   1. foo.h declares `namespace tensorfold::cpu { void foo(CpuContext& cpu, ...the op's parameters...); }`.
//   2. foo.cc defines the kernel once and is compiled for every instruction set:
//
//        #include "ops/cpu/isa_targets.h"        // before hwy
//        #undef HWY_TARGET_INCLUDE
//        #define HWY_TARGET_INCLUDE "ops/cpu/foo.cc"
//        #include "hwy/foreach_target.h"
//        #include "hwy/highway.h"
//        #include "ops/cpu/foo.h"
//
//        HWY_BEFORE_NAMESPACE();
//        namespace tensorfold::cpu {
//        namespace HWY_NAMESPACE {
//        namespace hn = hwy::HWY_NAMESPACE;
//        void foo_row(float* out, const float* x, int64_t n) { ... }   // kernel: raw pointers, no dispatch
//        }  // namespace HWY_NAMESPACE
//        }  // namespace tensorfold::cpu
//        HWY_AFTER_NAMESPACE();
//
//        #if HWY_ONCE
//        namespace tensorfold::cpu {
//        void foo(CpuContext& cpu, View out, View x) {                 // launcher: splits rows over threads
//          const auto row = TF_ISA_FUNCTION(cpu.isa, foo_row);
//          cpu.pool.run(x.num_rows(), [&](int64_t t) { row(...); });
//        }
//        }  // namespace tensorfold::cpu
//        #endif
//
//   3. CpuOps::foo in cpu_ops.cc calls cpu::foo(context_, ...); foo.cc goes into src/ops/CMakeLists.txt.
//
// Lanes never run over a sum's terms except as arithmetic.md says; no horizontal reductions of Highway's own.
#pragma once

#include <memory>
#include <span>

#include "ops/cpu/cpu_context.h"
#include "ops/ops.h"

namespace tensorfold {

/// Owned by its user; one thread at a time calls the ops, which use the instance's own team of threads.
class CpuOps final : public Ops {
 public:
  /// Both sets must be of supported_cpu_isas() (CpuContext says what they are for); num_threads >= 1.
  CpuOps(CpuIsa isa, CpuIsa many_rows_isa, int num_threads);

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
  cpu::CpuContext context_;
};

}  // namespace tensorfold
