// causal_conv(), gated_delta() and mamba2() on CUDA: equal, bit for bit, to their definition in scalar code
// on the host, however the rows are cut into passes, whatever company they have and whatever their slots
// held.
#include "ops/cuda/recurrences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/fp_env.h"
#include "ops/contract_math.h"
#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {
namespace {

using contract::fused;

std::vector<float> random_floats(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Rows further apart than they are long, from an address that is a multiple of 4 bytes and no more.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, std::vector<float> values)
      : columns_(columns),
        stride_(columns + 3),
        host(std::move(values)),
        device_(static_cast<size_t>(std::max<int64_t>(rows, 1) * stride_ + 1)) {
    std::vector<float> spread(device_.size(), std::nanf(""));
    for (int64_t t = 0; t < rows; ++t) std::copy_n(&host[t * columns], columns, &spread[1 + t * stride_]);
    device_.upload(spread);
  }
  /// Rows [first, first + count).
  View view(int64_t first, int64_t count) const {
    View v(device_.data() + 1 + first * stride_, DType::kF32, {count, columns_});
    v.row_stride = stride_;
    return v;
  }
  std::vector<float> download(int64_t count) const {
    const std::vector<float> spread = device_.download();
    std::vector<float> values;
    for (int64_t t = 0; t < count; ++t) {
      const float* row = &spread[1 + t * stride_];
      values.insert(values.end(), row, row + columns_);
      // What lies between the rows is not written.
      for (int64_t i = columns_; i < stride_; ++i) EXPECT_TRUE(std::isnan(row[i]));
    }
    EXPECT_TRUE(device_.guards_intact());
    return values;
  }
  const float* row(int64_t t) const { return &host[t * columns_]; }

 private:
  int64_t columns_, stride_;

 public:
  std::vector<float> host;

 private:
  DeviceArray<float> device_;
};

View vector_view(const DeviceArray<float>& v) {
  return View(v.data(), DType::kF32, {static_cast<int64_t>(v.size())});
}

/// Slots full of NaN, matrices behind the convolution's rows.
class Slots {
 public:
  Slots(const RecurrentShape& shape, int num_slots)
      : shape_(shape),
        stride_floats_((shape.conv_floats() + shape.matrix_floats() + 31) / 16 * 16),
        memory_(std::vector<float>(static_cast<size_t>(stride_floats_ * num_slots), std::nanf(""))) {}
  RecurrentStates states() const {
    return {.shape = shape_,
            .conv = reinterpret_cast<std::byte*>(memory_.data() + round_up(shape_.matrix_floats())),
            .matrix = reinterpret_cast<std::byte*>(memory_.data()),
            .slot_stride_bytes = 4 * stride_floats_,
            .num_slots = 0};
  }
  std::vector<float> download() const {
    EXPECT_TRUE(memory_.guards_intact());
    return memory_.download();
  }
  std::vector<float> conv(int slot) const {
    return part(slot, round_up(shape_.matrix_floats()), shape_.conv_floats());
  }
  /// [head][key][column], as RecurrentStates names them.
  std::vector<float> matrices(int slot) const {
    const std::vector<float> stored = part(slot, 0, shape_.matrix_floats());
    std::vector<float> values;
    for (int64_t head = 0; head < shape_.num_heads; ++head) {
      for (int64_t key = 0; key < shape_.key_dim; ++key) {
        for (int64_t column = 0; column < shape_.value_dim; ++column) {
          values.push_back(
              stored[head * shape_.key_dim * shape_.value_dim + matrix_place(shape_.key_dim, key, column)]);
        }
      }
    }
    return values;
  }

 private:
  static int64_t round_up(int64_t floats) { return (floats + 15) / 16 * 16; }
  std::vector<float> part(int slot, int64_t first, int64_t count) const {
    const std::vector<float> all = memory_.download();
    return {all.begin() + slot * stride_floats_ + first, all.begin() + slot * stride_floats_ + first + count};
  }
  RecurrentShape shape_;
  int64_t stride_floats_;
  DeviceArray<float> memory_;
};

