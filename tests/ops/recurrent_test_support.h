// What the tests of causal_conv, gated_delta and mamba2 share: states in guarded slots, passes of several
// sequences, and the properties that each of the three must have whatever it computes.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {

/// The states of one layer. A slot is a row of an Array, so that writing between slots is noticed.
class Slots {
 public:
  Slots(const RecurrentShape& shape, int64_t num_slots)
      : shape_(shape),
        matrix_first_((shape.conv_floats() + 15) / 16 * 16),
        memory_(DType::kF32, num_slots, matrix_first_ + shape.matrix_floats(), gap_to_line()) {}

  Slots& fill(Random& random) {
    memory_.fill(random);
    return *this;
  }
  /// Which part of a slot an element is in: the matrices begin at a line of their own.
  bool is_matrix(int64_t column) const { return column >= matrix_first_; }
  bool is_conv(int64_t column) const { return column < shape_.conv_floats(); }
  /// What a slot may hold that another sequence has left.
  Slots& fill_with_nan() {
    for (int64_t s = 0; s < memory_.rows(); ++s) {
      for (int64_t i = 0; i < memory_.columns(); ++i) memory_.set(s, i, NAN);
    }
    return *this;
  }
  RecurrentStates states() const {
    const View view = memory_.view();
    return {.shape = shape_,
            .conv = view.data,
            .matrix = view.data + matrix_first_ * 4,
            .slot_stride_bytes = view.row_stride * 4,
            .num_slots = view.dim(0)};
  }
  const Array& memory() const { return memory_; }

 private:
  Placement gap_to_line() const {
    const int64_t used = matrix_first_ + shape_.matrix_floats();
    return {.gap = (used + 15) / 16 * 16 - used + 16};
  }

  RecurrentShape shape_;
  int64_t matrix_first_;
  Array memory_;
};

/// Rows of one sequence in a pass.
struct Piece {
  int64_t num_rows, first_pos;
  int32_t slot;
  int64_t num_drafted = 0;  ///< Its last rows.
};

/// A pass of these pieces, one after the other.
class Batch {
 public:
  explicit Batch(std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) {
      sequences_.push_back({.first_row = static_cast<int64_t>(positions_.size()),
                            .num_rows = piece.num_rows,
                            .first_pos = piece.first_pos,
                            .state_slot = piece.slot,
                            .num_drafted = piece.num_drafted});
      for (int64_t r = 0; r < piece.num_rows; ++r)
        positions_.push_back(static_cast<int32_t>(piece.first_pos + r));
    }
  }
  Batch(std::initializer_list<Piece> pieces) : Batch(std::span(pieces.begin(), pieces.size())) {}
  RowBatch rows() const { return {positions_, sequences_}; }

 private:
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> positions_;
};

/// One of the three ops with the inputs of some rows.
class RecurrentCase {
 public:
  virtual ~RecurrentCase() = default;
  virtual RecurrentShape shape() const = 0;
  virtual int64_t num_rows() const = 0;
  virtual int64_t out_columns() const = 0;
  virtual bool keeps_matrices() const = 0;  ///< Else the convolution's rows.
  virtual std::string name() const = 0;     ///< With its sizes, for messages.
  /// Computes the inputs' rows from `first` on, as many as `rows` has.
  virtual void run(Ops& ops, View out, int64_t first, const RecurrentStates& states,
                   const RowBatch& rows) const = 0;
};

/// One pass over the inputs' rows from `first` on.
inline void run_pass(const RecurrentCase& op, Ops& ops, int64_t first, std::span<const Piece> pieces,
                     Slots& states, Array& out) {
  const Batch batch(pieces);
  const RowBatch rows = batch.rows();
  op.run(ops, out.view().rows(first, rows.num_rows()), first, states.states(), rows);
}

/// Every backend gives the reference's outputs and leaves its states, in a pass of several sequences: one
/// that goes on, one that starts, one of a single row, and one that starts with the rest of the rows. Slot 3
/// is nobody's.
inline void expect_equals_reference(const RecurrentCase& op, Ops& reference,
                                    std::vector<std::unique_ptr<Ops>>& backends) {
  const int64_t n = op.num_rows(), first = n / 3, second = n / 4, single = n > 0 ? 1 : 0;
  std::vector<Piece> pieces = {
      {first, 7, 2}, {second, 0, 0}, {single, 70, 4}, {n - first - second - single, 0, 1}};
  std::erase_if(pieces, [](const Piece& piece) { return piece.num_rows == 0; });
  Random random(17);
  const Slots before = Slots(op.shape(), 5).fill(random);
  Slots expected_states = before;
  Array expected(DType::kF32, n, op.out_columns());
  run_pass(op, reference, 0, pieces, expected_states, expected);
  EXPECT_TRUE(expected_states.memory().guards_intact());
  for (auto& ops : backends) {
    for (const Placement& placement : kPlacements) {
      Slots states = before;
      Array out(DType::kF32, n, op.out_columns(), placement);
      run_pass(op, *ops, 0, pieces, states, out);
      expect_same(out, expected, op.name());
      expect_same(states.memory(), expected_states.memory(), op.name() + ": states");
    }
  }
}

