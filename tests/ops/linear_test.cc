// linear(): every instruction set equals the reference to the bit, and the reference computes W x + b.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/fp_env.h"
#include "ops/contract_math.h"
#include "ops/linear_layout.h"
#include "ops/ops.h"
#include "ops/reference/packed_matrix.h"
#include "tests/ops/random_linear.h"

namespace tensorfold {
namespace {

/// Row counts around every tile width, and more than one block of rows.
constexpr int64_t kRowCounts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,  12, 13,
                                  14, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 150};
constexpr int64_t kMaxRows = 150;

/// x and the reference's output for all its rows.
struct Case {
  Case(const RandomLinear& matrix, DType activation, int64_t rows, bool with_bias,
       Values values = Values::kUsual)
      : matrix(matrix),
        with_bias(with_bias),
        x(activation, rows, matrix.spec().in),
        expected(DType::kF32, rows, matrix.spec().out) {
    fill_random(x.view(), 11, values);
    const LinearCall call[] = {{.out = expected.view(), .weight = matrix.weight(with_bias)}};
    make_reference_ops()->linear(x.view(), call);
    expected.check_guards();
  }

  /// `ops` on the first `rows` rows equals the expectation, and writes nothing else.
  void check(Ops& ops, int64_t rows) const {
    const GuardedMatrix out(DType::kF32, rows, matrix.spec().out);
    const LinearCall call[] = {{.out = out.view(), .weight = matrix.weight(with_bias)}};
    ops.linear(x.view().rows(0, rows), call);
    ASSERT_TRUE(same_bits(out.view(), expected.view()))
        << to_string(matrix.spec()) << ", " << rows << " rows of " << dtype_name(x.view().dtype);
    out.check_guards();
  }

  const RandomLinear& matrix;
  bool with_bias;
  GuardedMatrix x, expected;
};

class LinearTest : public CpuIsaTest {};
TF_INSTANTIATE_FOR_EVERY_ISA(LinearTest);

TEST_P(LinearTest, EqualsTheReferenceInEveryFormat) {
  const std::unique_ptr<Ops> ops = make_ops();
  // One group leaves seven segments empty; 5 leave some short or empty; 17 make them several groups long.
  for (const auto& [out, groups] : {std::pair<int64_t, int64_t>{1, 1}, {31, 5}, {64, 9}, {95, 17}}) {
    for (const LinearSpec& spec : all_specs(out, groups)) {
      const RandomLinear matrix(spec, 1, *ops);
      for (DType activation : {DType::kBF16, DType::kF32}) {
        const Case c(matrix, activation, 14, true);
        for (int64_t rows : {1, 2, 3, 14}) c.check(*ops, rows);
      }
    }
  }
}

TEST_P(LinearTest, EqualsTheReferenceForEveryNumberOfRows) {
  const std::unique_ptr<Ops> ops = make_ops();
  for (const LinearSpec& spec :
       {affine_spec(65, 320, 4, 32, DType::kF16), affine_spec(96, 1152, 4, 64, DType::kBF16),
        affine_spec(40, 640, 8, 128, DType::kF32), mxfp4_spec(65, 352), float_spec(65, 577, DType::kBF16),
        float_spec(33, 200, DType::kF16), float_spec(33, 130, DType::kF32)}) {
    const RandomLinear matrix(spec, 2, *ops);
    for (DType activation : {DType::kBF16, DType::kF32}) {
      const Case c(matrix, activation, kMaxRows, false);
      for (int64_t rows : kRowCounts) c.check(*ops, rows);
    }
  }
}

TEST_P(LinearTest, EqualsTheReferenceForEveryNumberOfColumns) {
  const std::unique_ptr<Ops> ops = make_ops();
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int64_t in : {1, 2, 3, 31, 63, 64, 65, 127, 449, 511, 512, 513, 1000}) {
      const RandomLinear matrix(float_spec(5, in, dtype), 3, *ops);
      for (DType activation : {DType::kBF16, DType::kF32}) {
        const Case c(matrix, activation, 3, false);
        for (int64_t rows : {1, 3}) c.check(*ops, rows);
      }
    }
  }
  for (int64_t in = 32; in <= 32 * 40; in += 32) {
    for (const LinearSpec& spec : {affine_spec(5, in, 4, 32, DType::kF16), mxfp4_spec(5, in)}) {
      const RandomLinear matrix(spec, 3, *ops);
      const Case c(matrix, DType::kBF16, 2, false);
      for (int64_t rows : {1, 2}) c.check(*ops, rows);
    }
  }
}

