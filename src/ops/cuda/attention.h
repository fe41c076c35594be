// attention() and append_kv() on CUDA devices: what they take from the host. Layout of pages:
// attention_params.h.
//
// Arithmetic (arithmetic.md, "Attention"; ops.h): 16-wide tensor-core steps for q.k over head_dim and for p.v
// over keys, spans of attention_spans.h. A row's bits depend on its sequence's keys and values up to it
// alone. Cached values must be finite: a NaN in the value of one row of a pass also reaches rows of the same
// tile that do not see it (16 query rows, or in the wide kernel a block's 128 or 192).
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cuda/attention_params.h"
#include "ops/cuda/linear.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// Which kernel computes attention. Tests force each; callers leave kAuto.
enum class AttentionKernel {
  kAuto,   ///< kSplit up to kSplitQueryRows query rows a KV head, kWide beyond.
  kSplit,  ///< Spans dealt to blocks, then merged by a second kernel: decoding.
  kWide,   ///< Spans in turn, a warpgroup 64 query rows: prompts.
};
inline constexpr int64_t kSplitQueryRows = 64;

/// The rows of a pass on the device. `sequences` and `page_tables` are device memory, filled by
/// make_attention_rows() and a copy; the rest is what the host must know to launch, and may be larger than
/// this pass's.
struct AttentionRows {
  const AttentionSequence* sequences = nullptr;
  const int32_t* page_tables = nullptr;
  int num_sequences = 0;
  int64_t max_rows = 0;  ///< Of one sequence.
  int64_t num_rows = 0;  ///< Of all.
  int64_t max_end = 0;   ///< Positions of the longest sequence: at least the last row's position + 1.
};

/// Device form of `rows`: sequences and their page tables, to be copied to the device. The pointers stay
/// null.
AttentionRows make_attention_rows(const RowBatch& rows, std::vector<AttentionSequence>& sequences,
                                  std::vector<int32_t>& page_tables);

/// Bytes of one page's keys (the values take as many).
int64_t cuda_kv_page_bytes(const KvShape& shape);

/// Bytes of scratch that kSplit needs for these rows.
int64_t attention_scratch_bytes(const AttentionCall& call, const AttentionRows& rows);

/// kUnsupported, naming the shape, for a cache that the kernels do not take: bf16, head_dim a multiple of 8
/// up to 256.
Status check_kv_shape(const KvShape& shape);

/// What Ops::attention() launches. q and out bf16, rows of q 16-byte aligned; scratch
/// attention_scratch_bytes() of device memory, aligned to 16. call.rows is not read.
AttentionLaunch attention_launch(const AttentionCall& call, const AttentionRows& rows, std::byte* scratch,
                                 AttentionKernel kernel = AttentionKernel::kAuto);

/// Ops::attention() on `stream`, asynchronous.
void attention(Stream stream, const AttentionCall& call, const AttentionRows& rows, std::byte* scratch,
               AttentionKernel kernel = AttentionKernel::kAuto);

/// What Ops::append_kv() launches: k and v each bf16 or f32. The rows' page tables are read on the device.
AppendKvLaunch append_kv_launch(const KvPages& pages, View k, View v, const AttentionRows& rows);

/// Ops::append_kv() on `stream`, asynchronous.
void append_kv(Stream stream, const KvPages& pages, View k, View v, const AttentionRows& rows);

}  // namespace tensorfold::cuda
