// experts() of the cpu backend. Rows are sorted by expert, so that each expert's weights are read once for
// all its rows; then one dispatch computes every gate and up, one every down, and each row adds its experts
// up in the router's order.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/experts.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/experts.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// Sum over j ascending of weights[j] * down[slots[j]][e], from +0 by fused multiply-adds, handed with its e
/// to `finish`, a vector or a scalar at a time.
template <class Finish>
HWY_INLINE void combine(const CombineRow& row, const Finish& finish) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t e = 0;
  for (; e + lanes <= row.hidden_size; e += lanes) {
    auto y = hn::Zero(d);
    for (int64_t j = 0; j < row.num_experts; ++j) {
      y = hn::MulAdd(hn::Set(d, row.weights[j]), hn::LoadU(d, row.down + row.slots[j] * row.hidden_size + e),
                     y);
    }
    finish.vector(d, y, e);
  }
  for (; e < row.hidden_size; ++e) {
    float y = 0.0f;
    for (int64_t j = 0; j < row.num_experts; ++j)
      y = contract::fused(row.weights[j], row.down[row.slots[j] * row.hidden_size + e], y);
    finish.scalar(y, e);
  }
}

struct AddTo {
  float* out;
  template <class D, class V>
  HWY_INLINE void vector(D d, V y, int64_t e) const {
    hn::StoreU(hn::Add(hn::LoadU(d, out + e), y), d, out + e);
  }
  HWY_INLINE void scalar(float y, int64_t e) const { out[e] += y; }
};
template <class Out>
struct StoreTo {
  Out* out;
  template <class D, class V>
  HWY_INLINE void vector(D d, V y, int64_t e) const {
    store_as(d, y, out + e);
  }
  HWY_INLINE void scalar(float y, int64_t e) const { store_one(y, out + e); }
};

void add_combined(float* out, const CombineRow& row) { combine(row, AddTo{out}); }
void store_combined_f32(float* out, const CombineRow& row) { combine(row, StoreTo<float>{out}); }
void store_combined_bf16(bf16* out, const CombineRow& row) { combine(row, StoreTo<bf16>{out}); }

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/mlp_activation.h"
#include "ops/cpu/split.h"

namespace tensorfold::cpu {
namespace {

/// Pairs (row, expert) computed at a time: bounds the workspace at about 8 KB * hidden_size.
constexpr int64_t kMaxSlots = 2048;

/// The pairs of some rows in order of their expert: slot s of the sorted order.
struct Slots {
  int64_t count = 0;
  int64_t* first_slot = nullptr;  ///< [num_experts + 1]
  int64_t* slot_of = nullptr;     ///< [rows * k] slot of pair (t, j).
};

Slots sort_by_expert(Workspace& workspace, const View& expert_ids, int64_t num_experts) {
  const int64_t k = expert_ids.dim(1);
  Slots slots{.count = expert_ids.num_rows() * k};
  slots.first_slot = workspace.take<int64_t>(num_experts + 1);
  slots.slot_of = workspace.take<int64_t>(slots.count);
  auto* next = workspace.take<int64_t>(num_experts + 1);
  std::fill_n(next, num_experts + 1, 0);
  const auto expert = [&](int64_t pair) { return expert_ids.row<const int32_t>(pair / k)[pair % k]; };
  for (int64_t pair = 0; pair < slots.count; ++pair) ++next[expert(pair) + 1];
  for (int64_t e = 0; e < num_experts; ++e) next[e + 1] += next[e];
  std::copy_n(next, num_experts + 1, slots.first_slot);
  for (int64_t pair = 0; pair < slots.count; ++pair) slots.slot_of[pair] = next[expert(pair)]++;
  return slots;
}

/// x in the order of slots. A single row is every slot's, and stays where it is.
View gather_slots(CpuContext& cpu, const View& x, const Slots& slots, int64_t k) {
  if (x.num_rows() == 1) return x;
  const int64_t row_bytes = x.dim(1) * dtype_bytes(x.dtype);
  const View gathered(cpu.workspace.take<std::byte>(slots.count * row_bytes), x.dtype,
                      {slots.count, x.dim(1)});
  for_row_blocks(cpu.pool, slots.count, x.dim(1), [&](int64_t pair) {
    std::memcpy(gathered.data + slots.slot_of[pair] * row_bytes,
                x.data + pair / k * x.row_stride * dtype_bytes(x.dtype), static_cast<size_t>(row_bytes));
  });
  return gathered;
}

/// Adds a job for each expert that has rows: rows of `out` are slots; so are those of x, unless it is a
/// single row.
class ExpertJobs {
 public:
  ExpertJobs(Workspace& workspace, const Slots& slots, int64_t num_experts, int64_t max_jobs,
             bool x_is_one_row)
      : jobs_(workspace.take<LinearJob>(max_jobs)),
        slots_(slots),
        num_experts_(num_experts),
        x_is_one_row_(x_is_one_row) {}

