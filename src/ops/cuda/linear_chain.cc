// The host side of linear_chain(): how a chain is cut into blocks (see ops/cuda/linear_chain_params.h).
#include <algorithm>
#include <span>

#include "ops/cuda/linear_chain_params.h"

namespace tensorfold::cuda {

ChainPlan plan_linear_chain(const LinearChain& chain) {
  const int unit_bytes = chain.layout.unit_bytes(), unit_chunks = chain.layout.unit_chunks();
  const bool has_two_row_tiles = chain.num_rows > 8;
  const int warps = has_two_row_tiles ? kTwoRowTileWarps : decode_warps(unit_bytes);
  const int first_cluster = std::max<int>(chain.tuning.cluster, 1);
  const int last_cluster = chain.tuning.cluster == 0 ? 4 : chain.tuning.cluster;
  // Large stages, since each costs a wait and a copy. Sizes in between those of the decode kernel: the step
  // with the largest x leaves room for the rings of all steps.
  for (int units = std::max(kStageTargets[0] / unit_bytes, 1); units > 0; --units) {
    const int target = units * unit_bytes;
    ChainPlan plan{};
    int stage_units = 1, chunks_per_segment = 0;
    for (int step = 0; step < chain.num_steps; ++step) {
      const int chunks = chain.steps[step].chunks_per_segment;
      plan.stage_units[step] = stage_units_for(chunks / unit_chunks, unit_bytes, target);
      stage_units = std::max(stage_units, plan.stage_units[step]);
      chunks_per_segment = std::max(chunks_per_segment, chunks);
    }
    for (int cluster = first_cluster; cluster <= last_cluster; cluster *= 2) {
      plan.block = make_decode_plan(chain.num_rows, cluster, stage_units, unit_bytes,
                                    kLinearSegments / cluster * chunks_per_segment, warps,
                                    has_two_row_tiles ? 2 : 1, kMaxChainRows * int{sizeof(float)});
      if (plan.block.stages >= stages_wanted(target)) return plan;
    }
  }
  return {};
}

int deal_steps(ChainPlan& plan, const LinearChain& chain, int resident, int warps) {
  const std::span<const ChainStep> steps(chain.steps, static_cast<size_t>(chain.num_steps));
  const auto deals = [](const ChainStep& step) { return step.num_tiles / step.deal; };
  int clusters = 1;
  for (const ChainStep& step : steps) clusters = std::max(clusters, std::min(deals(step), resident));
  const int slots = warps / plan.block.segments * clusters;
  int first = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    plan.first_slot[i] = first;
    first = (first + deals(steps[i])) % slots;
  }
  return clusters;
}

}  // namespace tensorfold::cuda
