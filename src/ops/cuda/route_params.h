// What a launch of route() is told: plain data, shared by the host side (route.cc) and the device side
// (route.cu).
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tensorfold::cuda {

inline constexpr int kMaxRoutedExperts = 512;  ///< X.
inline constexpr int kMaxRoutedChoices = 32;   ///< k: a lane of a warp each.
inline constexpr int kMaxRouteGroups = 32;

/// RouterScoring of ops.h, in its order.
enum class RouteScoring : uint8_t { kSoftmax, kSoftmaxOfChosen, kSigmoid };

struct RouteLaunch {
  const float* logits;      ///< [T, X]
  const float* correction;  ///< [X] or null.
  int32_t* expert_ids;      ///< [T, k]
  float* expert_weights;    ///< [T, k]
  int64_t logits_stride;    ///< Elements between rows, as the following.
  int64_t ids_stride;
  int64_t weights_stride;
  int num_rows;
  int num_experts;
  int num_choices;  ///< k
  int num_groups;
  int groups_kept;
  float scale;
  RouteScoring scoring;
  bool normalize;
};

void launch_route(CUstream_st* stream, const RouteLaunch& launch);

}  // namespace tensorfold::cuda
