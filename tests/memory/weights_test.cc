// Loading: every byte arrives packed at its place, whatever the number of threads, and failures leave
// nothing.
#include "memory/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/bf16.h"
#include "memory/weight_table.h"
#include "tests/memory/checkpoint_builder.h"

namespace tensorfold {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Packs by concatenation: 64 bytes of header (the spec's numbers), then weight, scales and biases.
class ConcatenatingPacker : public WeightPacker {
 public:
  Status check_linear(const LinearSpec& spec) const override {
    return spec.bits == refused_bits ? unsupported("{} is not for this test", to_string(spec)) : Status();
  }
  Status check_experts(const ExpertsSpec& spec) const override {
    checked_experts = spec;
    return spec.num_experts_per_tok > most_choices
               ? unsupported("{} a token, not over {}", spec.num_experts_per_tok, most_choices)
               : Status();
  }
  int64_t packed_bytes(const LinearSpec& spec) const override {
    const int64_t groups = spec.group_size > 0 ? spec.out * spec.in / spec.group_size : 0;
    return (64 + spec.out * spec.in * spec.bits / 8 + 2 * groups * dtype_bytes(spec.dtype) + 63) / 64 * 64;
  }
  void pack(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed) const override {
    std::memset(packed.data(), 0, packed.size());
    const int64_t numbers[] = {spec.out, spec.in, spec.bits};
    std::memcpy(packed.data(), numbers, sizeof numbers);
    std::byte* to = packed.data() + 64;
    for (std::span<const std::byte> part : {source.weight, source.scales, source.biases}) {
      std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
  }
  int refused_bits = 0;
  int64_t most_choices = 2;
  mutable ExpertsSpec checked_experts;
};

/// Memory that the host may not touch: copies go through copy_to_device, and are counted.
class FarDevice : public Device {
 public:
  std::string name() const override { return "far"; }
  bool is_host_memory() const override { return false; }
  Result<Buffer> allocate(int64_t size_bytes, std::string_view what) override {
    return size_bytes > limit_bytes
               ? Result<Buffer>(make_error(StatusCode::kOutOfMemory, "{} does not fit", what))
               : cpu_device().allocate(size_bytes, what);
  }
  int64_t free_bytes() const override { return num_free_bytes; }
  int64_t total_bytes() const override { return num_free_bytes; }
  Status copy_to_device(std::byte* device, const std::byte* host, int64_t size_bytes) override {
    ++num_copies;
    return cpu_device().copy_to_device(device, host, size_bytes);
  }
  Status copy_to_host(std::byte* host, const std::byte* device, int64_t size_bytes) override {
    return cpu_device().copy_to_host(host, device, size_bytes);
  }
  Status zero(std::byte* device, int64_t size_bytes) override {
    return cpu_device().zero(device, size_bytes);
  }
  Status copy(std::byte* to, const std::byte* from, int64_t size_bytes) override {
    return cpu_device().copy(to, from, size_bytes);
  }

  int64_t limit_bytes = INT64_MAX;
  int64_t num_free_bytes = INT64_MAX;
  std::atomic<int> num_copies = 0;

 private:
  void free(std::byte*, int64_t) override {}
};

/// Two layers and a head: packed and float matrices, biases, norms of each dtype, stacked experts.
class LoadTest : public testing::Test {
 protected:
  LoadTest() {
    builder_.add_packed("model.layers.0.a", {6}, 64)
        .add("model.layers.0.b.weight", DType::kF32, {5, 8})
        .add_floats("model.layers.0.b.bias", {1, -2, 3, 0.5, 7})
        .add("model.layers.0.norm.weight", DType::kBF16, {3}, std::string("\x80\x3f\x00\xc0\x01\x00", 6))
        .add("model.layers.1.norm.weight", DType::kF16, {3}, std::string("\x00\x3c\x00\xc0\x01\x00", 6))
        .add("model.layers.1.mlp.switch_mlp.gate_proj.weight", DType::kBF16, {3, 2, 32})
        .add("model.layers.1.mlp.switch_mlp.up_proj.weight", DType::kBF16, {3, 2, 32})
        .add("model.layers.1.mlp.switch_mlp.down_proj.weight", DType::kBF16, {3, 32, 2})
        .add("lm_head.weight", DType::kF16, {7, 9});
    quantization_.is_present = true;
    quantization_.defaults = {QuantMode::kAffine, 32, 4};
    checkpoint_ = std::make_unique<Checkpoint>(builder_.open());
    WeightTable table("toy", *checkpoint_, quantization_);
    a_ = table.linear(0, {"layers.0.a", 6, 64});
    b_ = table.linear(0, {"layers.0.b", 5, 8, true});
    norm0_ = table.vector(0, "layers.0.norm.weight", 3);
    norm1_ = table.vector(1, "layers.1.norm.weight", 3);
    experts_ = table.experts(1, {.module = "layers.1.mlp",
                                 .num_experts = 3,
                                 .hidden_size = 32,
                                 .intermediate_size = 2,
                                 .num_experts_per_tok = 2,
                                 .num_groups = 3});
    head_ = table.linear(kOutsideLayers, {"lm_head", 7, 9});
    TF_CHECK(table.status().ok(), table.status().message());
    manifest_ = table.manifest();
  }

  Result<std::unique_ptr<Weights>> load(const WeightLoadOptions& options = {.num_threads = 1}) {
    return Weights::load(*checkpoint_, manifest_, packer_, device_, options);
  }

  /// What ConcatenatingPacker makes of a whole module.
  void expect_packed(const LinearWeight& weight, const std::vector<std::string>& parts) {
    std::string content;
    for (const std::string& part : parts) content += part;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(weight.data) + 64, content.size()), content);
    int64_t out = 0;
    std::memcpy(&out, weight.data, 8);
    EXPECT_EQ(out, weight.spec.out);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(weight.data) % 64, 0u);
  }

