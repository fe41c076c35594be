// Offsets of ops/linear_layout.h.
#include "ops/linear_layout.h"

#include "base/dtype.h"
#include "base/mxfp4.h"

namespace tensorfold {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The multiple of which segments are made: a group, but pairs of 32-wide ones; 64 where there are no groups.
int64_t segment_quantum(const LinearSpec& spec) { return spec.group_size <= 32 ? 64 : spec.group_size; }

}  // namespace

LinearLayout::LinearLayout(const LinearSpec& spec) {
  const int64_t quantum = segment_quantum(spec), element_bytes = dtype_bytes(spec.dtype);
  num_panels = ceil_div(spec.out, kPanelOutputs);
  padded_columns = ceil_div(spec.in, 2) * 2;
  segment_columns = quantum * ceil_div(spec.in, kSegments * quantum);
  if (spec.format != WeightFormat::kFloat) {
    chunk_columns = spec.group_size;
    scale_bytes = kPanelOutputs * element_bytes;
    unit_offset = spec.format == WeightFormat::kAffine ? 2 * scale_bytes : scale_bytes;
    chunk_bytes = unit_offset + kPanelOutputs * chunk_columns * spec.bits / 8;
  } else {
    chunk_columns = 2;
    chunk_bytes = kPanelOutputs * chunk_columns * element_bytes;
  }
  panel_bytes = num_chunks() * chunk_bytes;
}

int64_t packed_float_offset(const LinearSpec& spec, const LinearLayout& layout, int64_t output,
                            int64_t column) {
  const int64_t lane = output % kPanelOutputs;
  const int64_t element =
      spec.dtype == DType::kF32 ? column % 2 * kPanelOutputs + lane : lane * 2 + column % 2;
  return output / kPanelOutputs * layout.panel_bytes + column / 2 * layout.chunk_bytes +
         element * dtype_bytes(spec.dtype);
}

int64_t packed_scale_offset(const LinearSpec& spec, const LinearLayout& layout, int64_t output,
                            int64_t group) {
  return output / kPanelOutputs * layout.panel_bytes + group * layout.chunk_bytes +
         output % kPanelOutputs * dtype_bytes(spec.dtype);
}

int64_t packed_field_offset(const LinearLayout& layout, int64_t output, int64_t column,
                            const FieldPiece& piece) {
  const int64_t group = column / layout.chunk_columns, unit = column % layout.chunk_columns / kUnitColumns;
  const int64_t unit_bytes =
      (layout.chunk_bytes - layout.unit_offset) / (layout.chunk_columns / kUnitColumns);
  constexpr int64_t kVectorBytes = kPanelOutputs * 4;
  return output / kPanelOutputs * layout.panel_bytes + group * layout.chunk_bytes + layout.unit_offset +
         unit * unit_bytes + piece.vector * kVectorBytes + output % kPanelOutputs * 4 + column % 2 * 2;
}

Status check_linear_layout(const LinearSpec& spec) {
  const bool dtype_ok = spec.dtype == DType::kBF16 || spec.dtype == DType::kF16 || spec.dtype == DType::kF32;
  bool format_ok = false;
  if (spec.format == WeightFormat::kFloat) {
    format_ok = spec.group_size == 0;
  } else if (spec.format == WeightFormat::kAffine) {
    const bool bits_ok = (spec.bits >= 2 && spec.bits <= 6) || spec.bits == 8;
    const bool group_ok = spec.group_size == 32 || spec.group_size == 64 || spec.group_size == 128;
    format_ok = bits_ok && group_ok && spec.in % spec.group_size == 0;
  } else {
    format_ok = spec.dtype == DType::kBF16 && spec.bits == 4 && spec.group_size == kMxfp4BlockSize &&
                spec.in % kMxfp4BlockSize == 0;
  }
  if (dtype_ok && format_ok && spec.out >= 1 && spec.in >= 1) return {};
  return unsupported("the cpu backend has no kernel for {}", to_string(spec));
}

}  // namespace tensorfold
