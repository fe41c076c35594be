// The packed layout of CUDA weights: every element is found where the kernels look for it. Runs on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "ops/cuda/linear.h"
#include "ops/cuda/linear_plan.h"
#include "tests/ops/cuda/cuda_test_util.h"
#include "tests/ops/random_linear.h"

namespace tensorfold::cuda {
namespace {

/// Every format, with short last tiles and units. `in` of floats is a multiple of 8.
std::vector<LinearSpec> specs() {
  std::vector<LinearSpec> specs;
  for (const LinearSpec& spec : all_specs(19, 3)) {
    specs.push_back(spec);
    if (spec.format == WeightFormat::kFloat) specs.back().in = 136;
    // Segments of three units: five whole ones, and two units of a sixth.
    specs.push_back(specs.back());
    specs.back().in = 17 * layout_of(spec).unit_columns();
  }
  return specs;
}

std::vector<std::byte> pack(const RandomMatrix& m) {
  std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(m.spec)), std::byte{0xee});
  pack_linear(m.spec, m.source(), packed);
  return packed;
}

TEST(CudaLinearPackTest, EveryElementIsWhereItsPlaceSays) {
  uint32_t seed = 1;
  for (const LinearSpec& spec : specs()) {
    ASSERT_TRUE(check_linear(spec).ok()) << to_string(spec);
    const RandomMatrix m(spec, seed++);
    const std::vector<std::byte> packed = pack(m);
    for (int64_t row = 0; row < spec.out; ++row) {
      for (int64_t column = 0; column < spec.in; ++column) {
        ASSERT_EQ(packed_element(layout_of(spec), packed.data(), spec.in, row, column),
                  m.element(row, column))
            << to_string(spec) << " row " << row << " column " << column;
      }
    }
  }
}

TEST(CudaLinearPackTest, UnitsOfAPairOfSegmentsLieInTurn) {
  for (int units = 1; units <= 200; ++units) {
    const UnitOrder order(units);
    std::set<int> places;
    int sum = 0;
    for (int segment = 0; segment < kLinearSegments; ++segment) {
      const int length = order.length(segment), odd_length = order.length(segment - segment % 2 + 1);
      for (int unit = 0; unit < length; ++unit) {
        const int place = order.place(segment, unit);
        EXPECT_EQ(place, order.place(segment * order.per_segment + unit)) << units;
        EXPECT_EQ(place, order.first(segment) + UnitOrder::offset(unit, odd_length)) << units;
        if (unit < odd_length) {
          EXPECT_EQ(place - order.first(segment - segment % 2), 2 * unit + segment % 2);
        }
        places.insert(place);
      }
      sum += length;
    }
    EXPECT_EQ(sum, units);
    EXPECT_EQ(std::ssize(places), units) << "two units in one place";
    EXPECT_EQ(*places.begin(), 0);
    EXPECT_EQ(*places.rbegin(), units - 1);
  }
}

TEST(CudaLinearPackTest, DecodeBlocksDivideTheirSharedMemory) {
  for (const int unit_bytes : {320, 576, 1088, 2048, 4096}) {
    for (const int per_segment : {1, 2, 10, 34, 64}) {
      for (int rows = 1; rows <= 16; ++rows) {
        for (const int cluster : {1, 2, 4}) {
          const int row_tiles = rows > 8 ? 2 : 1,
                    warps = rows > 8 ? kTwoRowTileWarps : decode_warps(unit_bytes);
          const int stage_units = stage_units_for(per_segment, unit_bytes, 1536);
          const int block_chunks = kLinearSegments / cluster * per_segment;
          constexpr int kExtraBytes = 192;
          DecodePlan plan = make_decode_plan(rows, cluster, per_segment, stage_units, unit_bytes);
          lay_out(plan, x_bytes(block_chunks, rows), warps, row_tiles, kExtraBytes);
          if (plan.stages == 0) continue;
          const int slots = warps / plan.segments;
          EXPECT_GE(plan.tile_stages * stage_units, per_segment);
          EXPECT_GE(plan.x_offset, slots * plan.segments * plan.stages * plan.stage_bytes);
          EXPECT_GE(plan.sums_offset - plan.x_offset, 2 * block_chunks * x_pair_bytes(rows));
          EXPECT_GE(plan.incoming_offset - plan.sums_offset,
                    slots * (plan.segments - 1) * row_tiles * kSumBytes);
          EXPECT_GE(plan.extra_offset - plan.incoming_offset,
                    slots * plan.exchange_depth * (cluster - 1) * row_tiles * kSumBytes);
          EXPECT_GE(plan.barriers_offset - plan.extra_offset, kExtraBytes);
          // Of the ring's stages full and empty, of the sums, and of what other blocks send.
          EXPECT_GE(plan.shared_bytes - plan.barriers_offset,
                    8 * slots * (2 * plan.stages + 2 + 2 * plan.exchange_depth));
          EXPECT_LE(plan.shared_bytes, kMaxSharedBytes);
          for (const int offset : {plan.x_offset, plan.sums_offset, plan.incoming_offset, plan.extra_offset,
                                   plan.barriers_offset})
            EXPECT_EQ(offset % 16, 0);
        }
      }
    }
  }
}