// The other half of an odd row's last step is a zero, not what scratch memory held before.
TEST_P(LinearTest, OddRowsEndInZerosWhateverWasInScratchBefore) {
  const std::unique_ptr<Ops> ops = make_ops();
  for (DType activation : {DType::kBF16, DType::kF32}) {
    const RandomLinear wide(float_spec(5, 1001, DType::kBF16), 3, *ops);
    const RandomLinear narrow(float_spec(5, 577, DType::kBF16), 3, *ops);
    const Case c(narrow, activation, 3, false);
    const GuardedMatrix nans(activation, 3, 1001), out(DType::kF32, 3, 5);
    for (int64_t i = 0; i < 3 * 1001; ++i) {
      if (activation == DType::kF32) {
        nans.view().row<float>(i / 1001)[i % 1001] = std::nanf("");
      } else {
        nans.view().row<bf16>(i / 1001)[i % 1001] = bf16{0x7fc0};
      }
    }
    const LinearCall call[] = {{.out = out.view(), .weight = wide.weight()}};
    ops->linear(nans.view(), call);
    c.check(*ops, 3);
  }
}

// Rows so wide that few of them make a part of their own.
TEST_P(LinearTest, EqualsTheReferenceForWideRows) {
  const std::unique_ptr<Ops> ops = make_ops();
  for (int64_t in : {2560, 5120, 20480}) {
    for (const LinearSpec& spec :
         {affine_spec(3, in, 4, 64, DType::kBF16), affine_spec(3, in, 6, 128, DType::kF16), mxfp4_spec(3, in),
          float_spec(3, in - 1, DType::kBF16), float_spec(3, in - 1, DType::kF32)}) {
      const RandomLinear matrix(spec, 4, *ops);
      const Case c(matrix, DType::kBF16, 13, false);
      for (int64_t rows : {1, 2, 13}) c.check(*ops, rows);
    }
  }
}

TEST_P(LinearTest, EqualsTheReferenceWhereValuesUnderflow) {
  const std::unique_ptr<Ops> ops = make_ops();
  int64_t num_zeros = 0, num_tiny = 0;
  for (int64_t groups : {1, 5}) {
    for (const LinearSpec& spec : all_specs(33, groups)) {
      if (spec.dtype == DType::kF16) continue;  // has no such small values
      const RandomLinear matrix(spec, 5, *ops, Values::kTiny);
      for (DType activation : {DType::kBF16, DType::kF32}) {
        const Case c(matrix, activation, 5, false, Values::kTiny);
        for (int64_t rows : {1, 5}) c.check(*ops, rows);
        for (int64_t o = 0; o < spec.out; ++o) {
          const float y = std::abs(c.expected.view().row<float>(0)[o]);
          num_zeros += y == 0.0f;
          num_tiny += y > 0.0f && y < 0x1p-118f;
        }
      }
    }
  }
  EXPECT_GT(num_zeros, 20);  // the values do straddle the smallest normal number
  EXPECT_GT(num_tiny, 1000);
}

// Also what VDPBF16PS itself does: each output is the sum of a few of its steps.
TEST_P(LinearTest, EqualsTheReferenceForAllBitPatterns) {
  const std::unique_ptr<Ops> ops = make_ops();
  for (const LinearSpec& spec :
       {float_spec(512, 6, DType::kBF16), float_spec(512, 6, DType::kF16), float_spec(512, 6, DType::kF32),
        affine_spec(512, 64, 4, 32, DType::kBF16), mxfp4_spec(512, 64)}) {
    const RandomLinear matrix(spec, 6, *ops, Values::kBitPatterns);
    for (DType activation : {DType::kBF16, DType::kF32}) {
      const Case c(matrix, activation, 64, false, Values::kBitPatterns);
      for (int64_t rows : {1, 64}) c.check(*ops, rows);
    }
  }
}

