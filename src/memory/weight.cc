// The spelling of a matrix's number format, for messages and `inspect`.
#include "memory/weight.h"

#include <fmt/format.h>

#include "base/check.h"

namespace tensorfold {
namespace {

std::string_view float_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF32:
      return "f32";
    default:
      return dtype_name(dtype);
  }
}

}  // namespace

std::string to_string(const LinearSpec& spec) {
  const std::string shape = fmt::format("[{}, {}]", spec.out, spec.in);
  switch (spec.format) {
    case WeightFormat::kFloat:
      return fmt::format("{} {}", float_name(spec.dtype), shape);
    case WeightFormat::kAffine:
      return fmt::format("affine {}-bit g{} {} {}", spec.bits, spec.group_size, float_name(spec.dtype),
                         shape);
    case WeightFormat::kMxfp4:
      return fmt::format("mxfp4 {}", shape);
  }
  TF_CHECK(false, "unknown weight format");
}

}  // namespace tensorfold