// Of several rows the eight pieces that a warp writes at once lie in different banks.
TEST(CudaLinearPackTest, RowsOfXArePadded) {
  EXPECT_EQ(x_pair_bytes(1), 64);
  for (int rows = 2; rows <= 16; ++rows) {
    std::set<int> banks;
    for (int piece = 0; piece < 8; ++piece) banks.insert(piece * x_pair_bytes(rows) / 4 % 32);
    EXPECT_EQ(banks.size(), 8u) << rows;
  }
}

// gate and up of Qwen3.8-27B: three stages of half a segment, for which one row of x goes without padding.
TEST(CudaLinearPackTest, ARowOfXLeavesRoomForThreeStages) {
  constexpr int kChunks = 80, kUnitBytes = 576;
  DecodePlan plan =
      make_decode_plan(1, 1, kChunks / kLinearSegments,
                       stage_units_for(kChunks / kLinearSegments, kUnitBytes, 3072), kUnitBytes);
  lay_out(plan, x_bytes(kChunks, 1), decode_warps(kUnitBytes), 1, 192);
  EXPECT_EQ(plan.stage_units, 5);
  EXPECT_EQ(plan.stages, 3);
  EXPECT_EQ(plan.early_stages, 1);
}

TEST(CudaLinearPackTest, AWarpAsksForThreeKilobytesEarlyOrForAStage) {
  EXPECT_EQ(early_stages(576), 5);
  EXPECT_EQ(early_stages(1536), 2);
  EXPECT_EQ(early_stages(1537), 1);
  EXPECT_EQ(early_stages(3072), 1);
  EXPECT_EQ(early_stages(4096), 1);
}

TEST(CudaLinearPackTest, ShortBlocksHaveSoManyTilesThatTwoOfAMultiprocessorHaveAll) {
  EXPECT_EQ(short_block_tiles(1), 1);
  EXPECT_EQ(short_block_tiles(264), 1);
  EXPECT_EQ(short_block_tiles(265), 2);
  EXPECT_EQ(short_block_tiles(528), 2);
  EXPECT_EQ(short_block_tiles(529), 3);
  EXPECT_EQ(short_block_tiles(kMaxShortTiles), 3);
  // 64 registers or a few more in any case.
  for (const LinearSpec& spec :
       {affine_spec(64, 128, 4, 64, DType::kBF16), affine_spec(64, 128, 8, 64, DType::kBF16),
        affine_spec(64, 128, 4, 32, DType::kBF16), mxfp4_spec(64, 128), float_spec(64, 128, DType::kBF16)}) {
    const LinearLayout layout = layout_of(spec);
    EXPECT_EQ(short_chunks_ahead(layout, 1), held_chunks(layout)) << to_string(spec);
    for (const int tiles : {2, 3}) {
      EXPECT_GE(short_chunks_ahead(layout, tiles) * tiles, held_chunks(layout)) << to_string(spec);
      EXPECT_LE(short_chunks_ahead(layout, tiles) * tiles * held_chunk_bytes(layout), 384) << to_string(spec);
    }
  }
}

TEST(CudaLinearPackTest, TheKernelIsChosenByRowsAndLayout) {
  const auto kernel = [](const LinearSpec& spec, int64_t rows) {
    auto* const address = reinterpret_cast<std::byte*>(4096);
    const LinearCall call{.out = View(address, DType::kF32, {rows, spec.out}),
                          .weight = {.spec = spec, .data = address}};
    const std::vector<LinearLaunch> launches =
        linear_launches(View(address, DType::kBF16, {rows, spec.in}), {&call, 1});
    return launches.at(0).kernel;
  };
  for (const LinearSpec& spec :
       {affine_spec(64, 128, 4, 64, DType::kBF16), mxfp4_spec(64, 128), float_spec(64, 128, DType::kBF16)}) {
    EXPECT_EQ(kernel(spec, 16), LinearKernel::kDecode) << to_string(spec);
    EXPECT_EQ(kernel(spec, 17), LinearKernel::kWide) << to_string(spec);
  }
  for (const LinearSpec& spec :
       {affine_spec(64, 128, 8, 64, DType::kBF16), affine_spec(64, 128, 4, 64, DType::kF32),
        float_spec(64, 128, DType::kF16), float_spec(64, 128, DType::kF32)}) {
    EXPECT_EQ(kernel(spec, 32), LinearKernel::kDecode) << to_string(spec);
    EXPECT_EQ(kernel(spec, 33), LinearKernel::kWide) << to_string(spec);
  }
}

TEST(CudaLinearPackTest, SmallMatricesOfFewRowsTakeTheShortKernel) {
  auto* const address = reinterpret_cast<std::byte*>(4096);
  const auto kernel = [&](int64_t rows, const std::vector<LinearSpec>& specs,
                          LinearKernel wish = LinearKernel::kAuto) {
    std::vector<LinearCall> calls;
    for (const LinearSpec& spec : specs)
      calls.push_back(
          {.out = View(address, DType::kF32, {rows, spec.out}), .weight = {.spec = spec, .data = address}});
    const auto launches = linear_launches(View(address, DType::kBF16, {rows, specs[0].in}), calls, wish);
    EXPECT_EQ(launches.size(), 1u);
    return launches.at(0).kernel;
  };
  const auto four = [](int64_t out, int64_t in) { return affine_spec(out, in, 4, 64, DType::kBF16); };
  // Qwen3.6-35B-A3B: the inputs of a recurrence, what leaves it, a router. gpt-oss-20b: q, k and v.
  const std::vector<LinearSpec> inputs = {four(2048, 2048), four(2048, 2048), four(4096, 2048),
                                          four(4096, 2048), four(32, 2048),   four(32, 2048)};
  EXPECT_EQ(kernel(1, inputs), LinearKernel::kShort);
  EXPECT_EQ(kernel(kMaxShortRows, inputs), LinearKernel::kShort);
  EXPECT_EQ(kernel(kMaxShortRows + 1, inputs), LinearKernel::kDecode);
  EXPECT_EQ(kernel(1, inputs, LinearKernel::kDecode), LinearKernel::kDecode);
  EXPECT_EQ(kernel(1, {four(2048, 4096)}), LinearKernel::kShort);
  EXPECT_EQ(kernel(1, {float_spec(256, 2048, DType::kBF16)}), LinearKernel::kShort);
  EXPECT_EQ(kernel(1, {four(5120, 2880)}), LinearKernel::kShort);
  // As many tiles as three a block can be; a row as long as registers hold half of, of two tiles and of
  // three.
  EXPECT_EQ(kernel(1, {four(16 * 792, 2048)}), LinearKernel::kShort);
  EXPECT_EQ(kernel(1, {four(16 * 793, 2048)}), LinearKernel::kDecode);
  EXPECT_EQ(kernel(1, {four(16 * 528, 5120)}), LinearKernel::kShort);
  EXPECT_EQ(kernel(1, {four(16 * 529, 5120)}), LinearKernel::kDecode);
  // Too many tiles, too long a row, too much x for two blocks, and layouts that are rare.
  EXPECT_EQ(kernel(1, {four(248320, 2048)}), LinearKernel::kDecode);
  EXPECT_EQ(kernel(1, {four(17408, 5120)}), LinearKernel::kDecode);
  EXPECT_EQ(kernel(1, {four(5120, 17408)}), LinearKernel::kDecode);
  EXPECT_EQ(kernel(8, {four(64, 8192)}), LinearKernel::kDecode);
  EXPECT_EQ(kernel(1, {affine_spec(64, 128, 6, 64, DType::kBF16)}), LinearKernel::kDecode);
  EXPECT_EQ(kernel(1, {affine_spec(64, 128, 4, 64, DType::kF16)}), LinearKernel::kDecode);
}

TEST(CudaLinearPackTest, MatricesAreStoredAtTheirOwnSize) {
  for (const LinearSpec& spec : specs()) {
    const LinearLayout layout = layout_of(spec);
    const int64_t columns = layout.units(spec.in) * layout.unit_columns(), tiles = 2;
    int64_t bytes = tiles * 16 * columns * spec.bits / 8;
    if (spec.format == WeightFormat::kMxfp4) bytes += tiles * 16 * columns / 32;
    if (spec.format == WeightFormat::kAffine)
      bytes += tiles * 16 * columns / spec.group_size * 2 * dtype_bytes(spec.dtype);
    EXPECT_EQ(packed_bytes(spec), (bytes + 255) / 256 * 256) << to_string(spec);
    EXPECT_EQ(layout.unit_bytes() % 16, 0) << to_string(spec) << ": copied in units of 16 bytes";
  }
}

TEST(CudaLinearPackTest, EveryBitOfAChunkBelongsToOneBitOfOneField) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    std::set<int> seen;
    for (int lane = 0; lane < 32; ++lane) {
      for (int field = 0; field < 16; ++field) {
        for (int b = 0; b < bits; ++b) {
          const FieldBit at = field_bit(bits, field, b);
          ASSERT_LT(at.bit, 16);
          seen.insert(word_offset(bits, lane, at.word) * 8 + at.bit);
          seen.insert(word_offset(bits, lane, at.word) * 8 + at.bit + 16);
        }
      }
    }
    EXPECT_EQ(static_cast<int>(seen.size()), 16 * 64 * bits);
    EXPECT_EQ(*seen.rbegin(), 16 * 64 * bits - 1);
  }
  std::set<int> codes;
  for (int reg = 0; reg < 4; ++reg) {
    for (int b = 0; b < 4; ++b) codes.insert(mxfp4_bit(reg, b));
  }
  EXPECT_EQ(codes.size(), 16u);
  EXPECT_EQ(*codes.rbegin(), 15);
}

TEST(CudaLinearPackTest, PlacesAndFragmentsAreInverse) {
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 64; ++column) {
      const FragmentPlace place = fragment_place(row, column);
      EXPECT_EQ(fragment_row(place), row);
      EXPECT_EQ(fragment_column(place), column);
    }
  }
}

/// One row of one block of MXFP4: all codes, and every scale that is stored without loss.
TEST(CudaLinearPackTest, Mxfp4ScalesOutOfRangeAreInfiniteAndNanStaysNan) {
  const LinearSpec spec = mxfp4_spec(1, 32);
  RandomMatrix m(spec, 3);
  for (size_t i = 0; i < m.weight.size(); ++i) m.weight[i] = static_cast<std::byte>(i * 17);
  for (int scale = 1; scale < 256; ++scale) {
    m.scales[0] = static_cast<std::byte>(scale);
    const std::vector<std::byte> packed = pack(m);
    for (int64_t column = 0; column < 32; ++column) {
      const float got = packed_element(layout_of(spec), packed.data(), 32, 0, column),
                  value = e2m1_value(m.integer(0, column));
      if (scale <= 160) {
        ASSERT_EQ(got, std::ldexp(value, scale - 127)) << scale << " " << column;
      } else if (scale == 255 || value == 0) {
        ASSERT_TRUE(std::isnan(got)) << scale << " " << column;
      } else {
        ASSERT_TRUE(std::isinf(got)) << scale << " " << column;
      }
    }
  }
}

TEST(CudaLinearPackTest, WhatKernelsDoNotTakeIsRefusedByName) {
  const Status status = check_linear(float_spec(16, 60, DType::kBF16));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(std::string(status.message()).find("bf16 [16, 60]"), std::string::npos) << status.message();
  EXPECT_FALSE(check_linear(affine_spec(16, 64, 7, 64, DType::kBF16)).ok());
  EXPECT_FALSE(check_linear(affine_spec(16, 64, 4, 16, DType::kBF16)).ok());
  EXPECT_FALSE(check_linear(affine_spec(16, 96, 4, 64, DType::kBF16)).ok());
}

}  // namespace
}  // namespace tensorfold::cuda
