// pack(): the fast packer writes the bytes of the reference's, and those hold every weight of the checkpoint.
#include <gtest/gtest.h>

#include "ops/linear_layout.h"
#include "ops/reference/packed_matrix.h"
#include "tests/ops/random_linear.h"

namespace tensorfold {
namespace {

std::vector<std::byte> packed_by(const WeightPacker& packer, const RandomLinear& matrix) {
  std::vector<std::byte> packed(static_cast<size_t>(packer.packed_bytes(matrix.spec())), std::byte{0xee});
  packer.pack(matrix.spec(), matrix.source(), packed);
  return packed;
}

TEST(PackTest, TheCpuPackerWritesTheReferencesBytes) {
  const std::unique_ptr<Ops> reference = make_reference_ops();
  const std::unique_ptr<Ops> cpu = std::move(make_cpu_ops(1)).value();
  for (int64_t out : {1, 31, 32, 70}) {
    for (const LinearSpec& spec : all_specs(out, 3)) {
      const RandomLinear matrix(spec, 7, *reference);
      EXPECT_EQ(packed_by(*cpu, matrix), packed_by(*reference, matrix)) << to_string(spec);
      EXPECT_EQ(reference->packed_bytes(spec) % 64, 0) << to_string(spec);
    }
  }
}

/// Value `index` of a row, by the rule of the checkpoint format: bits index*b to index*b+b-1, lowest first.
uint32_t checkpoint_integer(const LinearSource& source, const LinearSpec& spec, int64_t output,
                            int64_t index) {
  uint32_t value = 0;
  for (int b = 0; b < spec.bits; ++b) {
    const int64_t bit = (output * spec.in + index) * spec.bits + b;
    value |= (static_cast<uint32_t>(source.weight[static_cast<size_t>(bit / 8)]) >> (bit % 8) & 1u) << b;
  }
  return value;
}

TEST(PackTest, EveryIntegerAndScaleIsFoundAgain) {
  const std::unique_ptr<Ops> reference = make_reference_ops();
  for (const LinearSpec& spec : all_specs(33, 2)) {
    if (spec.format != WeightFormat::kAffine) continue;
    const RandomLinear matrix(spec, 3, *reference);
    const std::vector<std::byte> packed = packed_by(*reference, matrix);
    const reference::PackedMatrix view(spec, packed.data());
    for (int64_t o = 0; o < spec.out; ++o) {
      for (int64_t k = 0; k < spec.in; ++k) {
        ASSERT_EQ(view.integer(o, k), checkpoint_integer(matrix.source(), spec, o, k)) << to_string(spec);
      }
      for (int64_t g = 0; g < spec.in / spec.group_size; ++g) {
        const int64_t size = dtype_bytes(spec.dtype), i = (o * (spec.in / spec.group_size) + g) * size;
        const std::byte* scale = packed.data() + packed_scale_offset(spec, view.layout(), o, g);
        const auto same = [&](const std::byte* a, std::span<const std::byte> b) {
          return std::memcmp(a, b.data() + i, static_cast<size_t>(size)) == 0;
        };
        ASSERT_TRUE(same(scale, matrix.source().scales)) << to_string(spec);
        ASSERT_TRUE(same(scale + view.layout().scale_bytes, matrix.source().biases)) << to_string(spec);
      }
    }
  }
}

TEST(PackTest, EveryFloatIsFoundAgain) {
  const std::unique_ptr<Ops> reference = make_reference_ops();
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int64_t in : {1, 2, 63, 130}) {
      const LinearSpec spec = float_spec(37, in, dtype);
      const RandomLinear matrix(spec, 5, *reference);
      const std::vector<std::byte> packed = packed_by(*reference, matrix);
      const LinearLayout layout(spec);
      for (int64_t i = 0; i < spec.out * in; ++i) {
        const auto size = static_cast<size_t>(dtype_bytes(dtype));
        const std::byte* element = packed.data() + packed_float_offset(spec, layout, i / in, i % in);
        ASSERT_EQ(std::memcmp(element, matrix.source().weight.data() + static_cast<size_t>(i) * size, size),
                  0);
      }
    }
  }
}