TEST_P(LinearTest, AddsToTheOutputAndRoundsItWhereAsked) {
  const std::unique_ptr<Ops> ops = make_ops(), reference = make_reference_ops();
  for (const LinearSpec& spec :
       {affine_spec(70, 320, 4, 32, DType::kF16), mxfp4_spec(70, 320), float_spec(70, 99, DType::kBF16)}) {
    const RandomLinear matrix(spec, 7, *ops);
    for (int64_t rows : {1, 4}) {
      const GuardedMatrix x(DType::kBF16, rows, spec.in);
      fill_random(x.view(), 12);
      for (bool accumulate : {false, true}) {
        const DType dtype = accumulate ? DType::kF32 : DType::kBF16;
        const GuardedMatrix out(dtype, rows, spec.out), expected(dtype, rows, spec.out);
        fill_random(out.view(), 13);
        fill_random(expected.view(), 13);
        const LinearCall call[] = {
            {.out = out.view(), .weight = matrix.weight(true), .accumulate = accumulate}};
        const LinearCall expected_call[] = {
            {.out = expected.view(), .weight = matrix.weight(true), .accumulate = accumulate}};
        ops->linear(x.view(), call);
        reference->linear(x.view(), expected_call);
        EXPECT_TRUE(same_bits(out.view(), expected.view())) << to_string(spec);
        out.check_guards();
      }
    }
  }
}

// Formats and group sizes differ, so that each needs the rows in a form of its own.
TEST_P(LinearTest, SeveralCallsGiveTheBitsOfSeparateOnes) {
  for (int threads : {1, 2, 3}) {
    const std::unique_ptr<Ops> ops = make_ops(threads);
    const LinearSpec specs[] = {affine_spec(192, 384, 4, 32, DType::kF16),
                                affine_spec(64, 384, 8, 64, DType::kBF16),
                                float_spec(7, 384, DType::kF16),
                                float_spec(33, 384, DType::kBF16),
                                mxfp4_spec(70, 384),
                                affine_spec(1000, 384, 3, 128, DType::kF32)};
    for (int64_t rows : {1, 5, 140}) {
      const GuardedMatrix x(DType::kBF16, rows, 384);
      fill_random(x.view(), 14);
      std::vector<std::unique_ptr<RandomLinear>> matrices;
      std::vector<GuardedMatrix> outs;
      std::vector<LinearCall> calls;
      outs.reserve(std::size(specs));
      for (const LinearSpec& spec : specs) {
        matrices.push_back(std::make_unique<RandomLinear>(spec, 8, *ops));
        outs.emplace_back(DType::kF32, rows, spec.out);
        calls.push_back({.out = outs.back().view(), .weight = matrices.back()->weight()});
      }
      ops->linear(x.view(), calls);
      for (size_t i = 0; i < calls.size(); ++i) {
        const GuardedMatrix expected(DType::kF32, rows, specs[i].out);
        const LinearCall call[] = {{.out = expected.view(), .weight = matrices[i]->weight()}};
        make_reference_ops()->linear(x.view(), call);
        EXPECT_TRUE(same_bits(outs[i].view(), expected.view()))
            << to_string(specs[i]) << ", " << threads << " threads";
        outs[i].check_guards();
      }
    }
  }
}

TEST_P(LinearTest, ARowAloneEqualsTheSameRowAmongOthers) {
  const std::unique_ptr<Ops> ops = make_ops(2);
  for (const LinearSpec& spec :
       {affine_spec(96, 640, 4, 32, DType::kF16), mxfp4_spec(96, 640), float_spec(96, 640, DType::kBF16)}) {
    const RandomLinear matrix(spec, 9, *ops);
    const GuardedMatrix x(DType::kBF16, 40, spec.in), together(DType::kF32, 40, spec.out);
    fill_random(x.view(), 15);
    const LinearCall all[] = {{.out = together.view(), .weight = matrix.weight()}};
    ops->linear(x.view(), all);
    for (int64_t t = 0; t < 40; ++t) {
      const GuardedMatrix alone(DType::kF32, 1, spec.out);
      const LinearCall one[] = {{.out = alone.view(), .weight = matrix.weight()}};
      ops->linear(x.view().rows(t, 1), one);
      ASSERT_TRUE(same_bits(alone.view(), together.view().rows(t, 1)));
    }
  }
}

// Rows whose distance is a power of two are copied before use; columns of a wider matrix are such rows.
TEST_P(LinearTest, TakesRowsAtAnyDistance) {
  const std::unique_ptr<Ops> ops = make_ops();
  const LinearSpec spec = affine_spec(33, 512, 4, 64, DType::kBF16);
  const RandomLinear matrix(spec, 10, *ops);
  for (DType activation : {DType::kBF16, DType::kF32}) {
    for (int64_t stride : {512, 513, 1024, 1056}) {
      const GuardedMatrix x(activation, 5, spec.in, stride);
      const GuardedMatrix out(DType::kF32, 5, spec.out), expected(DType::kF32, 5, spec.out);
      fill_random(x.view(), 16);
      const LinearCall call[] = {{.out = out.view(), .weight = matrix.weight()}};
      const LinearCall expected_call[] = {{.out = expected.view(), .weight = matrix.weight()}};
      ops->linear(x.view(), call);
      make_reference_ops()->linear(x.view(), expected_call);
      EXPECT_TRUE(same_bits(out.view(), expected.view())) << "stride " << stride;
    }
  }
}

