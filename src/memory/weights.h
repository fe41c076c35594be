// The weights of a model as its forward pass sees them: declared by a family by checkpoint name, laid out by the
// backend's packer, and leased layer by layer. When everything fits, a lease costs nothing; when not, it is the point
// where a layer's bytes are waited for, and the model code is the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/view.h"
#include "device/device.h"
#include "memory/weight.h"

namespace tensorfold {

class Checkpoint;            // formats/safetensors.h
struct QuantizationConfig;   // formats/hf_config.h

/// Handles of declared weights; -1 means "this model has none" and may be tested, not leased.
struct LinearId {
  int32_t index = -1;
  explicit operator bool() const { return index >= 0; }
};
struct VectorId {
  int32_t index = -1;
  explicit operator bool() const { return index >= 0; }
};
struct ExpertsId {
  int32_t index = -1;
  explicit operator bool() const { return index >= 0; }
};

/// The group of weights that are leased together: one layer, or what lies outside the layers.
inline constexpr int kOutsideLayers = -1;

/// A matrix to bind. `module` is the checkpoint's module path: its `.weight` (and `.scales`, `.biases`) are looked up.
struct LinearDeclaration {
  std::string module;
  int64_t out = 0;
  int64_t in = 0;
  bool has_bias = false;  ///< `.bias` [out] must exist.
};

/// The experts of a layer, found in any of the three spellings of specs/mlx-quantization.md §8.4 below `module`:
/// switch_mlp.{gate,up,down}_proj stacked, experts.{gate_up,down}_proj fused, experts.N.{gate,up,down}_proj.
struct ExpertsDeclaration {
  std::string module;
  int64_t num_experts = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
};

/// What a family needs from a checkpoint: a list that is checked (name, shape, dtype) as it is made. Errors are
/// collected, not thrown: the first one is the Status of load_weights(). One thread.
class WeightTable {
 public:
  /// Both must outlive the table. `family` opens every message: "qwen3: layer 3 ...".
  WeightTable(std::string family, const Checkpoint& checkpoint, const QuantizationConfig& quantization);
  ~WeightTable();

  /// Whether the checkpoint holds `name` exactly: for optional tensors and ties.
  bool has_tensor(std::string_view name) const;

  LinearId linear(int layer, const LinearDeclaration& declaration);
  /// A vector [size] kept as f32 (norm weights, sinks).
  VectorId vector(int layer, std::string_view name, int64_t size);
  ExpertsId experts(int layer, const ExpertsDeclaration& declaration);

  /// The first thing that was missing or of the wrong shape.
  const Status& status() const;

 private:
  friend class Weights;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Called while loading with bytes read so far and in total; from the loading thread.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

class Weights;

/// Proof that a layer's weights are on the device, until it is destroyed. Lives no longer than its Weights.
class Lease {
 public:
  const LinearWeight& operator[](LinearId id) const;
  View operator[](VectorId id) const;  ///< f32 [size].
  const ExpertsWeight& operator[](ExpertsId id) const;

 private:
  friend class Weights;
  explicit Lease(const Weights& weights) : weights_(&weights) {}
  const Weights* weights_;
};

/// All weights of one model on one device. One pass at a time leases from it.
class Weights {
 public:
  /// Reads every tensor of the table once, packs it with `packer` and places it on `device`. Fails whole: nothing is
  /// kept of a load that fails.
  static Result<std::unique_ptr<Weights>> load(const WeightTable& table, const WeightPacker& packer, Device& device,
                                               const LoadProgress& progress);
  ~Weights();

  Lease layer(int layer) const;
  Lease outside_layers() const;

  /// Bytes on the device: packed matrices, biases and vectors.
  int64_t resident_bytes() const;
  /// Bytes of checkpoint tensors that the table named.
  int64_t checkpoint_bytes() const;

 private:
  friend class Lease;
  Weights();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorfold
