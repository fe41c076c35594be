// attention: every instruction set equals the reference, the reference equals plain loops in double, and what must not
// matter (company, chunks, page order, stale memory) does not.
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "ops/attention_order.h"
#include "ops/kv_layout.h"
#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

/// One attention layer, several sequences, all keys and values at once; then any rows of it can be asked for.
struct Case {
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 64;
  int64_t window = 0;
  bool has_sinks = false;
  DType dtype = DType::kBF16;
  std::vector<int64_t> lengths = {1};  ///< Tokens of each sequence.
  uint64_t seed = 1;
  bool sees_later_rows = false;
};

std::string to_string(const Case& c) {
  return fmt::format("H{} K{} D{} window {}{}{}{} lengths {}", c.num_heads, c.num_kv_heads, c.head_dim, c.window,
                     c.has_sinks ? " sinks" : "", c.dtype == DType::kF32 ? " f32" : "",
                     c.sees_later_rows ? " blocks" : "", fmt::join(c.lengths, " "));
}

/// The queries, keys and values of a case and the pages that hold the latter.
class World {
 public:
  World(const Case& c, Ops& ops) : World(c, ops, false) {}

  /// shuffled_and_dirty: pages in another order and full of NaN before they are written.
  World(const Case& c, Ops& ops, bool shuffled_and_dirty)
      : case_(c),
        shape_{c.num_kv_heads, c.head_dim, c.dtype},
        num_rows_(std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0})),
        q(c.dtype, num_rows_, c.num_heads * c.head_dim),
        k(DType::kF32, num_rows_, c.num_kv_heads * c.head_dim),
        v(DType::kF32, num_rows_, c.num_kv_heads * c.head_dim) {
    Random random(c.seed);
    q.fill(random, 1.5f);
    k.fill(random);
    v.fill(random);
    for (int64_t h = 0; h < c.num_heads; ++h) sinks_.push_back(2.0f * random.normal());
    build_pages(ops, shuffled_and_dirty);
    append(ops);
  }

  /// The rows [first, first + count) of each sequence (fewer where it is shorter) attended in one call.
  Array attend(Ops& ops, int64_t first, int64_t count, Placement placement = {}) const {
    std::vector<SequenceRows> sequences;
    std::vector<int32_t> positions;
    std::vector<int64_t> sources;
    int64_t base = 0;
    for (size_t s = 0; s < case_.lengths.size(); base += case_.lengths[s++]) {
      const int64_t n = std::min(count, case_.lengths[s] - first);
      if (n <= 0) continue;
      sequences.push_back({static_cast<int64_t>(positions.size()), n, first, page_tables_[s].data()});
      for (int64_t i = 0; i < n; ++i) {
        positions.push_back(static_cast<int32_t>(first + i));
        sources.push_back(base + first + i);
      }
    }
    const int64_t num_rows = static_cast<int64_t>(positions.size());
    Array queries(case_.dtype, num_rows, q.columns(), placement), out(case_.dtype, num_rows, q.columns(), placement);
    for (int64_t i = 0; i < num_rows; ++i) {
      for (int64_t j = 0; j < q.columns(); ++j) queries.set(i, j, q.get(sources[i], j));
    }
    ops.attention({.out = out.view(),
                   .q = queries.view(),
                   .pages = &pages_,
                   .rows = {positions, sequences},
                   .num_heads = case_.num_heads,
                   .scale = scale(),
                   .window = case_.window,
                   .sinks = case_.has_sinks ? sinks_.data() : nullptr,
                   .sees_later_rows = case_.sees_later_rows});
    EXPECT_TRUE(out.guards_intact());
    return out;
  }

  /// Writes all keys and values to the pages.
  void append(Ops& ops) {
    std::vector<SequenceRows> sequences;
    std::vector<int32_t> positions;
    for (size_t s = 0; s < case_.lengths.size(); ++s) {
      sequences.push_back({static_cast<int64_t>(positions.size()), case_.lengths[s], 0, page_tables_[s].data()});
      for (int64_t i = 0; i < case_.lengths[s]; ++i) positions.push_back(static_cast<int32_t>(i));
    }
    ops.append_kv(pages_, k.view(), v.view(), {positions, sequences});
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(case_.head_dim)); }
  const Case& spec() const { return case_; }
  float sink(int64_t head) const { return sinks_[head]; }
  int64_t num_rows() const { return num_rows_; }

 private:
  void build_pages(Ops& ops, bool shuffled_and_dirty) {
    const int64_t page_bytes = ops.kv_page_bytes(shape_);
    int32_t next = 0;
    for (const int64_t n : case_.lengths) {
      page_tables_.emplace_back((n + kPageTokens - 1) / kPageTokens);
      for (int32_t& page : page_tables_.back()) page = next++;
    }
    if (shuffled_and_dirty) {
      for (auto& table : page_tables_) {
        for (int32_t& page : table) page = next - 1 - page;
      }
    }
    pages_ = {.shape = shape_, .page_stride_bytes = 2 * page_bytes + 64, .num_pages = next};
    memory_.assign(next * pages_.page_stride_bytes + 64, shuffled_and_dirty ? std::byte{0xff} : std::byte{0});
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    pages_.k = memory_.data() + ((address + 63) / 64 * 64 - address);
    pages_.v = pages_.k + page_bytes;
  }

  Case case_;
  KvShape shape_;
  int64_t num_rows_;

 public:
  Array q, k, v;

 private:
  std::vector<float> sinks_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<int32_t>> page_tables_;
  KvPages pages_;
};

void expect_equal(const Array& actual, const Array& expected, const std::string& what) {
  EXPECT_EQ(actual.difference(expected), "") << what;
}

/// Rows [from, from + count) of one array against rows of another.
void expect_rows(const Array& actual, int64_t actual_row, const Array& expected, int64_t expected_row,
                 int64_t count, const std::string& what) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < actual.columns(); ++j) {
      ASSERT_EQ(bits_as<uint32_t>(actual.get(actual_row + i, j)),
                bits_as<uint32_t>(expected.get(expected_row + i, j)))
          << what << " row " << i << " column " << j;
    }
  }
}

class AttentionOnEveryIsa : public EveryIsa {
 protected:
  /// Every backend gives the reference's bits for rows [first, first + count) of each sequence.
  void expect_reference(const Case& c, int64_t first, int64_t count) {
    const World world(c, reference());
    const Array expected = world.attend(reference(), first, count);
    for (auto& ops : backends()) {
      for (const Placement& placement : {Placement{}, Placement{3, 1}}) {
        expect_equal(world.attend(*ops, first, count, placement), expected,
                     fmt::format("{} rows from {}, {} threads", to_string(c), first, ops->info().num_threads));
      }
    }
  }
};

TEST_P(AttentionOnEveryIsa, EqualsTheReferenceForEveryHeadDimAndGrouping) {
  constexpr int64_t kHeads[][2] = {{9, 3}, {5, 5}, {8, 1}, {3, 2}, {7, 4}, {1, 1}};
  int i = 0;
  for (const int64_t head_dim : {1, 2, 15, 16, 17, 40, 63, 64, 80, 96, 128, 192, 256}) {
    const auto& heads = kHeads[i++ % std::size(kHeads)];
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      expect_reference({.num_heads = heads[0], .num_kv_heads = heads[1], .head_dim = head_dim, .dtype = dtype,
                        .lengths = {67, 3, 130}},
                       0, 131);
    }
  }
}

TEST_P(AttentionOnEveryIsa, EqualsTheReferenceForManyHeadsOfOneKvHead) {
  expect_reference({.num_heads = 64, .num_kv_heads = 1, .head_dim = 128, .lengths = {70}}, 0, 70);
}

