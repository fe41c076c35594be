// gated_delta: every instruction set equals the reference, states included; how rows fall into passes changes
// no bit; the reference is its formula in double, within the roundings that it makes.
#include "tests/ops/recurrent_test_support.h"

namespace tensorfold::test {
namespace {

struct Sizes {
  int64_t rows, key_heads, value_heads, key_dim, value_dim;
};

class GatedDelta final : public RecurrentCase {
 public:
  explicit GatedDelta(const Sizes& sizes, uint64_t seed = 1, bool with_specials = false)
      : sizes_(sizes),
        q_(DType::kF32, sizes.rows, sizes.key_heads * sizes.key_dim, {3, 1}),
        k_(DType::kF32, sizes.rows, sizes.key_heads * sizes.key_dim, {5, 2}),
        v_(DType::kF32, sizes.rows, sizes.value_heads * sizes.value_dim, {1, 3}),
        a_(DType::kF32, sizes.rows, sizes.value_heads, {2, 1}),
        b_(DType::kF32, sizes.rows, sizes.value_heads, {4, 3}),
        a_log_(DType::kF32, 1, sizes.value_heads, {0, 1}),
        dt_bias_(DType::kF32, 1, sizes.value_heads, {0, 3}) {
    Random random(seed);
    for (Array* array : {&q_, &k_, &v_, &a_, &b_, &a_log_, &dt_bias_}) array->fill(random);
    if (!with_specials) return;
    for (Array* array : {&q_, &v_, &a_, &b_}) sprinkle_specials(*array, random);
  }

  RecurrentShape shape() const override {
    return {.conv_channels = 3,  // of a layer's state, to be left alone
            .conv_taps = 4,
            .num_heads = sizes_.value_heads,
            .key_dim = sizes_.key_dim,
            .value_dim = sizes_.value_dim};
  }
  int64_t num_rows() const override { return sizes_.rows; }
  int64_t out_columns() const override { return sizes_.value_heads * sizes_.value_dim; }
  bool keeps_matrices() const override { return true; }
  std::string name() const override {
    return fmt::format("{} rows, {} of {} heads of {}x{}", sizes_.rows, sizes_.key_heads, sizes_.value_heads,
                       sizes_.key_dim, sizes_.value_dim);
  }
  void run(Ops& ops, View out, int64_t first, const RecurrentStates& states,
           const RowBatch& rows) const override {
    const int64_t n = rows.num_rows();
    ops.gated_delta({.out = out,
                     .q = q_.view().rows(first, n),
                     .k = k_.view().rows(first, n),
                     .v = v_.view().rows(first, n),
                     .a = a_.view().rows(first, n),
                     .b = b_.view().rows(first, n),
                     .a_log = a_log_.view(),
                     .dt_bias = dt_bias_.view(),
                     .states = &states,
                     .rows = rows});
  }

  const Sizes& sizes() const { return sizes_; }
  double q(int64_t t, int64_t i) const { return q_.get(t, i); }
  double k(int64_t t, int64_t i) const { return k_.get(t, i); }
  double v(int64_t t, int64_t i) const { return v_.get(t, i); }
  double a(int64_t t, int64_t h) const { return a_.get(t, h); }
  double b(int64_t t, int64_t h) const { return b_.get(t, h); }
  double a_log(int64_t h) const { return a_log_.get(0, h); }
  double dt_bias(int64_t h) const { return dt_bias_.get(0, h); }

