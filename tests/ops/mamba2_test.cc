// mamba2: every instruction set equals the reference, states included; how rows fall into passes changes no
// bit; the reference is its formula in double, within the roundings that it makes.
#include <limits>

#include "tests/ops/recurrent_test_support.h"

namespace tensorfold::test {
namespace {

struct Sizes {
  int64_t rows, groups, heads, state_size, head_size;
};

/// The limits of the step.
struct Limits {
  float min = 0.0f, max = std::numeric_limits<float>::infinity();
};

class Mamba2 final : public RecurrentCase {
 public:
  explicit Mamba2(const Sizes& sizes, uint64_t seed = 1, const Limits& limits = {},
                  bool with_specials = false)
      : sizes_(sizes),
        limits_(limits),
        x_(DType::kF32, sizes.rows, sizes.heads * sizes.head_size, {3, 1}),
        b_(DType::kF32, sizes.rows, sizes.groups * sizes.state_size, {5, 2}),
        c_(DType::kF32, sizes.rows, sizes.groups * sizes.state_size, {1, 3}),
        dt_(DType::kF32, sizes.rows, sizes.heads, {2, 1}),
        a_log_(DType::kF32, 1, sizes.heads, {0, 1}),
        d_(DType::kF32, 1, sizes.heads, {0, 2}),
        dt_bias_(DType::kF32, 1, sizes.heads, {0, 3}) {
    Random random(seed);
    for (Array* array : {&x_, &b_, &c_, &dt_, &a_log_, &d_, &dt_bias_}) array->fill(random);
    if (!with_specials) return;
    for (Array* array : {&x_, &b_, &c_, &dt_}) sprinkle_specials(*array, random);
  }

  RecurrentShape shape() const override {
    return {.conv_channels = 3,  // of a layer's state, to be left alone
            .conv_taps = 4,
            .num_heads = sizes_.heads,
            .key_dim = sizes_.state_size,
            .value_dim = sizes_.head_size};
  }
  int64_t num_rows() const override { return sizes_.rows; }
  int64_t out_columns() const override { return sizes_.heads * sizes_.head_size; }
  bool keeps_matrices() const override { return true; }
  std::string name() const override {
    return fmt::format("{} rows, {} heads of {}x{} in {} groups, step in [{}, {}]", sizes_.rows, sizes_.heads,
                       sizes_.state_size, sizes_.head_size, sizes_.groups, limits_.min, limits_.max);
  }
  void run(Ops& ops, View out, int64_t first, const RecurrentStates& states,
           const RowBatch& rows) const override {
    const int64_t n = rows.num_rows();
    ops.mamba2({.out = out,
                .x = x_.view().rows(first, n),
                .b = b_.view().rows(first, n),
                .c = c_.view().rows(first, n),
                .dt = dt_.view().rows(first, n),
                .a_log = a_log_.view(),
                .d = d_.view(),
                .dt_bias = dt_bias_.view(),
                .dt_min = limits_.min,
                .dt_max = limits_.max,
                .states = &states,
                .rows = rows});
  }

  const Sizes& sizes() const { return sizes_; }
  const Limits& limits() const { return limits_; }
  double x(int64_t t, int64_t i) const { return x_.get(t, i); }
  double b(int64_t t, int64_t i) const { return b_.get(t, i); }
  double c(int64_t t, int64_t i) const { return c_.get(t, i); }
  double dt(int64_t t, int64_t h) const { return dt_.get(t, h); }
  double a_log(int64_t h) const { return a_log_.get(0, h); }
  double d(int64_t h) const { return d_.get(0, h); }
  double dt_bias(int64_t h) const { return dt_bias_.get(0, h); }

