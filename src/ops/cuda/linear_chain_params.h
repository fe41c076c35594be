// What a launch of linear_chain() is told: plain data, shared by host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/elementwise_params.h"
#include "ops/cuda/linear_params.h"
#include "ops/cuda/linear_plan.h"

namespace tensorfold::cuda {

inline constexpr int kMaxChainSteps = 8;
inline constexpr int kMaxChainCalls = 24;  ///< Matrices of all steps.
inline constexpr int kMaxChainRows = 16;
/// Columns, filled up to whole chunks, of rows that a step norms itself: it keeps them in registers.
inline constexpr int kMaxChainNormColumns = 6144;

/// The rms_norm() whose result is a step's x: each block computes it for itself.
struct ChainNorm {
  const float* x;                ///< [num_rows, in]; null: there is no norm, and ChainStep::x is read.
  const float* weight;           ///< [in]
  uint16_t* out;                 ///< bf16 [num_rows, in], written for later launches.
  int64_t x_stride, out_stride;  ///< Elements.
  float reciprocal;              ///< 1 / in.
  float eps;
};

/// The mlp_activation() of a step's own outputs: of its only matrix, or with a gate, of its two.
struct ChainActivation {
  uint16_t* out;       ///< bf16 [num_rows, out_size]; null: there is none.
  int64_t out_stride;  ///< Elements.
  Activation kind;
  float alpha, limit;  ///< Of kClampedSilu.
  int32_t unused = 0;  ///< In place of padding: see LinearDeviceCall.
};
static_assert(sizeof(ChainNorm) == 48 && sizeof(ChainActivation) == 32);

/// Some matrices of a layout times one x.
struct ChainStep {
  const std::byte* x;  ///< bf16 [num_rows, in], unless a norm makes it.
  int64_t x_stride;    ///< Elements.
  ChainNorm norm;
  ChainActivation activation;
  int first_call, num_calls;  ///< Of the chain's; their first_tile counts from the step's first tile.
  int num_tiles;
  /// Tiles that one warp computes one after the other: 2 where an activation has a gate. Then tile 2 i is the
  /// gate's tile i and tile 2 i + 1 that of `up`, the second matrix.
  int deal;
  int in, chunks, chunks_per_segment;  ///< As in LinearLaunch.
  int unused = 0;                      ///< In place of padding.
};
static_assert(sizeof(ChainStep) == 16 + sizeof(ChainNorm) + sizeof(ChainActivation) + 8 * 4);

/// What changes no bit: the benchmark compares, callers leave the default.
struct ChainTuning {
  uint8_t cluster = 0;  ///< Blocks to a tile: 1, 2 or 4; 0: as the chain suggests.
  /// Depends on the previous kernel as every launch does, or is a cooperative launch as well, or that alone.
  enum class Start : uint8_t { kDependent, kBoth, kCooperative } start = Start::kDependent;
};

/// Products one after the other as one launch: a step begins when all outputs of the one before are stored.
struct LinearChain {
  LinearDeviceCall calls[kMaxChainCalls];
  ChainStep steps[kMaxChainSteps];
  uint32_t* barrier;  ///< On the device, 0 at first; launches that use it must not overlap.
  int num_steps;
  int num_rows;  ///< At most kMaxChainRows.
  LinearLayout layout;
  ChainTuning tuning;
  uint8_t unused[2] = {};
};
static_assert(sizeof(LinearChain) == sizeof(LinearChain::calls) + sizeof(LinearChain::steps) + 24,
              "no padding: GCC 12 would clear other bytes than that behind long arrays");
static_assert(sizeof(LinearChain) < 3800, "with its plan it must fit in 4 KB of kernel parameters");

/// How a chain is cut into blocks.
struct ChainPlan {
  DecodePlan block;
  int stage_units[kMaxChainSteps];
  /// The slot that has a step's first deal: the one after the last deal of the step before.
  int first_slot[kMaxChainSteps];
};

/// The order in which a slot (of `slots` in the grid) takes the tiles of a step: deals of one or two tiles go
/// in turn to all slots, from first_slot on.
TF_CONTRACT_FUNCTION int first_tile_of_slot(const ChainStep& step, int first_slot, int slot, int slots) {
  const int turn = slot - first_slot;
  return (turn < 0 ? turn + slots : turn) * step.deal;
}
TF_CONTRACT_FUNCTION int next_tile_of_slot(const ChainStep& step, int tile, int slots) {
  const bool ends_deal = (tile & (step.deal - 1)) == step.deal - 1;
  return ends_deal ? tile + 1 + (slots - 1) * step.deal : tile + 1;
}

/// Whether there are kernels for a chain of this layout and so many rows: not for what is rare, affine groups
/// whose scales are not bf16 and f32, whose units are too large for rings of several stages.
inline bool has_chain_kernel(const LinearLayout& layout, int num_rows) {
  const bool is_rare = layout.format == LinearFormat::kF32 ||
                       (layout.format == LinearFormat::kAffine && layout.scale_type != ScaleType::kBf16);
  return !is_rare && num_rows >= 1 && num_rows <= kMaxChainRows;
}

/// block.stages == 0: the chain does not fit. first_slot is left to deal_steps().
ChainPlan plan_linear_chain(const LinearChain& chain);

/// Clusters that have a tile in some step, at most `resident`, which is what a device holds at once; sets
/// first_slot for them. `warps`: of a block.
int deal_steps(ChainPlan& plan, const LinearChain& chain, int resident, int warps);

/// Runs a chain that plan_linear_chain() fits: asynchronous, may be captured. Its blocks wait for one
/// another, so the device must hold all of them at once: one stream of one process may run chains on a
/// device, and chains of different streams would wait for ever. (In one stream they cannot: a kernel starts,
/// dependent launch or not, only when all blocks of those before it have started, so that only the last
/// kernel's blocks wait for room, and those before it end without it.)
void launch_linear_chain(CUstream_st* stream, const LinearChain& chain);

/// And for affine groups with bf16 scales.
void launch_linear_chain_affine_bf16(CUstream_st* stream, const LinearChain& chain);

/// `count` bare barriers of the chain's kind, one block to a multiprocessor: for the benchmark.
void launch_grid_barriers(CUstream_st* stream, uint32_t* barrier, int count);

}  // namespace tensorfold::cuda
