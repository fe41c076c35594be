// linear()'s fp32 kernels for many rows. A chunk of columns, one quantization group, is decoded into a buffer
// in L1 and multiplied from there by as many rows as a call has, a block of rows after the other whose sums
// fit in registers. Weights decoded in registers would be decoded anew for every block, by instructions that
// want the ports of the multiply-adds: 6 beside 16 for 4 bits and eight rows of AVX-512.
//
// Between chunks the rows' sums lie in memory, also in L1. Nothing of this changes the order of a sum.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear_many_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/linear_decode-inl.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/linear_sums-inl.h"
#include "ops/linear_layout.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// Columns of a chunk at most: the largest group. Of floats, as many as are 8 KB.
constexpr int64_t kMaxChunkColumns = 128;
constexpr int64_t float_chunk_columns(DType dtype) { return dtype == DType::kF32 ? 64 : 128; }

/// A chunk of a panel as the blocks read it.
struct Chunk {
  const std::byte* packed = nullptr;
  int64_t packed_bytes = 0;
  const float* weights = nullptr;  ///< [columns][32], aligned to 64.
  const float* scales = nullptr;   ///< [32]; null for floats: their sums run on.
  const float* biases = nullptr;   ///< [32], or null.
  int64_t columns = 0;
};

/// A block of rows at a chunk.
struct Block {
  const std::byte* x = nullptr;  ///< Row 0 at the chunk's first column.
  int64_t x_stride_bytes = 0;
  const float* group_sums = nullptr;  ///< Of row 0 and the chunk; used with biases.
  int64_t group_sums_stride = 0;
  float* sums = nullptr;  ///< [rows][32], aligned to 64; in and out: the segment's running sums.
};

/// The chunk's part of kVectors registers of the sums, from register `first` on.
template <int kRows, int kVectors>
TF_INLINE inline void add_block_part(const Chunk& chunk, const Block& block, int first) {
  const auto running = [&](int r, int c)
                           TF_INLINE { return block.sums + r * kPanelOutputs + (first + c) * kLanes; };
  Sums<kRows, kVectors> d;
  d.clear();
  if (chunk.scales == nullptr) {
    unroll<kRows>([&](auto r) TF_INLINE {
      unroll<kVectors>([&](auto c) TF_INLINE { d.at[r][c] = hn::Load(D(), running(r, c)); });
    });
  }
  Rows<kRows> rows(block.x, block.x_stride_bytes);
  const float* w = chunk.weights + first * kLanes;
  for (const float* end = w + chunk.columns * kPanelOutputs; w < end; w += 2 * kPanelOutputs) {
    add_column(d, rows, 1, [&](int c) TF_INLINE { return hn::Load(D(), w + kPanelOutputs + c * kLanes); });
    add_column(d, rows, 0, [&](int c) TF_INLINE { return hn::Load(D(), w + c * kLanes); });
    rows.advance(2);
  }
  if (chunk.scales != nullptr) {
    unroll<kVectors>([&](auto c) TF_INLINE {
      const V scale = hn::Load(D(), chunk.scales + (first + c) * kLanes);
      if (chunk.biases == nullptr) {
        unroll<kRows>([&](auto r) TF_INLINE {
          d.at[r][c] = hn::MulAdd(scale, d.at[r][c], hn::Load(D(), running(r, c)));
        });
        return;
      }
      const V bias = hn::Load(D(), chunk.biases + (first + c) * kLanes);
      unroll<kRows>([&](auto r) TF_INLINE {
        const V xs = hn::Set(D(), block.group_sums[r * block.group_sums_stride]);
        d.at[r][c] = hn::MulAdd(scale, d.at[r][c], hn::MulAdd(bias, xs, hn::Load(D(), running(r, c))));
      });
    });
  }
  unroll<kRows>([&](auto r) TF_INLINE {
    unroll<kVectors>([&](auto c) TF_INLINE { hn::Store(d.at[r][c], D(), running(r, c)); });
  });
}

using AddBlock = void (*)(const Chunk&, const Block&);

