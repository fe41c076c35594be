// append_kv: rows into pages, in the layout of ops/kv_layout.h.
#include "base/fp_env.h"
#include "ops/kv_layout.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace {

void put(std::byte* page, DType dtype, int64_t index, float value) {
  if (dtype == DType::kBF16) {
    reinterpret_cast<bf16*>(page)[index] = to_bf16(value);
  } else {
    reinterpret_cast<float*>(page)[index] = value;
  }
}

/// Row t's keys and values at slot `slot` of page `page`; the padding of head_dim as zeros.
void append_row(const KvPages& pages, View k, View v, int64_t t, int64_t page, int64_t slot) {
  const KvShape& shape = pages.shape;
  const int64_t padded = kv_padded_head_dim(shape.head_dim);
  for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
    const int64_t base = head * kv_head_elements(shape);
    for (int64_t d = 0; d < padded; ++d) {
      const int64_t column = head * shape.head_dim + d;
      const bool is_padding = d >= shape.head_dim;
      put(pages.key_page(page), shape.dtype, base + kv_key_index(shape.dtype, d, slot),
          is_padding ? 0.0f : reference::load(k, t, column));
      put(pages.value_page(page), shape.dtype, base + kv_value_index(shape.dtype, padded, slot, d),
          is_padding ? 0.0f : reference::load(v, t, column));
    }
  }
}

}  // namespace

void ReferenceOps::append_kv(const KvPages& pages, View k, View v, const RowBatch& rows) {
  ScopedFlushDenormals flush;
  for (const SequenceRows& sequence : rows.sequences) {
    for (int64_t i = 0; i < sequence.num_rows; ++i) {
      const int64_t pos = sequence.first_pos + i;
      append_row(pages, k, v, sequence.first_row + i, sequence.page_table[pos / kPageTokens], pos % kPageTokens);
    }
  }
}

}  // namespace tensorfold
