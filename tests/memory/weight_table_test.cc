// Binding names to tensors: what is found, in which bytes, and what is refused with which words.
#include "memory/weight_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/memory/checkpoint_builder.h"

namespace tensorfold {
namespace {

using testing::AllOf;
using testing::HasSubstr;

QuantizationConfig four_bits_of_32() {
  QuantizationConfig config;
  config.is_present = true;
  config.defaults = {QuantMode::kAffine, 32, 4};
  return config;
}

std::string bytes_of(const Checkpoint& checkpoint, const TensorSlice& slice) {
  std::string bytes(slice.bytes, '\0');
  const Status status =
      checkpoint.read(*slice.tensor, slice.first_byte, std::as_writable_bytes(std::span(bytes)));
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

/// The message after declaring one matrix [out, in].
std::string refusal(CheckpointBuilder builder, const LinearDeclaration& declaration,
                    const QuantizationConfig& quantization = {}) {
  const Checkpoint checkpoint = builder.open();
  WeightTable table("toy", checkpoint, quantization);
  table.linear(0, declaration);
  return table.status().ok() ? "accepted" : table.status().message();
}

TEST(WeightTable, EveryWrapperPrefixBindsToTheSameName) {
  for (const std::string prefix :
       {"model.", "model.language_model.", "language_model.model.", "language_model.", ""}) {
    CheckpointBuilder builder;
    builder.add(prefix + "layers.0.self_attn.q_proj.weight", DType::kBF16, {4, 8})
        .add(prefix + "norm.weight", DType::kF16, {8});
    const Checkpoint checkpoint = builder.open();
    const QuantizationConfig none;
    WeightTable table("toy", checkpoint, none);
    EXPECT_TRUE(table.linear(0, {"layers.0.self_attn.q_proj", 4, 8}));
    EXPECT_TRUE(table.vector(kOutsideLayers, "norm.weight", 8));
    EXPECT_TRUE(table.status().ok()) << prefix << ": " << table.status().message();
  }
}

TEST(WeightTable, ArraysAreBoundByTheirWholeShapeAndBareMatricesWhereAllowed) {
  CheckpointBuilder builder;
  builder.add("layers.0.kernel", DType::kBF16, {2, 3, 4}).add("codebook", DType::kBF16, {5, 2});
  const Checkpoint checkpoint = builder.open();
  const QuantizationConfig none;
  WeightTable table("toy", checkpoint, none);
  const VectorId kernel = table.array(0, "layers.0.kernel", {2, 3, 4});
  EXPECT_TRUE(table.linear(0, {.module = "codebook", .out = 5, .in = 2, .allows_bare = true}));
  ASSERT_TRUE(table.status().ok()) << table.status().message();
  EXPECT_EQ(table.manifest().vectors.at(kernel.index).size, 24);
  table.array(0, "layers.0.kernel", {2, 12});
  EXPECT_THAT(table.status().message(), HasSubstr("kernel: shape [2, 3, 4], expected [2, 12]"));
  EXPECT_THAT(refusal(std::move(builder), {.module = "codebook", .out = 5, .in = 2}),
              HasSubstr("no tensor codebook.weight"));

  WeightTable noted("toy");
  noted.array(3, "layers.3.kernel", {2, 3, 4});
  EXPECT_EQ(noted.declared()[0].shape, (std::vector<int64_t>{2, 3, 4}));
}

TEST(WeightTable, FloatMatricesKeepTheirDtype) {
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    CheckpointBuilder builder;
    builder.add("model.layers.0.a.weight", dtype, {4, 8});
    const Checkpoint checkpoint = builder.open();
    const QuantizationConfig none;
    WeightTable table("toy", checkpoint, none);
    const LinearId id = table.linear(0, {"layers.0.a", 4, 8});
    ASSERT_TRUE(table.status().ok()) << table.status().message();
    const LinearBinding& binding = table.manifest().linears.at(id.index);
    EXPECT_EQ(binding.spec, (LinearSpec{4, 8, WeightFormat::kFloat, dtype, dtype_bits(dtype), 0}));
    EXPECT_EQ(bytes_of(checkpoint, binding.weight), builder.content("model.layers.0.a.weight"));
    EXPECT_EQ(binding.scales.tensor, nullptr);
    EXPECT_EQ(table.manifest().checkpoint_bytes(), 4 * 8 * dtype_bytes(dtype));
  }
}

TEST(WeightTable, PackedMatricesBindTheirScalesAndBiases) {
  CheckpointBuilder builder;
  builder.add_packed("model.layers.0.a", {4}, 64);
  const Checkpoint checkpoint = builder.open();
  const QuantizationConfig quantization = four_bits_of_32();
  WeightTable table("toy", checkpoint, quantization);
  const LinearId id = table.linear(0, {"layers.0.a", 4, 64});
  ASSERT_TRUE(table.status().ok()) << table.status().message();
  const LinearBinding& binding = table.manifest().linears.at(id.index);
  EXPECT_EQ(binding.spec, (LinearSpec{4, 64, WeightFormat::kAffine, DType::kBF16, 4, 32}));
  EXPECT_EQ(bytes_of(checkpoint, binding.weight), builder.content("model.layers.0.a.weight"));
  EXPECT_EQ(bytes_of(checkpoint, binding.scales), builder.content("model.layers.0.a.scales"));
  EXPECT_EQ(bytes_of(checkpoint, binding.biases), builder.content("model.layers.0.a.biases"));
}

TEST(WeightTable, APathOfTheConfigMeetsTheModuleWhateverItsPrefix) {
  CheckpointBuilder builder;
  builder.add("language_model.model.layers.0.a.weight", DType::kU32, {4, 16})
      .add("language_model.model.layers.0.a.scales", DType::kBF16, {4, 1})
      .add("language_model.model.layers.0.a.biases", DType::kBF16, {4, 1});
  const Checkpoint checkpoint = builder.open();
  QuantizationConfig quantization = four_bits_of_32();
  quantization.modules["model.language_model.layers.0.a"] = ModuleQuantization{QuantMode::kAffine, 64, 8};
  WeightTable table("toy", checkpoint, quantization);
  const LinearId id = table.linear(0, {"layers.0.a", 4, 64});
  ASSERT_TRUE(table.status().ok()) << table.status().message();
  EXPECT_EQ(table.manifest().linears.at(id.index).spec.bits, 8);
  EXPECT_EQ(table.manifest().linears.at(id.index).spec.group_size, 64);
}

TEST(WeightTable, RefusalsNameLayerModuleShapesAndFile) {
  const auto with = [](DType dtype, std::vector<int64_t> shape) {
    return CheckpointBuilder().add("model.layers.3.self_attn.k_proj.weight", dtype, std::move(shape));
  };
  const LinearDeclaration k_proj = {"layers.3.self_attn.k_proj", 512, 16};
  EXPECT_EQ(refusal(with(DType::kBF16, {1024, 16}), k_proj),
            "toy: layer 3 k_proj: shape [1024, 16], expected [512, 16] (model.safetensors)");
  EXPECT_EQ(refusal(with(DType::kBF16, {512, 16, 1}), k_proj),
            "toy: layer 3 k_proj: shape [512, 16, 1], expected [512, 16] (model.safetensors)");
  EXPECT_EQ(
      refusal(with(DType::kF8E4M3, {512, 16}), k_proj),
      "toy: layer 3 k_proj: dtype F8_E4M3 without scales, expected BF16, F16 or F32 (model.safetensors)");
  EXPECT_EQ(refusal(CheckpointBuilder().add("x", DType::kF32, {1}), k_proj),
            "toy: layer 3 k_proj: the checkpoint has no tensor layers.3.self_attn.k_proj.weight");
}

TEST(WeightTable, PackedShapesAreCheckedAgainstTheConfig) {
  const auto packed = [] { return CheckpointBuilder().add_packed("model.layers.0.a", {4}, 64); };
  EXPECT_EQ(refusal(packed(), {"layers.0.a", 4, 64}, four_bits_of_32()), "accepted");
  EXPECT_THAT(refusal(packed(), {"layers.0.a", 5, 64}, four_bits_of_32()),
              AllOf(HasSubstr("layer 0 a"), HasSubstr("[4, 64]"), HasSubstr("[5, 64]")));
  EXPECT_THAT(refusal(packed(), {"layers.0.a", 4, 64}), HasSubstr("no `quantization`"));
  QuantizationConfig denied = four_bits_of_32();
  denied.modules["layers.0.a"] = std::nullopt;
  EXPECT_THAT(refusal(packed(), {"layers.0.a", 4, 64}, denied), HasSubstr("not packed"));
  QuantizationConfig unread = four_bits_of_32();
  unread.defaults.mode = QuantMode::kNvfp4;
  EXPECT_THAT(refusal(packed(), {"layers.0.a", 4, 64}, unread), HasSubstr("nvfp4"));
}

CheckpointBuilder mxfp4_words(DType scales, int64_t num_blocks) {
  CheckpointBuilder builder;
  return builder.add("model.layers.0.a.weight", DType::kU32, {6, 8})
      .add("model.layers.0.a.scales", scales, {6, num_blocks});
}

TEST(WeightTable, ASideFileIsReadByItsShapesWhateverTheConfigSays) {
  CheckpointBuilder builder;
  builder.add("layers.0.a.weight", DType::kBF16, {4, 128}).add_packed("mtp.fc", {4}, 128);
  QuantizationConfig of_128, none;
  of_128.is_present = true;
  of_128.defaults = {QuantMode::kAffine, 128, 8};
  for (const QuantizationConfig& config : {of_128, none}) {
    builder.write_split("mtp.", "mtp-4bit.safetensors");
    Checkpoint checkpoint = Checkpoint::open("m", builder.files()).value();
    ASSERT_TRUE(checkpoint.add_draft_head("m", builder.files()).ok());
    WeightTable table("toy", checkpoint, config);
    const LinearId id = table.linear(0, {"mtp.fc", 4, 128});
    ASSERT_TRUE(table.status().ok()) << table.status().message();
    EXPECT_EQ(table.manifest().linears.at(id.index).spec,
              (LinearSpec{4, 128, WeightFormat::kAffine, DType::kBF16, 4, 32}));
    EXPECT_FALSE(checkpoint.is_from_side_file(*checkpoint.find("layers.0.a.weight")));
  }
  // In the model's own files the config decides, and a file beside them is not looked at.
  const Checkpoint whole = builder.open();
  WeightTable table("toy", whole, of_128);
  table.linear(0, {"mtp.fc", 4, 128});
  EXPECT_FALSE(table.status().ok());
  Checkpoint with_both = Checkpoint::open("m", builder.files()).value();
  EXPECT_TRUE(with_both.add_draft_head("m", builder.files()).ok());
  EXPECT_EQ(with_both.num_files(), 1);
}

TEST(WeightTable, Mxfp4IsKnownByItsTensorsWhateverTheConfigSays) {
  for (QuantMode mode : {QuantMode::kMxfp4, QuantMode::kAffine}) {
    QuantizationConfig quantization = four_bits_of_32();
    quantization.defaults.mode = mode;
    const Checkpoint checkpoint = mxfp4_words(DType::kU8, 2).open();
    WeightTable table("toy", checkpoint, quantization);
    const LinearId id = table.linear(0, {"layers.0.a", 6, 64});
    ASSERT_TRUE(table.status().ok()) << table.status().message();
    const LinearSpec expected = {6, 64, WeightFormat::kMxfp4, DType::kBF16, 4, 32};
    EXPECT_EQ(table.manifest().linears.at(id.index).spec, expected);
  }
}

TEST(WeightTable, WhatIsNotMxfp4IsRefusedWithItsShapes) {
  QuantizationConfig mxfp4 = four_bits_of_32();
  mxfp4.defaults.mode = QuantMode::kMxfp4;
  const LinearDeclaration declaration = {"layers.0.a", 6, 64};
  EXPECT_EQ(refusal(mxfp4_words(DType::kU8, 4), declaration, mxfp4),
            "toy: layer 0 a: U32 [6, 8] and U8 [6, 4] are not mxfp4 of [6, 64] (model.safetensors)");
  EXPECT_THAT(refusal(mxfp4_words(DType::kBF16, 2), declaration, mxfp4), HasSubstr("BF16 [6, 2]"));
  // Bytes per 16: nvfp4.
  EXPECT_THAT(refusal(mxfp4_words(DType::kU8, 4), declaration, four_bits_of_32()), HasSubstr("not read yet"));
  CheckpointBuilder with_biases = mxfp4_words(DType::kU8, 2);
  with_biases.add("model.layers.0.a.biases", DType::kU8, {6, 2});
  EXPECT_THAT(refusal(with_biases, declaration, mxfp4), HasSubstr("are not mxfp4"));
}

// GPT-OSS as published.
TEST(WeightTable, Mxfp4BlocksThatDoNotFitAreRefused) {
  const auto refusal_of = [](std::vector<int64_t> blocks, std::vector<int64_t> scales) {
    CheckpointBuilder builder;
    const std::string experts = "model.layers.1.mlp.experts.";
    builder.add(experts + "gate_up_proj_blocks", DType::kU8, std::move(blocks))
        .add(experts + "gate_up_proj_scales", DType::kU8, std::move(scales))
        .add(experts + "down_proj_blocks", DType::kU8, {3, 64, 1, 16})
        .add(experts + "down_proj_scales", DType::kU8, {3, 64, 1});
    const Checkpoint checkpoint = builder.open();
    const QuantizationConfig none;
    WeightTable table("toy", checkpoint, none);
    table.experts(1, {.module = "layers.1.mlp",
                      .num_experts = 3,
                      .hidden_size = 64,
                      .intermediate_size = 32,
                      .is_interleaved = true,
                      .num_experts_per_tok = 1});
    return table.status().ok() ? "accepted" : table.status().message();
  };
  EXPECT_EQ(refusal_of({3, 64, 2, 16}, {3, 64, 2}), "accepted");
  EXPECT_EQ(refusal_of({3, 64, 2, 16}, {3, 64, 1}),
            "toy: layer 1 experts.gate_up_proj: U8 [3, 64, 2, 16] and U8 [3, 64, 1], expected U8 "
            "[3, 64, 2, 16] and [3, 64, 2] (model.safetensors)");
  EXPECT_THAT(refusal_of({3, 32, 2, 16}, {3, 32, 2}), HasSubstr("expected U8 [3, 64, 2, 16]"));
}

TEST(WeightTable, BiasesMustBeThereExactlyIfAnnounced) {
  const auto with_bias = [](std::vector<int64_t> shape) {
    return CheckpointBuilder()
        .add("model.layers.0.a.weight", DType::kBF16, {4, 8})
        .add("model.layers.0.a.bias", DType::kF16, std::move(shape));
  };
  EXPECT_EQ(refusal(with_bias({4}), {"layers.0.a", 4, 8, true}), "accepted");
  EXPECT_EQ(refusal(with_bias({5}), {"layers.0.a", 4, 8, true}),
            "toy: layer 0 a.bias: shape [5], expected [4] (model.safetensors)");
  EXPECT_THAT(refusal(with_bias({4}), {"layers.0.a", 4, 8, false}),
              HasSubstr("bias that the config does not announce"));
  EXPECT_THAT(refusal(CheckpointBuilder().add("model.layers.0.a.weight", DType::kBF16, {4, 8}),
                      {"layers.0.a", 4, 8, true}),
              HasSubstr("no tensor layers.0.a.bias"));
}

TEST(WeightTable, OneNameInTwoSpellingsIsRefusedOnceItIsNeeded) {
  CheckpointBuilder builder;
  builder.add("model.norm.weight", DType::kF32, {4})
      .add("language_model.model.norm.weight", DType::kF32, {4});
  builder.add("model.other.weight", DType::kF32, {4});
  const Checkpoint checkpoint = builder.open();
  const QuantizationConfig none;
  WeightTable table("toy", checkpoint, none);
  table.vector(kOutsideLayers, "other.weight", 4);
  EXPECT_TRUE(table.status().ok());
  table.vector(kOutsideLayers, "norm.weight", 4);
  EXPECT_THAT(table.status().message(),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("language_model.model.norm.weight")));
}

TEST(WeightTable, TheFirstErrorStays) {
  CheckpointBuilder builder;
  builder.add("model.layers.0.a.weight", DType::kBF16, {4, 8});
  const Checkpoint checkpoint = builder.open();
  const QuantizationConfig none;
  WeightTable table("toy", checkpoint, none);
  EXPECT_FALSE(table.linear(0, {"layers.0.first", 4, 8}));
  EXPECT_FALSE(table.linear(0, {"layers.0.second", 4, 8}));
  EXPECT_TRUE(table.linear(0, {"layers.0.a", 4, 8}));
  EXPECT_THAT(table.status().message(), HasSubstr("first"));
}

TEST(WeightTable, MeansAreOfTheStoredValues) {
  CheckpointBuilder builder;
  builder.add_floats("model.a.weight", {1, 2, 6})
      .add("model.b.weight", DType::kBF16, {2}, std::string("\x80\x3f\x00\xc0", 4))  // 1, -2
      .add("model.c.weight", DType::kU32, {1});
  const Checkpoint checkpoint = builder.open();
  const QuantizationConfig none;
  WeightTable table("toy", checkpoint, none);
  EXPECT_EQ(table.mean("a.weight"), 3.0);
  EXPECT_EQ(table.mean("b.weight"), -0.5);
  ASSERT_TRUE(table.status().ok());
  table.mean("c.weight");
  EXPECT_THAT(table.status().message(), AllOf(HasSubstr("c:"), HasSubstr("U32")));
}

TEST(WeightTable, RowsAreCheckedAgainstTheWholeMatrix) {
  CheckpointBuilder builder;
  builder.add("model.layers.0.a.weight", DType::kBF16, {6, 8});
  const Checkpoint checkpoint = builder.open();
  const QuantizationConfig none;
  WeightTable table("toy", checkpoint, none);
  table.linear_rows(0, {"layers.0.a", 4, 8}, {.piece_rows = 2});
  EXPECT_EQ(table.status().message(), "toy: layer 0 a: shape [6, 8], expected [4, 8] (model.safetensors)");
}

TEST(WeightTable, RowsOfAMatrixWithABiasAreRefused) {
  CheckpointBuilder builder;
  builder.add("model.layers.0.a.weight", DType::kBF16, {4, 8})
      .add("model.layers.0.a.bias", DType::kBF16, {4});
  const Checkpoint checkpoint = builder.open();
  const QuantizationConfig none;
  WeightTable table("toy", checkpoint, none);
  table.linear_rows(0, {"layers.0.a", 4, 8}, {.piece_rows = 2});
  EXPECT_THAT(table.status().message(),
              HasSubstr("layers.0.a.bias, a bias that the config does not announce"));
}

TEST(WeightTable, WhatMustBeAbsentIsRefusedWithItsReason) {
  CheckpointBuilder builder;
  builder.add("model.layers.2.norm.weight", DType::kF32, {4});
  const Checkpoint checkpoint = builder.open();
  const QuantizationConfig none;
  WeightTable table("toy", checkpoint, none);
  table.expect_absent("layers.3.norm.weight", "num_hidden_layers = 3");
  EXPECT_TRUE(table.status().ok());
  table.expect_absent("layers.2.norm.weight", "num_hidden_layers = 2");
  EXPECT_THAT(table.status().message(), AllOf(HasSubstr("layer 2 norm"), HasSubstr("num_hidden_layers = 2")));
}

// ---- experts: 3 of them, gate and up [2, 32], down [32, 2] or, packed, intermediate 32

ExpertsDeclaration experts_of(int64_t num_experts, int64_t hidden_size, int64_t intermediate_size) {
  return {.module = "layers.1.mlp",
          .num_experts = num_experts,
          .hidden_size = hidden_size,
          .intermediate_size = intermediate_size,
          .num_experts_per_tok = 1};
}

/// For each expert, the bytes bound to gate, up and down, one after the other.
std::vector<std::string> bound_bytes(const Checkpoint& checkpoint, const WeightTable& table, ExpertsId id) {
  std::vector<std::string> result;
  const ExpertsBinding& experts = table.manifest().experts.at(id.index);
  for (int64_t e = 0; e < experts.num_experts; ++e) {
    std::string bytes;
    for (int32_t first : {experts.first_gate_proj, experts.first_up_proj, experts.first_down_proj}) {
      const LinearBinding& linear = table.manifest().linears.at(first + e);
      for (const TensorSlice* slice : {&linear.weight, &linear.scales, &linear.biases})
        if (slice->tensor != nullptr) bytes += bytes_of(checkpoint, *slice) + '|';
    }
    result.push_back(bytes);
  }
  return result;
}

/// Pieces of a stacked tensor.
std::string piece(const std::string& content, int64_t index, int64_t count) {
  const size_t size = content.size() / count;
  return content.substr(index * size, size);
}

TEST(WeightTable, ExpertsBindTheSameBytesInAllThreeSpellings) {
  CheckpointBuilder one_by_one, stacked, fused;
  std::string gate, up, down, gate_up;
  std::vector<std::string> expected;
  for (int e = 0; e < 3; ++e) {
    const std::string expert = "model.layers.1.mlp.experts." + std::to_string(e) + ".";
    one_by_one.add(expert + "gate_proj.weight", DType::kBF16, {2, 32});
    one_by_one.add(expert + "up_proj.weight", DType::kBF16, {2, 32});
    one_by_one.add(expert + "down_proj.weight", DType::kBF16, {32, 2});
    const std::string g = one_by_one.content(expert + "gate_proj.weight");
    const std::string u = one_by_one.content(expert + "up_proj.weight");
    const std::string d = one_by_one.content(expert + "down_proj.weight");
    gate += g, up += u, down += d, gate_up += g + u;
    expected.push_back(g + '|' + u + '|' + d + '|');
  }
  stacked.add("model.layers.1.mlp.switch_mlp.gate_proj.weight", DType::kBF16, {3, 2, 32}, gate)
      .add("model.layers.1.mlp.switch_mlp.up_proj.weight", DType::kBF16, {3, 2, 32}, up)
      .add("model.layers.1.mlp.switch_mlp.down_proj.weight", DType::kBF16, {3, 32, 2}, down);
  fused.add("model.layers.1.mlp.experts.gate_up_proj", DType::kBF16, {3, 4, 32}, gate_up)
      .add("model.layers.1.mlp.experts.down_proj", DType::kBF16, {3, 32, 2}, down);
  for (CheckpointBuilder* builder : {&one_by_one, &stacked, &fused}) {
    const Checkpoint checkpoint = builder->open();
    const QuantizationConfig none;
    WeightTable table("toy", checkpoint, none);
    const ExpertsId id = table.experts(1, experts_of(3, 32, 2));
    ASSERT_TRUE(table.status().ok()) << table.status().message();
    EXPECT_EQ(bound_bytes(checkpoint, table, id), expected);
    EXPECT_EQ(table.manifest().linears.at(table.manifest().experts[0].first_down_proj).spec.out, 32);
    EXPECT_EQ(table.manifest().linears.at(0).layer, 1);
  }
}

TEST(WeightTable, PackedExpertsAreCutWithTheirScales) {
  CheckpointBuilder stacked, fused;
  const std::string mlp = "model.layers.1.mlp.";
  stacked.add_packed(mlp + "switch_mlp.gate_proj", {3, 32}, 64)
      .add_packed(mlp + "switch_mlp.up_proj", {3, 32}, 64);
  stacked.add_packed(mlp + "switch_mlp.down_proj", {3, 64}, 32);
  fused.add_packed(mlp + "experts.gate_up_proj", {3, 64}, 64)
      .add_packed(mlp + "experts.down_proj", {3, 64}, 32);
  const auto expected_part = [](const CheckpointBuilder& builder, const std::string& module, int index,
                                int count) {
    std::string bytes;
    for (const char* part : {".weight", ".scales", ".biases"})
      bytes += piece(builder.content(module + part), index, count) + '|';
    return bytes;
  };
  std::vector<std::string> of_stacked, of_fused;
  for (int e = 0; e < 3; ++e) {
    of_stacked.push_back(expected_part(stacked, mlp + "switch_mlp.gate_proj", e, 3) +
                         expected_part(stacked, mlp + "switch_mlp.up_proj", e, 3) +
                         expected_part(stacked, mlp + "switch_mlp.down_proj", e, 3));
    of_fused.push_back(expected_part(fused, mlp + "experts.gate_up_proj", 2 * e, 6) +
                       expected_part(fused, mlp + "experts.gate_up_proj", 2 * e + 1, 6) +
                       expected_part(fused, mlp + "experts.down_proj", e, 3));
  }
  const QuantizationConfig quantization = four_bits_of_32();
  for (auto [builder, expected] : {std::pair(&stacked, &of_stacked), std::pair(&fused, &of_fused)}) {
    const Checkpoint checkpoint = builder->open();
    WeightTable table("toy", checkpoint, quantization);
    const ExpertsId id = table.experts(1, experts_of(3, 64, 32));
    ASSERT_TRUE(table.status().ok()) << table.status().message();
    EXPECT_EQ(bound_bytes(checkpoint, table, id), *expected);
  }
}

TEST(WeightTable, ExpertsThatDoNotFitAreRefused) {
  const auto refusal_of = [](CheckpointBuilder& builder, const QuantizationConfig& quantization) {
    const Checkpoint checkpoint = builder.open();
    WeightTable table("toy", checkpoint, quantization);
    table.experts(1, experts_of(2, 32, 2));
    return table.status().ok() ? "accepted" : table.status().message();
  };
  const auto one_by_one = [](int num_experts, DType last) {
    CheckpointBuilder builder;
    for (int e = 0; e < num_experts; ++e) {
      const std::string expert = "model.layers.1.mlp.experts." + std::to_string(e) + ".";
      const DType dtype = e + 1 == num_experts ? last : DType::kBF16;
      builder.add(expert + "gate_proj.weight", dtype, {2, 32}).add(expert + "up_proj.weight", dtype, {2, 32});
      builder.add(expert + "down_proj.weight", dtype, {32, 2});
    }
    return builder;
  };
  CheckpointBuilder two = one_by_one(2, DType::kBF16), three = one_by_one(3, DType::kBF16),
                    one = one_by_one(1, DType::kBF16);
  CheckpointBuilder mixed = one_by_one(2, DType::kF32);
  EXPECT_EQ(refusal_of(two, {}), "accepted");
  EXPECT_THAT(refusal_of(three, {}), HasSubstr("more experts than the config's 2"));
  EXPECT_THAT(refusal_of(one, {}), HasSubstr("layers.1.mlp.experts.1.gate_proj.weight"));
  EXPECT_THAT(refusal_of(mixed, {}), AllOf(HasSubstr("f32 [2, 32]"), HasSubstr("bf16 [2, 32]")));
  CheckpointBuilder stacked;
  stacked.add("model.layers.1.mlp.switch_mlp.gate_proj.weight", DType::kBF16, {3, 2, 32});
  EXPECT_THAT(refusal_of(stacked, {}), AllOf(HasSubstr("[3, 2, 32]"), HasSubstr("expected [2, 2, 32]")));
}

TEST(WeightTable, StackedExpertsWithABiasThatNobodyAnnouncedAreRefused) {
  for (const char* bias : {"gate_up_proj_bias", "gate_up_proj.bias"}) {
    const std::string experts = "layers.1.mlp.experts.";
    CheckpointBuilder builder;
    builder.add("model." + experts + "gate_up_proj", DType::kBF16, {2, 4, 32})
        .add("model." + experts + bias, DType::kBF16, {2, 4})
        .add("model." + experts + "down_proj", DType::kBF16, {2, 32, 2});
    const Checkpoint checkpoint = builder.open();
    const QuantizationConfig none;
    WeightTable table("toy", checkpoint, none);
    table.experts(1, experts_of(2, 32, 2));
    EXPECT_THAT(table.status().message(),
                HasSubstr(experts + bias + ", a bias that the config does not announce"));
  }
}

}  // namespace
}  // namespace tensorfold