 private:
  Sizes sizes_;
  Array q_, k_, v_, a_, b_, a_log_, dt_bias_;
};

class GatedDeltaOnEveryIsa : public EveryIsa {};

TEST_P(GatedDeltaOnEveryIsa, EqualsTheReference) {
  constexpr Sizes kSizes[] = {
      {0, 1, 1, 8, 8},   {1, 1, 1, 1, 1},    {2, 1, 2, 2, 3},    {5, 1, 1, 3, 17},     {9, 2, 4, 7, 31},
      {9, 3, 3, 8, 33},  {12, 2, 6, 9, 64},  {11, 1, 3, 12, 15}, {7, 1, 1, 13, 16},    {7, 1, 1, 31, 32},
      {6, 2, 4, 33, 47}, {5, 1, 17, 36, 65}, {17, 1, 2, 64, 48}, {10, 2, 2, 128, 128}, {4, 1, 1, 200, 1},
  };
  uint64_t seed = 1;
  for (const Sizes& sizes : kSizes) {
    for (const bool with_specials : {false, true})
      expect_equals_reference(GatedDelta(sizes, seed++, with_specials), reference(), backends());
  }
}

// More rows than a chunk of them, and sequences that begin and end inside of one.
TEST_P(GatedDeltaOnEveryIsa, EqualsTheReferenceOverSeveralChunks) {
  for (const int64_t rows : {127, 128, 129, 257, 500})
    expect_equals_reference(GatedDelta({rows, 1, 2, 10, 19}, 40), reference(), backends());
}

TEST_P(GatedDeltaOnEveryIsa, EqualsTheReferenceOnARowOfEachSequence) {
  expect_decode_equals_reference(GatedDelta({200, 1, 2, 9, 17}, 41), reference(), backends());
}

TEST_P(GatedDeltaOnEveryIsa, CutsBetweenPassesChangeNoBit) {
  for (auto& ops : backends()) {
    std::vector<int64_t> everywhere;
    for (int64_t cut = 1; cut < 12; ++cut) everywhere.push_back(cut);
    expect_cuts_do_not_matter(GatedDelta({13, 2, 4, 19, 21}, 50), *ops, everywhere);
    expect_cuts_do_not_matter(GatedDelta({301, 1, 2, 16, 33}, 51), *ops, {{1, 127, 128, 129, 256, 299}});
  }
}

TEST_P(GatedDeltaOnEveryIsa, DraftedRowsAreNotStoredUntilTheyAreAccepted) {
  for (auto& ops : backends()) {
    for (int64_t accepted = 1; accepted <= 5; ++accepted)
      expect_drafted_rows_are_not_stored(GatedDelta({12, 2, 4, 19, 21}, 52), *ops, 4, 5, accepted);
    expect_drafted_rows_are_not_stored(GatedDelta({12, 1, 2, 16, 33}, 53), *ops, 0, 8, 3);
    // Across the border of two chunks of rows.
    expect_drafted_rows_are_not_stored(GatedDelta({151, 1, 2, 16, 33}, 54), *ops, 4, 60, 41);
  }
}

TEST_P(GatedDeltaOnEveryIsa, BranchesOfOneSequenceShareItsSlot) {
  for (auto& ops : backends()) {
    for (const int64_t start : {0, 4}) {
      for (const int64_t accepted : {1, 2, 5})
        expect_branches_share_a_slot(GatedDelta({12, 2, 4, 19, 21}, 55), *ops, start, accepted);
      // Chunks of rows end inside a branch.
      expect_branches_share_a_slot(GatedDelta({128, 1, 2, 16, 33}, 56), *ops, start, 40);
      expect_branches_share_a_slot(GatedDelta({130, 1, 2, 16, 33}, 57), *ops, start, 64);
    }
  }
}

TEST_P(GatedDeltaOnEveryIsa, AStartIgnoresWhatTheSlotHolds) {
  for (auto& ops : backends()) expect_stale_slots_do_not_matter(GatedDelta({9, 2, 2, 16, 24}, 60), *ops);
}

TF_INSTANTIATE_FOR_EVERY_ISA(GatedDeltaOnEveryIsa);

constexpr double kEps = 0x1p-24;  // of one rounding

/// A number and a bound of how far the fp32 computation may be from it.
struct Bounded {
  double value = 0, error = 0;
};

/// The formula for one value head, with the error of every step: the bound of a rounding is kEps of its
/// result, of x * y what either side's error makes of it.
class DeltaFormula {
 public:
  DeltaFormula(const GatedDelta& in, int64_t head)
      : in_(in), head_(head), S_(in.sizes().key_dim * in.sizes().value_dim) {}

  /// Of row t, in order.
  std::vector<Bounded> row(int64_t t) {
    const int64_t Dk = in_.sizes().key_dim, Dv = in_.sizes().value_dim;
    const double x = in_.a(t, head_) + in_.dt_bias(head_), rate = std::exp(in_.a_log(head_));
    const double exponent = rate * std::log1p(std::exp(x));
    // exp within 1.1 ulp (an ulp is at most 2 kEps), softplus within 2, its argument and the product rounded
    // once.
    const double exponent_error = 7.2 * kEps * exponent + rate * std::fabs(x) / (1 + std::exp(-x)) * kEps;
    const Bounded g{std::exp(-exponent), std::exp(-exponent) * (exponent_error + 2.2 * kEps)};
    const double beta = 1 / (1 + std::exp(-in_.b(t, head_)));
    const auto [k, q] = key_and_query(t);
    Bounded qk;
    for (int64_t i = 0; i < Dk; ++i) add_product(qk, q[i], k[i]);
    std::vector<Bounded> out;
    for (int64_t c = 0; c < Dv; ++c) {
      Bounded ks, qs;
      for (int64_t i = 0; i < Dk; ++i) {
        add_product(ks, k[i], S_[i * Dv + c]);
        add_product(qs, q[i], S_[i * Dv + c]);
      }
      const Bounded rest = plus({in_.v(t, head_ * Dv + c)}, product(g, {-ks.value, ks.error}));
      const Bounded u = rounded(product({beta, 5 * kEps * beta}, rounded(rest)));
      out.push_back(rounded(plus(product(qk, u), rounded(product(g, qs)))));
      for (int64_t i = 0; i < Dk; ++i)
        S_[i * Dv + c] = rounded(plus(product(k[i], u), rounded(product(g, S_[i * Dv + c]))));
    }
    return out;
  }

