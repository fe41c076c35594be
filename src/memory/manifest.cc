// Sizes of a manifest.
#include "memory/manifest.h"

#include <algorithm>

namespace tensorfold {

int Manifest::num_layers() const {
  int highest = kOutsideLayers;
  for (const LinearBinding& linear : linears) highest = std::max(highest, linear.layer);
  for (const VectorBinding& vector : vectors) highest = std::max(highest, vector.layer);
  return highest + 1;
}

int64_t Manifest::checkpoint_bytes() const {
  int64_t bytes = 0;
  for (const LinearBinding& linear : linears)
    bytes += linear.weight.bytes + linear.scales.bytes + linear.biases.bytes + linear.bias.bytes;
  for (const VectorBinding& vector : vectors) bytes += vector.values.bytes;
  return bytes;
}

}  // namespace tensorfold