template <int kRows>
void add_block(const Chunk& chunk, const Block& block) {
  constexpr int kVectors = vectors_for(kRows);
  for (int first = 0; first < kPanelVectors; first += kVectors)
    add_block_part<kRows, kVectors>(chunk, block, first);
}

AddBlock add_block_for(int64_t rows) {
  return [&]<int... R>(std::integer_sequence<int, R...>) {
    static constexpr AddBlock kByRows[] = {add_block<R + 1>...};
    return kByRows[rows - 1];
  }
  (std::make_integer_sequence<int, kMaxRows>{});
}

/// Asks for part `i` of `count` of the lines that lie kPrefetchBytes after the chunk's. All at once there
/// would be more than a core can have in flight, and none while the blocks are computed.
void prefetch_part(const Chunk& chunk, const std::byte* end, int64_t i, int64_t count) {
  const int64_t lines = chunk.packed_bytes / 64, line = lines * i / count;
  prefetch_ahead(chunk.packed + 64 * line, 64 * (lines * (i + 1) / count - line), end);
}

/// Adds the chunk's part to the sums [num_rows][32] of all rows, in equal blocks.
void add_chunk(const Chunk& chunk, const PanelArgs& args, int64_t column, int64_t group, float* sums) {
  const int64_t num_rows = args.num_rows, num_blocks = (num_rows + kMaxRows - 1) / kMaxRows;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t row = num_rows * i / num_blocks, end = num_rows * (i + 1) / num_blocks;
    prefetch_part(chunk, args.prefetch_end, i, num_blocks);
    add_block_for(end - row)(
        chunk,
        {.x = args.x + row * args.x_stride_bytes + column * static_cast<int64_t>(sizeof(float)),
         .x_stride_bytes = args.x_stride_bytes,
         .group_sums =
             chunk.biases == nullptr ? nullptr : args.group_sums + row * args.group_sums_stride + group,
         .group_sums_stride = args.group_sums_stride,
         .sums = sums + row * kPanelOutputs});
  }
}

/// The segments' sums, added up as the tree allows: the sum of a pair of neighbours, or of a pair of pairs,
/// waits for its own neighbour. So four arrays are enough, of which the last in use is in L1.
class SegmentTree {
 public:
  explicit SegmentTree(int num_rows) : num_floats_(num_rows * kPanelOutputs) {}

  /// The sums of the next segment, zeros: [num_rows][32].
  float* begin() {
    float* sums = waiting_[depth_++];
    for (int64_t i = 0; i < num_floats_; i += kLanes) hn::Store(hn::Zero(D()), D(), sums + i);
    return sums;
  }
  /// They are complete.
  void end() {
    for (int count = ++count_; count % 2 == 0; count /= 2) {
      --depth_;
      add(waiting_[depth_ - 1], waiting_[depth_], waiting_[depth_ - 1]);
    }
  }
  void store(float* out) {
    while (count_ < kSegments) {
      begin();
      end();
    }
    for (int64_t i = 0; i < num_floats_; i += kLanes) hn::Store(hn::Load(D(), waiting_[0] + i), D(), out + i);
  }

 private:
  void add(const float* a, const float* b, float* out) const {
    for (int64_t i = 0; i < num_floats_; i += kLanes)
      hn::Store(hn::Add(hn::Load(D(), a + i), hn::Load(D(), b + i)), D(), out + i);
  }

  HWY_ALIGN float waiting_[4][kMaxKernelRows * kPanelOutputs];
  int64_t num_floats_;
  int depth_ = 0, count_ = 0;
};

/// Calls body(column, columns of the chunk) for every chunk, and keeps the tree.
template <class AddChunk>
TF_INLINE inline void for_chunks(const PanelArgs& args, int64_t chunk_columns, const AddChunk& body) {
  SegmentTree tree(args.num_rows);
  for (int64_t column = 0; column < args.shape.columns;) {
    const int64_t end = HWY_MIN(column + args.shape.segment_columns, args.shape.columns);
    float* sums = tree.begin();
    for (; column < end; column += chunk_columns) body(column, HWY_MIN(chunk_columns, end - column), sums);
    column = end;
    tree.end();
  }
  tree.store(args.sums);
}

/// All scales of a chunk, or its biases.
TF_INLINE inline void decode_scales(float* out, DType dtype, const std::byte* scales) {
  for (int c = 0; c < kPanelVectors; ++c) hn::Store(load_scales(dtype, scales, c), D(), out + c * kLanes);
}

template <class Coding>
void group_panel_many_rows(const PanelArgs& args) {
  constexpr int64_t kUnitBytes = kPanelOutputs * kUnitColumns * Coding::kBits / 8;
  const DType dtype = args.shape.scale_dtype;
  const int64_t scale_bytes = kPanelOutputs * (dtype == DType::kF32 ? 4 : 2);
  HWY_ALIGN float weights[kMaxChunkColumns * kPanelOutputs];
  HWY_ALIGN float scales[kPanelOutputs], biases[kPanelOutputs];
  const std::byte* p = args.panel;
  int64_t group = 0;
  for_chunks(args, args.shape.group_columns, [&](int64_t column, int64_t columns, float* sums) {
    const std::byte* const chunk = p;
    decode_scales(scales, dtype, p);
    if (Coding::kHasBiases) decode_scales(biases, dtype, p + scale_bytes);
    p += Coding::kHasBiases ? 2 * scale_bytes : scale_bytes;
    for (int64_t k = 0; k < columns; k += kUnitColumns, p += kUnitBytes)
      decode_unit<Coding>(weights + k * kPanelOutputs, p, 0, kPanelVectors);
    add_chunk({.packed = chunk,
               .packed_bytes = p - chunk,
               .weights = weights,
               .scales = scales,
               .biases = Coding::kHasBiases ? biases : nullptr,
               .columns = columns},
              args, column, group++, sums);
  });
}

template <DType kDType>
void float_panel_many_rows(const PanelArgs& args) {
  constexpr int64_t kPairBytes = kPanelOutputs * 2 * (kDType == DType::kF32 ? 4 : 2);
  HWY_ALIGN float buffer[kMaxChunkColumns * kPanelOutputs];
  const std::byte* p = args.panel;
  for_chunks(args, float_chunk_columns(kDType), [&](int64_t column, int64_t columns, float* sums) {
    // A packed panel of f32 is what the buffer would be.
    const float* weights = buffer;
    if constexpr (kDType == DType::kF32) {
      weights = reinterpret_cast<const float*>(p);
    } else {
      for (int64_t k = 0; k < columns; k += 2)
        decode_pair<kDType>(buffer + k * kPanelOutputs, p + k / 2 * kPairBytes);
    }
    const int64_t packed_bytes = columns / 2 * kPairBytes;
    add_chunk({.packed = p, .packed_bytes = packed_bytes, .weights = weights, .columns = columns}, args,
              column, 0, sums);
    p += packed_bytes;
  });
}

PanelKernel many_rows_panel(const LinearSpec& spec) {
  if (spec.format == WeightFormat::kFloat) {
    if (spec.dtype == DType::kBF16) return float_panel_many_rows<DType::kBF16>;
    return spec.dtype == DType::kF16 ? float_panel_many_rows<DType::kF16>
                                     : float_panel_many_rows<DType::kF32>;
  }
  if (spec.format == WeightFormat::kMxfp4) return group_panel_many_rows<E2m1>;
  switch (spec.bits) {
    case 2:
      return group_panel_many_rows<Integers<2>>;
    case 3:
      return group_panel_many_rows<Integers<3>>;
    case 4:
      return group_panel_many_rows<Integers<4>>;
    case 5:
      return group_panel_many_rows<Integers<5>>;
    case 6:
      return group_panel_many_rows<Integers<6>>;
    default:
      return group_panel_many_rows<Integers<8>>;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorfold::cpu {

PanelKernel many_rows_panel(CpuIsa isa, const LinearSpec& spec) {
  return TF_ISA_FUNCTION(isa, many_rows_panel)(spec);
}

}  // namespace tensorfold::cpu
#endif