TEST_P(AttentionOnEveryIsa, EqualsTheReferenceAtEveryLengthAroundTilesAndSpans) {
  for (const int64_t length : {1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 256, 300}) {
    expect_reference({.num_heads = 6, .num_kv_heads = 2, .head_dim = 32, .lengths = {length, 5}},
                     std::max<int64_t>(0, length - 3), 3);
  }
}

TEST_P(AttentionOnEveryIsa, EqualsTheReferenceAcrossTheBorderOfLongSpans) {
  expect_reference({.num_heads = 3, .num_kv_heads = 1, .head_dim = 16, .lengths = {5000}}, 4090, 12);
  expect_reference({.num_heads = 3, .num_kv_heads = 1, .head_dim = 16, .lengths = {5000}}, 4992, 8);
}

TEST_P(AttentionOnEveryIsa, EqualsTheReferenceWithWindowsAndSinks) {
  for (const int64_t window : {1, 2, 3, 16, 63, 64, 65, 128, 129, 200, 1000}) {
    for (const bool has_sinks : {false, true}) {
      expect_reference({.num_heads = 8, .num_kv_heads = 2, .head_dim = 16, .window = window, .has_sinks = has_sinks,
                        .lengths = {260, 90}},
                       0, 260);
    }
  }
  expect_reference({.num_heads = 8, .num_kv_heads = 2, .head_dim = 16, .window = 130, .has_sinks = true,
                    .dtype = DType::kF32, .lengths = {260}},
                   0, 260);
}

TEST_P(AttentionOnEveryIsa, EqualsTheReferenceWithNaNAndInfinity) {
  const Case c{.num_heads = 6, .num_kv_heads = 2, .head_dim = 32, .lengths = {200}};
  for (auto& ops : backends()) {
    Random random(7);
    World special(c, *ops);
    sprinkle_specials(special.q, random);
    expect_equal(special.attend(*ops, 0, 200), special.attend(reference(), 0, 200), "special queries");
  }
}

// Blocks at every place in tiles and spans, shorter and longer than what a task of the cpu backend takes at once.
TEST_P(AttentionOnEveryIsa, EqualsTheReferenceWhereRowsSeeLaterRows) {
  for (const int64_t length : {1, 16, 63, 64, 65, 128, 130, 200, 300}) {
    for (const int64_t rows : {1, 2, 8, 16, 70}) {
      for (const int64_t window : {0, 70, 100}) {
        const Case c{.num_heads = 8, .num_kv_heads = 2, .head_dim = 64, .window = window, .has_sinks = rows == 8,
                     .dtype = rows == 2 ? DType::kF32 : DType::kBF16, .lengths = {length, length + 5},
                     .sees_later_rows = true};
        expect_reference(c, std::max<int64_t>(0, length - rows), rows);
      }
    }
  }
}

TEST_P(AttentionOnEveryIsa, TheLastRowOfABlockSeesWhatItSeesCausally) {
  Case c{.num_heads = 6, .num_kv_heads = 2, .head_dim = 32, .window = 40, .lengths = {150}};
  for (auto& ops : backends()) {
    const Array causal = World(c, *ops).attend(*ops, 130, 20);
    c.sees_later_rows = true;
    const World world(c, *ops);
    const Array block = world.attend(*ops, 130, 20);
    expect_rows(block, 19, causal, 19, 1, "last row");
    EXPECT_NE(block.difference(causal), "");
    c.sees_later_rows = false;
  }
}

