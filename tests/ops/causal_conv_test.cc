// causal_conv: every instruction set equals the reference, kept rows included; how rows fall into passes
// changes no bit; the reference is its formula in double.
#include "tests/ops/recurrent_test_support.h"

namespace tensorfold::test {
namespace {

struct Sizes {
  int64_t rows, channels, taps;
  bool has_bias;
};

class CausalConv final : public RecurrentCase {
 public:
  explicit CausalConv(const Sizes& sizes, uint64_t seed = 1, bool with_specials = false)
      : sizes_(sizes),
        x_(DType::kF32, sizes.rows, sizes.channels, {3, 1}),
        weight_(DType::kF32, sizes.taps, sizes.channels, {2, 3}),
        bias_(DType::kF32, 1, sizes.channels, {0, 5}) {
    Random random(seed);
    for (Array* array : {&x_, &weight_, &bias_}) array->fill(random);
    if (with_specials) sprinkle_specials(x_, random);
  }

  RecurrentShape shape() const override {
    return {.conv_channels = sizes_.channels,
            .conv_taps = sizes_.taps,
            .num_heads = 1,  // a matrix of a layer's state, to be left alone
            .key_dim = 2,
            .value_dim = 3};
  }
  int64_t num_rows() const override { return sizes_.rows; }
  int64_t out_columns() const override { return sizes_.channels; }
  bool keeps_matrices() const override { return false; }
  std::string name() const override {
    return fmt::format("{} rows of {}, {} taps{}", sizes_.rows, sizes_.channels, sizes_.taps,
                       sizes_.has_bias ? ", bias" : "");
  }
  void run(Ops& ops, View out, int64_t first, const RecurrentStates& states,
           const RowBatch& rows) const override {
    ops.causal_conv({.out = out,
                     .x = x_.view().rows(first, rows.num_rows()),
                     .weight = weight_.view(),
                     .bias = sizes_.has_bias ? bias_.view() : View(),
                     .states = &states,
                     .rows = rows});
  }

  double x(int64_t t, int64_t c) const { return t < 0 ? 0.0 : x_.get(t, c); }
  double weight(int64_t j, int64_t c) const { return weight_.get(j, c); }
  double bias(int64_t c) const { return sizes_.has_bias ? bias_.get(0, c) : 0.0; }