  CheckpointBuilder builder_;
  QuantizationConfig quantization_;
  std::unique_ptr<Checkpoint> checkpoint_;
  Manifest manifest_;
  ConcatenatingPacker packer_;
  FarDevice device_;
  LinearId a_, b_, head_;
  VectorId norm0_, norm1_;
  ExpertsId experts_;
};

TEST_F(LoadTest, EveryByteArrivesWhateverTheNumberOfThreads) {
  for (int num_threads : {1, 2, 5, 0}) {
    Result<std::unique_ptr<Weights>> weights = load({.num_threads = num_threads});
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    const Lease layer0 = (*weights)->layer(0), layer1 = (*weights)->layer(1),
                outside = (*weights)->outside_layers();
    expect_packed(layer0[a_],
                  {builder_.content("model.layers.0.a.weight"), builder_.content("model.layers.0.a.scales"),
                   builder_.content("model.layers.0.a.biases")});
    expect_packed(layer0[b_], {builder_.content("model.layers.0.b.weight")});
    expect_packed(outside[head_], {builder_.content("lm_head.weight")});
    EXPECT_EQ(std::vector<float>(layer0[b_].bias, layer0[b_].bias + 5),
              (std::vector<float>{1, -2, 3, 0.5, 7}));
    EXPECT_EQ(layer0[a_].bias, nullptr);
    const float* norm0 = layer0[norm0_].row<float>(0);
    EXPECT_EQ(std::vector<float>(norm0, norm0 + 2), (std::vector<float>{1.0f, -2.0f}));
    EXPECT_EQ(std::bit_cast<uint32_t>(norm0[2]), 0x00010000u) << "denormals of bf16 are kept";
    const float* norm1 = layer1[norm1_].row<float>(0);
    EXPECT_EQ(std::vector<float>(norm1, norm1 + 3), (std::vector<float>{1.0f, -2.0f, std::ldexp(1.0f, -24)}));
    for (int e = 0; e < 3; ++e) {
      const std::string& down = builder_.content("model.layers.1.mlp.switch_mlp.down_proj.weight");
      expect_packed(layer1[experts_].down_proj[e], {down.substr(e * 128, 128)});
      EXPECT_EQ(layer1[experts_].gate_proj[e].spec.out, 2);
    }
    EXPECT_NE(layer1[experts_].gate_proj[1].data, layer1[experts_].up_proj[1].data);
  }
}

/// Rows [first, first + count) of a tensor whose rows have row_bytes bytes.
std::string rows_of(const std::string& content, int64_t row_bytes, int64_t first, int64_t count) {
  return content.substr(first * row_bytes, count * row_bytes);
}

TEST_F(LoadTest, RowsTakenInPiecesArriveOneAfterTheOther) {
  WeightTable table("toy", *checkpoint_, quantization_);
  const LinearDeclaration whole = {"layers.0.a", 6, 64};
  const LinearId pieces =
      table.linear_rows(0, whole, {.first_row = 1, .num_pieces = 2, .piece_rows = 2, .stride_rows = 3});
  const LinearId singles = table.linear_rows(0, whole, {.num_pieces = 3, .piece_rows = 1, .stride_rows = 2});
  const LinearId range = table.linear_rows(0, whole, {.first_row = 2, .piece_rows = 3});
  ASSERT_TRUE(table.status().ok()) << table.status().message();
  manifest_ = table.manifest();
  const auto weights = load().value();
  const auto expect_rows = [&](LinearId id, const std::vector<std::pair<int, int>>& rows) {
    std::vector<std::string> parts;
    const std::pair<std::string, int> tensors[] = {{"weight", 32}, {"scales", 4}, {"biases", 4}};
    for (const auto& [tensor, row_bytes] : tensors)
      for (const auto& [first, count] : rows)
        parts.push_back(rows_of(builder_.content("model.layers.0.a." + tensor), row_bytes, first, count));
    expect_packed(weights->layer(0)[id], parts);
  };
  expect_rows(pieces, {{1, 2}, {4, 2}});
  expect_rows(singles, {{0, 1}, {2, 1}, {4, 1}});
  expect_rows(range, {{2, 3}});
  EXPECT_EQ(weights->layer(0)[pieces].spec.out, 4);
}

TEST_F(LoadTest, NormsAroundZeroAreShiftedAndConvolutionsTurnedFromEitherLayout) {
  const std::vector<float> taps = {1, 2, 3, 4, 5, 6};  // two channels of three
  std::string bytes(24, '\0');
  std::memcpy(bytes.data(), taps.data(), 24);
  builder_.add("model.layers.0.conv1d.weight", DType::kF32, {2, 1, 3}, bytes)
      .add("model.layers.1.conv1d.weight", DType::kF32, {2, 3, 1}, bytes);
  const Checkpoint checkpoint = builder_.open();
  WeightTable table("toy", checkpoint, quantization_);
  const VectorId norm = table.vector(0, "layers.0.norm.weight", 3, /*added=*/1);
  const VectorId conv0 = table.convolution(0, "layers.0.conv1d.weight", 2, 3);
  const VectorId conv1 = table.convolution(1, "layers.1.conv1d.weight", 2, 3);
  ASSERT_TRUE(table.status().ok()) << table.status().message();
  const auto weights = Weights::load(checkpoint, table.manifest(), packer_, device_, {}).value();
  EXPECT_EQ(weights->layer(0)[norm].row<const float>(0)[1], -1.0f) << "stored -2";
  for (const View conv : {weights->layer(0)[conv0], weights->layer(1)[conv1]}) {
    ASSERT_EQ(conv.dim(0), 3);
    ASSERT_EQ(conv.dim(1), 2);
    const float* values = conv.row<const float>(0);
    EXPECT_EQ(std::vector<float>(values, values + 6), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  }
}

TEST_F(LoadTest, HostMemoryIsPackedInPlace) {
  const Result<std::unique_ptr<Weights>> weights =
      Weights::load(*checkpoint_, manifest_, packer_, cpu_device(), {.num_threads = 2});
  ASSERT_TRUE(weights.ok());
  expect_packed((*weights)->layer(0)[b_], {builder_.content("model.layers.0.b.weight")});
  ASSERT_TRUE(load().ok());
  EXPECT_EQ(device_.num_copies, 3 + 9 + 2 + 1) << "matrices, experts' matrices, norms, a bias";
}

TEST_F(LoadTest, ProgressGrowsToTheManifestsBytes) {
  std::vector<int64_t> seen;
  int64_t total = 0;
  const auto caller = std::this_thread::get_id();
  const LoadProgress progress = [&](int64_t done, int64_t all) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    seen.push_back(done);
    total = all;
  };
  ASSERT_TRUE(load({.num_threads = 3, .progress = progress}).ok());
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(seen.back(), total);
  EXPECT_EQ(total, manifest_.checkpoint_bytes());
  EXPECT_EQ(total, checkpoint_->total_bytes()) << "the table names everything";
}