TEST_P(AttentionOnEveryIsa, RowDoesNotDependOnItsCompany) {
  const Case c{.num_heads = 9, .num_kv_heads = 3, .head_dim = 64, .window = 100, .has_sinks = true,
               .lengths = {150, 40, 220}};
  for (auto& ops : backends()) {
    const World world(c, *ops);
    const Array all = world.attend(*ops, 0, 220);
    for (const int64_t chunk : {1, 7, 64}) {
      for (int64_t first = 0; first < 220; first += chunk) {
        const Array part = world.attend(*ops, first, chunk);
        int64_t all_base = 0, part_row = 0;
        for (const int64_t length : c.lengths) {
          const int64_t n = std::min(chunk, length - first);
          if (n > 0) {
            expect_rows(part, part_row, all, all_base + first, n, fmt::format("chunk of {}", chunk));
            part_row += n;
          }
          all_base += length;
        }
      }
    }
  }
}

TEST_P(AttentionOnEveryIsa, PageOrderAndStaleBytesDoNotMatter) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t window : {0, 77}) {
      const Case c{.num_heads = 9, .num_kv_heads = 3, .head_dim = 40, .window = window, .dtype = dtype,
                   .lengths = {150, 3, 65}};
      const World clean(c, reference());
      const Array expected = clean.attend(reference(), 0, 150);
      for (auto& ops : backends()) {
        const World dirty(c, *ops, true);
        expect_equal(dirty.attend(*ops, 0, 150), expected, to_string(c) + ", dirty pages");
        expect_equal(dirty.attend(reference(), 0, 150), expected, to_string(c) + ", dirty pages, reference");
      }
    }
  }
}

TEST_P(AttentionOnEveryIsa, LaterKeysDoNotReachEarlierRowsEvenAsNaN) {
  const Case c{.num_heads = 9, .num_kv_heads = 3, .head_dim = 64, .lengths = {130}};
  for (auto& ops : backends()) {
    const Array expected = World(c, *ops).attend(*ops, 0, 100);
    World other(c, *ops);
    for (int64_t i = 100; i < 130; ++i) {
      for (int64_t j = 0; j < other.k.columns(); ++j) {
        other.k.set(i, j, NAN);
        other.v.set(i, j, j % 2 == 0 ? NAN : INFINITY);
      }
    }
    other.append(*ops);  // rows 0..99 share the tile 64..127 with the poisoned ones
    expect_equal(other.attend(*ops, 0, 100), expected, "rows before poisoned keys");
  }
}

