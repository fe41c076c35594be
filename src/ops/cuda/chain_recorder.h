// Gathers ops that follow one another into launches of linear_chain() (linear_chain_params.h), when that
// changes no bit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "ops/cuda/launch_list.h"
#include "ops/cuda/linear_chain_params.h"
#include "ops/cuda/norms_params.h"

namespace tensorfold::cuda {

/// The right to run chains on a device, which one stream of the process has at a time: blocks of two chains
/// that are half resident each would wait for ever. Held as long as chains may be in flight.
class ChainPermit {
 public:
  /// Nothing if another one is held.
  static std::optional<ChainPermit> take(int device);
  ~ChainPermit();
  ChainPermit(ChainPermit&& other) noexcept;
  ChainPermit& operator=(ChainPermit&& other) noexcept;

 private:
  explicit ChainPermit(int device) : device_(device) {}
  int device_;  ///< -1: moved from.
};

/// Stands before a LaunchList: rms_norm(), linear() and mlp_activation() wait here until they are a chain or
/// turn out to be none, and then become launches in the order in which they came. Whoever adds anything else
/// to the list, or runs it, calls flush() first. A chain has at least two products; a norm is in it if the
/// next product reads what it writes, an activation if it reads just what the last product has written. Their
/// results are written in any case. One thread at a time.
class ChainRecorder {
 public:
  /// `barrier`: a word of device memory, 0 at first, for the chains of one stream.
  ChainRecorder(LaunchList& launches, uint32_t* barrier, ChainTuning tuning = {})
      : launches_(launches), barrier_(barrier), tuning_(tuning) {}

  void rms_norm(const RmsNormLaunch& launch);
  void linear(std::span<const LinearLaunch> launches);
  void mlp_activation(const MlpActivationLaunch& launch);
  void flush();
  /// Forgets what waits.
  void clear();

 private:
  using Original = std::variant<RmsNormLaunch, LinearLaunch, MlpActivationLaunch>;

  bool append(const LinearLaunch& launch, const RmsNormLaunch* norm);
  bool attach(const MlpActivationLaunch& launch);
  void flush_steps();
  void record(const Original& original);

  LaunchList& launches_;
  uint32_t* barrier_;
  ChainTuning tuning_;
  LinearChain chain_{};
  std::vector<Original> originals_;    ///< What chain_ stands for.
  std::optional<RmsNormLaunch> norm_;  ///< After all of these, not yet in chain_.
};

}  // namespace tensorfold::cuda