// The check vectors of the format's description: values 0, 1, 2, ... of each width.
TEST(PackTest, ReadsTheBitOrderOfTheFormat) {
  const std::unique_ptr<Ops> reference = make_reference_ops();
  struct Case {
    int bits;
    std::vector<int> bytes, values;
  };
  for (const Case& c :
       {Case{3, {0x88, 0xc6, 0xfa}, {0, 1, 2, 3, 4, 5, 6, 7}},
        Case{4, {0x10, 0x32, 0x54, 0x76}, {0, 1, 2, 3, 4, 5, 6, 7}},
        Case{5, {0x1f, 0xc4, 0xe2, 0x93, 0xa8}, {31, 0, 17, 5, 30, 9, 2, 21}},
        Case{6, {0x3f, 0xa0, 0x56}, {63, 0, 42, 21}}, Case{8, {1, 2, 3, 250}, {1, 2, 3, 250}}}) {
    const LinearSpec spec = affine_spec(1, 32, c.bits, 32, DType::kF32);
    std::vector<std::byte> weight(static_cast<size_t>(4 * c.bits)), scale(4),
        packed(LinearLayout(spec).packed_bytes());
    for (size_t i = 0; i < c.bytes.size(); ++i) weight[i] = static_cast<std::byte>(c.bytes[i]);
    reference->pack(spec, {weight, scale, scale}, packed);
    for (size_t i = 0; i < c.values.size(); ++i) {
      EXPECT_EQ(reference::PackedMatrix(spec, packed.data()).integer(0, static_cast<int64_t>(i)), c.values[i])
          << c.bits << " bits, value " << i;
    }
  }
}

// The table of the OCP specification, once by hand: an expectation that shares no code with base/mxfp4.h.
constexpr double kE2m1Values[] = {0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                                  -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};

// 256 rows of one block: row s has scale s, and every code twice.
TEST(PackTest, HoldsEveryCodeAndScaleOfMxfp4) {
  const LinearSpec spec = mxfp4_spec(256, 32);
  std::vector<std::byte> weight, scales;
  for (int s = 0; s < 256; ++s) {
    scales.push_back(static_cast<std::byte>(s));
    // Low nibble first: column k has code (s + k) % 16.
    for (int k = 0; k < 32; k += 2)
      weight.push_back(static_cast<std::byte>((s + k) % 16 | (s + k + 1) % 16 << 4));
  }
  for (const std::unique_ptr<Ops>& ops :
       {make_reference_ops(), std::unique_ptr<Ops>(std::move(make_cpu_ops(1)).value())}) {
    std::vector<std::byte> packed(static_cast<size_t>(ops->packed_bytes(spec)), std::byte{0xee});
    ops->pack(spec, {weight, scales, {}}, packed);
    const reference::PackedMatrix view(spec, packed.data());
    for (int64_t s = 0; s < 256; ++s) {
      if (s == 255) {
        EXPECT_TRUE(std::isnan(view.scale(s, 0)));
      } else {
        ASSERT_EQ(static_cast<double>(view.scale(s, 0)), std::ldexp(1.0, static_cast<int>(s) - 127)) << s;
      }
      for (int64_t k = 0; k < 32; ++k) {
        const double expected = kE2m1Values[(s + k) % 16];
        ASSERT_EQ(view.unscaled(s, k), expected) << "scale " << s << ", column " << k;
        ASSERT_EQ(std::signbit(view.unscaled(s, k)), std::signbit(expected));
      }
    }
  }
}

TEST(PackTest, RefusesWhatItHasNoKernelFor) {
  const std::unique_ptr<Ops> cpu = std::move(make_cpu_ops(1)).value();
  for (const LinearSpec& spec : all_specs(8, 2)) EXPECT_TRUE(cpu->check_linear(spec).ok()) << to_string(spec);
  const LinearSpec bad[] = {
      affine_spec(8, 128, 7, 64, DType::kBF16),
      affine_spec(8, 128, 4, 16, DType::kBF16),
      affine_spec(8, 96, 4, 64, DType::kBF16),
      affine_spec(8, 128, 4, 64, DType::kU8),
      float_spec(8, 64, DType::kF8E4M3),
      float_spec(0, 64, DType::kBF16),
      mxfp4_spec(8, 48),
      {.out = 8, .in = 64, .format = WeightFormat::kMxfp4, .dtype = DType::kU8, .bits = 4, .group_size = 32},
      {.out = 8,
       .in = 64,
       .format = WeightFormat::kMxfp4,
       .dtype = DType::kBF16,
       .bits = 8,
       .group_size = 32},
      {.out = 8,
       .in = 64,
       .format = WeightFormat::kMxfp4,
       .dtype = DType::kBF16,
       .bits = 4,
       .group_size = 64}};
  for (const LinearSpec& spec : bad) {
    const Status status = cpu->check_linear(spec);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find(to_string(spec)), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tensorfold