  void add(const View& out, std::span<const LinearWeight> weights) {
    for (int64_t e = 0; e < num_experts_; ++e) {
      const int64_t first = slots_.first_slot[e], rows = slots_.first_slot[e + 1] - first;
      if (rows == 0) continue;
      const LinearCall call{.out = out.rows(first, rows), .weight = weights[static_cast<size_t>(e)]};
      std::construct_at(jobs_ + size_++, LinearJob{call, x_is_one_row_ ? 0 : first});
    }
  }
  std::span<const LinearJob> jobs() const { return {jobs_, static_cast<size_t>(size_)}; }

 private:
  LinearJob* jobs_;
  const Slots& slots_;
  int64_t num_experts_;
  bool x_is_one_row_;
  int64_t size_ = 0;
};

void combine(CpuContext& cpu, const ExpertsCall& call, const Slots& slots, const float* down) {
  const auto add = TF_ISA_FUNCTION(cpu.isa, add_combined);
  const auto store_f32 = TF_ISA_FUNCTION(cpu.isa, store_combined_f32);
  const auto store_bf16 = TF_ISA_FUNCTION(cpu.isa, store_combined_bf16);
  const int64_t k = call.expert_ids.dim(1), hidden_size = call.out.dim(1);
  for_row_blocks(cpu.pool, call.out.num_rows(), k * hidden_size, [&](int64_t t) {
    const CombineRow row{down, slots.slot_of + t * k, call.expert_weights.row<const float>(t), k,
                         hidden_size};
    if (call.accumulate) return add(call.out.row<float>(t), row);
    if (call.out.dtype == DType::kF32) return store_f32(call.out.row<float>(t), row);
    store_bf16(call.out.row<bf16>(t), row);
  });
}

void experts_block(CpuContext& cpu, const ExpertsCall& call) {
  const Workspace::Frame frame(cpu.workspace);
  Workspace& workspace = cpu.workspace;
  const ExpertsWeight& weights = call.weights;
  const int64_t k = call.expert_ids.dim(1), num_experts = weights.num_experts;
  const int64_t intermediate_size = weights.up_proj[0].spec.out, hidden_size = call.out.dim(1);
  const Slots slots = sort_by_expert(workspace, call.expert_ids, num_experts);
  const auto array = [&](DType dtype, int64_t columns) {
    return View(workspace.take<std::byte>(slots.count * columns * dtype_bytes(dtype)), dtype,
                {slots.count, columns});
  };
  const View x = gather_slots(cpu, call.x, slots, k);
  const View gate = array(DType::kF32, call.activation.has_gate() ? intermediate_size : 0);
  const View up = array(DType::kF32, intermediate_size);
  const View product = array(call.x.dtype, intermediate_size), down = array(DType::kF32, hidden_size);
  const int64_t max_jobs = std::min(num_experts, slots.count);

  ExpertJobs first(workspace, slots, num_experts, 2 * max_jobs, x.num_rows() == 1);
  if (call.activation.has_gate()) first.add(gate, weights.gate_proj);
  first.add(up, weights.up_proj);
  linear_jobs(cpu, x, first.jobs());
  mlp_activation(cpu, product, gate, up, call.activation);
  ExpertJobs second(workspace, slots, num_experts, max_jobs, false);
  second.add(down, weights.down_proj);
  linear_jobs(cpu, product, second.jobs());
  combine(cpu, call, slots, reinterpret_cast<const float*>(down.data));
}

}  // namespace

void experts(CpuContext& cpu, const ExpertsCall& call) {
  TF_DCHECK(call.shared.up_proj.data == nullptr);
  const int64_t block = std::max<int64_t>(1, kMaxSlots / call.expert_ids.dim(1));
  for (int64_t row = 0; row < call.x.num_rows(); row += block) {
    const int64_t rows = std::min(block, call.x.num_rows() - row);
    ExpertsCall part = call;
    part.out = call.out.rows(row, rows);
    part.x = call.x.rows(row, rows);
    part.expert_ids = call.expert_ids.rows(row, rows);
    part.expert_weights = call.expert_weights.rows(row, rows);
    experts_block(cpu, part);
  }
}

}  // namespace tensorfold::cpu
#endif
