// attention() on CUDA: right within a derived bound, and a row's bits independent of kernel, company, chunks, page order
// and what pages held before.
#include "ops/cuda/attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/attention_order.h"
#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {
namespace {

struct Case {
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t window = 0;
  bool has_sinks = false;
  std::vector<int64_t> lengths;  ///< Tokens of each sequence.
  bool sees_later_rows = false;
};

std::string to_string(const Case& c) {
  return fmt::format("H{} K{} D{} window {}{}{} lengths {}", c.num_heads, c.num_kv_heads, c.head_dim,
                     c.window, c.has_sinks ? " sinks" : "", c.sees_later_rows ? " blocks" : "",
                     fmt::join(c.lengths, " "));
}

constexpr AttentionKernel kKernels[] = {AttentionKernel::kSplit, AttentionKernel::kWide};
const char* to_string(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kSplit:
      return "split";
    case AttentionKernel::kWide: return "wide";
    case AttentionKernel::kAuto: break;
  }
  return "auto";
}

const Case kCases[] = {
    {.num_heads = 1, .num_kv_heads = 1, .head_dim = 64, .lengths = {1}},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .lengths = {63, 64, 65}},
    {.num_heads = 6, .num_kv_heads = 1, .head_dim = 128, .lengths = {129, 1, 300}},
    {.num_heads = 16, .num_kv_heads = 2, .head_dim = 128, .has_sinks = true, .lengths = {257, 40}},
    {.num_heads = 6, .num_kv_heads = 1, .head_dim = 256, .lengths = {400, 128}},
    {.num_heads = 12, .num_kv_heads = 2, .head_dim = 256, .has_sinks = true, .lengths = {191}},
    {.num_heads = 3, .num_kv_heads = 1, .head_dim = 96, .lengths = {200, 7}},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 192, .lengths = {150}},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 128, .window = 100, .has_sinks = true, .lengths = {500, 99, 101}},
    {.num_heads = 4, .num_kv_heads = 1, .head_dim = 64, .window = 1, .lengths = {200}},
    {.num_heads = 16, .num_kv_heads = 2, .head_dim = 64, .window = 128, .has_sinks = true, .lengths = {300, 1100}},
    {.num_heads = 6, .num_kv_heads = 1, .head_dim = 256, .lengths = {1030}},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 64, .lengths = {4900}},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 64, .lengths = {9300}},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 256, .window = 700, .lengths = {5000}},
};

/// The rows of a call: `count` rows of each sequence from position `first` on, fewer where it is shorter.
struct Rows {
  std::vector<SequenceRows> sequences;
  std::vector<int32_t> positions;
  std::vector<int64_t> sources;  ///< Of each row, among all rows of the world.
};