TEST_F(LoadTest, AReadErrorFailsTheLoadByName) {
  builder_.files().num_reads = 0;
  ASSERT_TRUE(load().ok());
  const int num_reads = builder_.files().num_reads;
  ASSERT_GT(num_reads, 10);
  for (int at = 1; at <= num_reads; ++at) {
    builder_.files().num_reads = 0;
    builder_.files().faults.fail_read_at = at;
    const Result<std::unique_ptr<Weights>> weights = load();
    ASSERT_FALSE(weights.ok()) << "read " << at;
    EXPECT_EQ(weights.status().code(), StatusCode::kIo);
    EXPECT_THAT(weights.status().message(), AllOf(HasSubstr("toy: "), HasSubstr("injected")));
  }
}

TEST_F(LoadTest, AFileCutShortFailsTheLoad) {
  builder_.files().truncate("m/model.safetensors", 700);
  const Result<std::unique_ptr<Weights>> weights = load();
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().code(), StatusCode::kCorrupt);
}

TEST_F(LoadTest, WhatDoesNotFitIsOutOfMemory) {
  device_.limit_bytes = 1500;
  EXPECT_THAT(load().status().message(), HasSubstr("weights of layer 1 does not fit"));
  device_.limit_bytes = INT64_MAX;
  device_.num_free_bytes = 1000;
  const Result<std::unique_ptr<Weights>> weights = load();
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(weights.status().message(), AllOf(HasSubstr("toy"), HasSubstr("far")));
}

TEST_F(LoadTest, AMatrixThatTheBackendDoesNotTakeIsRefusedBeforeReading) {
  packer_.refused_bits = 4;
  builder_.files().num_reads = 0;
  EXPECT_EQ(load().status().message(), "toy: layer 0 a: affine 4-bit g32 bf16 [6, 64] is not for this test");
  EXPECT_EQ(builder_.files().num_reads, 0);
}

TEST_F(LoadTest, ALayerOfExpertsThatTheBackendDoesNotTakeIsRefusedBeforeReading) {
  ASSERT_TRUE(load().ok());
  const ExpertsSpec& spec = packer_.checked_experts;
  EXPECT_EQ(spec.num_experts, 3);
  EXPECT_EQ(spec.num_experts_per_tok, 2);
  EXPECT_EQ(spec.num_groups, 3);
  EXPECT_EQ(to_string(spec.gate_proj), "bf16 [2, 32]");
  EXPECT_EQ(to_string(spec.up_proj), "bf16 [2, 32]");
  EXPECT_EQ(to_string(spec.down_proj), "bf16 [32, 2]");
  packer_.most_choices = 1;
  builder_.files().num_reads = 0;
  EXPECT_EQ(load().status().message(), "toy: layer 1 mlp: 2 a token, not over 1");
  EXPECT_EQ(builder_.files().num_reads, 0);
}

TEST_F(LoadTest, ResidentBytesCountEverything) {
  const Result<std::unique_ptr<Weights>> weights = load();
  ASSERT_TRUE(weights.ok());
  int64_t expected = 0;
  for (const LinearBinding& linear : manifest_.linears) expected += packer_.packed_bytes(linear.spec);
  EXPECT_EQ((*weights)->resident_bytes(), expected + 64 /* bias */ + 2 * 64 /* norms */);
}

}  // namespace
}  // namespace tensorfold
