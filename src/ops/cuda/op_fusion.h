// Makes one launch of ops that follow one another, when that changes no bit.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/cuda/launch_list.h"
#include "ops/cuda/recurrences_params.h"

namespace tensorfold::cuda {

/// Stands before a LaunchList: causal_conv(), gated_delta() and gated_rms_norm() wait here until they are one
/// launch (gated_delta_step.cu) or turn out to be none, and then go to the list in the order in which they
/// came. Whoever adds anything else to the list, or runs it, calls flush() first. Whatever an op writes is
/// written in any case. One thread at a time.
class OpFusion {
 public:
  explicit OpFusion(LaunchList& launches) : launches_(launches) {}

  /// Forgets what waits. The ops to come are of a pass of `num_rows` rows.
  void begin_pass(int64_t num_rows);
  void causal_conv(const CausalConvLaunch& launch);
  void gated_delta(const RecurrenceLaunch& launch);
  void gated_rms_norm(const GatedRmsNormLaunch& launch);
  void flush();

 private:
  LaunchList& launches_;
  int64_t num_rows_ = 0;
  std::optional<CausalConvLaunch> conv_;
  std::optional<RecurrenceLaunch> delta_;  ///< Of conv_'s outputs, one launch with it.
};

}  // namespace tensorfold::cuda
