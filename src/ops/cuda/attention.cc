// The host side of attention() and append_kv() on CUDA: from views to launches (see ops/cuda/attention.h).
#include "ops/cuda/attention.h"

#include <algorithm>

#include "base/check.h"
#include "ops/attention_order.h"

namespace tensorfold::cuda {
namespace {

constexpr int64_t kMaxHeadDim = 256;

int64_t padded_head_dim(int64_t head_dim) {
  return (head_dim + kKvBlockColumns - 1) / kKvBlockColumns * kKvBlockColumns;
}

/// Spans that the rows of one sequence can see together.
int64_t max_spans(int64_t max_end, int64_t max_rows, int64_t window) {
  const int64_t all = kSpanRule.span_of(static_cast<int>(max_end - 1)) + 1;
  // Wherever `visible` neighbouring keys lie, they touch at most one span more than they fill of the shortest
  // ones.
  const int64_t visible = window + max_rows - 1, shortest = kSpanRule.length[0];
  return window > 0 ? std::min(all, (visible + shortest - 2) / shortest + 1) : all;
}

AttentionLaunch make_launch(const AttentionCall& call, const AttentionRows& rows, std::byte* scratch) {
  const KvShape& shape = call.pages->shape;
  AttentionLaunch launch{};
  launch.sequences = rows.sequences;
  launch.page_tables = rows.page_tables;
  launch.num_sequences = rows.num_sequences;
  launch.max_rows = static_cast<int>(rows.max_rows);
  launch.max_spans = static_cast<int>(max_spans(rows.max_end, rows.max_rows, call.window));
  launch.num_rows = static_cast<int>(rows.num_rows);
  launch.num_heads = static_cast<int>(call.num_heads);
  launch.num_kv_heads = static_cast<int>(shape.num_kv_heads);
  launch.head_dim = static_cast<int>(shape.head_dim);
  launch.window = static_cast<int>(call.window);
  launch.sees_later_rows = call.sees_later_rows;
  launch.spans = kSpanRule;
  launch.score_scale = attention_score_scale(call.scale);
  launch.sinks = call.sinks;
  launch.q = call.q.data;
  launch.out = call.out.data;
  launch.q_stride = call.q.row_stride;
  launch.out_stride = call.out.row_stride;
  launch.k = call.pages->k;
  launch.v = call.pages->v;
  launch.page_stride = call.pages->page_stride_bytes;
  const int64_t partials = rows.num_rows * call.num_heads * launch.max_spans;
  launch.partial_o = reinterpret_cast<float*>(scratch);
  launch.partial_ml = reinterpret_cast<float2*>(scratch + partials * shape.head_dim * 4);
  return launch;
}

}  // namespace

AttentionRows make_attention_rows(const RowBatch& rows, std::vector<AttentionSequence>& sequences,
                                  std::vector<int32_t>& page_tables) {
  AttentionRows result;
  for (const SequenceRows& s : rows.sequences) {
    const int64_t end = s.first_pos + s.num_rows;
    sequences.push_back({static_cast<int32_t>(s.first_row), static_cast<int32_t>(s.num_rows),
                         static_cast<int32_t>(s.first_pos), static_cast<int32_t>(page_tables.size())});
    page_tables.insert(page_tables.end(), s.page_table, s.page_table + (end + kPageTokens - 1) / kPageTokens);
    result.max_rows = std::max(result.max_rows, s.num_rows);
    result.num_rows += s.num_rows;
    result.max_end = std::max(result.max_end, end);
  }
  result.num_sequences = static_cast<int>(sequences.size());
  return result;
}

int64_t cuda_kv_page_bytes(const KvShape& shape) {
  TF_CHECK(shape.dtype == DType::kBF16);
  return shape.num_kv_heads * kPageTokens * padded_head_dim(shape.head_dim) * 2;
}

int64_t attention_scratch_bytes(const AttentionCall& call, const AttentionRows& rows) {
  const int64_t spans = max_spans(rows.max_end, rows.max_rows, call.window);
  return rows.num_rows * call.num_heads * spans * (call.pages->shape.head_dim + 2) * 4;
}

Status check_kv_shape(const KvShape& shape) {
  if (shape.dtype != DType::kBF16)
    return unsupported("keys and values in {}: CUDA computes in bf16; in f32 the CPU does (--device cpu)",
                       dtype_name(shape.dtype));
  if (shape.head_dim % 8 != 0 || shape.head_dim > kMaxHeadDim)
    return unsupported("head_dim {}: CUDA takes multiples of 8 up to {}; the CPU any (--device cpu)",
                       shape.head_dim, kMaxHeadDim);
  return {};
}

AttentionLaunch attention_launch(const AttentionCall& call, const AttentionRows& rows, std::byte* scratch,
                                 AttentionKernel kernel) {
  const KvShape& shape = call.pages->shape;
  TF_CHECK(check_kv_shape(shape).ok());
  TF_CHECK(call.q.dtype == DType::kBF16 && call.out.dtype == DType::kBF16);
  AttentionLaunch launch = make_launch(call, rows, scratch);
  const int64_t query_rows = rows.max_rows * call.num_heads / shape.num_kv_heads;
  launch.is_split = kernel == AttentionKernel::kSplit ||
                    (kernel == AttentionKernel::kAuto && query_rows <= kSplitQueryRows);
  return launch;
}

void attention(Stream stream, const AttentionCall& call, const AttentionRows& rows, std::byte* scratch,
               AttentionKernel kernel) {
  if (rows.num_rows > 0) launch_attention(stream, attention_launch(call, rows, scratch, kernel));
}

AppendKvLaunch append_kv_launch(const KvPages& pages, View k, View v, const AttentionRows& rows) {
  TF_CHECK(check_kv_shape(pages.shape).ok());
  const auto rows_of = [](View view) -> RowsToAppend {
    TF_CHECK(view.dtype == DType::kF32 || view.dtype == DType::kBF16);
    return {.data = view.data, .stride = view.row_stride, .is_bf16 = view.dtype == DType::kBF16};
  };
  return {.sequences = rows.sequences,
          .page_tables = rows.page_tables,
          .num_sequences = rows.num_sequences,
          .max_rows = static_cast<int>(rows.max_rows),
          .num_kv_heads = static_cast<int>(pages.shape.num_kv_heads),
          .head_dim = static_cast<int>(pages.shape.head_dim),
          .k = rows_of(k),
          .v = rows_of(v),
          .k_pages = pages.k,
          .v_pages = pages.v,
          .page_stride = pages.page_stride_bytes};
}

void append_kv(Stream stream, const KvPages& pages, View k, View v, const AttentionRows& rows) {
  if (rows.num_rows > 0) launch_append_kv(stream, append_kv_launch(pages, k, v, rows));
}

}  // namespace tensorfold::cuda
