// The host side of route() on CUDA (see ops/cuda/route.h).
#include "ops/cuda/route.h"

#include "base/check.h"
#include "base/status.h"

namespace tensorfold::cuda {

static_assert(static_cast<int>(RouteScoring::kSoftmax) == static_cast<int>(RouterScoring::kSoftmax) &&
                  static_cast<int>(RouteScoring::kSoftmaxOfChosen) ==
                      static_cast<int>(RouterScoring::kSoftmaxOfChosen) &&
                  static_cast<int>(RouteScoring::kSigmoid) == static_cast<int>(RouterScoring::kSigmoid),
              "both scorings are one list, so that a cast translates them");

Status check_route(int64_t num_experts, int64_t num_choices, int64_t num_groups) {
  if (num_experts <= kMaxRoutedExperts && num_choices <= kMaxRoutedChoices && num_groups <= kMaxRouteGroups)
    return {};
  return unsupported(
      "a router of {} experts in {} groups, {} a token: CUDA takes up to {} in {} groups, {} a token; the "
      "CPU any number (--device cpu)",
      num_experts, num_groups, num_choices, kMaxRoutedExperts, kMaxRouteGroups, kMaxRoutedChoices);
}

RouteLaunch route_launch(const RouteCall& call) {
  const int64_t num_experts = call.router_logits.dim(1), num_choices = call.expert_ids.dim(1);
  TF_CHECK(check_route(num_experts, num_choices, call.num_groups).ok(), "route on CUDA: an unchecked call");
  TF_CHECK(num_choices <= num_experts && num_experts % call.num_groups == 0,
           "route on CUDA: choices or groups");
  TF_DCHECK(call.router_logits.dtype == DType::kF32 && call.expert_ids.dtype == DType::kI32 &&
            call.expert_weights.dtype == DType::kF32);
  RouteLaunch launch{};
  launch.logits = call.router_logits.row<const float>(0);
  launch.correction = reinterpret_cast<const float*>(call.correction_bias.data);
  launch.expert_ids = call.expert_ids.row<int32_t>(0);
  launch.expert_weights = call.expert_weights.row<float>(0);
  launch.logits_stride = call.router_logits.row_stride;
  launch.ids_stride = call.expert_ids.row_stride;
  launch.weights_stride = call.expert_weights.row_stride;
  launch.num_rows = static_cast<int>(call.router_logits.dim(0));
  launch.num_experts = static_cast<int>(num_experts);
  launch.num_choices = static_cast<int>(num_choices);
  launch.num_groups = static_cast<int>(call.num_groups);
  launch.groups_kept = static_cast<int>(call.groups_kept);
  launch.scale = call.scale;
  launch.scoring = static_cast<RouteScoring>(call.scoring);
  launch.normalize = call.normalize;
  return launch;
}

}  // namespace tensorfold::cuda
