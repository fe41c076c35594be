// One table behind every question about a dtype.
#include "base/dtype.h"

#include "base/check.h"

namespace tensorfold {
namespace {

struct DTypeInfo {
  DType dtype;
  int bits;
  std::string_view name;
};

constexpr DTypeInfo kDTypes[] = {
    {DType::kBool, 8, "BOOL"},       {DType::kU8, 8, "U8"},           {DType::kI8, 8, "I8"},
    {DType::kF8E4M3, 8, "F8_E4M3"},  {DType::kF8E5M2, 8, "F8_E5M2"},  {DType::kF8E8M0, 8, "F8_E8M0"},
    {DType::kF4, 4, "F4"},           {DType::kF6E2M3, 6, "F6_E2M3"},  {DType::kF6E3M2, 6, "F6_E3M2"},
    {DType::kU16, 16, "U16"},        {DType::kI16, 16, "I16"},        {DType::kF16, 16, "F16"},
    {DType::kBF16, 16, "BF16"},      {DType::kU32, 32, "U32"},        {DType::kI32, 32, "I32"},
    {DType::kF32, 32, "F32"},        {DType::kU64, 64, "U64"},        {DType::kI64, 64, "I64"},
    {DType::kF64, 64, "F64"},        {DType::kC64, 64, "C64"},
};

const DTypeInfo& info(DType dtype) {
  const auto& entry = kDTypes[static_cast<int>(dtype)];
  TF_DCHECK(entry.dtype == dtype);
  return entry;
}

}  // namespace

int dtype_bits(DType dtype) { return info(dtype).bits; }

int64_t dtype_bytes(DType dtype) {
  TF_CHECK(info(dtype).bits % 8 == 0, info(dtype).name);
  return info(dtype).bits / 8;
}

std::string_view dtype_name(DType dtype) { return info(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& entry : kDTypes) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace tensorfold
