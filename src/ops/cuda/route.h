// route() on CUDA devices: what it takes from the host. At most kMaxRoutedExperts experts, kMaxRoutedChoices
// of them chosen, kMaxRouteGroups groups.
//
// Arithmetic: Ops::route() with 256 partials in the sum over all experts. A row with a NaN among its scores
// chooses the best of those that are none, then NaNs, by index.
#pragma once

#include "ops/cuda/route_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// Whether the kernel takes as many experts, choices and groups; otherwise kUnsupported, naming them.
Status check_route(int64_t num_experts, int64_t num_choices, int64_t num_groups);

/// Ops::route(), everything on the device, of a call that check_route() takes.
RouteLaunch route_launch(const RouteCall& call);

}  // namespace tensorfold::cuda
