// One weight at a time out of a packed matrix: how the reference reads the layout that the kernels stream.
#pragma once

#include <cstdint>

#include "memory/weight.h"
#include "ops/linear_layout.h"

namespace tensorfold::reference {

/// Read access to a packed matrix that it does not own.
class PackedMatrix {
 public:
  PackedMatrix(const LinearSpec& spec, const std::byte* data) : spec_(spec), layout_(spec), data_(data) {}

  const LinearSpec& spec() const { return spec_; }
  const LinearLayout& layout() const { return layout_; }

  /// Element of a float matrix, exact.
  float element(int64_t output, int64_t column) const;
  /// Integer of an affine matrix, or code of an MXFP4 one.
  uint32_t integer(int64_t output, int64_t column) const;
  /// What the group's scale multiplies: the integer, or the value of the E2M1 code.
  float unscaled(int64_t output, int64_t column) const;
  float scale(int64_t output, int64_t group) const;
  /// Of an affine matrix.
  float bias(int64_t output, int64_t group) const;

 private:
  LinearSpec spec_;
  LinearLayout layout_;
  const std::byte* data_;
};

}  // namespace tensorfold::reference
