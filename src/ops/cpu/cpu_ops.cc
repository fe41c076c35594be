// What the cpu backend is; its ops are the other files of this folder.
#include "ops/cpu/cpu_ops.h"

#include "ops/cpu/append_kv.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/causal_conv.h"
#include "ops/cpu/dynamic_conv.h"
#include "ops/cpu/embed.h"
#include "ops/cpu/experts.h"
#include "ops/cpu/fastest_multiplier.h"
#include "ops/cpu/gated_delta.h"
#include "ops/cpu/gated_rms_norm.h"
#include "ops/cpu/gather_rows.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/mamba2.h"
#include "ops/cpu/mlp_activation.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/qk_norm_rope.h"
#include "ops/cpu/rms_norm.h"
#include "ops/cpu/rope_table.h"
#include "ops/cpu/route.h"
#include "ops/cpu/sample.h"
#include "ops/cpu/softcap.h"
#include "ops/cpu/top_tokens.h"
#include "ops/kv_layout.h"
#include "ops/linear_layout.h"

namespace tensorfold {

CpuOps::CpuOps(CpuIsa isa, CpuIsa many_rows_isa, int num_threads)
    : context_{isa, many_rows_isa, ThreadPool(num_threads), {}} {
  info_.name = "cpu";
  info_.arithmetic_id = "cpu/1";
  info_.isa = cpu_isa_name(isa);
  info_.num_threads = num_threads;
}

Status CpuOps::check_linear(const LinearSpec& spec) const { return check_linear_layout(spec); }

int64_t CpuOps::packed_bytes(const LinearSpec& spec) const { return LinearLayout(spec).packed_bytes(); }

void CpuOps::pack(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed) const {
  cpu::pack(spec, source, packed);
}

int64_t CpuOps::kv_page_bytes(const KvShape& shape) const { return kv_layout_page_bytes(shape); }

// Ops are done when they return, and none of them can fail.
void CpuOps::begin_pass(const RowBatch&) {}
Status CpuOps::end_pass() { return {}; }

void CpuOps::embed(View out, const LinearWeight& table, std::span<const int32_t> tokens, float scale) {
  cpu::embed(context_, out, table, tokens, scale);
}

void CpuOps::rms_norm(View out, View x, View weight, const RmsNormOptions& options) {
  cpu::rms_norm(context_, out, x, weight, options);
}

void CpuOps::linear(View x, std::span<const LinearCall> calls) { cpu::linear(context_, x, calls); }

void CpuOps::rope_table(View cos, View sin, std::span<const int32_t> positions,
                        std::span<const double> inv_freq, double multiplier) {
  cpu::rope_table(context_, cos, sin, positions, inv_freq, multiplier);
}

void CpuOps::qk_norm_rope(const QkNormRopeCall& call) { cpu::qk_norm_rope(context_, call); }

void CpuOps::append_kv(const KvPages& pages, View k, View v, const RowBatch& rows) {
  cpu::append_kv(context_, pages, k, v, rows);
}

void CpuOps::attention(const AttentionCall& call) { cpu::attention(context_, call); }

void CpuOps::gated_rms_norm(const GatedRmsNormCall& call) { cpu::gated_rms_norm(context_, call); }

void CpuOps::causal_conv(const CausalConvCall& call) { cpu::causal_conv(context_, call); }

void CpuOps::dynamic_conv(const DynamicConvCall& call) { cpu::dynamic_conv(context_, call); }

void CpuOps::gated_delta(const GatedDeltaCall& call) { cpu::gated_delta(context_, call); }

void CpuOps::mamba2(const Mamba2Call& call) { cpu::mamba2(context_, call); }

void CpuOps::mlp_activation(View out, View gate, View up, const MlpActivation& activation) {
  cpu::mlp_activation(context_, out, gate, up, activation);
}

void CpuOps::sigmoid_mul(View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride) {
  cpu::sigmoid_mul(context_, out, x, gate, head_dim, gate_head_stride);
}

void CpuOps::add_gated(View out, View x, View gate) { cpu::add_gated(context_, out, x, gate); }

void CpuOps::softcap(View x, float limit) { cpu::softcap(context_, x, limit); }

void CpuOps::route(const RouteCall& call) { cpu::route(context_, call); }

void CpuOps::experts(const ExpertsCall& call) { cpu::experts(context_, call); }

void CpuOps::gather_rows(View out, View x, std::span<const int32_t> rows) {
  cpu::gather_rows(context_, out, x, rows);
}

void CpuOps::sample(std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows,
                    std::span<float> probabilities) {
  TF_DCHECK(probabilities.empty() || probabilities.size() == rows.size());
  cpu::sample(context_, tokens, logits, rows, probabilities);
}

void CpuOps::top_tokens(std::span<int32_t> tokens, std::span<float> values, View logits, int64_t k) {
  cpu::top_tokens(context_, tokens, values, logits, k);
}

Result<std::unique_ptr<Ops>> make_cpu_ops(int num_threads, CpuIsa isa) {
  CpuIsa many_rows_isa = isa;
  if (isa == CpuIsa::kBest) {
    const std::vector<CpuIsa> supported = supported_cpu_isas();
#if defined(__x86_64__)
    if (supported.empty()) {
      return unsupported("the cpu backend needs AVX2 and FMA; this CPU lacks {}",
                         cpu::missing_feature(CpuIsa::kAvx2));
    }
#endif
    isa = supported.front();
    static const CpuIsa fastest = cpu::fastest_multiplier(isa);  // a CPU does not change
    many_rows_isa = fastest;
  }
  if (const std::string_view missing = cpu::missing_feature(isa); !missing.empty()) {
    return unsupported("instruction set {} needs {}, which this CPU lacks", cpu_isa_name(isa), missing);
  }
  if (num_threads == 0) num_threads = num_usable_cpus();
  return std::unique_ptr<Ops>(std::make_unique<CpuOps>(isa, many_rows_isa, num_threads));
}

}  // namespace tensorfold
