// How the blocks of linear()'s decode kernel, and of the stream of experts(), divide their work and their
// shared memory. Plain arithmetic for host and device.
#pragma once

#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {

/// Shared memory of a block, one to a multiprocessor. Of its 228 KB one is the block's own reserve, and one
/// is left for that of a small kernel's block beside it.
inline constexpr int kMaxSharedBytes = 226 << 10;
/// Bytes of the sums of 8 rows of a tile: four floats a lane.
inline constexpr int kSumBytes = 512;

/// How a launch is cut into blocks, beside LinearLaunch. Byte offsets are into dynamic shared memory; what
/// lies at extra_offset is the kernel's own.
struct DecodePlan {
  int cluster;         ///< Blocks that share a tile.
  int segments;        ///< Segments of a block: 8 / cluster.
  int rows;            ///< Rows of x in a block; linear() multiplies all at once: at most 8 * kRowTiles.
  int row_shift;       ///< rows rounded up to a power of two.
  int stages;          ///< Of a slot's ring.
  int stage_units;     ///< Units (ops/cuda/linear_layout.h) of a warp in one stage.
  int stage_bytes;     ///< Of a warp.
  int tile_stages;     ///< That a tile takes.
  int early_stages;    ///< Of a ring that may be asked for before the previous kernel has ended.
  int exchange_depth;  ///< Tiles whose sums a block may be ahead of the one that finishes them.
  int x_offset, sums_offset, incoming_offset, extra_offset, barriers_offset, shared_bytes;
};

/// Units of a stage: an even share of a segment of `units` units, of about `stage_target` bytes. A wait and a
/// copy cost some 60 instructions.
constexpr int stage_units_for(int units, int unit_bytes, int stage_target) {
  const int shares = (units * unit_bytes + stage_target - 1) / stage_target;
  return (units + shares - 1) / shares;
}

/// Stages that a warp asks for before the previous kernel has ended: 3 KB, or one where that is more; 9.5 MB
/// of a grid of 24 warps, 2 us. More would make that kernel end late: what it stored reaches L2 behind all
/// that was asked for.
constexpr int early_stages(int stage_bytes) {
  constexpr int kEarlyBytes = 3072;
  return stage_bytes >= kEarlyBytes ? 1 : kEarlyBytes / stage_bytes;
}

/// Stages of a ring at most.
inline constexpr int kMaxStages = 8;

/// Bytes of `block_chunks` chunks of `rows` rows of x.
constexpr int x_bytes(int block_chunks, int rows) { return block_chunks * 2 * x_pair_bytes(rows); }

/// Fills in stages (as many as fit; 0: x does not), early_stages, exchange_depth and the offsets of a plan
/// whose other fields are set. x takes `x_room` bytes, the kernel's own `extra_bytes` (a multiple of 16).
/// row_tiles: those whose sums meet in shared memory; 0: the kernel has a place of its own for them.
inline void lay_out(DecodePlan& plan, int x_room, int warps, int row_tiles, int extra_bytes) {
  const int slots = warps / plan.segments, sums = row_tiles * kSumBytes;
  plan.exchange_depth = plan.cluster == 1 ? 0 : plan.cluster == 4 ? 1 : 2;
  const int sums_bytes = slots * (plan.segments - 1) * sums;
  const int incoming_bytes = slots * plan.exchange_depth * (plan.cluster - 1) * sums;
  const int slot_barrier_bytes = slots * (2 + 2 * plan.exchange_depth) * 8;
  const int left = kMaxSharedBytes - x_room - sums_bytes - incoming_bytes - extra_bytes - slot_barrier_bytes;
  // A stage is its bytes, and the two barriers of a slot are counted as one a warp: a slot has two or more.
  const int fitting = left < 0 ? 0 : left / (warps * (plan.stage_bytes + 8));
  plan.stages = fitting < kMaxStages ? fitting : kMaxStages;
  plan.early_stages = early_stages(plan.stage_bytes);
  plan.x_offset = warps * plan.stages * plan.stage_bytes;
  plan.sums_offset = plan.x_offset + x_room;
  plan.incoming_offset = plan.sums_offset + sums_bytes;
  plan.extra_offset = plan.incoming_offset + incoming_bytes;
  plan.barriers_offset = plan.extra_offset + extra_bytes;
  plan.shared_bytes = plan.barriers_offset + slot_barrier_bytes + warps * plan.stages * 8;
}

/// A plan for `rows` rows a block in clusters of `cluster`, and segments of `units` units, `stage_units` of
/// them a stage. lay_out() has yet to place its parts.
inline DecodePlan make_decode_plan(int rows, int cluster, int units, int stage_units, int unit_bytes) {
  DecodePlan plan{};
  plan.cluster = cluster;
  plan.segments = kLinearSegments / cluster;
  plan.rows = rows;
  while (1 << plan.row_shift < rows) ++plan.row_shift;
  plan.stage_units = stage_units;
  plan.stage_bytes = stage_units * unit_bytes;
  plan.tile_stages = (units + stage_units - 1) / stage_units;
  return plan;
}

/// Where a matrix has no more tiles than a multiprocessor takes at once (three slots of 132), some get one
/// tile more than others, and long segments make that dear: two blocks then share their tiles (5120x17408:
/// 17.9 against 20.3 us).
inline constexpr int kOneRoundTiles = 3 * 132, kLongSegment = 20;

/// Sizes of a stage to try, in bytes, the largest first, and how many of such a ring must have.
inline constexpr int kStageTargets[] = {3072, 1536, 1152, 576};
constexpr int stages_wanted(int stage_target) { return stage_target > 1152 ? 3 : 2; }

/// Warps of a block for up to 8 rows. They hide the latency of turning 4-bit weights into operands: 24 were
/// faster than 16 by a tenth, and 32, with 64 registers each, slower. Where a stage or x is large, the parts
/// of 24 warps no longer fit.
constexpr int decode_warps(int unit_bytes) { return unit_bytes < 2048 ? 24 : 16; }
/// And for 9 to 16 rows, two tiles of rows.
inline constexpr int kTwoRowTileWarps = 16;

}  // namespace tensorfold::cuda