/// The rows of a pass: `count` rows of each sequence from position `first` on, fewer where it is shorter.
/// Sequence s has the slot num_sequences - 1 - s, and its rows lie together in the world's matrices.
struct Pass {
  std::vector<SequenceRows> sequences;
  Pass(const std::vector<int64_t>& lengths, int64_t first, int64_t count) {
    int64_t base = 0;
    for (size_t s = 0; s < lengths.size(); base += lengths[s++]) {
      const int64_t n = std::min(count, lengths[s] - first);
      if (n > 0) {
        sequences.push_back({.first_row = base + first,
                             .num_rows = n,
                             .first_pos = first,
                             .page_table = nullptr,
                             .state_slot = static_cast<int32_t>(lengths.size() - 1 - s)});
      }
    }
  }
  /// The same rows, of which all or the second half of each sequence are drafted.
  Pass all_drafted() const {
    Pass pass = *this;
    for (SequenceRows& s : pass.sequences) s.num_drafted = s.num_rows;
    return pass;
  }
  Pass half_drafted() const {
    Pass pass = *this;
    for (SequenceRows& s : pass.sequences) s.num_drafted = s.num_rows / 2;
    return pass;
  }
  /// The rows that half_drafted() did not store.
  Pass second_half() const {
    Pass pass = *this;
    for (SequenceRows& s : pass.sequences) {
      const int64_t half = s.num_rows / 2;
      s.first_row += s.num_rows - half, s.first_pos += s.num_rows - half, s.num_rows = half;
    }
    return pass;
  }

  void run(const std::function<void(const RecurrentRows&)>& body) const {
    if (sequences.empty()) return;
    std::vector<RecurrentSequence> device_form;
    RecurrentRows rows = make_recurrent_rows({{}, sequences}, device_form);
    const DeviceArray<RecurrentSequence> device_sequences(device_form);
    rows.sequences = device_sequences.data();
    body(rows);
    cuda_check(cudaGetLastError());
    cuda_check(cudaDeviceSynchronize());
  }
};

int64_t total(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

/// Sum over the key dimension: term i to partial i mod 8, then halving.
class KeySum {
 public:
  void add_product(float left, float right) {
    float& partial = partials_[count_++ % 8];
    partial = fused(left, right, partial);
  }
  float total() const {
    std::array<float, 8> sum = partials_;
    for (int half = 4; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) sum[i] = sum[i] + sum[i + half];
    }
    return sum[0];
  }

 private:
  std::array<float, 8> partials_{};
  int count_ = 0;
};

std::vector<float> unit_length(const float* x, int64_t count) {
  std::array<float, 256> sum{};
  for (int64_t i = 0; i < count; ++i) sum[i % 256] = fused(x[i], x[i], sum[i % 256]);
  for (int half = 128; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) sum[i] = sum[i] + sum[i + half];
  }
  const float inverse = rsqrt_f32(sum[0] + 1e-6f);
  std::vector<float> y(x, x + count);
  for (float& v : y) v = v * inverse;
  return y;
}

float decay(float a_log, float step) { return exp_f32(-(exp_f32(a_log) * step)); }

/// Heads, keys of a head and columns of a head; sequences.
struct Case {
  int64_t num_heads, num_keys, key_dim, value_dim;
  std::vector<int64_t> lengths;
  RecurrentShape shape() const {
    return {.conv_channels = 1,
            .conv_taps = 2,
            .num_heads = num_heads,
            .key_dim = key_dim,
            .value_dim = value_dim};
  }
};

std::string to_string(const Case& c) {
  std::string text = "heads " + std::to_string(c.num_heads) + " of " + std::to_string(c.key_dim) + "x" +
                     std::to_string(c.value_dim) + " keys " + std::to_string(c.num_keys) + " rows";
  for (int64_t n : c.lengths) text.append(1, ' ').append(std::to_string(n));
  return text;
}

const Case kCases[] = {
    {1, 1, 1, 1, {1, 2, 3}},  {1, 1, 8, 5, {40}},
    {3, 1, 7, 3, {9, 70}},    {2, 2, 32, 16, {33, 1, 64}},
    {6, 2, 33, 31, {35}},     {4, 2, 64, 40, {65, 63}},
    {4, 1, 100, 24, {37, 5}}, {6, 2, 128, 128, {131, 32, 1}},
    {3, 1, 128, 128, {300}},  {16, 2, 128, 64, {67, 66}},
    {2, 1, 129, 9, {20}},     {4, 2, 256, 64, {33, 18}},
};
const RecurrenceBlocks kAllBlocks[] = {RecurrenceBlocks::kSmall, RecurrenceBlocks::kMedium,
                                       RecurrenceBlocks::kWide};

struct Results {
  std::vector<float> out;
  std::vector<std::vector<float>> matrices;  ///< Of each sequence, after its last row.
};

