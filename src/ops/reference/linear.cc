// arithmetic.md, "Linear", one output at a time.
#include <algorithm>
#include <vector>

#include "base/fp_env.h"
#include "ops/contract_math.h"
#include "ops/reference/packed_matrix.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace {

using contract::fused;

/// One output's weights, unpacked: `weight` holds elements, or what a scale multiplies, padded by zeros to
/// whole steps. `bias` is that of affine groups.
struct WeightRow {
  std::vector<float> weight, scale, bias;
};

WeightRow unpack_row(const reference::PackedMatrix& matrix, int64_t output) {
  const LinearSpec& spec = matrix.spec();
  WeightRow row;
  row.weight.assign(static_cast<size_t>(matrix.layout().padded_columns), 0.0f);
  const bool is_float = spec.format == WeightFormat::kFloat;
  for (int64_t k = 0; k < spec.in; ++k) {
    row.weight[static_cast<size_t>(k)] = is_float ? matrix.element(output, k) : matrix.unscaled(output, k);
  }
  for (int64_t g = 0; !is_float && g < spec.in / spec.group_size; ++g) {
    row.scale.push_back(matrix.scale(output, g));
    if (spec.format == WeightFormat::kAffine) row.bias.push_back(matrix.bias(output, g));
  }
  return row;
}

/// acc + x.w over columns [begin, end), an even number, in steps of two.
float dot(float acc, const float* x, const float* w, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; k += 2) {
    acc = fused(x[k + 1], w[k + 1], acc);
    acc = fused(x[k], w[k], acc);
  }
  return acc;
}

/// Sum of x over the same columns in the same order: a dot product with ones. (Written as additions it is
/// miscompiled: GCC 12 vectorizes the loop and adds every even column twice. g++ 12.2 -O2;
/// -fno-tree-loop-vectorize is right.)
float group_sum(const float* x, int64_t begin, int64_t end) {
  float sum = 0.0f;
  for (int64_t k = begin; k < end; k += 2) {
    sum = fused(x[k + 1], 1.0f, sum);
    sum = fused(x[k], 1.0f, sum);
  }
  return sum;
}

float segment_sum(const WeightRow& row, const LinearSpec& spec, const float* x, int64_t begin, int64_t end) {
  if (spec.format == WeightFormat::kFloat) return dot(0.0f, x, row.weight.data(), begin, end);
  float acc = 0.0f;
  for (int64_t k = begin; k < end; k += spec.group_size) {
    const auto g = static_cast<size_t>(k / spec.group_size);
    const float d = dot(0.0f, x, row.weight.data(), k, k + spec.group_size);
    if (spec.format == WeightFormat::kAffine)
      acc = fused(row.bias[g], group_sum(x, k, k + spec.group_size), acc);
    acc = fused(row.scale[g], d, acc);
  }
  return acc;
}

float row_product(const WeightRow& row, const LinearSpec& spec, const LinearLayout& layout, const float* x) {
  float s[kSegments];
  for (int64_t i = 0; i < kSegments; ++i) {
    const int64_t begin = std::min(i * layout.segment_columns, layout.padded_columns);
    const int64_t end = std::min(begin + layout.segment_columns, layout.padded_columns);
    s[i] = segment_sum(row, spec, x, begin, end);
  }
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

void linear_call(const std::vector<std::vector<float>>& x, const LinearCall& call) {
  const LinearSpec& spec = call.weight.spec;
  const reference::PackedMatrix matrix(spec, call.weight.data);
  for (int64_t o = 0; o < spec.out; ++o) {
    const WeightRow row = unpack_row(matrix, o);
    for (int64_t t = 0; t < call.out.num_rows(); ++t) {
      float y = row_product(row, spec, matrix.layout(), x[static_cast<size_t>(t)].data());
      if (call.weight.bias != nullptr) y = y + call.weight.bias[o];
      if (call.accumulate) y = reference::load(call.out, t, o) + y;
      reference::store(call.out, t, o, y);
    }
  }
}

}  // namespace

void ReferenceOps::linear(View x, std::span<const LinearCall> calls) {
  ScopedFlushDenormals flush;
  std::vector<std::vector<float>> rows(static_cast<size_t>(x.num_rows()));
  for (int64_t t = 0; t < x.num_rows(); ++t) {
    auto& row = rows[static_cast<size_t>(t)];
    for (int64_t k = 0; k < x.dim(1); ++k) row.push_back(reference::load(x, t, k));
    row.push_back(0.0f);  // the other half of an odd row's last step
  }
  for (const LinearCall& call : calls) linear_call(rows, call);
}

}  // namespace tensorfold
