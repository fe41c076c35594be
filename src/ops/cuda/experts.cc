// The host side of experts() on CUDA: from views to a launch and its scratch (see ops/cuda/experts.h).
#include "ops/cuda/experts.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/status.h"
#include "ops/cuda/linear.h"

namespace tensorfold::cuda {
namespace {

/// Pairs taken at a time: bounds the scratch at 16,384 * (4 * hidden_size + 2 * intermediate_size) bytes, and
/// 4 * intermediate_size more where gate and up have different formats.
constexpr int64_t kMaxPairs = 16384;
/// Of the kernels for few rows: two blocks of 8 warps an SM need half of its 227 KB each.
constexpr int64_t kMaxOperandBytes = int64_t{200} << 10;

/// Pairs that an expert has on average up to which the kernels for few rows are faster, though they read its
/// weights twice then: measured faster at 8 and 12, slower at 32.
constexpr int64_t kFewPairsOfExpert = 12;
/// Experts there are to a pair from which on pairs are not sorted: of equally likely experts, one pair in
/// sixteen reads what another has read.
constexpr int64_t kExpertsToUnsortedPair = 8;

using Kind = MlpActivation::Kind;
static_assert(static_cast<int>(ExpertActivation::kSilu) == static_cast<int>(Kind::kSilu) &&
                  static_cast<int>(ExpertActivation::kGeluTanh) == static_cast<int>(Kind::kGeluTanh) &&
                  static_cast<int>(ExpertActivation::kClampedSilu) == static_cast<int>(Kind::kClampedSilu) &&
                  static_cast<int>(ExpertActivation::kRelu2) == static_cast<int>(Kind::kRelu2),
              "both kinds are one list, so that a cast translates them");

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

ExpertProduct product_of(const LinearSpec& spec) {
  const LinearLayout layout = layout_of(spec);
  const LinearChunks chunks = linear_chunks(layout, spec.in);
  ExpertProduct product{};
  product.in = static_cast<int>(spec.in);
  product.out = static_cast<int>(spec.out);
  product.tiles = static_cast<int>((spec.out + kLinearTileRows - 1) / kLinearTileRows);
  product.chunks = chunks.total;
  product.chunks_per_segment = chunks.per_segment;
  product.layout = layout;
  return product;
}

/// Whether matrix `e` lies where the first one and the stride say.
bool is_in_place(std::span<const LinearWeight> weights, int64_t stride, int64_t e) {
  const LinearWeight &first = weights[0], &w = weights[e];
  const bool bias_fits = first.bias == nullptr
                             ? w.bias == nullptr
                             : reinterpret_cast<const std::byte*>(w.bias) ==
                                   reinterpret_cast<const std::byte*>(first.bias) + e * stride;
  return w.data == first.data + e * stride && bias_fits && w.spec == first.spec;
}

/// The first and the last matrix speak for those between: a layer's are placed one after the other.
ExpertMatrices matrices_of(std::span<const LinearWeight> weights) {
  ExpertMatrices matrices{};
  if (weights.empty()) return matrices;
  matrices.data = weights[0].data;
  matrices.bias = weights[0].bias;
  matrices.stride_bytes = weights.size() > 1 ? weights[1].data - weights[0].data : 0;
  TF_CHECK(is_in_place(weights, matrices.stride_bytes, std::ssize(weights) - 1),
           "experts on CUDA: not in a row");
  for (int64_t e = 0; e < std::ssize(weights); ++e) TF_DCHECK(is_in_place(weights, matrices.stride_bytes, e));
  return matrices;
}

/// How a call is cut up: fills kind, block_rows and task_rows of `launch`, whose sizes are there.
void choose_tasks(ExpertsLaunch& launch, ExpertsKernel kernel) {
  launch.block_rows =
      static_cast<int>(std::clamp<int64_t>(kMaxPairs / launch.num_choices, 1, std::max(1, launch.num_rows)));
  const bool has_gate = launch.gate.data != nullptr;
  const auto fits = [&](int rows, int down_rows) {
    const int64_t bytes = std::max({expert_operand_bytes(launch.into, rows),
                                    has_gate ? expert_operand_bytes(launch.into_gate, rows) : 0,
                                    expert_operand_bytes(launch.out_of, down_rows)});
    return bytes <= kMaxOperandBytes;
  };
  const int64_t pairs = int64_t{launch.block_rows} * launch.num_choices;
  if (launch.num_rows == 1 && kernel != ExpertsKernel::kManyRows && fits(1, outputs_of_row(launch))) {
    launch.kind = ExpertTasks::kOneRow;
    launch.task_rows = 1;
    return;
  }
  const bool is_unsorted =
      kernel == ExpertsKernel::kPairs ||
      (kernel == ExpertsKernel::kAuto && pairs * kExpertsToUnsortedPair <= launch.num_experts);
  if (is_unsorted) {
    launch.kind = ExpertTasks::kPairs;
    launch.task_rows = 1;
    return;
  }
  const bool is_many = kernel == ExpertsKernel::kAuto ? pairs > kFewPairsOfExpert * launch.num_experts
                                                      : kernel == ExpertsKernel::kManyRows;
  if (is_many && has_experts_many(launch.into.layout) && has_experts_many(launch.out_of.layout) &&
      (!has_gate || has_experts_many(launch.into_gate.layout))) {
    launch.kind = ExpertTasks::kManyRows;
    launch.task_rows = kManyTaskRows;
    return;
  }
  launch.kind = ExpertTasks::kFewRows;
  launch.task_rows = kFewTaskRows;
  while (launch.task_rows > 1 && !fits(launch.task_rows, launch.task_rows)) launch.task_rows /= 2;
}

ExpertsSpec spec_of(const ExpertsCall& call) {
  const auto spec_at = [](std::span<const LinearWeight> projection) {
    return projection.empty() ? LinearSpec() : projection[0].spec;
  };
  return {.num_experts = call.weights.num_experts,
          .num_experts_per_tok = call.expert_ids.dim(1),
          .gate_proj = spec_at(call.weights.gate_proj),
          .up_proj = spec_at(call.weights.up_proj),
          .down_proj = spec_at(call.weights.down_proj)};
}

/// The launch without its scratch.
ExpertsLaunch launch_without_scratch(const ExpertsCall& call, ExpertsKernel kernel) {
  const ExpertsWeight& weights = call.weights;
  TF_CHECK(check_experts(spec_of(call)).ok(), "experts on CUDA: an unchecked call");
  TF_CHECK(call.x.dtype == DType::kBF16 && call.x.row_stride % 8 == 0 &&
               reinterpret_cast<uintptr_t>(call.x.data) % 16 == 0,
           "experts on CUDA: x in bf16, rows aligned to 16 bytes");
  TF_CHECK(weights.gate_proj.empty() != call.activation.has_gate());
  TF_CHECK(!call.accumulate || call.out.dtype == DType::kF32);
  ExpertsLaunch launch{};
  launch.gate = matrices_of(weights.gate_proj);
  launch.up = matrices_of(weights.up_proj);
  launch.down = matrices_of(weights.down_proj);
  if (!weights.gate_proj.empty()) launch.into_gate = product_of(weights.gate_proj[0].spec);
  launch.into = product_of(weights.up_proj[0].spec);
  launch.out_of = product_of(weights.down_proj[0].spec);
  const SharedExpert& shared = call.shared;
  launch.gate.shared = shared.gate_proj.data;
  launch.up.shared = shared.up_proj.data;
  launch.down.shared = shared.down_proj.data;
  launch.shared_gate = shared.gate.data == nullptr ? nullptr : shared.gate.row<const float>(0);
  launch.x = call.x.data;
  launch.x_stride = call.x.row_stride;
  launch.expert_ids = call.expert_ids.row<const int32_t>(0);
  launch.ids_stride = call.expert_ids.row_stride;
  launch.expert_weights = call.expert_weights.row<const float>(0);
  launch.weights_stride = call.expert_weights.row_stride;
  launch.out = call.out.data;
  launch.out_stride = call.out.row_stride;
  launch.out_is_bf16 = call.out.dtype == DType::kBF16;
  launch.accumulate = call.accumulate;
  launch.num_rows = static_cast<int>(call.x.num_rows());
  launch.num_choices = static_cast<int>(call.expert_ids.dim(1));
  launch.num_experts = static_cast<int>(weights.num_experts);
  launch.activation = static_cast<ExpertActivation>(call.activation.kind);
  launch.activation_alpha = call.activation.alpha;
  launch.activation_limit = call.activation.limit;
  launch.product_stride = round_up(launch.into.out, 8);
  launch.down_stride = round_up(launch.out_of.out, 4);
  choose_tasks(launch, kernel);
  TF_CHECK(!has_shared(launch) || launch.kind == ExpertTasks::kOneRow,
           "experts on CUDA: an unchecked shared expert");
  return launch;
}

/// Gives the launch its parts of the scratch, which begins at null to learn its size: the bytes taken.
int64_t place_scratch(ExpertsLaunch& launch, std::byte* scratch) {
  const int64_t pairs = int64_t{launch.block_rows} * outputs_of_row(launch);
  int64_t taken = 0;
  const auto take = [&]<class T>(T*& part, int64_t bytes) {
    part = reinterpret_cast<T*>(scratch == nullptr ? nullptr : scratch + taken);
    taken += round_up(bytes, 256);
  };
  take(launch.product, pairs * launch.product_stride * 2);
  if (has_gate_alone(launch)) take(launch.gate_sums, pairs * launch.product_stride * 4);
  if (launch.kind == ExpertTasks::kOneRow) return taken;
  take(launch.down_sums, pairs * launch.down_stride * 4);
  if (launch.kind == ExpertTasks::kPairs) return taken;
  take(launch.num_tasks, 4);
  take(launch.tasks,
       max_expert_tasks(pairs, launch.num_experts, launch.task_rows) * int64_t{sizeof(ExpertTask)});
  take(launch.pairs, pairs * 4);
  return taken;
}

}  // namespace

Status check_experts(const ExpertsSpec& spec) {
  if (spec.num_experts > kMaxExperts || spec.num_experts_per_tok > kMaxExpertChoices)
    return unsupported(
        "{} experts, {} a token: CUDA takes up to {}, {} a token; the CPU any number (--device cpu)",
        spec.num_experts, spec.num_experts_per_tok, kMaxExperts, kMaxExpertChoices);
  for (const LinearSpec& projection : {spec.gate_proj, spec.up_proj, spec.down_proj}) {
    if (projection.out == 0) continue;
    if (expert_operand_bytes(product_of(projection), 1) > kMaxOperandBytes)
      return unsupported("experts of {}: CUDA takes up to {} columns; the CPU any number (--device cpu)",
                         to_string(projection),
                         kMaxOperandBytes / expert_operand_bytes(1) / 2 * kLinearChunkColumns);
  }
  return {};
}

bool takes_shared_expert(const ExpertsCall& call, ExpertsKernel kernel) {
  const ExpertsSpec spec = spec_of(call);
  const SharedExpert& shared = call.shared;
  const auto is_like = [](const LinearWeight& w, std::span<const LinearWeight> projection) {
    if (projection.empty()) return w.data == nullptr;
    return w.data != nullptr && w.spec == projection[0].spec && w.bias == nullptr &&
           projection[0].bias == nullptr;
  };
  if (call.x.num_rows() != 1 || kernel == ExpertsKernel::kManyRows || !call.accumulate ||
      spec.num_experts_per_tok >= kMaxExpertChoices || !is_like(shared.gate_proj, call.weights.gate_proj) ||
      !is_like(shared.up_proj, call.weights.up_proj) || !is_like(shared.down_proj, call.weights.down_proj))
    return false;
  return expert_operand_bytes(product_of(spec.down_proj), static_cast<int>(spec.num_experts_per_tok) + 1) <=
         kMaxOperandBytes;
}

int64_t experts_scratch_bytes(const ExpertsCall& call, ExpertsKernel kernel) {
  ExpertsLaunch launch = launch_without_scratch(call, kernel);
  return place_scratch(launch, nullptr);
}

ExpertsLaunch experts_launch(const ExpertsCall& call, std::byte* scratch, ExpertsKernel kernel) {
  ExpertsLaunch launch = launch_without_scratch(call, kernel);
  place_scratch(launch, scratch);
  return launch;
}

}  // namespace tensorfold::cuda
