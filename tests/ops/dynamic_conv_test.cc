// dynamic_conv: every instruction set equals the reference, the reference is its formula in double, and
// nothing passes from one sequence to the next.
#include <fmt/format.h>

#include <algorithm>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

struct Sizes {
  int64_t groups, group_size, taps;
  std::vector<int64_t> lengths;  ///< Rows of each sequence.
  int64_t channels() const { return groups * group_size; }
};

class DynamicConv {
 public:
  explicit DynamicConv(const Sizes& sizes, uint64_t seed = 1, bool with_specials = false)
      : sizes_(sizes), num_rows_(0) {
    for (const int64_t length : sizes.lengths) {
      sequences_.push_back({.first_row = num_rows_, .num_rows = length});
      num_rows_ += length;
    }
    positions_.resize(num_rows_);
    x = Array(DType::kF32, num_rows_, sizes.channels(), {3, 1});
    base = Array(DType::kF32, sizes.taps, sizes.channels(), {2, 3});
    dynamic = Array(DType::kF32, num_rows_, sizes.taps * sizes.groups, {1, 2});
    residual = Array(DType::kF32, num_rows_, sizes.channels());
    Random random(seed);
    for (Array* array : {&x, &base, &dynamic, &residual}) array->fill(random);
    if (with_specials) sprinkle_specials(x, random);
  }

  Array run(Ops& ops, DType dtype, bool accumulate, Placement placement = {}) const {
    Array out(dtype, num_rows_, sizes_.channels(), placement);
    for (int64_t i = 0; accumulate && i < num_rows_; ++i) {
      for (int64_t j = 0; j < out.columns(); ++j) out.set(i, j, residual.get(i, j));
    }
    ops.dynamic_conv({.out = out.view(),
                      .x = x.view(),
                      .base = base.view(),
                      .dynamic = dynamic.view(),
                      .rows = {positions_, sequences_},
                      .accumulate = accumulate});
    return out;
  }

  std::string name() const {
    return fmt::format("{} groups of {}, {} taps, {} rows", sizes_.groups, sizes_.group_size, sizes_.taps,
                       num_rows_);
  }
  int64_t num_rows() const { return num_rows_; }

  Array x{DType::kF32, 0, 0}, base{DType::kF32, 0, 0}, dynamic{DType::kF32, 0, 0},
      residual{DType::kF32, 0, 0};

 private:
  Sizes sizes_;
  int64_t num_rows_;
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> positions_;
};

class DynamicConvOnEveryIsa : public EveryIsa {};

TEST_P(DynamicConvOnEveryIsa, EqualsTheReference) {
  uint64_t seed = 1;
  for (const int64_t group_size : {1, 2, 7, 8, 16, 19, 64}) {
    for (const int64_t groups : {1, 3, 40}) {
      for (const int64_t taps : {1, 2, 5}) {
        const DynamicConv conv({groups, group_size, taps, {8, 1, 0, 3}}, seed, seed % 3 == 0);
        ++seed;
        for (const auto& [dtype, accumulate] :
             {std::pair(DType::kF32, false), std::pair(DType::kF32, true), std::pair(DType::kBF16, false)}) {
          const Array expected = conv.run(reference(), dtype, accumulate);
          for (auto& ops : backends()) {
            for (const Placement& placement : kPlacements)
              expect_same(conv.run(*ops, dtype, accumulate, placement), expected, conv.name());
          }
        }
      }
    }
  }
}

// Enough of both for several tasks.
TEST_P(DynamicConvOnEveryIsa, EqualsTheReferenceOverSeveralTasks) {
  const DynamicConv conv({128, 16, 2, {8, 16, 5}}, 7);
  const Array expected = conv.run(reference(), DType::kF32, true);
  for (auto& ops : backends()) expect_same(conv.run(*ops, DType::kF32, true), expected, conv.name());
}

TF_INSTANTIATE_FOR_EVERY_ISA(DynamicConvOnEveryIsa);

TEST(DynamicConvReference, IsItsFormula) {
  const int64_t groups = 5, group_size = 4, taps = 3;
  const std::vector<int64_t> lengths = {6, 2, 4};
  const DynamicConv conv({groups, group_size, taps, lengths}, 3);
  auto ops = make_reference_ops();
  const Array out = conv.run(*ops, DType::kF32, false), sum = conv.run(*ops, DType::kF32, true);
  double largest = 0;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    for (int64_t t = first; t < first + length; ++t) {
      for (int64_t c = 0; c < groups * group_size; ++c) {
        double y = 0, size = 0;
        for (int64_t o = 0; o < taps && t - o >= first; ++o) {
          const double term = (static_cast<double>(conv.base.get(o, c)) +
                               static_cast<double>(conv.dynamic.get(t, o * groups + c / group_size))) *
                              static_cast<double>(conv.x.get(t - o, c));
          y += term;
          size += std::fabs(term);
        }
        // A tap rounds its weight and its sum.
        const double bound = 2 * static_cast<double>(taps) * 0x1p-24 * size;
        ASSERT_NEAR(out.get(t, c), y, bound) << "row " << t << " channel " << c;
        const double with_residual = static_cast<double>(conv.residual.get(t, c)) + y;
        ASSERT_NEAR(sum.get(t, c), with_residual, bound + 0x1p-23 * std::fabs(with_residual));
        largest = std::max(largest, std::fabs(y));
      }
    }
    first += length;
  }
  EXPECT_GT(largest, 2.0) << "degenerate inputs";
}

}  // namespace
}  // namespace tensorfold::test
