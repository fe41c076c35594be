// Where a position's key and value lie inside a KV page of the cpu and reference backends: the layout from which both
// attention products are plain vector loads.
//
//   bf16  keys   [K][Dp/2][64][2]   element (kv_head, d, slot): pairs along d, because q.k steps two d at a time
//         values [K][32][Dp][2]     element (kv_head, slot, d): pairs along slots, because p.v steps two keys at a time
//   f32   keys   [K][Dp][64]        values [K][64][Dp]
//
// Dp is head_dim rounded up to 16, so that no kernel has a tail; the padding is written as zeros with each row.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace tensorfold {

/// Head width in a page: elements of the padded head dimension.
constexpr int64_t kv_padded_head_dim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// Elements of one KV head's keys (or values) in a page.
constexpr int64_t kv_head_elements(const KvShape& shape) {
  return kPageTokens * kv_padded_head_dim(shape.head_dim);
}

/// Bytes of one page's keys (the values take as many).
inline int64_t kv_layout_page_bytes(const KvShape& shape) {
  return shape.num_kv_heads * kv_head_elements(shape) * dtype_bytes(shape.dtype);
}

/// Element index inside one head's keys.
constexpr int64_t kv_key_index(DType dtype, int64_t d, int64_t slot) {
  return dtype == DType::kBF16 ? (d / 2) * 2 * kPageTokens + slot * 2 + d % 2 : d * kPageTokens + slot;
}

/// Element index inside one head's values.
constexpr int64_t kv_value_index(DType dtype, int64_t padded_head_dim, int64_t slot, int64_t d) {
  return dtype == DType::kBF16 ? (slot / 2) * 2 * padded_head_dim + d * 2 + slot % 2 : slot * padded_head_dim + d;
}

}  // namespace tensorfold
