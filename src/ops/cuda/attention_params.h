// What a launch of attention()'s and append_kv()'s kernels is told, and where a position lies in a KV page:
// plain data shared by host and device. Device code includes no header with fmt or STL containers in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/attention_spans.h"

struct CUstream_st;
struct float2;

namespace tensorfold::cuda {

inline constexpr int kKvTile = 64;          ///< Positions of a page, and keys of a tile.
inline constexpr int kKvBlockColumns = 64;  ///< Elements of the head dimension that lie together: 128 bytes.

/// Layout of a page's keys (values likewise): [KV head][block of 64 columns][64 slots][64 columns], bf16,
/// head_dim padded with zeros to whole blocks. In a slot's 128 bytes the 16-byte piece i lies at i ^ (slot %
/// 8): a page's head is then one copy into shared memory, and there both ldmatrix (keys as rows, and values
/// transposed) and the 128-byte swizzle of wgmma read it without bank conflicts.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr int
    kv_byte_in_head(int slot, int column) {
  return column / kKvBlockColumns * kKvTile * 128 + slot * 128 +
         ((column % kKvBlockColumns / 8) ^ (slot % 8)) * 16 + column % 8 * 2;
}

/// The rows of one sequence, on the device.
struct AttentionSequence {
  int32_t first_row;
  int32_t num_rows;
  int32_t first_pos;
  int32_t first_page;  ///< Its page table's place in AttentionLaunch::page_tables.
};

struct AttentionLaunch {
  bool is_split;  ///< Blocks are spans, then a merge; else rows, spans in turn.
  const AttentionSequence* sequences;
  const int32_t* page_tables;
  int num_sequences;
  int max_rows;   ///< Of a sequence.
  int max_spans;  ///< That the rows of one sequence see together.
  int num_rows;   ///< Of all sequences.
  int num_heads;
  int num_kv_heads;
  int head_dim;          ///< Elements; pages and kernels round up to kKvBlockColumns.
  int window;            ///< 0 for none.
  bool sees_later_rows;  ///< As AttentionCall.
  SpanRule spans;
  float score_scale;             ///< scale * log2(e).
  const float* sinks;            ///< [H] as given (natural logarithms), or null.
  const std::byte* q;            ///< bf16 [T, H*D].
  std::byte* out;                ///< bf16 [T, H*D].
  int64_t q_stride, out_stride;  ///< Elements.
  const std::byte* k;
  const std::byte* v;
  int64_t page_stride;  ///< Bytes.
  float* partial_o;     ///< [T][H][max_spans][D]
  float2* partial_ml;   ///< [T][H][max_spans] of {m, l}
};

/// Keys, or values, to be stored: [T, K*D].
struct RowsToAppend {
  const void* data;  ///< f32 or bf16.
  int64_t stride;    ///< Elements.
  bool is_bf16;
};

struct AppendKvLaunch {
  const AttentionSequence* sequences;
  const int32_t* page_tables;
  int num_sequences;
  int max_rows;
  int num_kv_heads;
  int head_dim;
  RowsToAppend k, v;
  std::byte* k_pages;
  std::byte* v_pages;
  int64_t page_stride;
};

void launch_attention_split(CUstream_st* stream, const AttentionLaunch& launch);
void launch_attention_wide(CUstream_st* stream, const AttentionLaunch& launch);
inline void launch_attention(CUstream_st* stream, const AttentionLaunch& launch) {
  launch.is_split ? launch_attention_split(stream, launch) : launch_attention_wide(stream, launch);
}
void launch_append_kv(CUstream_st* stream, const AppendKvLaunch& launch);

}  // namespace tensorfold::cuda