/// Inputs of either recurrence: `keys`, `queries`, `values` and two projections a head.
struct Inputs {
  Matrix keys, queries, values, first, second;
  std::vector<float> a_log, dt_bias, skip;
  DeviceArray<float> device_a_log, device_dt_bias, device_skip;

  explicit Inputs(const Case& c)
      : keys(total(c.lengths), c.num_keys * c.key_dim,
             random_floats(total(c.lengths) * c.num_keys * c.key_dim, 1)),
        queries(total(c.lengths), c.num_keys * c.key_dim,
                random_floats(total(c.lengths) * c.num_keys * c.key_dim, 2)),
        values(total(c.lengths), c.num_heads * c.value_dim,
               random_floats(total(c.lengths) * c.num_heads * c.value_dim, 3)),
        first(total(c.lengths), c.num_heads, random_floats(total(c.lengths) * c.num_heads, 4, 2.0f)),
        second(total(c.lengths), c.num_heads, random_floats(total(c.lengths) * c.num_heads, 5, 2.0f)),
        a_log(random_floats(c.num_heads, 6)),
        dt_bias(random_floats(c.num_heads, 7)),
        skip(random_floats(c.num_heads, 8)),
        device_a_log(a_log),
        device_dt_bias(dt_bias),
        device_skip(skip) {}
};

struct GatedDelta {
  static void run_device(const Case& c, const Inputs& in, const Matrix& out, const RecurrentStates& states,
                         const RecurrentRows& rows, RecurrenceBlocks blocks) {
    const int64_t n = total(c.lengths);
    gated_delta(nullptr,
                {.out = out.view(0, n),
                 .q = in.queries.view(0, n),
                 .k = in.keys.view(0, n),
                 .v = in.values.view(0, n),
                 .a = in.first.view(0, n),
                 .b = in.second.view(0, n),
                 .a_log = vector_view(in.device_a_log),
                 .dt_bias = vector_view(in.device_dt_bias),
                 .states = &states,
                 .rows = {}},
                rows, blocks);
  }
  static void host_row(const Case& c, const Inputs& in, int64_t t, int64_t head, float* S, float* out) {
    const int64_t Dk = c.key_dim, Dv = c.value_dim, key_head = head / (c.num_heads / c.num_keys);
    std::vector<float> q = unit_length(in.queries.row(t) + key_head * Dk, Dk);
    const std::vector<float> k = unit_length(in.keys.row(t) + key_head * Dk, Dk);
    KeySum qk;
    for (int64_t i = 0; i < Dk; ++i) {
      q[i] = q[i] * static_cast<float>(1.0 / std::sqrt(static_cast<double>(Dk)));
      qk.add_product(q[i], k[i]);
    }
    const float beta = sigmoid_f32(in.second.row(t)[head]);
    const float g = decay(in.a_log[head], softplus_f32(in.first.row(t)[head] + in.dt_bias[head]));
    for (int64_t column = 0; column < Dv; ++column) {
      KeySum ks, qs;
      for (int64_t i = 0; i < Dk; ++i) {
        ks.add_product(k[i], S[i * Dv + column]);
        qs.add_product(q[i], S[i * Dv + column]);
      }
      const float u = beta * fused(-g, ks.total(), in.values.row(t)[head * Dv + column]);
      out[column] = fused(qk.total(), u, g * qs.total());
      for (int64_t i = 0; i < Dk; ++i) S[i * Dv + column] = fused(k[i], u, g * S[i * Dv + column]);
    }
  }
};

struct Mamba2 {
  static constexpr float kMin = 0.25f, kMax = 2.0f;
  static void run_device(const Case& c, const Inputs& in, const Matrix& out, const RecurrentStates& states,
                         const RecurrentRows& rows, RecurrenceBlocks blocks) {
    const int64_t n = total(c.lengths);
    mamba2(nullptr,
           {.out = out.view(0, n),
            .x = in.values.view(0, n),
            .b = in.keys.view(0, n),
            .c = in.queries.view(0, n),
            .dt = in.first.view(0, n),
            .a_log = vector_view(in.device_a_log),
            .d = vector_view(in.device_skip),
            .dt_bias = vector_view(in.device_dt_bias),
            .dt_min = kMin,
            .dt_max = kMax,
            .states = &states,
            .rows = {}},
           rows, blocks);
  }
  static void host_row(const Case& c, const Inputs& in, int64_t t, int64_t head, float* S, float* out) {
    const int64_t N = c.key_dim, P = c.value_dim, group = head / (c.num_heads / c.num_keys);
    const float* b = in.keys.row(t) + group * N;
    const float step = std::min(std::max(softplus_f32(in.first.row(t)[head] + in.dt_bias[head]), kMin), kMax);
    const float g = decay(in.a_log[head], step);
    for (int64_t p = 0; p < P; ++p) {
      const float x = in.values.row(t)[head * P + p];
      KeySum y;
      for (int64_t n = 0; n < N; ++n) {
        S[n * P + p] = fused(b[n], step * x, g * S[n * P + p]);
        y.add_product(in.queries.row(t)[group * N + n], S[n * P + p]);
      }
      out[p] = fused(in.skip[head], x, y.total());
    }
  }
};