/// A decode pass: every row another sequence's, a third of them at their start, in slots out of order.
inline void expect_decode_equals_reference(const RecurrentCase& op, Ops& reference,
                                           std::vector<std::unique_ptr<Ops>>& backends) {
  const int64_t n = op.num_rows();
  std::vector<Piece> pieces;
  for (int64_t t = 0; t < n; ++t) pieces.push_back({1, t % 3 == 0 ? 0 : t, static_cast<int32_t>(n - 1 - t)});
  Random random(20);
  const Slots before = Slots(op.shape(), n).fill(random);
  Slots expected_states = before;
  Array expected(DType::kF32, n, op.out_columns());
  run_pass(op, reference, 0, pieces, expected_states, expected);
  for (auto& ops : backends) {
    Slots states = before;
    Array out(DType::kF32, n, op.out_columns());
    run_pass(op, *ops, 0, pieces, states, out);
    expect_same(out, expected, op.name() + ", a sequence each");
    expect_same(states.memory(), expected_states.memory(), op.name() + ", a sequence each: states");
  }
}

/// One sequence in one pass, and in two, cut at each of `cuts`: the same bytes, whatever else is in the
/// second pass.
inline void expect_cuts_do_not_matter(const RecurrentCase& op, Ops& ops, std::span<const int64_t> cuts) {
  const int64_t n = op.num_rows() - 1;  // the last row is another sequence's, beside the second pass
  Random random(18);
  const Slots before = Slots(op.shape(), 2).fill(random);
  Slots whole_states = before;
  Array whole(DType::kF32, n + 1, op.out_columns());
  const Piece one[] = {{n, 0, 0}, {1, 5, 1}};
  run_pass(op, ops, 0, one, whole_states, whole);
  for (const int64_t cut : cuts) {
    Slots states = before;
    Array out(DType::kF32, n + 1, op.out_columns());
    const Piece start[] = {{cut, 0, 0}}, rest[] = {{n - cut, cut, 0}, {1, 5, 1}};
    run_pass(op, ops, 0, start, states, out);
    run_pass(op, ops, cut, rest, states, out);
    expect_same(out, whole, fmt::format("{}, cut after {} of {} rows", op.name(), cut, n));
    expect_same(states.memory(), whole_states.memory(),
                fmt::format("{}, states, cut after {}", op.name(), cut));
  }
}

/// Drafted rows have the outputs that they have undrafted, and their slot the state before them; taken in
/// afterwards, `accepted` of them, they leave the state that they would have left at once. Rows of another
/// sequence lie before and after. `start`: the sequence's first position.
inline void expect_drafted_rows_are_not_stored(const RecurrentCase& op, Ops& ops, int64_t start,
                                               int64_t num_drafted, int64_t accepted) {
  const int64_t n = op.num_rows() - 3, known = n - num_drafted;  // 2 rows before, one after
  const std::string what = fmt::format("{}, {} drafted, {} accepted", op.name(), num_drafted, accepted);
  Random random(21);
  const Slots before = Slots(op.shape(), 3).fill(random);
  const auto run = [&](Slots& states, Array& out, const Piece& middle) {
    const Piece pieces[] = {{2, 7, 2}, middle, {1, 5, 1}};
    run_pass(op, ops, 0, pieces, states, out);
  };
  Array undrafted(DType::kF32, n + 3, op.out_columns()), out(DType::kF32, n + 3, op.out_columns());
  Array unused(DType::kF32, n + 3, op.out_columns());
  Slots whole = before, states = before;
  run(whole, undrafted, {n, start, 0});
  run(states, out, {n, start, 0, num_drafted});
  expect_same(out, undrafted, what);

  // The same in three passes, without drafts.
  Slots expected = before;
  const Piece others_first[] = {{2, 7, 2}}, others_last[] = {{1, 5, 1}}, stored[] = {{known, start, 0}};
  run_pass(op, ops, 0, others_first, expected, unused);
  run_pass(op, ops, n + 2, others_last, expected, unused);
  run_pass(op, ops, 2, stored, expected, unused);
  expect_same(states.memory(), expected.memory(), what + ": states before the draft");

  // A commit: the row before and those after the accepted ones are nobody's.
  const Piece taken[] = {{accepted, start + known, 0}};
  run_pass(op, ops, 2 + known, taken, expected, unused);
  const std::vector<int32_t> positions(static_cast<size_t>(num_drafted + 1));
  const SequenceRows sequence{
      .first_row = 1, .num_rows = accepted, .first_pos = start + known, .state_slot = 0};
  op.run(ops, unused.view().rows(0, num_drafted + 1), 1 + known, states.states(),
         {positions, std::span(&sequence, 1)});
  expect_same(states.memory(), expected.memory(), what + ": states after the commit");
}