/// W x + b in double with the sum of its terms' magnitudes.
struct DoubleSum {
  double value = 0, magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

DoubleSum double_product(const RandomLinear& matrix, const View& x, int64_t t, int64_t output) {
  const LinearSpec& spec = matrix.spec();
  const LinearWeight weight = matrix.weight(true);
  const reference::PackedMatrix packed(spec, weight.data);
  DoubleSum sum;
  for (int64_t k = 0; k < spec.in; ++k) {
    const double xk = x.dtype == DType::kF32 ? x.row<float>(t)[k] : to_float(x.row<bf16>(t)[k]);
    if (spec.format == WeightFormat::kFloat) {
      sum.add(xk * packed.element(output, k));
      continue;
    }
    const int64_t group = k / spec.group_size;
    sum.add(xk * packed.unscaled(output, k) * packed.scale(output, group));
    if (spec.format == WeightFormat::kAffine) sum.add(xk * packed.bias(output, group));
  }
  sum.add(weight.bias[output]);
  return sum;
}

// Each of the at most 2 in + 16 fp32 operations on a term's way into the sum loses at most 2^-24 of the
// magnitudes.
TEST(LinearReferenceTest, ComputesTheProductOfTheCheckpointsMatrix) {
  const std::unique_ptr<Ops> ops = make_reference_ops();
  for (const LinearSpec& spec : all_specs(9, 13)) {
    const RandomLinear matrix(spec, 11, *ops);
    for (DType activation : {DType::kBF16, DType::kF32}) {
      const Case c(matrix, activation, 3, true);
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t o = 0; o < spec.out; ++o) {
          const DoubleSum sum = double_product(matrix, c.x.view(), t, o);
          const double bound = sum.magnitude * static_cast<double>(2 * spec.in + 16) * 0x1p-24;
          ASSERT_NEAR(c.expected.view().row<float>(t)[o], sum.value, bound) << to_string(spec);
        }
      }
    }
  }
}

/// The order of arithmetic.md, written out for 3 groups of 32: segments of 64 columns, of which the second is
/// half as long and six are empty. MXFP4 has no sum of x.
float sum_of_three_groups(const reference::PackedMatrix& packed, int64_t output, const bf16* x) {
  float segment[8] = {};
  for (int64_t group = 0; group < 3; ++group) {
    float d = 0, xs = 0;
    for (int64_t k = group * 32; k < group * 32 + 32; k += 2) {
      d = std::fma(to_float(x[k + 1]), packed.unscaled(output, k + 1), d);
      d = std::fma(to_float(x[k]), packed.unscaled(output, k), d);
      xs = std::fma(to_float(x[k]), 1.0f, std::fma(to_float(x[k + 1]), 1.0f, xs));
    }
    float& acc = segment[group / 2];
    if (packed.spec().format == WeightFormat::kAffine) acc = std::fma(packed.bias(output, group), xs, acc);
    acc = std::fma(packed.scale(output, group), d, acc);
  }
  return ((segment[0] + segment[1]) + (segment[2] + segment[3])) +
         ((segment[4] + segment[5]) + (segment[6] + segment[7]));
}

TEST(LinearReferenceTest, FollowsTheOrderOfTheContract) {
  const ScopedFlushDenormals flush;
  const std::unique_ptr<Ops> ops = make_reference_ops();
  for (const LinearSpec& spec : {affine_spec(50, 96, 4, 32, DType::kF16), mxfp4_spec(50, 96)}) {
    const RandomLinear matrix(spec, 12, *ops);
    const Case c(matrix, DType::kBF16, 3, true);
    const LinearWeight weight = matrix.weight(true);
    const reference::PackedMatrix packed(spec, weight.data);
    const GuardedMatrix expected(DType::kF32, 3, 50);
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t o = 0; o < 50; ++o) {
        expected.view().row<float>(t)[o] =
            sum_of_three_groups(packed, o, c.x.view().row<bf16>(t)) + weight.bias[o];
      }
    }
    EXPECT_TRUE(same_bits(c.expected.view(), expected.view())) << to_string(spec);
  }
}

}  // namespace
}  // namespace tensorfold