TEST_P(AttentionOnEveryIsa, KeysOutOfSightAddPlusZero) {
  // Two keys: the first scores high and has value -0, the second's product underflows to -0. The other 62 keys of the
  // tile count as zeros, and -0 + 0 = +0.
  const Case c{.num_heads = 2, .num_kv_heads = 1, .head_dim = 20, .lengths = {2}};
  const auto fill = [](World& world) {
    for (int64_t j = 0; j < 20; ++j) {
      world.k.set(0, j, 1.0f);
      world.k.set(1, j, 0.0f);
      world.v.set(0, j, -0.0f);
      world.v.set(1, j, -0x1p-126f);
    }
    for (int64_t j = 0; j < 40; ++j) world.q.set(1, j, 1.0f);
  };
  for (auto& ops : backends()) {
    World world(c, *ops);
    fill(world);
    world.append(*ops);
    for (Ops* each : {ops.get(), &reference()}) {
      const Array out = world.attend(*each, 1, 1);
      for (int64_t j = 0; j < 40; ++j) EXPECT_EQ(bits_as<uint32_t>(out.get(0, j)), 0u) << each->info().name;
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(AttentionOnEveryIsa);

TEST(AttentionOrder, SpansAreShortThenLong) {
  EXPECT_EQ(attention_span_of(0), 0);
  EXPECT_EQ(attention_span_of(127), 0);
  EXPECT_EQ(attention_span_of(128), 1);
  EXPECT_EQ(attention_span_of(4095), 31);
  EXPECT_EQ(attention_span_of(4096), 32);
  EXPECT_EQ(attention_span_of(4607), 32);
  EXPECT_EQ(attention_span_of(4608), 33);
  for (int64_t span = 0; span < 100; ++span) {
    EXPECT_EQ(attention_span_of(attention_span_begin(span)), span);
    EXPECT_EQ(attention_span_of(attention_span_begin(span + 1) - 1), span);
  }
}

/// Softmax attention in double of what the pages hold (keys and values rounded to their dtype).
double plain(const World& world, int64_t row, int64_t first_row, int64_t length, int64_t head, int64_t d, double* spread) {
  const Case& c = world.spec();
  const int64_t pos = row - first_row, kv_head = head * c.num_kv_heads / c.num_heads;
  const auto stored = [&](float x) { return c.dtype == DType::kBF16 ? to_float(to_bf16(x)) : x; };
  const int64_t begin = c.window > 0 ? std::max<int64_t>(0, pos + 1 - c.window) : 0;
  std::vector<double> s;
  const int64_t last = c.sees_later_rows ? length - 1 : pos;
  for (int64_t key = begin; key <= last; ++key) {
    double dot = 0;
    for (int64_t i = 0; i < c.head_dim; ++i) {
      dot += static_cast<double>(world.q.get(row, head * c.head_dim + i)) *
             stored(world.k.get(first_row + key, kv_head * c.head_dim + i));
    }
    s.push_back(dot * world.scale());
  }
  double max = *std::max_element(s.begin(), s.end());
  if (c.has_sinks) max = std::max(max, static_cast<double>(world.sink(head)));
  double sum = c.has_sinks ? std::exp(world.sink(head) - max) : 0.0, out = 0, magnitude = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    const double p = std::exp(s[i] - max);
    const double value = stored(world.v.get(first_row + begin + static_cast<int64_t>(i), kv_head * c.head_dim + d));
    sum += p;
    out += p * value;
    magnitude += p * std::fabs(value);
  }
  *spread = magnitude / sum;
  return out / sum;
}

TEST(AttentionReference, IsSoftmaxAttention) {
  for (const Case& c : {Case{.num_heads = 6, .num_kv_heads = 2, .head_dim = 33, .lengths = {200, 17}},
                        Case{.num_heads = 4, .num_kv_heads = 4, .head_dim = 64, .window = 50, .has_sinks = true,
                             .lengths = {180}},
                        Case{.num_heads = 3, .num_kv_heads = 2, .head_dim = 16, .has_sinks = true,
                             .dtype = DType::kF32, .lengths = {300}},
                        Case{.num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .window = 190, .lengths = {9, 190},
                             .sees_later_rows = true}}) {
    auto reference = make_reference_ops();
    const World world(c, *reference);
    const Array out = world.attend(*reference, 0, 1000);
    // f32: the score's error is (D + 4) eps |q||k| scale < 64 eps * 10, and p's relative error is that; sums add their
    // own few dozen eps. bf16 (8 bits of mantissa): each p is rounded by at most 2^-8 of itself, and so is the output.
    const double eps = 0x1p-24, relative = c.dtype == DType::kF32 ? 1000 * eps : 0x1p-8 + 1000 * eps;
    int64_t first_row = 0;
    double largest = 0;
    for (const int64_t length : c.lengths) {
      for (int64_t row = first_row; row < first_row + length; ++row) {
        for (int64_t head = 0; head < c.num_heads; ++head) {
          for (int64_t d = 0; d < c.head_dim; d += 5) {
            double spread = 0;
            const double expected = plain(world, row, first_row, length, head, d, &spread);
            const double rounding = c.dtype == DType::kF32 ? 0 : std::fabs(expected) * 0x1p-8;
            ASSERT_NEAR(out.get(row, head * c.head_dim + d), expected, relative * spread + rounding)
                << to_string(c) << " row " << row << " head " << head << " d " << d;
            largest = std::max(largest, std::fabs(expected));
          }
        }
      }
      first_row += length;
    }
    EXPECT_GT(largest, 0.5) << "degenerate inputs";
  }
}

}  // namespace
}  // namespace tensorfold::test