 private:
  Sizes sizes_;
  Limits limits_;
  Array x_, b_, c_, dt_, a_log_, d_, dt_bias_;
};

class Mamba2OnEveryIsa : public EveryIsa {};

TEST_P(Mamba2OnEveryIsa, EqualsTheReference) {
  constexpr Sizes kSizes[] = {
      {0, 1, 1, 8, 8},   {1, 1, 1, 1, 1},    {2, 1, 2, 2, 3},     {5, 1, 1, 3, 17},   {9, 2, 4, 7, 31},
      {9, 3, 3, 8, 33},  {12, 2, 6, 9, 64},  {11, 1, 3, 12, 15},  {7, 1, 1, 13, 16},  {7, 1, 1, 31, 32},
      {6, 2, 4, 33, 47}, {5, 1, 17, 36, 65}, {17, 1, 2, 128, 64}, {10, 2, 4, 64, 48}, {4, 1, 1, 200, 1},
  };
  uint64_t seed = 1;
  for (const Sizes& sizes : kSizes) {
    for (const bool with_specials : {false, true}) {
      for (const Limits& limits : {Limits{}, Limits{0.3f, 0.9f}})
        expect_equals_reference(Mamba2(sizes, seed++, limits, with_specials), reference(), backends());
    }
  }
}

// More rows than a chunk of them, and sequences that begin and end inside of one.
TEST_P(Mamba2OnEveryIsa, EqualsTheReferenceOverSeveralChunks) {
  for (const int64_t rows : {127, 128, 129, 257, 500})
    expect_equals_reference(Mamba2({rows, 1, 2, 10, 19}, 40), reference(), backends());
}

TEST_P(Mamba2OnEveryIsa, EqualsTheReferenceOnARowOfEachSequence) {
  expect_decode_equals_reference(Mamba2({200, 1, 2, 9, 17}, 41), reference(), backends());
}

TEST_P(Mamba2OnEveryIsa, CutsBetweenPassesChangeNoBit) {
  for (auto& ops : backends()) {
    std::vector<int64_t> everywhere;
    for (int64_t cut = 1; cut < 12; ++cut) everywhere.push_back(cut);
    expect_cuts_do_not_matter(Mamba2({13, 2, 4, 19, 21}, 50), *ops, everywhere);
    expect_cuts_do_not_matter(Mamba2({301, 1, 2, 16, 33}, 51), *ops, {{1, 127, 128, 129, 256, 299}});
  }
}

TEST_P(Mamba2OnEveryIsa, DraftedRowsAreNotStoredUntilTheyAreAccepted) {
  for (auto& ops : backends()) {
    for (int64_t accepted = 1; accepted <= 5; ++accepted)
      expect_drafted_rows_are_not_stored(Mamba2({12, 2, 4, 19, 21}, 52), *ops, 4, 5, accepted);
    expect_drafted_rows_are_not_stored(Mamba2({12, 1, 2, 16, 33}, 53), *ops, 0, 8, 3);
    expect_drafted_rows_are_not_stored(Mamba2({151, 1, 2, 16, 33}, 54), *ops, 4, 60, 41);
  }
}

TEST_P(Mamba2OnEveryIsa, BranchesOfOneSequenceShareItsSlot) {
  for (auto& ops : backends()) {
    for (const int64_t start : {0, 4}) {
      for (const int64_t accepted : {1, 2, 5})
        expect_branches_share_a_slot(Mamba2({12, 2, 4, 19, 21}, 55), *ops, start, accepted);
      // Chunks of rows end inside a branch.
      expect_branches_share_a_slot(Mamba2({128, 1, 2, 16, 33}, 56), *ops, start, 40);
      expect_branches_share_a_slot(Mamba2({130, 1, 2, 16, 33}, 57), *ops, start, 64);
    }
  }
}

TEST_P(Mamba2OnEveryIsa, AStartIgnoresWhatTheSlotHolds) {
  for (auto& ops : backends()) expect_stale_slots_do_not_matter(Mamba2({9, 2, 2, 16, 24}, 60), *ops);
}

TF_INSTANTIATE_FOR_EVERY_ISA(Mamba2OnEveryIsa);

constexpr double kEps = 0x1p-24;  // of one rounding

/// The formula for one head, with a bound of the error of every step.
class MambaFormula {
 public:
  MambaFormula(const Mamba2& in, int64_t head) : in_(in), head_(head), S_(size()), S_error_(size()) {}