/// Two branches of one sequence: entries of one slot, all of their rows drafted, beside another sequence.
/// Each has the outputs that it has alone, and the slot stays as it was; `accepted` rows of the second
/// branch, taken in afterwards, leave the state that they would have left at once. `start`: the branches'
/// first position.
inline void expect_branches_share_a_slot(const RecurrentCase& op, Ops& ops, int64_t start, int64_t accepted) {
  const int64_t n = op.num_rows() - 2, length = n / 2, rest = n - length;  // 2 rows of the other sequence
  const std::string what = fmt::format("{}, branches from {} on, {} accepted", op.name(), start, accepted);
  Random random(22);
  const Slots before = Slots(op.shape(), 3).fill(random);
  Array expected_out(DType::kF32, n + 2, op.out_columns()), out(DType::kF32, n + 2, op.out_columns());
  Slots expected = before, states = before, unused = before, unused_too = before;
  const Piece other[] = {{2, 7, 2}}, first[] = {{length, start, 0}}, second[] = {{rest, start, 0}};
  run_pass(op, ops, 0, other, expected, expected_out);
  run_pass(op, ops, 2, first, unused, expected_out);
  run_pass(op, ops, 2 + length, second, unused_too, expected_out);
  const Piece together[] = {{2, 7, 2}, {length, start, 0, length}, {rest, start, 0, rest}};
  run_pass(op, ops, 0, together, states, out);
  expect_same(out, expected_out, what);
  expect_same(states.memory(), expected.memory(), what + ": states before the commit");

  // A commit: the first branch's rows and those after the accepted ones are nobody's.
  const Piece taken[] = {{accepted, start, 0}};
  run_pass(op, ops, 2 + length, taken, expected, out);
  const std::vector<int32_t> positions(static_cast<size_t>(n));
  const SequenceRows sequence{.first_row = length, .num_rows = accepted, .first_pos = start, .state_slot = 0};
  op.run(ops, out.view().rows(0, n), 2, states.states(), {positions, std::span(&sequence, 1)});
  expect_same(states.memory(), expected.memory(), what + ": states after the commit");
}

/// A sequence that starts gives the same bytes over zeros and over NaN; one that goes on does not (so the
/// slot is read), and other slots are left alone.
inline void expect_stale_slots_do_not_matter(const RecurrentCase& op, Ops& ops) {
  const int64_t n = op.num_rows();
  const auto run = [&](int64_t first_pos, const Slots& before) {
    std::pair<Array, Slots> result{Array(DType::kF32, n, op.out_columns()), before};
    const Piece pieces[] = {{n, first_pos, 1}};
    run_pass(op, ops, 0, pieces, result.second, result.first);
    return result;
  };
  Random random(19);
  const Slots stale = Slots(op.shape(), 3).fill_with_nan(), other = Slots(op.shape(), 3).fill(random);
  const auto [over_nan, nan_states] = run(0, stale);
  const auto [over_numbers, number_states] = run(0, other);
  expect_same(over_nan, over_numbers, op.name() + ": a start over a stale slot");
  for (int64_t i = 0; i < stale.memory().columns(); ++i) {
    const float left = nan_states.memory().get(1, i);
    EXPECT_TRUE(std::isnan(nan_states.memory().get(0, i)) && std::isnan(nan_states.memory().get(2, i)));
    if (op.keeps_matrices() ? stale.is_matrix(i) : stale.is_conv(i)) {
      ASSERT_EQ(left, number_states.memory().get(1, i)) << op.name() << ": element " << i << " of the state";
    } else {
      ASSERT_TRUE(std::isnan(left)) << op.name() << ": wrote to element " << i << " of another op's state";
    }
  }
  const auto [continued, continued_states] = run(4, other);
  EXPECT_NE(continued.difference(over_numbers), "") << "the slot's content was not read";
}

}  // namespace tensorfold::test