 private:
  static Bounded rounded(const Bounded& x) { return {x.value, x.error + kEps * std::fabs(x.value)}; }
  static Bounded plus(const Bounded& x, const Bounded& y) { return {x.value + y.value, x.error + y.error}; }
  static Bounded product(const Bounded& x, const Bounded& y) {
    return {x.value * y.value,
            std::fabs(x.value) * y.error + x.error * std::fabs(y.value) + x.error * y.error};
  }
  /// A term of a sum over the key dimension passes Dk / 8 additions to its partial and three halvings.
  void add_product(Bounded& sum, const Bounded& x, const Bounded& y) const {
    const Bounded term = product(x, y);
    const double roundings = static_cast<double>(in_.sizes().key_dim) / 8 + 1 + 3;
    sum = plus(sum, {term.value, term.error + roundings * kEps * (std::fabs(term.value) + term.error)});
  }
  std::pair<std::vector<Bounded>, std::vector<Bounded>> key_and_query(int64_t t) const {
    const int64_t Dk = in_.sizes().key_dim,
                  first = head_ / (in_.sizes().value_heads / in_.sizes().key_heads) * Dk;
    double k_squares = 1e-6, q_squares = 1e-6;
    for (int64_t i = first; i < first + Dk; ++i) {
      k_squares += in_.k(t, i) * in_.k(t, i);
      q_squares += in_.q(t, i) * in_.q(t, i);
    }
    // Half of a short sum's error passes the root; then 1.5 ulp of the root's reciprocal and one product, and
    // for the query Dk^-1/2 and its product.
    const double relative = (0.5 * (static_cast<double>(Dk) / 32 + 1 + 5 + 1) + 3 + 1) * kEps;
    std::pair<std::vector<Bounded>, std::vector<Bounded>> result;
    for (int64_t i = first; i < first + Dk; ++i) {
      const double k = in_.k(t, i) / std::sqrt(k_squares);
      const double q = in_.q(t, i) / std::sqrt(q_squares) / std::sqrt(static_cast<double>(Dk));
      result.first.push_back({k, relative * std::fabs(k)});
      result.second.push_back({q, (relative + 2 * kEps) * std::fabs(q)});
    }
    return result;
  }

  const GatedDelta& in_;
  int64_t head_;
  std::vector<Bounded> S_;
};

TEST(GatedDeltaReference, IsItsFormula) {
  for (const Sizes& sizes : {Sizes{12, 2, 4, 16, 8}, Sizes{8, 1, 2, 61, 5}}) {
    const GatedDelta op(sizes, 70);
    Slots states = Slots(op.shape(), 1).fill_with_nan();
    Array out(DType::kF32, sizes.rows, op.out_columns());
    const Piece pieces[] = {{sizes.rows, 0, 0}};
    run_pass(op, *make_reference_ops(), 0, pieces, states, out);
    double largest = 0, largest_bound = 0;
    for (int64_t h = 0; h < sizes.value_heads; ++h) {
      DeltaFormula formula(op, h);
      for (int64_t t = 0; t < sizes.rows; ++t) {
        const std::vector<Bounded> expected = formula.row(t);
        for (int64_t c = 0; c < sizes.value_dim; ++c) {
          // Products of two errors are left out of the roundings: 1 % more than covers them.
          ASSERT_NEAR(out.get(t, h * sizes.value_dim + c), expected[c].value, 1.01 * expected[c].error)
              << op.name() << ", row " << t << ", head " << h << ", column " << c;
          largest = std::max(largest, std::fabs(expected[c].value));
          largest_bound = std::max(largest_bound, expected[c].error);
        }
      }
    }
    EXPECT_LT(largest_bound, 1e-4 * largest) << "the bound accepts anything";
  }
}

}  // namespace
}  // namespace tensorfold::test