  /// Values and error bounds of row t, in order.
  std::pair<std::vector<double>, std::vector<double>> row(int64_t t) {
    const int64_t N = in_.sizes().state_size, P = in_.sizes().head_size;
    const int64_t first = head_ / (in_.sizes().heads / in_.sizes().groups) * N;
    const double raw = in_.dt(t, head_) + in_.dt_bias(head_), rate = std::exp(in_.a_log(head_));
    const double step =
        std::clamp(std::log1p(std::exp(raw)), double{in_.limits().min}, double{in_.limits().max});
    // softplus within 2 ulp (an ulp is at most 2 kEps), its argument rounded once; then exp within 1.1 ulp
    // and a product make the decay's exponent.
    const double step_error = 4 * kEps * step + std::fabs(raw) / (1 + std::exp(-raw)) * kEps;
    const double g = std::exp(-rate * step);
    const double g_error = g * (rate * step_error + 3.2 * kEps * rate * step + 2.2 * kEps);
    std::pair<std::vector<double>, std::vector<double>> result;
    for (int64_t p = 0; p < P; ++p) {
      const double x = in_.x(t, head_ * P + p), input = step * x;
      const double input_error = step_error * std::fabs(x) + kEps * std::fabs(input);
      double y = in_.d(head_) * x, y_error = 0;
      for (int64_t n = 0; n < N; ++n) {
        double &s = S_[n * P + p], &s_error = S_error_[n * P + p];
        const double b = in_.b(t, first + n), c = in_.c(t, first + n), decayed = g * s;
        s_error =
            g * s_error + g_error * std::fabs(s) + kEps * std::fabs(decayed) + std::fabs(b) * input_error;
        s = b * input + decayed;
        s_error += kEps * std::fabs(s);
        // A term passes N / 8 additions to its partial and three halvings.
        y_error += std::fabs(c) * s_error + (static_cast<double>(N) / 8 + 1 + 3) * kEps * std::fabs(c * s);
        y += c * s;
      }
      result.first.push_back(y);
      result.second.push_back(y_error + kEps * std::fabs(y));
    }
    return result;
  }

 private:
  size_t size() const { return static_cast<size_t>(in_.sizes().state_size * in_.sizes().head_size); }
  const Mamba2& in_;
  int64_t head_;
  std::vector<double> S_, S_error_;
};

TEST(Mamba2Reference, IsItsFormula) {
  for (const Limits& limits : {Limits{}, Limits{0.3f, 0.9f}}) {
    const Sizes sizes{40, 2, 4, 21, 8};
    const Mamba2 op(sizes, 70, limits);
    Slots states = Slots(op.shape(), 1).fill_with_nan();
    Array out(DType::kF32, sizes.rows, op.out_columns());
    const Piece pieces[] = {{sizes.rows, 0, 0}};
    run_pass(op, *make_reference_ops(), 0, pieces, states, out);
    double largest = 0, largest_bound = 0;
    for (int64_t h = 0; h < sizes.heads; ++h) {
      MambaFormula formula(op, h);
      for (int64_t t = 0; t < sizes.rows; ++t) {
        const auto [expected, bound] = formula.row(t);
        for (int64_t p = 0; p < sizes.head_size; ++p) {
          // Products of two errors are left out of the bound: 1 % more than covers them.
          ASSERT_NEAR(out.get(t, h * sizes.head_size + p), expected[p], 1.01 * bound[p])
              << op.name() << ", row " << t << ", head " << h << ", column " << p;
          largest = std::max(largest, std::fabs(expected[p]));
          largest_bound = std::max(largest_bound, bound[p]);
        }
      }
    }
    EXPECT_LT(largest_bound, 1e-4 * largest) << "the bound accepts anything";
  }
}

}  // namespace
}  // namespace tensorfold::test