template <class Op>
Results on_host(const Case& c, const Inputs& in) {
  ScopedFlushDenormals flush;
  Results results;
  results.out.resize(total(c.lengths) * c.num_heads * c.value_dim);
  int64_t t = 0;
  for (int64_t n : c.lengths) {
    std::vector<float> S(c.num_heads * c.key_dim * c.value_dim, 0.0f);
    for (int64_t i = 0; i < n; ++i, ++t) {
      for (int64_t h = 0; h < c.num_heads; ++h) {
        Op::host_row(c, in, t, h, &S[h * c.key_dim * c.value_dim],
                     &results.out[(t * c.num_heads + h) * c.value_dim]);
      }
    }
    results.matrices.push_back(S);
  }
  return results;
}

/// All rows in passes of `chunk` rows a sequence; where `verifies`, first without storing, then storing the first half,
/// then the second half alone.
template <class Op>
Results on_device(const Case& c, const Inputs& in, RecurrenceBlocks blocks, int64_t chunk,
                  bool verifies = false) {
  const int64_t n = total(c.lengths), longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const Matrix out(n, c.num_heads * c.value_dim,
                   std::vector<float>(static_cast<size_t>(n * c.num_heads * c.value_dim), std::nanf("")));
  const Slots slots(c.shape(), static_cast<int>(c.lengths.size()));
  for (int64_t first = 0; first < longest; first += chunk) {
    const Pass pass(c.lengths, first, chunk);
    const auto run = [&](const RecurrentRows& rows) {
      Op::run_device(c, in, out, slots.states(), rows, blocks);
    };
    if (verifies) {
      const std::vector<float> before = slots.download();
      pass.all_drafted().run(run);
      EXPECT_TRUE(same_bits(before, slots.download())) << "a pass that stores nothing wrote a slot";
      const std::vector<float> drafted = out.download(n);
      pass.half_drafted().run(run);
      EXPECT_TRUE(same_bits(drafted, out.download(n))) << "rows depend on what is stored";
      pass.second_half().run(run);
      EXPECT_TRUE(same_bits(drafted, out.download(n))) << "rows differ after half of them was stored";
      continue;
    }
    pass.run(run);
  }
  Results results{out.download(n), {}};
  for (size_t s = 0; s < c.lengths.size(); ++s)
    results.matrices.push_back(slots.matrices(static_cast<int>(c.lengths.size() - 1 - s)));
  return results;
}

void expect_equal(const Results& expected, const Results& actual, const std::string& what) {
  ASSERT_EQ(expected.out.size(), actual.out.size());
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < expected.out.size(); ++i) {
    if (std::memcmp(&expected.out[i], &actual.out[i], 4) != 0 && wrong++ == 0) first = i;
  }
  EXPECT_EQ(wrong, 0u) << what << ": first at " << first << ": " << actual.out[first] << ", expected "
                       << expected.out[first];
  for (size_t s = 0; s < expected.matrices.size(); ++s) {
    EXPECT_TRUE(same_bits(expected.matrices[s], actual.matrices[s])) << what << ": state of sequence " << s;
  }
}

template <class Op>
void check_all() {
  if (!have_device()) GTEST_SKIP() << "no device of compute capability 9.0";
  for (const Case& c : kCases) {
    const Inputs in(c);
    const Results expected = on_host<Op>(c, in);
    for (const float x : expected.out) ASSERT_TRUE(std::isfinite(x)) << to_string(c);
    for (RecurrenceBlocks blocks : kAllBlocks) {
      const std::string what = to_string(c) + " blocks " + std::to_string(static_cast<int>(blocks));
      for (int64_t chunk : {int64_t{1} << 20, int64_t{1}, int64_t{2}, int64_t{5}, int64_t{32}, int64_t{33}}) {
        if (chunk < 5 && total(c.lengths) > 200) continue;
        expect_equal(expected, on_device<Op>(c, in, blocks, chunk), what + " chunk " + std::to_string(chunk));
      }
      expect_equal(expected, on_device<Op>(c, in, blocks, 19, true), what + " verified");
    }
    expect_equal(expected, on_device<Op>(c, in, RecurrenceBlocks::kOneRow, 1, true),
                 to_string(c) + " row by row");
  }
}

TEST(CudaGatedDeltaTest, IsItsDefinitionBitForBit) { check_all<GatedDelta>(); }
TEST(CudaMamba2Test, IsItsDefinitionBitForBit) { check_all<Mamba2>(); }

struct ConvCase {
  int64_t channels, taps;
  bool has_bias;
  std::vector<int64_t> lengths;
};

TEST(CudaCausalConvTest, IsItsDefinitionBitForBit) {
  if (!have_device()) GTEST_SKIP() << "no device of compute capability 9.0";
  const ConvCase cases[] = {{1, 1, true, {3}},           {5, 2, false, {1, 7}},
                            {129, 3, true, {64, 65, 2}}, {300, 4, true, {1, 2, 3, 4}},
                            {1000, 4, false, {63, 200}}, {257, 4, true, {130}}};
  for (const ConvCase& c : cases) {
    const int64_t n = total(c.lengths), tail = c.taps - 1;
    const Matrix x(n, c.channels, random_floats(n * c.channels, 1));
    const std::vector<float> weight = random_floats(c.taps * c.channels, 2),
                             bias = random_floats(c.channels, 3);
    const DeviceArray<float> device_weight(weight), device_bias(bias);
    std::vector<float> expected;
    std::vector<std::vector<float>> kept;
    {
      ScopedFlushDenormals flush;
      int64_t base = 0;
      for (int64_t length : c.lengths) {
        const auto reached = [&](int64_t r, int64_t channel) {
          return r < 0 ? 0.0f : x.row(base + r)[channel];
        };
        for (int64_t r = 0; r < length; ++r) {
          for (int64_t channel = 0; channel < c.channels; ++channel) {
            float y = c.has_bias ? bias[channel] : 0.0f;
            for (int64_t j = 0; j < c.taps; ++j)
              y = fused(weight[j * c.channels + channel], reached(r - tail + j, channel), y);
            expected.push_back(silu_f32(y));
          }
        }
        kept.emplace_back();
        for (int64_t j = 0; j < tail; ++j) {
          for (int64_t channel = 0; channel < c.channels; ++channel)
            kept.back().push_back(reached(length - tail + j, channel));
        }
        base += length;
      }
    }
    const RecurrentShape shape{
        .conv_channels = c.channels, .conv_taps = c.taps, .num_heads = 1, .key_dim = 1, .value_dim = 1};
    for (int64_t chunk : {int64_t{1} << 20, int64_t{1}, int64_t{2}, int64_t{7}, int64_t{64}, int64_t{65}}) {
      SCOPED_TRACE(std::to_string(c.channels) + " channels " + std::to_string(c.taps) + " taps chunk " +
                   std::to_string(chunk));
      const Matrix out(n, c.channels, std::vector<float>(static_cast<size_t>(n * c.channels), std::nanf("")));
      const Slots slots(shape, static_cast<int>(c.lengths.size()));
      for (int64_t first = 0; first < *std::max_element(c.lengths.begin(), c.lengths.end()); first += chunk) {
        const RecurrentStates states = slots.states();
        const auto run = [&](const RecurrentRows& rows) {
          causal_conv(nullptr,
                      {.out = out.view(0, n),
                       .x = x.view(0, n),
                       .weight = View(device_weight.data(), DType::kF32, {c.taps, c.channels}),
                       .bias = c.has_bias ? vector_view(device_bias) : View(),
                       .states = &states,
                       .rows = {}},
                      rows);
        };
        const std::vector<float> before = slots.download();
        const Pass pass(c.lengths, first, chunk);
        pass.all_drafted().run(run);
        EXPECT_TRUE(same_bits(before, slots.download())) << "a pass that stores nothing wrote a slot";
        pass.half_drafted().run(run);
        pass.second_half().run(run);
      }
      EXPECT_TRUE(same_bits(expected, out.download(n)));
      for (size_t s = 0; s < c.lengths.size(); ++s) {
        EXPECT_TRUE(same_bits(kept[s], slots.conv(static_cast<int>(c.lengths.size() - 1 - s))))
            << "kept rows of " << s;
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::cuda
