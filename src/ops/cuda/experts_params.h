// What a launch of experts() is told: plain data, shared by the host side (experts.cc) and the device side
// (experts*.cu).
//
// Words: a pair is one choice of one row, number row * k + choice. A task is an expert with some of its
// pairs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/contract_math.h"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {

inline constexpr int kMaxExperts = 512;       ///< X.
inline constexpr int kMaxExpertChoices = 32;  ///< k.
inline constexpr int kFewTaskRows = 8;        ///< Pairs of a task of the kernels for few rows: an n-tile.
inline constexpr int kNarrowChunks = 16;      ///< Of a product whose tiles are computed by one warp each.
inline constexpr int kManyTaskRows = 64;      ///< And of those for many.

/// MlpActivation::Kind of ops.h, in its order.
enum class ExpertActivation : uint8_t { kSilu, kGeluTanh, kClampedSilu, kRelu2 };

/// How pairs become tasks.
enum class ExpertTasks : uint8_t {
  kOneRow,   ///< A pair each, and the shared expert: the choices of one row differ.
  kPairs,    ///< A pair each of several rows, unsorted: who chose the same expert reads it again.
  kFewRows,  ///< Up to kFewTaskRows pairs each.
  kManyRows  ///< Up to kManyTaskRows pairs each.
};

/// One projection of all experts: the matrix of expert e begins at data + e * stride_bytes, its bias as far
/// from `bias`.
struct ExpertMatrices {
  const std::byte* data;
  const float* bias;  ///< Null for none.
  int64_t stride_bytes;
  const std::byte* shared;  ///< That of the shared expert, or null.
};

/// A product that all experts share the shape of: [out] = W [out, in].
struct ExpertProduct {
  int in;  ///< A multiple of 8.
  int out;
  int tiles;   ///< Of 16 outputs.
  int chunks;  ///< 64-column chunks of a padded row of weights.
  int chunks_per_segment;
  LinearLayout layout;
};

/// The number of the shared expert, which is behind the last choice of a row.
inline constexpr int kSharedExpertId = -1;

/// `count` pairs of one expert: pairs[first .. first + count) of the sorted ones.
struct ExpertTask {
  int32_t expert;
  int32_t first;
  int32_t count;
};

/// One row: whether weights come as a stream, in one kernel (device/experts_stream.cuh), where that can be.
enum class ExpertStreams : uint8_t { kWhereFaster, kNever, kAlways };

/// What the kernels for few rows may do to be faster; benches turn each off.
struct ExpertVariants {
  bool prefetch_down = true;  ///< One row, no stream: gate and up's blocks ask for down's, into L2.
  ExpertStreams streams = ExpertStreams::kWhereFaster;
  bool narrow_down = true;    ///< A tile a warp where down has few columns.
  bool dense_blocks = false;  ///< Three blocks an SM with less on its way each, instead of two.
};

struct ExpertsLaunch {
  ExpertMatrices gate;  ///< data null where the activation has no gate.
  ExpertMatrices up;
  ExpertMatrices down;
  ExpertProduct into_gate;      ///< Of gate: [I, E].
  ExpertProduct into;           ///< Of up: [I, E].
  ExpertProduct out_of;         ///< Of down: [E, I].
  const std::byte* x;           ///< [T, E] bf16
  const int32_t* expert_ids;    ///< [T, k]
  const float* expert_weights;  ///< [T, k]
  const float* shared_gate;     ///< [T]: the shared expert's output is scaled by its sigmoid; or null.
  void* out;                    ///< [T, E]
  int64_t x_stride;             ///< Elements between rows, as the following.
  int64_t ids_stride;
  int64_t weights_stride;
  int64_t out_stride;
  /// [1] on the device, this launch's own, 0 when it begins: blocks that have come so far. Null: one row's
  /// experts are not computed by one kernel (device/experts_stream.cuh).
  int32_t* arrived_blocks;
  // Scratch.
  int32_t* num_tasks;
  ExpertTask* tasks;
  int32_t* pairs;      ///< [block_rows * k], sorted by expert, then ascending.
  std::byte* product;  ///< [pairs, product_stride] bf16: the activation of gate and up. The shared expert's
                       ///< is behind them.
  float* gate_sums;    ///< [pairs, product_stride]: gate's outputs if it has a launch of its own, else null.
  float* down_sums;    ///< [pairs, down_stride]: each pair's output before its weight.
  int64_t product_stride;
  int64_t down_stride;
  int num_rows;
  int num_choices;  ///< k
  int num_experts;
  int block_rows;  ///< Rows taken at a time: what the scratch is made for.
  int task_rows;   ///< Pairs of a task at most.
  float activation_alpha;
  float activation_limit;
  ExpertActivation activation;
  ExpertTasks kind;
  bool out_is_bf16;
  bool accumulate;
  /// x was complete before the previous kernel's wait returned, and that kernel waits before it lets this one
  /// start: the kernels of this launch may read x before they wait.
  bool x_is_early;
  ExpertVariants variants;
};

/// Outputs that a row is the sum of: its choices, and the shared expert's, which only kOneRow takes.
TF_CONTRACT_FUNCTION bool has_shared(const ExpertsLaunch& p) { return p.up.shared != nullptr; }
TF_CONTRACT_FUNCTION int outputs_of_row(const ExpertsLaunch& p) {
  return p.num_choices + (has_shared(p) ? 1 : 0);
}

/// Whether one kernel multiplies by gate and up. Where their formats differ, each has a launch of its own.
inline bool has_fused_gate(const ExpertsLaunch& p) {
  return p.gate.data != nullptr && p.into_gate.layout == p.into.layout;
}
inline bool has_gate_alone(const ExpertsLaunch& p) { return p.gate.data != nullptr && !has_fused_gate(p); }

/// The most tasks that `pairs` pairs can become. Each is full, or the last of its expert.
constexpr int max_expert_tasks(int64_t pairs, int num_experts, int task_rows) {
  const int64_t last_ones = pairs < num_experts ? pairs : num_experts;
  const int64_t bound = pairs / task_rows + last_ones;
  return static_cast<int>(bound < pairs ? bound : pairs);
}

/// Bytes of 32 columns of x in operand order (device/experts_few.cuh), `rows` rows; the 16 more put
/// neighbouring ones into different banks.
TF_CONTRACT_FUNCTION constexpr int expert_operand_bytes(int rows) { return x_pair_bytes(rows); }

/// Shared memory that the kernels for few rows need for `rows` rows of a product's x.
TF_CONTRACT_FUNCTION constexpr int64_t expert_operand_bytes(const ExpertProduct& product, int rows) {
  return int64_t{2} * product.chunks * expert_operand_bytes(rows);
}

/// Layouts that the kernels for many rows take. The others, affine with f16 or f32 scales, are rare, and
/// those for few rows take any number.
constexpr bool has_experts_many(const LinearLayout& layout) {
  return layout.format != LinearFormat::kAffine || layout.scale_type == ScaleType::kBf16;
}

void launch_experts(CUstream_st* stream, const ExpertsLaunch& launch);

/// The products of one block of rows, by the kernels for few rows (experts_few.cu) and for many
/// (experts_many.cu).
void launch_experts_few(CUstream_st* stream, const ExpertsLaunch& launch);
void launch_experts_many(CUstream_st* stream, const ExpertsLaunch& launch);

}  // namespace tensorfold::cuda
