// append_kv of the cpu backend: rows into pages, in the layout of ops/kv_layout.h. Plain loops: the stores of
// neighbouring rows fall into the same cache lines, which the blocks of rows keep on one core.
#include "ops/cpu/append_kv.h"

#include "base/bf16.h"
#include "ops/cpu/split.h"
#include "ops/kv_layout.h"

namespace tensorfold::cpu {
namespace {

inline bf16 as_bf16(bf16 x) { return x; }
inline bf16 as_bf16(float x) { return to_bf16(x); }
inline uint32_t pair_bits(bf16 low, bf16 high) { return low.bits | static_cast<uint32_t>(high.bits) << 16; }

/// One head of one row into bf16 keys: pairs along d.
template <class In>
void append_keys(std::byte* head, const In* k, const KvShape& shape, int64_t slot) {
  const int64_t head_dim = shape.head_dim, num_pairs = kv_padded_head_dim(head_dim) / 2;
  uint32_t* key = reinterpret_cast<uint32_t*>(head) + slot;
  for (int64_t d = 0; d + 1 < head_dim; d += 2) key[d / 2 * kPageTokens] = pair_bits(as_bf16(k[d]), as_bf16(k[d + 1]));
  if (head_dim % 2 != 0) key[head_dim / 2 * kPageTokens] = pair_bits(as_bf16(k[head_dim - 1]), bf16{});
  for (int64_t pair = (head_dim + 1) / 2; pair < num_pairs; ++pair) key[pair * kPageTokens] = 0;
}

/// One head of one row into bf16 values: every second element, beside the neighbouring position.
template <class In>
void append_values(std::byte* head, const In* v, const KvShape& shape, int64_t slot) {
  const int64_t padded = kv_padded_head_dim(shape.head_dim);
  uint16_t* value = reinterpret_cast<uint16_t*>(head) + slot / 2 * 2 * padded + slot % 2;
  for (int64_t d = 0; d < shape.head_dim; ++d) value[2 * d] = as_bf16(v[d]).bits;
  for (int64_t d = shape.head_dim; d < padded; ++d) value[2 * d] = 0;
}

void append_keys_f32(std::byte* head, const float* k, const KvShape& shape, int64_t slot) {
  float* key = reinterpret_cast<float*>(head) + slot;
  for (int64_t d = 0; d < shape.head_dim; ++d) key[d * kPageTokens] = k[d];
  for (int64_t d = shape.head_dim; d < kv_padded_head_dim(shape.head_dim); ++d) key[d * kPageTokens] = 0.0f;
}

void append_values_f32(std::byte* head, const float* v, const KvShape& shape, int64_t slot) {
  const int64_t padded = kv_padded_head_dim(shape.head_dim);
  float* value = reinterpret_cast<float*>(head) + slot * padded;
  std::copy(v, v + shape.head_dim, value);
  std::fill(value + shape.head_dim, value + padded, 0.0f);
}

/// Row t's keys and values into `slot` of `page`.
void append_row(const KvPages& pages, View k, View v, int64_t t, int64_t page, int64_t slot) {
  const KvShape& shape = pages.shape;
  const int64_t head_bytes = kv_head_elements(shape) * dtype_bytes(shape.dtype);
  for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
    const int64_t column = head * shape.head_dim;
    std::byte* keys = pages.key_page(page) + head * head_bytes;
    std::byte* values = pages.value_page(page) + head * head_bytes;
    if (shape.dtype == DType::kF32) {
      append_keys_f32(keys, k.row<const float>(t) + column, shape, slot);
      append_values_f32(values, v.row<const float>(t) + column, shape, slot);
      continue;
    }
    k.dtype == DType::kBF16 ? append_keys(keys, k.row<const bf16>(t) + column, shape, slot)
                            : append_keys(keys, k.row<const float>(t) + column, shape, slot);
    v.dtype == DType::kBF16 ? append_values(values, v.row<const bf16>(t) + column, shape, slot)
                            : append_values(values, v.row<const float>(t) + column, shape, slot);
  }
}

}  // namespace

void append_kv(CpuContext& cpu, const KvPages& pages, View k, View v, const RowBatch& rows) {
  for (const SequenceRows& sequence : rows.sequences) {
    for_row_blocks(cpu.pool, sequence.num_rows, 2 * k.dim(1), [&](int64_t i) {
      const int64_t pos = sequence.first_pos + i;
      append_row(pages, k, v, sequence.first_row + i, sequence.page_table[pos / kPageTokens], pos % kPageTokens);
    });
  }
}

}  // namespace tensorfold::cpu