 private:
  Sizes sizes_;
  Array x_, weight_, bias_;
};

class CausalConvOnEveryIsa : public EveryIsa {};

TEST_P(CausalConvOnEveryIsa, EqualsTheReference) {
  uint64_t seed = 1;
  for (const int64_t channels : edge_sizes()) {
    if (channels == 0) continue;
    for (const int64_t rows : {0, 1, 4, 23}) {
      for (const int64_t taps : {1, 2, 3, 4, 5, 9}) {
        const Sizes sizes{rows, channels, taps, seed % 2 == 0};
        expect_equals_reference(CausalConv(sizes, seed, seed % 3 == 0), reference(), backends());
        ++seed;
      }
    }
  }
}

// Enough rows and channels for several tasks a sequence.
TEST_P(CausalConvOnEveryIsa, EqualsTheReferenceOverSeveralTasks) {
  for (const int64_t channels : {511, 768, 2000})
    expect_equals_reference(CausalConv({300, channels, 4, true}, 3), reference(), backends());
}

TEST_P(CausalConvOnEveryIsa, EqualsTheReferenceOnARowOfEachSequence) {
  expect_decode_equals_reference(CausalConv({200, 37, 4, true}, 41), reference(), backends());
}

TEST_P(CausalConvOnEveryIsa, CutsBetweenPassesChangeNoBit) {
  std::vector<int64_t> everywhere;
  for (int64_t cut = 1; cut < 14; ++cut) everywhere.push_back(cut);
  for (auto& ops : backends()) {
    for (const int64_t taps : {1, 2, 4, 7}) {
      expect_cuts_do_not_matter(CausalConv({15, 37, taps, true}, 4), *ops, everywhere);
      expect_cuts_do_not_matter(CausalConv({15, 700, taps, false}, 5), *ops, {{1, 3}});
    }
  }
}

// One row at a time the kept rows move up one place in each pass.
TEST_P(CausalConvOnEveryIsa, RowByRowIsOnePass) {
  constexpr int64_t kRows = 11;
  for (const int64_t taps : {2, 4, 6}) {
    const CausalConv op({kRows, 35, taps, true}, 6);
    for (auto& ops : backends()) {
      Slots whole_states = Slots(op.shape(), 1).fill_with_nan(), states = whole_states;
      Array whole(DType::kF32, kRows, 35), out(DType::kF32, kRows, 35);
      const Piece one[] = {{kRows, 0, 0}};
      run_pass(op, *ops, 0, one, whole_states, whole);
      for (int64_t t = 0; t < kRows; ++t) {
        const Piece row[] = {{1, t, 0}};
        run_pass(op, *ops, t, row, states, out);
      }
      expect_same(out, whole, op.name());
      expect_same(states.memory(), whole_states.memory(), op.name() + ": kept rows");
    }
  }
}

TEST_P(CausalConvOnEveryIsa, DraftedRowsAreNotStoredUntilTheyAreAccepted) {
  for (auto& ops : backends()) {
    for (const int64_t taps : {1, 2, 4, 7}) {
      for (int64_t accepted = 1; accepted <= 5; ++accepted)
        expect_drafted_rows_are_not_stored(CausalConv({12, 37, taps, true}, 11), *ops, 4, 5, accepted);
      expect_drafted_rows_are_not_stored(CausalConv({12, 700, taps, false}, 12), *ops, 0, 8, 2);
    }
  }
}

TEST_P(CausalConvOnEveryIsa, BranchesOfOneSequenceShareItsSlot) {
  for (auto& ops : backends()) {
    for (const int64_t taps : {1, 2, 4, 7}) {
      for (const int64_t start : {0, 4}) {
        for (const int64_t accepted : {1, 2, 5})
          expect_branches_share_a_slot(CausalConv({12, 37, taps, true}, 13), *ops, start, accepted);
        expect_branches_share_a_slot(CausalConv({22, 700, taps, false}, 14), *ops, start, 3);
      }
    }
  }
}

TEST_P(CausalConvOnEveryIsa, AStartIgnoresWhatTheSlotHolds) {
  for (auto& ops : backends()) {
    for (const int64_t rows : {1, 2, 9}) {  // fewer and more than the rows kept
      expect_stale_slots_do_not_matter(CausalConv({rows, 24, 4, true}, 7), *ops);
      expect_stale_slots_do_not_matter(CausalConv({rows, 24, 6, true}, 8), *ops);
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(CausalConvOnEveryIsa);

TEST(CausalConvReference, IsItsFormula) {
  constexpr double kEps = 0x1p-24;
  constexpr int64_t kRows = 12, kChannels = 40;
  for (const int64_t taps : {1, 3, 4}) {
    const CausalConv op({kRows, kChannels, taps, true}, 9);
    Slots states = Slots(op.shape(), 1).fill_with_nan();
    Array out(DType::kF32, kRows, kChannels);
    const Piece pieces[] = {{kRows, 0, 0}};
    run_pass(op, *make_reference_ops(), 0, pieces, states, out);
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t c = 0; c < kChannels; ++c) {
        double y = op.bias(c), size = std::fabs(y);
        for (int64_t j = 0; j < taps; ++j) {
          const double term = op.weight(j, c) * op.x(t - taps + 1 + j, c);
          y += term;
          size += std::fabs(term);
        }
        const double expected = y / (1 + std::exp(-y));
        // One rounding a tap; the slope of silu is at most 1.1; silu_f32 is within 3 ulp of 2 kEps each.
        const double bound = 1.1 * static_cast<double>(taps) * kEps * size + 6 * kEps * std::fabs(expected);
        ASSERT_NEAR(out.get(t, c), expected, bound) << op.name() << ", row " << t << ", channel " << c;
      }
    }
    for (int64_t i = 0; i < taps - 1; ++i) {
      for (int64_t c = 0; c < kChannels; ++c)
        EXPECT_EQ(states.memory().get(0, i * kChannels + c), op.x(kRows - taps + 1 + i, c))
            << "kept row " << i;
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
