// A non-owning description of a dense array: address, dtype and shape. The currency between models and ops.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "base/dtype.h"

namespace tensorfold {

/// Row-major array of up to four dimensions. The last dimension is contiguous; rows (dimension 0) may be further
/// apart than their own size, so that a view can name columns of a wider matrix. Owns nothing; trivially copyable.
/// `data` may be host or device memory: the backend that allocated it knows.
struct View {
  static constexpr int kMaxRank = 4;

  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{};
  int64_t row_stride = 0;  ///< Elements from one index of dimension 0 to the next.

  View() = default;
  View(void* address, DType type, std::initializer_list<int64_t> shape)
      : data(static_cast<std::byte*>(address)), dtype(type), rank(static_cast<int>(shape.size())) {
    TF_CHECK(shape.size() >= 1 && shape.size() <= kMaxRank);
    int i = 0;
    for (int64_t dim : shape) dims[i++] = dim;
    row_stride = 1;
    for (int k = 1; k < rank; ++k) row_stride *= dims[k];
  }

  int64_t dim(int i) const {
    TF_DCHECK(i >= 0 && i < rank);
    return dims[i];
  }
  int64_t num_rows() const { return dims[0]; }
  /// Elements of one row: the product of all dimensions but the first.
  int64_t row_size() const {
    int64_t n = 1;
    for (int k = 1; k < rank; ++k) n *= dims[k];
    return n;
  }
  int64_t num_elements() const { return dims[0] * row_size(); }
  bool is_contiguous() const { return row_stride == row_size() || dims[0] <= 1; }

  /// Start of row i as T; the caller names the element type that `dtype` says.
  template <class T>
  T* row(int64_t i) const {
    return reinterpret_cast<T*>(data) + i * row_stride;
  }

  /// Rows [first, first + count).
  View rows(int64_t first, int64_t count) const {
    TF_DCHECK(first >= 0 && count >= 0 && first + count <= dims[0]);
    View v = *this;
    v.data += first * row_stride * dtype_bits(dtype) / 8;
    v.dims[0] = count;
    return v;
  }
  /// Columns [first, first + count) of a two-dimensional view; keeps the row stride.
  View columns(int64_t first, int64_t count) const {
    TF_DCHECK(rank == 2 && first >= 0 && count >= 0 && first + count <= dims[1]);
    View v = *this;
    v.data += first * dtype_bits(dtype) / 8;
    v.dims[1] = count;
    return v;
  }
};

/// "bf16 [3, 576]": for messages.
std::string to_string(const View& view);

}  // namespace tensorfold
