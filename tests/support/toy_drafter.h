// Random block drafters for any model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/model.h"

namespace tensorfold {

/// What a random drafter is like; the target's shapes come beside it.
struct ToyDrafter {
  std::string architecture = "DFlash2DraftModel";
  int64_t num_layers = 2;
  int64_t num_heads = 2;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 32;
  int64_t intermediate_size = 64;
  int64_t block_size = 8;
  int64_t window = 64;  ///< Of every layer; 0: all keys.
  std::vector<int64_t> target_layers = {0};
  uint64_t seed = 1;
};

/// Writes config.json and model.safetensors of a drafter with random weights into an existing folder. The
/// same bytes for the same description on every machine.
Status write_toy_drafter(const ToyDrafter& toy, const ModelSpec& target, const std::string& folder);

}  // namespace tensorfold
