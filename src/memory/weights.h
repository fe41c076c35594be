// The weights of a model as its forward pass sees them: laid out by the backend's packer and leased layer by
// layer. When everything fits, a lease costs nothing; when not, it is the point where a layer's bytes are
// waited for, and the model code is the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"
#include "base/view.h"
#include "device/device.h"
#include "memory/manifest.h"
#include "memory/weight.h"

namespace tensorfold {

class Checkpoint;  // formats/safetensors.h
class Weights;

/// Called while loading with bytes read so far and in total, on the thread that called Weights::load.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

struct WeightLoadOptions {
  int num_threads = 0;         ///< Threads that read and pack. 0: all usable CPUs.
  LoadProgress progress = {};  ///< May be empty.
};

/// Proof that a layer's weights are on the device, until it is destroyed. Lives no longer than its Weights.
class Lease {
 public:
  const LinearWeight& operator[](LinearId id) const;
  View operator[](VectorId id) const;  ///< f32 [size].
  const ExpertsWeight& operator[](ExpertsId id) const;

 private:
  friend class Weights;
  Lease(const Weights& weights, int layer) : weights_(&weights), layer_(layer) {}
  const Weights* weights_;
  int layer_;
};

/// All weights of one model on one device. One pass at a time leases from it.
class Weights {
 public:
  /// Reads every slice of the manifest once, packs matrices with `packer` and places all on `device`. Fails
  /// whole: nothing is kept of a load that fails. Reads and packs on several threads, at most
  /// kMaxInFlightBytes (or one matrix, where that is larger) of read bytes in memory beside what is resident.
  /// The checkpoint may be closed afterwards. A matrix that the packer does not take is kUnsupported by name.
  static Result<std::unique_ptr<Weights>> load(const Checkpoint& checkpoint, const Manifest& manifest,
                                               const WeightPacker& packer, Device& device,
                                               const WeightLoadOptions& options);
  ~Weights();

  /// The weights of a manifest with their shapes and no bytes, for ops that only count. Nothing may read
  /// them.
  static std::unique_ptr<Weights> without_bytes(const Manifest& manifest);

  static constexpr int64_t kMaxInFlightBytes = int64_t{512} << 20;

  Lease layer(int layer) const { return Lease(*this, layer); }
  Lease outside_layers() const { return Lease(*this, kOutsideLayers); }

  /// Bytes on the device: packed matrices, biases and vectors.
  int64_t resident_bytes() const;

 private:
  friend class Lease;
  Weights();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorfold
