// Speed of the recurrent ops on CUDA: decoding as bytes of state (and of rows) per second against copy
// bandwidth, prompts as microseconds a row.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "bench/cuda_bench_util.h"
#include "ops/cuda/recurrences.h"

namespace tensorfold::cuda {
namespace {

/// Random numbers, a block of them over and over.
class RandomRows {
 public:
  RandomRows(int64_t rows, int64_t columns, uint32_t seed)
      : rows_(rows), columns_(columns), values_(rows * columns) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> block(std::min<size_t>(values_.size(), size_t{1} << 20));
    for (float& v : block) v = normal(random);
    fill_with_copies(values_, block);
  }
  View view() const { return View(values_.data(), DType::kF32, {rows_, columns_}); }
  View vector() const { return View(values_.data(), DType::kF32, {rows_ * columns_}); }
  float* data() const { return values_.data(); }

 private:
  int64_t rows_, columns_;
  DeviceArray<float> values_;
};

struct Case {
  const char* op;
  int64_t heads, keys, key_dim, value_dim, streams, rows;
  int64_t channels() const { return 2 * keys * key_dim + heads * value_dim; }
  RecurrentShape shape() const {
    return {.conv_channels = channels(),
            .conv_taps = 4,
            .num_heads = heads,
            .key_dim = key_dim,
            .value_dim = value_dim};
  }
};

/// op(states) of one layer; as many layers' states as keep them out of L2 are taken in turn, as one graph.
void time_layers(const Case& c, const char* name, double row_bytes, double state_bytes, double copy,
                 const std::function<void(cudaStream_t, const RecurrentStates&, const RecurrentRows&)>& op) {
  std::vector<SequenceRows> sequences;
  for (int64_t s = 0; s < c.streams; ++s) {
    sequences.push_back({.first_row = s * c.rows,
                         .num_rows = c.rows,
                         .first_pos = 64,
                         .page_table = nullptr,
                         .state_slot = static_cast<int32_t>(s)});
  }
  std::vector<RecurrentSequence> device_form;
  RecurrentRows rows = make_recurrent_rows({{}, sequences}, device_form);
  const DeviceArray<RecurrentSequence> device_sequences(device_form);
  rows.sequences = device_sequences.data();
  const RecurrentShape shape = c.shape();
  const int64_t slot_floats = (shape.matrix_floats() + shape.conv_floats() + 15) / 16 * 16;
  const int64_t layers = c.rows > 64 ? 1 : num_rotating_buffers(4 * slot_floats * c.streams);
  const RandomRows memory(layers * c.streams, slot_floats, 9);
  const double ms = graph_ms(layers, c.rows > 64 ? 5 : 11, [&](cudaStream_t stream, int64_t layer) {
    float* first = memory.data() + layer * c.streams * slot_floats;
    op(stream,
       {.shape = shape,
        .conv = reinterpret_cast<std::byte*>(first + shape.matrix_floats()),
        .matrix = reinterpret_cast<std::byte*>(first),
        .slot_stride_bytes = 4 * slot_floats,
        .num_slots = c.streams},
       rows);
  });
  const double total_rows = static_cast<double>(c.rows * c.streams),
               bytes = row_bytes * total_rows + state_bytes * c.streams;
  std::printf("%s,%lld,%lld,%lld,%lld,%lld,%lld,%.2f,%.4f,%.0f,%.3f\n", name, (long long)c.heads,
              (long long)c.keys, (long long)c.key_dim, (long long)c.value_dim, (long long)c.streams,
              (long long)c.rows, ms * 1e3, ms * 1e3 / total_rows, bytes / ms / 1e6, bytes / ms / 1e6 / copy);
  std::fflush(stdout);
}

void bench(const Case& c, double copy) {
  const int64_t T = c.rows * c.streams, key_columns = c.keys * c.key_dim, columns = c.heads * c.value_dim;
  const RandomRows left(T, key_columns, 1), right(T, key_columns, 2), values(T, columns, 3),
      first(T, c.heads, 4), second(T, c.heads, 5), heads(3, c.heads, 6),
      out(T, std::max(columns, c.channels()), 7);
  const auto of_heads = [&](int i) { return View(heads.data() + i * c.heads, DType::kF32, {c.heads}); };
  const View out_view(out.data(), DType::kF32, {T, columns});
  const double row_bytes = 4.0 * (2 * key_columns + 2 * columns),
               state_bytes = 8.0 * c.shape().matrix_floats();
  time_layers(c, c.op, row_bytes, state_bytes, copy,
              [&](cudaStream_t stream, const RecurrentStates& states, const RecurrentRows& rows) {
                const RecurrenceBlocks blocks = recurrence_blocks(states.shape, c.keys, rows);
                if (c.op[0] == 'g') {
                  gated_delta(stream,
                              {.out = out_view,
                               .q = left.view(),
                               .k = right.view(),
                               .v = values.view(),
                               .a = first.view(),
                               .b = second.view(),
                               .a_log = of_heads(0),
                               .dt_bias = of_heads(1),
                               .states = &states,
                               .rows = {}},
                              rows, blocks);
                } else {
                  mamba2(stream,
                         {.out = out_view,
                          .x = values.view(),
                          .b = left.view(),
                          .c = right.view(),
                          .dt = first.view(),
                          .a_log = of_heads(0),
                          .d = of_heads(1),
                          .dt_bias = of_heads(2),
                          .states = &states,
                          .rows = {}},
                         rows, blocks);
                }
              });
  const RandomRows x(T, c.channels(), 8), weight(4, c.channels(), 10);
  time_layers(c, "causal_conv", 8.0 * c.channels(), 8.0 * c.shape().conv_floats(), copy,
              [&](cudaStream_t stream, const RecurrentStates& states, const RecurrentRows& rows) {
                causal_conv(stream,
                            {.out = View(out.data(), DType::kF32, {T, c.channels()}),
                             .x = x.view(),
                             .weight = weight.view(),
                             .bias = {},
                             .states = &states,
                             .rows = {}},
                            rows);
              });
}

}  // namespace
}  // namespace tensorfold::cuda

int main() {
  using namespace tensorfold::cuda;
  if (!have_device()) return std::fprintf(stderr, "cuda_recurrences_bench: no sm_90 device\n"), 1;
  const double copy = copy_gb_per_s();
  std::printf("copy,%.0f GB/s\nop,heads,keys,key_dim,value_dim,streams,rows,us,us_per_row,gb_per_s,of_copy\n",
              copy);
  for (const auto& [streams, rows] : {std::pair<int64_t, int64_t>{1, 1},
                                      {1, 8},
                                      {8, 1},
                                      {32, 1},
                                      {1, 64},
                                      {1, 512},
                                      {1, 8192},
                                      {4, 2048}}) {
    bench({"gated_delta", 48, 16, 128, 128, streams, rows}, copy);
    bench({"mamba2", 64, 8, 128, 64, streams, rows}, copy);
  }
  bench({"gated_delta", 32, 16, 128, 128, 1, 8192}, copy);
  bench({"mamba2", 128, 8, 128, 64, 1, 8192}, copy);
}
