// Toy checkpoints and presets: what they hold, without writing it.
#include "cli/toy_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cli/model_presets.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

ToyModel like(const std::string& name, int64_t num_layers = 0) {
  ToyOptions options;
  options.like = name;
  options.num_layers = num_layers;
  options.is_quantized = true;
  Result<ToyModel> model = make_toy_model(options);
  EXPECT_TRUE(model.ok()) << name << ": " << model.status().message();
  return model.ok() ? *std::move(model) : ToyModel();
}

/// The weights that the makers state, in 10^9; draft heads and vision are not among ours.
TEST(ModelPresets, HaveAsManyWeightsAsThePublishedModels) {
  const std::pair<const char*, double> kStated[] = {
      {"GLM-4.5", 353},
      {"GLM-4.5-Air", 107},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B", 31.6},
      {"NVIDIA-Nemotron-3-Ultra-550B-A55B", 550},
      {"Qwen3-Next-80B-A3B", 79.7},
      {"Qwen3.5-0.8B", 0.75},
      {"Qwen3.6-35B-A3B", 34.7},
      {"Qwen3.8-27B", 26.9},
      {"gemma-3-1b", 1.0},
      {"gemma-3-270m", 0.268},
      {"gpt-oss-120b", 116.8},
      {"gpt-oss-20b", 20.9},
  };
  for (const auto& [name, billions] : kStated)
    EXPECT_NEAR(static_cast<double>(like(name).num_params) / 1e9, billions, 0.03 * billions) << name;
}

TEST(ModelPresets, AllNamesWork) {
  for (const std::string& name : model_preset_names()) EXPECT_GT(like(name, 5).num_params, 0) << name;
}

TEST(ModelPresets, AreFoundWithOwnerAndInAnyCaseAndCutToLayers) {
  const ToyModel cut = like("Qwen/QWEN3.8-27b", 4);
  EXPECT_EQ(cut.config.find("num_hidden_layers")->as_int(), 4);
  std::set<std::string> names;
  for (const ToyTensor& tensor : cut.tensors) names.insert(tensor.name);
  EXPECT_TRUE(names.contains("model.layers.2.linear_attn.conv1d.weight"));
  EXPECT_TRUE(names.contains("model.layers.3.self_attn.q_proj"));
  EXPECT_FALSE(names.contains("model.layers.4.input_layernorm.weight"));
}

TEST(ModelPresets, RefusalsNameWhatIsKnown) {
  ToyOptions options;
  options.like = "Qwen3.8-72B";
  EXPECT_THAT(make_toy_model(options).status().message(),
              HasSubstr("--like Qwen3.8-72B: no such model (did you mean Qwen3.8-27B?)"));
  options.like = "gpt-oss-20b";
  options.num_layers = 25;
  EXPECT_EQ(make_toy_model(options).status().message(), "--layers is 25, but gpt-oss-20b has 24");
}

TEST(ToyCheckpoint, EveryFamilyHasSizes) {
  for (const std::string_view family : toy_families()) {
    for (const bool is_quantized : {false, true}) {
      ToyOptions options;
      options.family = family;
      options.is_quantized = is_quantized;
      const Result<ToyOptions> complete = complete_toy_options(options);
      ASSERT_TRUE(complete.ok()) << family << ": " << complete.status().message();
      const Result<ToyModel> model = make_toy_model(*complete);
      ASSERT_TRUE(model.ok()) << family << ": " << model.status().message();
      EXPECT_EQ(model->config.find("quantization") != nullptr, is_quantized);
      EXPECT_GT(model->num_params, 500'000) << family;
    }
  }
}

TEST(ToyCheckpoint, SizesAreChosenForANumberOfWeights) {
  for (const int64_t num_params : {3'000'000, 200'000'000}) {
    ToyOptions options;
    options.family = "qwen3";
    const Result<ToyOptions> sized = complete_toy_options(toy_options_of_size(options, num_params));
    ASSERT_TRUE(sized.ok());
    const int64_t found = make_toy_model(*sized)->num_params;
    EXPECT_GE(found, num_params);
    EXPECT_LT(found, 2 * num_params);
  }
}

TEST(ToyCheckpoint, AnUnknownFamilyIsNamed) {
  ToyOptions options;
  options.family = "lama";
  EXPECT_THAT(
      complete_toy_options(options).status().message(),
      HasSubstr("--family lama: no such family (did you mean llama?); those known are gemma3_text, "));
}

/// Whatever a checkpoint may call itself in config.json.
TEST(ToyCheckpoint, EveryModelTypeIsAFamily) {
  for (const ModelFamily& family : model_families()) {
    const Result<std::string> name = toy_family_name(family.model_type);
    ASSERT_TRUE(name.ok()) << name.status().message();
    EXPECT_THAT(*name, StartsWith(std::string(family.model_type)));
  }
}

TEST(ToyCheckpoint, SizesThatDoNotGoTogetherAreRefused) {
  const auto message = [](void (*set)(ToyOptions&)) {
    ToyOptions options;
    options.like = "Qwen3.6-35B-A3B";
    options.num_layers = 4;
    set(options);
    const Result<ToyOptions> complete = complete_toy_options(options);
    return complete.ok() ? make_toy_model(*complete).status().message() : complete.status().message();
  };
  EXPECT_EQ(message([](ToyOptions&) {}), "");
  EXPECT_EQ(message([](ToyOptions& o) { o.num_experts = 4; }), "");
  EXPECT_EQ(message([](ToyOptions& o) { o.hidden_size = 63; }), "--hidden is 63, expected 64 to 1048576");
  EXPECT_EQ(message([](ToyOptions& o) { o.head_dim = 63; }), "--head-dim 63 is odd");
  EXPECT_EQ(message([](ToyOptions& o) { o.num_experts = 4, o.num_experts_per_tok = 5; }),
            "--experts-per-token 5 is more than --experts 4");
  EXPECT_EQ(message([](ToyOptions& o) { o.hidden_size = 100, o.is_quantized = true; }),
            "--hidden is 100, which 4-bit groups of 64 do not divide");
  EXPECT_THAT(message([](ToyOptions& o) { o.num_experts_per_tok = 300; }),
              HasSubstr("these sizes do not go together: config.json: num_experts_per_tok"));
}

}  // namespace
}  // namespace tensorfold