/// Queries of all positions of a case, and pages that hold all keys and values.
class World {
 public:
  /// is_dirty: pages in reverse order, full of NaN before they are written.
  World(const Case& c, bool is_dirty)
      : case_(c), shape_{c.num_kv_heads, c.head_dim, DType::kBF16},
        num_rows_(std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0})),
        q_host(random_bf16(static_cast<size_t>(num_rows_ * c.num_heads * c.head_dim), 1, 1.5f)),
        k_host(random_floats(num_rows_ * c.num_kv_heads * c.head_dim, 2)),
        v_host(random_floats(num_rows_ * c.num_kv_heads * c.head_dim, 3)),
        memory_(static_cast<size_t>(2 * cuda_kv_page_bytes(shape_) * count_pages())) {
    cuda_check(cudaMemset(memory_.data(), is_dirty ? 0xff : 0, memory_.size()));
    const int64_t page_bytes = cuda_kv_page_bytes(shape_);
    int32_t next = 0;
    for (int64_t n : c.lengths) {
      tables_.emplace_back((n + kPageTokens - 1) / kPageTokens);
      for (int32_t& page : tables_.back()) page = is_dirty ? static_cast<int32_t>(count_pages()) - 1 - next++ : next++;
    }
    pages_ = {.shape = shape_, .k = memory_.data(), .v = memory_.data() + page_bytes,
              .page_stride_bytes = 2 * page_bytes, .num_pages = count_pages()};
    for (int64_t h = 0; h < c.num_heads; ++h) sinks_.push_back(0.7f * static_cast<float>(h % 5) - 1.0f);
    const Rows all = rows(0, num_rows_);
    const DeviceArray<float> k(k_host), v(v_host);
    const int64_t columns = c.num_kv_heads * c.head_dim;
    with_device_rows(all, [&](const AttentionRows& device_rows) {
      append_kv(nullptr, pages_, View(k.data(), DType::kF32, {num_rows_, columns}),
                View(v.data(), DType::kF32, {num_rows_, columns}), device_rows);
    });
  }

  Rows rows(int64_t first, int64_t count, int only_sequence = -1) const {
    Rows result;
    int64_t base = 0;
    for (size_t s = 0; s < case_.lengths.size(); base += case_.lengths[s++]) {
      const int64_t n = std::min(count, case_.lengths[s] - first);
      if (n <= 0 || (only_sequence >= 0 && only_sequence != static_cast<int>(s))) continue;
      result.sequences.push_back({static_cast<int64_t>(result.positions.size()), n, first, tables_[s].data()});
      for (int64_t i = 0; i < n; ++i) {
        result.positions.push_back(static_cast<int32_t>(first + i));
        result.sources.push_back(base + first + i);
      }
    }
    return result;
  }

  std::vector<bf16> attend(const Rows& rows, AttentionKernel kernel) const {
    const int64_t columns = case_.num_heads * case_.head_dim, n = static_cast<int64_t>(rows.sources.size());
    std::vector<bf16> queries;
    for (int64_t source : rows.sources)
      queries.insert(queries.end(), q_host.begin() + source * columns, q_host.begin() + (source + 1) * columns);
    const DeviceArray<bf16> q(queries);
    DeviceArray<bf16> out(queries.size());
    const DeviceArray<float> sinks(sinks_);
    const AttentionCall call{.out = View(out.data(), DType::kBF16, {n, columns}),
                             .q = View(q.data(), DType::kBF16, {n, columns}),
                             .pages = &pages_,
                             .rows = {rows.positions, rows.sequences},
                             .num_heads = case_.num_heads,
                             .scale = scale(),
                             .window = case_.window,
                             .sinks = case_.has_sinks ? sinks.data() : nullptr,
                             .sees_later_rows = case_.sees_later_rows};
    with_device_rows(rows, [&](const AttentionRows& device_rows) {
      const DeviceArray<std::byte> scratch(static_cast<size_t>(attention_scratch_bytes(call, device_rows)));
      attention(nullptr, call, device_rows, scratch.data(), kernel);
      cuda_check(cudaDeviceSynchronize());
      EXPECT_TRUE(scratch.guards_intact());
    });
    EXPECT_TRUE(out.guards_intact());
    return out.download();
  }

  /// Row `source` (the `pos`-th of its sequence) of head `head` in double, and what it may be off by.
  /// least_end: as visible_keys().
  void expect_row(const std::vector<bf16>& got, int64_t row, int64_t source, int64_t pos, int64_t head,
                  int64_t least_end = 0) const {
    const int64_t d = case_.head_dim, kv_head = head * case_.num_kv_heads / case_.num_heads;
    const VisibleKeys keys = visible_keys(pos, case_.window, least_end);
    const int64_t kv_columns = case_.num_kv_heads * d;
    std::vector<double> scores;
    double score_bound = 0, largest = case_.has_sinks ? sinks_[head] : -1e300;
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t e = 0; e < d; ++e) {
        const double product = to_float(q_host[(source * case_.num_heads + head) * d + e]) *
                               static_cast<double>(to_float(to_bf16(k_host[(source - pos + j) * kv_columns + kv_head * d + e])));
        sum += product, magnitude += std::abs(product);
      }
      scores.push_back(sum * scale());
      score_bound = std::max(score_bound, magnitude * scale());
      largest = std::max(largest, scores.back());
    }
    double total = case_.has_sinks ? std::exp(sinks_[head] - largest) : 0;
    for (double& s : scores) total += s = std::exp(s - largest);
    // A score is off by a unit of 2^-22 of its terms' magnitudes per step (as in the test of linear()) and two
    // roundings, which changes p in proportion; exp2 by 2^-23; sums by 2^-23 per tile, span and halving step, in both l
    // and o; p by its rounding to bf16; the result by its own.
    const double relative = 2 * (score_bound * (static_cast<double>(d) / 16 + 4) * std::ldexp(1.0, -22)) +
                            (static_cast<double>(keys.end - keys.begin) / 16 + 32) * std::ldexp(1.0, -22) + std::ldexp(1.0, -8);
    for (int64_t e = 0; e < d; ++e) {
      double sum = 0, magnitude = 0;
      for (size_t j = 0; j < scores.size(); ++j) {
        const double v = to_float(to_bf16(v_host[(source - pos + keys.begin + static_cast<int64_t>(j)) * kv_columns + kv_head * d + e]));
        sum += scores[j] * v, magnitude += scores[j] * std::abs(v);
      }
      ASSERT_NEAR(to_float(got[(row * case_.num_heads + head) * d + e]), sum / total,
                  magnitude / total * relative + std::abs(sum / total) * std::ldexp(1.0, -8))
          << to_string(case_) << " position " << pos << " head " << head << " element " << e;
    }
  }

  int64_t columns() const { return case_.num_heads * case_.head_dim; }
  int64_t num_rows() const { return num_rows_; }

 private:
  static std::vector<float> random_floats(int64_t count, uint32_t seed) {
    std::vector<float> values;
    for (bf16 v : random_bf16(static_cast<size_t>(count), seed)) values.push_back(1.001f * to_float(v));
    return values;
  }
  template <class Body>
  void with_device_rows(const Rows& rows, const Body& body) const {
    std::vector<AttentionSequence> sequences;
    std::vector<int32_t> tables;
    AttentionRows device_rows = make_attention_rows({rows.positions, rows.sequences}, sequences, tables);
    const DeviceArray<AttentionSequence> device_sequences(sequences);
    const DeviceArray<int32_t> device_tables(tables);
    device_rows.sequences = device_sequences.data();
    device_rows.page_tables = device_tables.data();
    body(device_rows);
    cuda_check(cudaDeviceSynchronize());
  }
  int64_t count_pages() const {
    int64_t pages = 0;
    for (int64_t n : case_.lengths) pages += (n + kPageTokens - 1) / kPageTokens;
    return pages;
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(case_.head_dim)); }

  Case case_;
  KvShape shape_;
  int64_t num_rows_;
  std::vector<bf16> q_host;
  std::vector<float> k_host, v_host, sinks_;
  DeviceArray<std::byte> memory_;
  std::vector<std::vector<int32_t>> tables_;
  KvPages pages_;
};

class CudaAttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_device()) GTEST_SKIP() << "no sm_90 device";
  }
};

void expect_same_rows(const World& world, const std::vector<bf16>& all, const std::vector<bf16>& got, const Rows& rows,
                      const std::string& what) {
  const size_t bytes = static_cast<size_t>(world.columns()) * sizeof(bf16);
  for (size_t i = 0; i < rows.sources.size(); ++i) {
    ASSERT_EQ(std::memcmp(got.data() + static_cast<int64_t>(i) * world.columns(),
                          all.data() + rows.sources[i] * world.columns(), bytes), 0)
        << what << ", position " << rows.positions[i] << ", row " << i;
  }
}

TEST_F(CudaAttentionTest, IsSoftmaxAttentionWithinTheRoundingOfItsSteps) {
  for (const Case& c : kCases) {
    const World world(c, false);
    const Rows all = world.rows(0, world.num_rows());
    for (AttentionKernel kernel : kKernels) {
      const std::vector<bf16> got = world.attend(all, kernel);
      for (size_t i = 0; i < all.sources.size(); i += all.sources.size() > 1000 ? 97 : 1) {
        for (int64_t head = 0; head < c.num_heads; head += c.num_heads > 4 ? 5 : 1) {
          world.expect_row(got, static_cast<int64_t>(i), all.sources[i], all.positions[i], head);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(CudaAttentionTest, ARowsBitsDependOnNeitherKernelNorCompanyNorPages) {
  for (const Case& c : kCases) {
    const World world(c, false), dirty(c, true);
    const std::vector<bf16> all = world.attend(world.rows(0, world.num_rows()), AttentionKernel::kWide);
    const int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    for (AttentionKernel kernel : kKernels) {
      const std::string name = fmt::format("{}, {}", to_string(c), to_string(kernel));
      for (int64_t count : {1, 2, 3, 8, 33, 65, 200, 1 << 20}) {
        const int64_t step = std::max<int64_t>(count, longest / 23);
        for (int64_t first = 0; first < longest; first += step) {
          const Rows rows = world.rows(first, count);
          expect_same_rows(world, all, world.attend(rows, kernel), rows, fmt::format("{}, chunks of {}", name, count));
          if (HasFatalFailure()) return;
        }
      }
      for (int s = 0; s < static_cast<int>(c.lengths.size()); ++s) {
        const Rows rows = dirty.rows(c.lengths[s] / 2, c.lengths[s], s);
        expect_same_rows(dirty, all, dirty.attend(rows, kernel), rows, name + ", other pages");
        if (HasFatalFailure()) return;
      }
    }
  }
}

const Case kBlockCases[] = {
    {.num_heads = 4,
     .num_kv_heads = 2,
     .head_dim = 64,
     .lengths = {63, 64, 65, 130},
     .sees_later_rows = true},
    {.num_heads = 8,
     .num_kv_heads = 2,
     .head_dim = 128,
     .window = 70,
     .lengths = {300, 129},
     .sees_later_rows = true},
    {.num_heads = 6,
     .num_kv_heads = 1,
     .head_dim = 256,
     .has_sinks = true,
     .lengths = {257},
     .sees_later_rows = true},
    {.num_heads = 4,
     .num_kv_heads = 1,
     .head_dim = 128,
     .window = 2048,
     .lengths = {4100},
     .sees_later_rows = true},
};

// Blocks of few and of many rows, across tiles and spans; every kernel gives the same bits.
TEST_F(CudaAttentionTest, RowsOfABlockSeeItToItsEnd) {
  for (const Case& c : kBlockCases) {
    const World world(c, false), dirty(c, true);
    const int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    for (int64_t count : {1, 2, 8, 16, 33, 70}) {
      for (int64_t first : {int64_t{0}, int64_t{60}, int64_t{125}, longest - count}) {
        const Rows rows = world.rows(first, count);
        const std::vector<bf16> wide = world.attend(rows, AttentionKernel::kWide);
        for (const SequenceRows& s : rows.sequences) {
          for (int64_t row = s.first_row; row<s.first_row + s.num_rows; row += s.num_rows> 8 ? 7 : 1) {
            world.expect_row(wide, row, rows.sources[row], rows.positions[row], row % c.num_heads,
                             s.first_pos + s.num_rows);
            if (HasFatalFailure()) return;
          }
        }
        for (AttentionKernel kernel : kKernels) {
          const std::string what =
              fmt::format("{}, {} rows from {}, {}", to_string(c), count, first, to_string(kernel));
          const std::vector<bf16> got = world.attend(rows, kernel);
          ASSERT_EQ(std::memcmp(got.data(), wide.data(), wide.size() * sizeof(bf16)), 0) << what;
          const std::vector<bf16> other = dirty.attend(dirty.rows(first, count), kernel);
          ASSERT_EQ(std::memcmp(other.data(), wide.data(), wide.size() * sizeof(bf16)), 0)
              << what << ", other pages";
        }
      }
    }
  }
}

// On the host.

TEST(CudaAttentionLaunchTest, FewQueryRowsOfAKvHeadAreSplitAndManyAreNot) {
  const auto is_split = [](int64_t num_heads, int64_t num_kv_heads, int64_t max_rows,
                           AttentionKernel kernel) {
    const KvPages pages{.shape = {num_kv_heads, 128, DType::kBF16}};
    const int64_t columns = num_heads * 128;
    const AttentionCall call{.out = View(nullptr, DType::kBF16, {max_rows, columns}),
                             .q = View(nullptr, DType::kBF16, {max_rows, columns}),
                             .pages = &pages,
                             .rows = {},
                             .num_heads = num_heads};
    const AttentionRows rows{.num_sequences = 1, .max_rows = max_rows, .num_rows = max_rows, .max_end = 4096};
    return attention_launch(call, rows, nullptr, kernel).is_split;
  };
  EXPECT_TRUE(is_split(8, 8, 64, AttentionKernel::kAuto));
  EXPECT_FALSE(is_split(8, 8, 65, AttentionKernel::kAuto));
  EXPECT_TRUE(is_split(32, 4, 8, AttentionKernel::kAuto));
  EXPECT_FALSE(is_split(32, 4, 9, AttentionKernel::kAuto));
  EXPECT_TRUE(is_split(32, 4, 900, AttentionKernel::kSplit));
  EXPECT_FALSE(is_split(32, 4, 1, AttentionKernel::kWide));
}

TEST(CudaAttentionLaunchTest, CachesThatTheKernelsDoNotTakeAreRefused) {
  for (const int64_t head_dim : {8, 64, 80, 256})
    EXPECT_TRUE(check_kv_shape({2, head_dim, DType::kBF16}).ok());
  EXPECT_EQ(check_kv_shape({2, 264, DType::kBF16}).message(),
            "head_dim 264: CUDA takes multiples of 8 up to 256; the CPU any (--device cpu)");
  EXPECT_FALSE(check_kv_shape({2, 60, DType::kBF16}).ok());
  EXPECT_EQ(check_kv_shape({2, 64, DType::kF32}).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace tensorfold::cuda
