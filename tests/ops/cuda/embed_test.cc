// embed on CUDA: rows of the packed table, equal to the definition bit for bit; and, without a device, that a
// packed element read back is the checkpoint's.
#include "ops/cuda/embed.h"

#include "base/fp_env.h"
#include "ops/cuda/linear.h"
#include "ops/reference/reference_ops.h"
#include "tests/ops/cuda/device_copy.h"
#include "tests/ops/random_linear.h"

namespace tensorfold::test {
namespace {

using CudaEmbed = OnCudaDevice;

constexpr int64_t kVocabSize = 75;
/// The first and last rows of the table and of its tiles, some twice.
const std::vector<int32_t> kTokens = {0, 74, 15, 16, 7, 8, 63, 64, 0, 17, 74};
constexpr float kScale = 50.5f;

/// Every format that linear() takes on CUDA, with short last chunks of columns.
std::vector<LinearSpec> cuda_specs() {
  std::vector<LinearSpec> specs;
  for (const int64_t groups : {1, 3}) {
    for (LinearSpec spec : all_specs(kVocabSize, groups)) {
      if (spec.format == WeightFormat::kFloat) spec.in = groups * 64 - 24;
      EXPECT_TRUE(cuda::check_linear(spec).ok()) << to_string(spec);
      specs.push_back(spec);
    }
  }
  return specs;
}

/// Scales that are rounded to bf16 with the weight lie in the table times a power of two: those beyond its
/// range are no longer what they were (ops/cuda/linear_layout.h).
std::vector<Values> values_of(const LinearSpec& spec) {
  if (cuda::layout_of(spec).is_prescaled()) return {Values::kUsual, Values::kTiny};
  return {Values::kUsual, Values::kTiny, Values::kBitPatterns};
}

/// A table in the layouts of the definition and of CUDA.
struct Table {
  RandomLinear definition;
  std::vector<std::byte> packed;

  Table(const LinearSpec& spec, uint64_t seed, Values values)
      : definition(spec, seed, ReferenceOps(), values), packed(cuda::packed_bytes(spec), std::byte{0xff}) {
    cuda::pack_linear(spec, definition.source(), packed);
  }
};

Array expected_rows(const Table& table, const std::vector<int32_t>& tokens, DType dtype, float scale) {
  Array expected(dtype, static_cast<int64_t>(tokens.size()), table.definition.spec().in);
  ReferenceOps().embed(expected.view(), table.definition.weight(), tokens, scale);
  return expected;
}

TEST(CudaPackedElement, IsTheCheckpointsElement) {
  std::vector<int32_t> all_rows(kVocabSize);
  for (size_t row = 0; row < all_rows.size(); ++row) all_rows[row] = static_cast<int32_t>(row);
  for (const LinearSpec& spec : cuda_specs()) {
    for (const Values values : values_of(spec)) {
      const Table table(spec, 1, values);
      const Array expected = expected_rows(table, all_rows, DType::kF32, 1.0f);
      Array actual(DType::kF32, kVocabSize, spec.in);
      const volatile float scale = 1.0f;  // A product that the compiler must compute, so that it flushes.
      ScopedFlushDenormals flush;
      for (int64_t row = 0; row < kVocabSize; ++row) {
        for (int64_t column = 0; column < spec.in; ++column) {
          const float element =
              cuda::packed_element(cuda::layout_of(spec), table.packed.data(), spec.in, row, column);
          actual.set(row, column, element * scale);
        }
      }
      expect_same(actual, expected, to_string(spec));
    }
  }
}

TEST_F(CudaEmbed, EqualsTheDefinitionInEveryFormat) {
  const DeviceVector<int32_t> tokens(kTokens);
  const auto num_tokens = static_cast<int64_t>(kTokens.size());
  for (const LinearSpec& spec : cuda_specs()) {
    for (const Values values : values_of(spec)) {
      const Table table(spec, 2, values);
      const DeviceVector<std::byte> packed(table.packed);
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        for (const float scale : {1.0f, kScale}) {
          const DeviceCopy out(Array(dtype, num_tokens, spec.in, kPlacements[spec.bits % 3]));
          cuda::launch_embed(nullptr, cuda::embed_launch(out.view(), {.spec = spec, .data = packed.data()},
                                                         tokens.data(), scale));
          finish_launches();
          expect_same(out.download(), expected_rows(table, kTokens, dtype, scale), to_string(spec));
        }
      }
    }
  }
}

TEST_F(CudaEmbed, TakesAnyNumberOfRows) {
  const LinearSpec spec = affine_spec(kVocabSize, 576, 4, 64, DType::kBF16);
  const Table table(spec, 3, Values::kUsual);
  const DeviceVector<std::byte> packed(table.packed);
  for (const int64_t rows : {0, 1, 2, 17, 3000}) {
    std::vector<int32_t> tokens(rows);
    for (int64_t t = 0; t < rows; ++t) tokens[t] = static_cast<int32_t>(t * 7 % kVocabSize);
    const DeviceVector<int32_t> device_tokens(tokens);
    const DeviceCopy out(Array(DType::kF32, rows, spec.in, {3, 1}));
    cuda::launch_embed(nullptr, cuda::embed_launch(out.view(), {.spec = spec, .data = packed.data()},
                                                   device_tokens.data(), 1.0f));
    finish_launches();
    expect_same(out.download(), expected_rows(table, tokens, DType::kF32, 1.0f), "rows");
  }
}

}  // namespace
}  // namespace tensorfold::test
