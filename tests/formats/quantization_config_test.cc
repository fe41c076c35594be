// formats/quantization_config.h against specs/mlx-quantization.md §6.
#include "formats/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorfold {
namespace {

Result<QuantizationConfig> read(const std::string& members) {
  const Json json = *parse_json("{" + members + "}");
  return read_quantization_config(ConfigReader("config.json", json).lifted("text_config"));
}

TEST(QuantizationConfigTest, OverridesTakeTheDefaultsOfTheirModeNotTheGlobalOnes) {
  const auto config =
      read(R"("quantization":{"group_size":32,"bits":8,"model.a":{"bits":6},"model.b":{"mode":"mxfp4"},)"
           R"("model.c":false,"model.d":true,"model.e":{"group_size":128,"bits":3,"mode":"affine"}})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const ModuleQuantization global{.mode = QuantMode::kAffine, .group_size = 32, .bits = 8};
  EXPECT_EQ(config->module("model.layers.0.x"), global);
  EXPECT_EQ(config->module("model.a"), (ModuleQuantization{QuantMode::kAffine, 64, 6}));
  EXPECT_EQ(config->module("model.b"), (ModuleQuantization{QuantMode::kMxfp4, 32, 4}));
  EXPECT_EQ(config->module("model.c"), std::nullopt);
  EXPECT_EQ(config->module("model.d"), global);
  EXPECT_EQ(config->module("model.e"), (ModuleQuantization{QuantMode::kAffine, 128, 3}));
}

// GPT-OSS as mlx-lm writes it: a router's entry has sizes only.
TEST(QuantizationConfigTest, AnEntryWithoutAModeIsAffineEvenWhereTheSectionIsMxfp4) {
  const auto config =
      read(R"("quantization":{"group_size":32,"bits":4,"mode":"mxfp4","model.a":{"group_size":64,"bits":8},)"
           R"("model.b":{"bits":8},"model.c":true})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const ModuleQuantization mxfp4{QuantMode::kMxfp4, 32, 4}, affine{QuantMode::kAffine, 64, 8};
  EXPECT_EQ(config->module("model.layers.0.mlp.experts.up_proj"), mxfp4);
  EXPECT_EQ(config->module("model.a"), affine);
  EXPECT_EQ(config->module("model.b"), affine);
  EXPECT_EQ(config->module("model.c"), mxfp4);
}

TEST(QuantizationConfigTest, WithoutASectionNothingIsPacked) {
  EXPECT_EQ(read("")->module("model.a"), std::nullopt);
  EXPECT_FALSE(read(R"("quantization":null)")->is_present);
}

TEST(QuantizationConfigTest, SizesMissingFromTheSectionAreTheModes) {
  EXPECT_EQ(read(R"("quantization":{"mode":"nvfp4"})")->defaults,
            (ModuleQuantization{QuantMode::kNvfp4, 16, 4}));
  EXPECT_EQ(read(R"("quantization":{"mode":"mxfp8"})")->defaults,
            (ModuleQuantization{QuantMode::kMxfp8, 32, 8}));
  EXPECT_EQ(read(R"("quantization":{"bits":5})")->defaults, (ModuleQuantization{QuantMode::kAffine, 64, 5}));
}

TEST(QuantizationConfigTest, PrefixesOfHuggingFaceAndMlxAreTheSame) {
  EXPECT_EQ(canonical_module_name("model.language_model.layers.0.mlp"), "layers.0.mlp");
  EXPECT_EQ(canonical_module_name("language_model.model.layers.0.mlp"), "layers.0.mlp");
  EXPECT_EQ(canonical_module_name("model.layers.0.mlp"), "layers.0.mlp");
  EXPECT_EQ(canonical_module_name("language_model.lm_head"), "lm_head");
  EXPECT_EQ(canonical_module_name("lm_head"), "lm_head");
  const auto config = read(
      R"("quantization":{"group_size":64,"bits":4,"model.language_model.layers.0.mlp.gate":{"group_size":64,"bits":8}})");
  EXPECT_EQ(config->module("language_model.model.layers.0.mlp.gate")->bits, 8);
  EXPECT_EQ(config->module("language_model.model.layers.10.mlp.gate")->bits, 4);
  // The map is sorted, so without the exact match first "language_model.model.a" would be found for both.
  const auto both = read(R"("quantization":{"model.a":{"bits":3},"language_model.model.a":{"bits":6}})");
  EXPECT_EQ(both->module("model.a")->bits, 3);
  EXPECT_EQ(both->module("language_model.model.a")->bits, 6);
}

TEST(QuantizationConfigTest, TheHubsCopyCountsOnlyAlone) {
  EXPECT_EQ(read(R"("quantization_config":{"group_size":128,"bits":6})")->defaults.bits, 6);
  EXPECT_EQ(read(R"("text_config":{"quantization_config":{"group_size":128,"bits":6}})")->defaults.bits, 6);
  EXPECT_EQ(read(R"("quantization":{"bits":3},"quantization_config":{"quant_method":"awq"})")->defaults.bits,
            3);
  const auto mxfp4 =
      read(R"("quantization_config":{"quant_method":"mxfp4","modules_to_not_convert":["a.*.b"]})");
  EXPECT_EQ(mxfp4->defaults, (ModuleQuantization{QuantMode::kMxfp4, 32, 4}));
  EXPECT_EQ(mxfp4->quant_method, "mxfp4");
  EXPECT_THAT(mxfp4->modules_to_not_convert, testing::ElementsAre("a.*.b"));
}

TEST(QuantizationConfigTest, WhatCannotBeReadIsRefusedWithKeyAndValue) {
  struct Case {
    const char* members;
    StatusCode code;
    const char* message;
  };
  const Case kCases[] = {
      {R"("quantization_config":{"quant_method":"awq","bits":4,"group_size":128})", StatusCode::kUnsupported,
       "config.json: quantization_config.quant_method: expected mxfp4 or none (MLX), found \"awq\""},
      {R"("quantization_config":{"load_in_4bit":true})", StatusCode::kUnsupported,
       "config.json: quantization_config.quant_method: expected mxfp4, or MLX's group_size and bits, but it "
       "is missing"},
      {R"("quantization":{"mode":"ternary"})", StatusCode::kUnsupported,
       "config.json: quantization.mode: expected one of affine, mxfp4, nvfp4, mxfp8, found \"ternary\""},
      {R"("quantization":{"bits":1})", StatusCode::kUnsupported,
       "config.json: quantization.bits: affine has 2, 3, 4, 5, 6 or 8, found 1"},
      {R"("quantization":{"group_size":16})", StatusCode::kUnsupported,
       "config.json: quantization.group_size: affine has 32, 64 or 128, found 16"},
      {R"("quantization":{"mode":"mxfp4","group_size":64})", StatusCode::kUnsupported,
       "config.json: quantization.group_size: mxfp4 has 32, found 64"},
      {R"("quantization":{"mode":"mxfp4","bits":8})", StatusCode::kUnsupported,
       "config.json: quantization.bits: mxfp4 has 4, found 8"},
      {R"("quantization":{"model.a":{"bits":9}})", StatusCode::kUnsupported,
       "config.json: quantization.model.a.bits: affine has 2, 3, 4, 5, 6 or 8, found 9"},
      {R"("quantization":{"model.a":"no"})", StatusCode::kCorrupt,
       "config.json: quantization.model.a: expected an object, found \"no\""},
      {R"("quantization":[4])", StatusCode::kCorrupt,
       "config.json: quantization: expected an object, found an array of 1"},
      {R"("quantization":{"bits":"4"})", StatusCode::kCorrupt,
       "config.json: quantization.bits: expected a positive integer below 2^31, found \"4\""},
  };
  for (const Case& bad : kCases) {
    const auto config = read(bad.members);
    ASSERT_FALSE(config.ok()) << bad.members;
    EXPECT_EQ(config.status().code(), bad.code) << bad.members;
    EXPECT_EQ(config.status().message(), bad.message);
  }
}

}  // namespace
}  // namespace tensorfold
