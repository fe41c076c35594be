// Speed of attention() on CUDA: decoding as bytes of cache per second against copy bandwidth, prompts as
// operations.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "bench/cuda_bench_util.h"
#include "ops/cuda/attention.h"

namespace tensorfold::cuda {
namespace {

/// The last `rows` positions of `streams` sequences of `context` tokens. As many layers' caches as keep them
/// out of L2 are taken in turn, as one graph.
struct BenchCase {
  int64_t heads, kv_heads, head_dim;
  int64_t context = 0, rows = 1, streams = 1;
  int64_t window = 0;
};

void bench(const BenchCase& c, AttentionKernel kernel, double copy) {
  const auto [heads, kv_heads, head_dim, context, rows, streams, window] = c;
  const KvShape shape{kv_heads, head_dim, DType::kBF16};
  const int64_t page_bytes = cuda_kv_page_bytes(shape),
                pages_each = (context + kPageTokens - 1) / kPageTokens;
  const int64_t bytes = 2 * page_bytes * pages_each * streams;
  const int64_t layers = rows > 64 ? 2 : num_rotating_buffers(bytes);
  const DeviceArray<std::byte> pages(static_cast<size_t>(bytes * layers));
  const std::vector<bf16> page = random_bf16(static_cast<size_t>(page_bytes), 1);
  const auto* page_begin = reinterpret_cast<const std::byte*>(page.data());
  fill_with_copies(pages, std::vector<std::byte>(page_begin, page_begin + 2 * page_bytes));
  std::vector<int32_t> table(pages_each), positions;
  std::vector<std::vector<int32_t>> tables;
  std::vector<SequenceRows> sequences;
  for (int64_t s = 0; s < streams; ++s) {
    std::iota(table.begin(), table.end(), static_cast<int32_t>(s * pages_each));
    tables.push_back(table);
  }
  for (int64_t s = 0; s < streams; ++s)
    sequences.push_back({s * rows, rows, context - rows, tables[s].data()});
  std::vector<AttentionSequence> device_form;
  std::vector<int32_t> flat;
  AttentionRows device_rows = make_attention_rows({positions, sequences}, device_form, flat);
  const DeviceArray<AttentionSequence> device_sequences(device_form);
  const DeviceArray<int32_t> device_tables(flat);
  device_rows.sequences = device_sequences.data(), device_rows.page_tables = device_tables.data();
  const int64_t columns = heads * head_dim, total = rows * streams;
  const DeviceArray<bf16> q(random_bf16(static_cast<size_t>(total * columns), 2));
  DeviceArray<bf16> out(static_cast<size_t>(total * columns));
  KvPages kv{.shape = shape,
             .k = nullptr,
             .v = nullptr,
             .page_stride_bytes = 2 * page_bytes,
             .num_pages = pages_each * streams};
  AttentionCall call{.out = View(out.data(), DType::kBF16, {total, columns}),
                     .q = View(q.data(), DType::kBF16, {total, columns}),
                     .pages = &kv,
                     .rows = {},
                     .num_heads = heads,
                     .scale = 0.0625f,
                     .window = window};
  const bool is_split = kernel == AttentionKernel::kSplit;
  const DeviceArray<std::byte> scratch(
      is_split ? static_cast<size_t>(attention_scratch_bytes(call, device_rows)) : 16);
  const double ms = graph_ms(layers, rows > 64 ? 5 : 11, [&](cudaStream_t stream, int64_t layer) {
    kv.k = pages.data() + layer * bytes, kv.v = kv.k + page_bytes;
    attention(stream, call, device_rows, scratch.data(), kernel);
  });
  double pairs = 0;
  for (int64_t pos = context - rows; pos < context; ++pos)
    pairs += static_cast<double>(streams * (window > 0 ? std::min(window, pos + 1) : pos + 1));
  std::printf("attention,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%s,%.2f,%.0f,%.3f,%.1f\n", (long long)heads,
              (long long)kv_heads, (long long)head_dim, (long long)window, (long long)context,
              (long long)streams, (long long)rows, is_split ? "split" : "wide", ms * 1e3, bytes / ms / 1e6,
              bytes / ms / 1e6 / copy, 4.0 * pairs * static_cast<double>(columns) / ms / 1e9);
  std::fflush(stdout);
}

}  // namespace
}  // namespace tensorfold::cuda

int main() {
  using namespace tensorfold::cuda;
  if (!have_device()) return std::fprintf(stderr, "cuda_attention_bench: no sm_90 device\n"), 1;
  const double copy = copy_gb_per_s();
  std::printf(
      "copy,%.0f "
      "GB/s\nop,heads,kv_heads,head_dim,window,context,streams,rows,kernel,us,gb_per_s,of_copy,tflops\n",
      copy);
  // Qwen3.8-27B, gpt-oss's two kinds of layer, and heads of 128.
  for (const BenchCase& h :
       {BenchCase{24, 4, 256}, BenchCase{64, 8, 64},
        BenchCase{.heads = 64, .kv_heads = 8, .head_dim = 64, .window = 128}, BenchCase{32, 8, 128}}) {
    const auto run = [&](AttentionKernel kernel, int64_t context, int64_t rows, int64_t streams) {
      BenchCase c = h;
      c.context = context, c.rows = rows, c.streams = streams;
      bench(c, kernel, copy);
    };
    for (int64_t context : {128, 1024, 8192, 32768, 131072}) run(AttentionKernel::kSplit, context, 1, 1);
    for (int64_t context : {1024, 32768}) run(AttentionKernel::kSplit, context, 8, 1);
    run(AttentionKernel::kSplit, 1024, 1, 32);
    run(AttentionKernel::kWide, 512, 512, 1);
    for (int64_t context : {2048, 8192}) run(AttentionKernel::kWide, context, context, 1);
    run(AttentionKernel::kWide, 32768, 2048, 1);
    run(AttentionKernel::kWide, 32768, 32768, 1);
  }
}
