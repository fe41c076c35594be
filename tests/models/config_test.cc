// What families make of their config.json: keys in older and newer spellings, defaults, and refusals by key
// and value. Each case edits the config of a fixture of tests/golden/models.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "formats/file.h"
#include "models/config_rules.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/shared_data.h"
#include "tests/support/test_model.h"

namespace tensorfold {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// A fixture's folder in memory, with its config to be edited.
class EditedModel {
 public:
  explicit EditedModel(const std::string& fixture) {
    const std::string folder = std::string(kSourceDir) + "/tests/golden/models/" + fixture;
    const std::vector<std::string> names = posix_file_system().list(folder).value();
    for (const std::string& name : names)
      if (name != "expected.safetensors")
        files_.put("m/" + name, read_text_file(posix_file_system(), folder + "/" + name, 1 << 24).value());
    config_ = parse_json(files_.content("m/config.json")).value();
  }

  EditedModel& set(std::string_view key, Json value) {
    config_.set(key, std::move(value));
    return *this;
  }
  /// Of a wrapper, where the language model's keys are.
  EditedModel& set_in_text_config(std::string_view key, Json value) {
    for (Json::Member& member : config_.as_object())
      if (member.first == "text_config") member.second.set(key, std::move(value));
    return *this;
  }
  EditedModel& erase(std::string_view key) {
    std::erase_if(config_.as_object(), [&](const Json::Member& member) { return member.first == key; });
    return *this;
  }
  EditedModel& rename(std::string_view key, std::string_view to) {
    for (Json::Member& member : config_.as_object())
      if (member.first == key) member.first = to;
    return *this;
  }

  /// Renames a tensor of model.safetensors; the new name is no longer than the old one.
  EditedModel& rename_tensor(std::string_view name, std::string_view to) {
    std::string file = files_.content("m/model.safetensors");
    std::string quoted = fmt::format("\"{}\"", to);
    quoted.resize(name.size() + 2, ' ');
    file.replace(file.find(fmt::format("\"{}\"", name)), quoted.size(), quoted);
    files_.put("m/model.safetensors", std::move(file));
    return *this;
  }

  Result<std::unique_ptr<TestModel>> load(const ModelOptions& options = {}) {
    files_.put("m/config.json", dump_json(config_));
    return load_test_model("m", make_reference_ops(), options, files_);
  }

  /// The message of the refusal, or "accepted".
  std::string refusal(const ModelOptions& options = {}) {
    const Result<std::unique_ptr<TestModel>> model = load(options);
    return model.ok() ? "accepted" : model.status().message();
  }

  /// Logits of a fixed prompt of 130 tokens, long enough for every window of the fixtures.
  std::vector<float> logits(const ModelOptions& options = {}) {
    Result<std::unique_ptr<TestModel>> model = load(options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    if (!model.ok()) return {};
    std::vector<int32_t> prompt;
    for (int i = 0; i < 130; ++i) prompt.push_back(i * 37 % 89);
    auto runner = SequenceRunner::create((*model)->runnable(), {130, 130}).value();
    return prompt_logits(*runner, prompt, 130).value();
  }

 private:
  MemoryFileSystem files_;
  Json config_;
};

Json object(Json::Object members) { return Json(std::move(members)); }

TEST(Config, OlderRotarySpellingGivesTheSameBits) {
  const std::vector<float> expected = EditedModel("llama/llama3_biases").logits();
  Json scaling = object({{"type", "llama3"},
                         {"factor", 8},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 64}});
  EditedModel older("llama/llama3_biases");
  older.erase("rope_parameters")
      .set("rope_scaling", scaling)
      .set("rope_theta", 10000.0)
      .rename("dtype", "torch_dtype");
  EXPECT_EQ(older.logits(), expected);
  scaling.set("factor", 4.0);
  EXPECT_NE(older.set("rope_scaling", scaling).logits(), expected);
}

TEST(Config, PublishedExpertCountKeyGivesTheSameBits) {
  const std::vector<float> expected = EditedModel("qwen3_moe/normalized").logits();
  EXPECT_EQ(EditedModel("qwen3_moe/normalized").rename("num_local_experts", "num_experts").logits(),
            expected);
}

TEST(Config, WindowsWithoutLayerTypesFollowMaxWindowLayers) {
  const std::vector<float> expected = EditedModel("qwen2/sliding").logits();
  EXPECT_EQ(EditedModel("qwen2/sliding").erase("layer_types").logits(), expected);
  EXPECT_NE(EditedModel("qwen2/sliding").erase("layer_types").set("max_window_layers", 0).logits(), expected);
  EXPECT_NE(EditedModel("qwen2/sliding").erase("layer_types").set("sliding_window", 36).logits(), expected);
  EXPECT_NE(EditedModel("qwen2/sliding").erase("layer_types").set("use_sliding_window", false).logits(),
            expected);
}

TEST(Config, WindowsOfEachLayer) {
  const auto windows = [](std::string_view text, int64_t first_windowed) {
    const Json json = parse_json(text).value();
    ConfigReader reader("config.json", json);
    return read_windows(reader, 3, first_windowed);
  };
  EXPECT_THAT(windows(R"({"sliding_window": 8, "use_sliding_window": true})", 1), ElementsAre(0, 8, 8));
  EXPECT_THAT(windows(R"({"sliding_window": 8, "use_sliding_window": true})", 28), ElementsAre(0, 0, 0));
  EXPECT_THAT(windows(R"({"sliding_window": 8, "use_sliding_window": false})", 0), ElementsAre(0, 0, 0));
  EXPECT_THAT(windows(R"({"sliding_window": 8})", 0), ElementsAre(0, 0, 0));
  EXPECT_THAT(windows(R"({"sliding_window": null, "use_sliding_window": true})", 0), ElementsAre(0, 0, 0));
  EXPECT_THAT(windows(R"({"sliding_window": 8, "use_sliding_window": true,
                          "layer_types": ["sliding_attention", "full_attention", "full_attention"]})",
                      1),
              ElementsAre(8, 0, 0));
}

TEST(Config, MissingKeysTakeTheirDefaults) {
  const std::vector<float> tied = EditedModel("llama/tied").logits();
  EXPECT_EQ(EditedModel("llama/tied").erase("head_dim").erase("attention_bias").erase("mlp_bias").logits(),
            tied);
  EXPECT_EQ(EditedModel("llama/tied").set("head_dim", nullptr).logits(), tied);
  EXPECT_EQ(EditedModel("llama/tied").erase("tie_word_embeddings").logits(), tied) << "there is no lm_head";
  const std::vector<float> untied = EditedModel("qwen2/sliding").logits();
  EXPECT_EQ(EditedModel("qwen2/sliding").erase("tie_word_embeddings").logits(), untied)
      << "there is an lm_head";
  EXPECT_NE(EditedModel("qwen2/sliding").set("tie_word_embeddings", true).logits(), untied);
  const std::vector<float> all_heads = EditedModel("llama/yarn_f16_sharded").logits();
  EXPECT_EQ(EditedModel("llama/yarn_f16_sharded").erase("num_key_value_heads").logits(), all_heads);
  EXPECT_NE(EditedModel("llama/tied").erase("rms_norm_eps").logits(), tied) << "1e-6 instead of 1e-5";
}

TEST(Config, ComputingInF32ChangesTheCacheAndTheActivations) {
  EXPECT_EQ(EditedModel("llama/tied").load().value()->model->spec().activation_dtype, DType::kBF16);
  const auto model = EditedModel("llama/tied").load({.compute_f32 = true}).value();
  EXPECT_EQ(model->model->spec().activation_dtype, DType::kF32);
  EXPECT_EQ(model->model->spec().kv_layers.at(0).dtype, DType::kF32);
  EXPECT_EQ(EditedModel("llama/linear_f32").load().value()->model->spec().activation_dtype, DType::kF32);
  EXPECT_EQ(EditedModel("llama/yarn_f16_sharded").load().value()->model->spec().activation_dtype,
            DType::kBF16);
}

TEST(Config, TheContextReachesBeyondTheModelOnlyWithDynamicRope) {
  EXPECT_EQ(EditedModel("llama/dynamic")
                .load({.context_tokens = 1000})
                .value()
                ->model->spec()
                .max_position_embeddings,
            1000);
  EXPECT_EQ(
      EditedModel("llama/tied").load({.context_tokens = 100}).value()->model->spec().max_position_embeddings,
      512);
  EXPECT_THAT(EditedModel("llama/tied").refusal({.context_tokens = 513}),
              AllOf(HasSubstr("513"), HasSubstr("512")));
}

TEST(Config, GptOssTakesPublishedKeysAndDefaults) {
  const std::vector<float> expected = EditedModel("gpt_oss/mxfp4").logits();
  EditedModel older("gpt_oss/mxfp4");
  older.erase("rope_parameters")
      .set("rope_theta", 150000)
      .set("rope_scaling", object({{"rope_type", "yarn"},
                                   {"factor", 4.0},
                                   {"beta_fast", 32.0},
                                   {"beta_slow", 1.0},
                                   {"original_max_position_embeddings", 256},
                                   {"truncate", false}}))
      .set("swiglu_alpha", 1.702)
      .set("swiglu_limit", 7.0)
      .erase("layer_types")
      .erase("attention_bias")
      .erase("rms_norm_eps")
      .rename("num_experts_per_tok", "experts_per_token");
  EXPECT_EQ(older.logits(), expected);
  EXPECT_NE(older.set("swiglu_alpha", 1.0).logits(), expected);
  EXPECT_NE(older.set("swiglu_alpha", 1.702).set("swiglu_limit", 0.5).logits(), expected);
  EXPECT_NE(older.set("swiglu_limit", 7.0).erase("sliding_window").logits(), expected) << "128 instead of 40";
  EXPECT_EQ(older.set("sliding_window", 40).logits(), expected);
}

TEST(Config, GptOssWithoutRotaryKeysHasThePublishedYarn) {
  const Json yarn = object({{"rope_type", "yarn"},
                            {"rope_theta", 150000.0},
                            {"factor", 32.0},
                            {"original_max_position_embeddings", 4096},
                            {"truncate", false}});
  EditedModel none("gpt_oss/windowed"), published("gpt_oss/windowed");
  EXPECT_EQ(none.erase("rope_parameters").logits(), published.set("rope_parameters", yarn).logits());
  EXPECT_NE(none.set("rope_theta", 10000.0).logits(), published.logits());
}

TEST(Config, GptOssRefusesWhatItDoesNotCompute) {
  const auto gpt_oss = [](std::string_view key, Json value) {
    return EditedModel("gpt_oss/windowed").set(key, std::move(value)).refusal();
  };
  EXPECT_THAT(gpt_oss("num_experts_per_tok", 6), AllOf(HasSubstr("num_experts_per_tok"), HasSubstr("6")));
  EXPECT_THAT(gpt_oss("hidden_act", "gelu"), HasSubstr("hidden_act"));
  EXPECT_THAT(gpt_oss("swiglu_limit", 0), HasSubstr("swiglu_limit"));
  EXPECT_THAT(gpt_oss("sliding_window", 0), HasSubstr("sliding_window"));
  EXPECT_THAT(gpt_oss("attention_bias", false), AllOf(HasSubstr("layer 0 q_proj"), HasSubstr("bias")));
  EXPECT_THAT(gpt_oss("num_local_experts", 4), HasSubstr("layer 0 router: shape [5, 48], expected [4, 48]"));
  EXPECT_THAT(
      gpt_oss("intermediate_size", 48),
      HasSubstr("layer 0 experts.gate_up_proj: BF16 [5, 48, 64], expected BF16, F16 or F32 [5, 48, 96]"));
  EXPECT_THAT(EditedModel("gpt_oss/mxfp4").set("hidden_size", 32).refusal(), HasSubstr("gpt_oss: "));
}

/// The weights that a family declares for a config, without a checkpoint.
std::vector<DeclaredWeight> declared_for(const HfConfig& config, ModelSpec& spec) {
  WeightTable table(config.model_type);
  const auto model = make_model({config, table, {}});
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (model.ok()) spec = (*model)->spec();
  return {table.declared().begin(), table.declared().end()};
}

TEST(Config, GptOssDeclaresTheTensorsOfThePublishedModel) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const std::string folder = std::string(kSharedData) + "/checkpoints/gpt-oss-20b";
  ModelSpec spec;
  std::set<std::string> names;
  for (const DeclaredWeight& weight : declared_for(read_hf_config(folder).value(), spec)) {
    if (weight.kind == DeclaredWeight::Kind::kExperts) {
      const std::string down = weight.projection == "down_proj" ? "down_proj" : "gate_up_proj";
      EXPECT_TRUE(weight.has_bias && weight.is_interleaved);
      for (const char* part : {"_blocks", "_scales", "_bias"})
        names.insert(fmt::format("{}.experts.{}{}", weight.name, down, part));
    } else {
      const bool is_linear = weight.kind == DeclaredWeight::Kind::kLinear;
      names.insert(weight.name + (is_linear ? ".weight" : ""));
      if (weight.has_bias) names.insert(weight.name + ".bias");
    }
  }
  const std::string text =
      read_text_file(posix_file_system(), folder + "/model.safetensors.index.json", 1 << 24).value();
  const Json index = parse_json(text).value();
  std::set<std::string> published;
  for (const auto& [name, file] : index.find("weight_map")->as_object())
    published.emplace(canonical_module_name(name));
  EXPECT_EQ(published.size(), 459u);
  EXPECT_EQ(names, published);

  EXPECT_EQ(spec.kv_layers, std::vector<KvShape>(24, {8, 64, DType::kBF16}));
  EXPECT_EQ(spec.max_position_embeddings, 131072);
  for (size_t i = 0; i < spec.layers.size(); ++i)
    EXPECT_EQ(spec.layers[i].mixer, i % 2 == 0 ? MixerKind::kWindowAttention : MixerKind::kAttention);
}

TEST(Config, NemotronNanoHasThePublishedShapes) {
  // specs/nemotron.md §1 and §2.
  const HfConfig config = parse_hf_config(R"({"model_type": "nemotron_h", "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_hidden_layers": 52,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64,
    "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "expand": 2,
    "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
    "intermediate_size": 1856, "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5, "rope_theta": 10000,
    "partial_rotary_factor": 1.0, "vocab_size": 131072, "max_position_embeddings": 262144, "use_conv_bias": true,
    "time_step_limit": [0.0, Infinity], "tie_word_embeddings": false, "torch_dtype": "bfloat16"})")
                              .value();
  ModelSpec spec;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const DeclaredWeight& weight : declared_for(config, spec))
    shapes[weight.name + (weight.projection.empty() ? "" : "." + weight.projection)] = {weight.out,
                                                                                        weight.in};
  EXPECT_THAT(shapes["layers.0.mixer.in_proj"], ElementsAre(10304, 2688));
  EXPECT_THAT(shapes["layers.0.mixer.conv1d.weight"], ElementsAre(6144, 4));
  EXPECT_THAT(shapes["layers.0.mixer.norm.weight"], ElementsAre(4096, 0));
  EXPECT_THAT(shapes["layers.0.mixer.out_proj"], ElementsAre(2688, 4096));
  EXPECT_THAT(shapes["layers.1.mixer.up_proj"], ElementsAre(1856, 2688));
  EXPECT_THAT(shapes["layers.1.mixer.down_proj"], ElementsAre(2688, 1856));
  EXPECT_THAT(shapes["layers.1.mixer.shared_experts.up_proj"], ElementsAre(3712, 2688));
  EXPECT_THAT(shapes["layers.5.mixer.q_proj"], ElementsAre(4096, 2688));
  EXPECT_THAT(shapes["layers.42.mixer.k_proj"], ElementsAre(256, 2688));
  EXPECT_EQ(spec.kv_layers, std::vector<KvShape>(6, {2, 128, DType::kBF16}));
  EXPECT_EQ(spec.recurrent_layers, std::vector<RecurrentShape>(23, {6144, 4, 64, 128, 64, 64}));
  // 2 MiB of states a layer and sequence, beside the rows of the convolution.
  EXPECT_EQ(spec.recurrent_layers[0].matrix_floats() * 4, 2 << 20);
}

TEST(Config, NemotronReadsItsLayersInEverySpelling) {
  const std::vector<float> expected = EditedModel("nemotron_h/all_kinds").logits();
  EditedModel older("nemotron_h/all_kinds");
  older.set("hybrid_override_pattern", "ME*-MME");
  EXPECT_EQ(older.logits(), expected) << "both";
  EXPECT_EQ(older.erase("layers_block_type").logits(), expected) << "the letters alone";
  EXPECT_EQ(older.set("num_hidden_layers", 52).logits(), expected) << "the letters count";
  older.set("layers_block_type",
            Json::Array{"mamba", "moe", "attention", "mlp", "mamba", "linear_attention", "moe"});
  EXPECT_EQ(older.erase("hybrid_override_pattern").logits(), expected);
  EXPECT_THAT(older.set("hybrid_override_pattern", "ME*-MM").refusal(),
              AllOf(HasSubstr("hybrid_override_pattern"), HasSubstr("layers_block_type")));
  EXPECT_EQ(EditedModel("nemotron_h/all_kinds")
                .rename_tensor("backbone.embeddings.weight", "model.embedding.weight")
                .logits(),
            expected);
  EXPECT_THAT(older.erase("layers_block_type").refusal(),
              AllOf(HasSubstr("layers.6.norm.weight"), HasSubstr("6 layers")));
  EXPECT_THAT(older.set("hybrid_override_pattern", "MX").refusal(),
              AllOf(HasSubstr("hybrid_override_pattern"), HasSubstr("\"MX\"")));
  EXPECT_THAT(older.erase("hybrid_override_pattern").refusal(), HasSubstr("layers_block_type"));
  EXPECT_THAT(older.set("layers_block_type", Json::Array{"rwkv"}).refusal(),
              AllOf(HasSubstr("layers_block_type"), HasSubstr("rwkv")));
}

TEST(Config, NemotronSpecCountsStatesOfBothKinds) {
  const auto model = EditedModel("nemotron_h/all_kinds").load().value();
  const ModelSpec& spec = model->model->spec();
  EXPECT_EQ(spec.num_layers, 7);
  EXPECT_EQ(spec.kv_layers, (std::vector<KvShape>{{2, 16, DType::kBF16}}));
  EXPECT_EQ(spec.recurrent_layers, std::vector<RecurrentShape>(3, {112, 4, 6, 16, 8, 6}));
  EXPECT_EQ(spec.layers[0], (LayerKind{MixerKind::kMamba2, MlpKind::kNone}));
  EXPECT_EQ(spec.layers[1], (LayerKind{MixerKind::kNone, MlpKind::kExperts}));
  EXPECT_EQ(spec.layers[2], (LayerKind{MixerKind::kAttention, MlpKind::kNone}));
  EXPECT_EQ(spec.layers[3], (LayerKind{MixerKind::kNone, MlpKind::kDense}));
}

TEST(Config, NemotronStepsAreHeldToTheirLimit) {
  const std::vector<float> expected = EditedModel("nemotron_h/all_kinds").logits();
  EditedModel model("nemotron_h/all_kinds");
  const auto limited = [&model](Json::Array limit) -> EditedModel& {
    return model.set("time_step_limit", std::move(limit));
  };
  EXPECT_EQ(limited({0.0, 1e30}).logits(), expected);
  EXPECT_NE(limited({0.3, 1e30}).logits(), expected);
  EXPECT_NE(limited({0.0, 0.1}).logits(), expected);
  EXPECT_THAT(limited({0.5, 0.25}).refusal(), HasSubstr("time_step_limit"));
  EXPECT_THAT(limited({object({{"__float__", "NaN"}}), 1.0}).refusal(), HasSubstr("time_step_limit"));
  EXPECT_THAT(limited({0.0}).refusal(), HasSubstr("time_step_limit"));
  EXPECT_EQ(model.erase("time_step_limit").set("time_step_min", 0.5).logits(), expected);
}

TEST(Config, NemotronRefusesWhatItDoesNotCompute) {
  const auto nemotron = [](std::string_view key, Json value) {
    return EditedModel("nemotron_h/all_kinds").set(key, std::move(value)).refusal();
  };
  EXPECT_THAT(nemotron("mlp_hidden_act", "silu"), AllOf(HasSubstr("mlp_hidden_act"), HasSubstr("silu")));
  EXPECT_THAT(nemotron("mamba_hidden_act", "gelu"), HasSubstr("mamba_hidden_act"));
  EXPECT_THAT(nemotron("n_groups", 4), AllOf(HasSubstr("n_groups"), HasSubstr("mamba_num_heads (6)")));
  EXPECT_THAT(nemotron("n_group", 3), AllOf(HasSubstr("n_group"), HasSubstr("n_routed_experts (10)")));
  EXPECT_THAT(nemotron("n_group", 10), HasSubstr("two experts"));
  EXPECT_THAT(nemotron("topk_group", 3), HasSubstr("topk_group"));
  EXPECT_THAT(nemotron("num_experts_per_tok", 6),
              AllOf(HasSubstr("num_experts_per_tok"), HasSubstr("at most 5")));
  EXPECT_THAT(nemotron("conv_kernel", 1), HasSubstr("conv_kernel"));
  for (const char* key : {"mamba_num_heads", "mamba_head_dim", "ssm_state_size", "conv_kernel"})
    EXPECT_THAT(nemotron(key, INT32_MAX), AllOf(HasSubstr(key), HasSubstr("expected"), HasSubstr(" to ")));
  EXPECT_THAT(nemotron("norm_eps", 1e-6), HasSubstr("norm_eps"));
  EXPECT_THAT(nemotron("use_conv_bias", false),
              AllOf(HasSubstr("layer 0 mixer.conv1d.bias"), HasSubstr("use_conv_bias = false")));
  EXPECT_THAT(nemotron("use_bias", true), HasSubstr("layers.0.mixer.in_proj.bias"));
  EXPECT_THAT(nemotron("attention_bias", true), HasSubstr("layers.2.mixer.q_proj.bias"));
  EXPECT_THAT(nemotron("moe_latent_size", 16), HasSubstr("fc1_latent_proj"));
  EXPECT_THAT(nemotron("ssm_state_size", 8), HasSubstr("layer 0 mixer.in_proj: shape [166, 64]"));
}

TEST(Config, NemotronDraftHeadIsReadByItsTensors) {
  const auto head = [](EditedModel& model) { return model.load().value()->model->draft_head() != nullptr; };
  EditedModel mtp("nemotron_h/mtp");
  EXPECT_TRUE(head(mtp.set("num_nextn_predict_layers", 0)));
  EXPECT_TRUE(head(mtp.erase("mtp_layers_block_type").set("mtp_hybrid_override_pattern", "*E")));
  EXPECT_TRUE(head(mtp.erase("mtp_hybrid_override_pattern")));
  EXPECT_THAT(mtp.set("mtp_hybrid_override_pattern", "*").refusal(),
              HasSubstr("mtp.layers.0.final_layernorm.weight"));
  EXPECT_THAT(mtp.set("mtp_hybrid_override_pattern", "ME").refusal(),
              HasSubstr("no mamba in the draft head"));
  EditedModel without("nemotron_h/all_kinds");
  EXPECT_FALSE(head(without.set("num_nextn_predict_layers", 1)));
}

TEST(Config, UnknownFamiliesAreRefusedWithTheKnownOnes) {
  EXPECT_THAT(
      EditedModel("llama/tied").set("model_type", "gpt2").refusal(),
      AllOf(HasSubstr("model_type"), HasSubstr("\"gpt2\""), HasSubstr("llama, "), HasSubstr("qwen3_next")));
}

TEST(Config, WhatCannotBeComputedIsRefusedByKeyAndValue) {
  const auto llama = [](std::string_view key, Json value) {
    return EditedModel("llama/tied").set(key, std::move(value)).refusal();
  };
  EXPECT_THAT(llama("hidden_act", "gelu"), AllOf(HasSubstr("hidden_act"), HasSubstr("gelu")));
  EXPECT_THAT(llama("num_key_value_heads", 2), AllOf(HasSubstr("num_key_value_heads"), HasSubstr("2")));
  EXPECT_THAT(llama("head_dim", 33), AllOf(HasSubstr("head_dim"), HasSubstr("33")));
  EXPECT_THAT(llama("head_dim", 1 << 20), HasSubstr("head_dim"));
  EXPECT_THAT(EditedModel("llama/tied").erase("head_dim").set("num_attention_heads", 7).refusal(),
              AllOf(HasSubstr("num_attention_heads"), HasSubstr("hidden_size (96)")));
  EXPECT_THAT(llama("num_hidden_layers", 2000000000), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(llama("rms_norm_eps", 0), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(llama("partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(llama("rope_scaling", object({{"rope_type", "spiral"}})), HasSubstr("spiral"));
  EXPECT_THAT(EditedModel("llama/tied").erase("hidden_size").refusal(), HasSubstr("hidden_size"));
  EXPECT_THAT(EditedModel("qwen3_moe/normalized").set("num_experts_per_tok", 7).refusal(),
              AllOf(HasSubstr("num_experts_per_tok"), HasSubstr("7"), HasSubstr("at most 6")));
  EXPECT_THAT(EditedModel("qwen2/sliding").set("layer_types", Json::Array{"full_attention"}).refusal(),
              HasSubstr("layer_types"));
  EXPECT_THAT(EditedModel("qwen2/sliding").set("use_sliding_window", false).refusal(),
              HasSubstr("layer_types"));
  EXPECT_THAT(EditedModel("qwen2/sliding")
                  .set("layer_types", Json::Array{"full_attention", "chunked_attention", "full_attention"})
                  .refusal(),
              AllOf(HasSubstr("layer_types"), HasSubstr("chunked_attention")));
}

TEST(Config, WeightsThatContradictTheConfigAreRefusedByTensor) {
  EXPECT_EQ(EditedModel("llama/tied").set("vocab_size", 161).refusal(),
            "llama: embed_tokens: shape [160, 96], expected [161, 96] (model.safetensors)");
  EXPECT_EQ(EditedModel("llama/tied").set("intermediate_size", 64).refusal(),
            "llama: layer 0 gate_proj: shape [128, 96], expected [64, 96] (model.safetensors)");
  EXPECT_EQ(EditedModel("llama/tied").set("num_hidden_layers", 3).refusal(),
            "llama: layer 2 input_layernorm: the checkpoint has no tensor layers.2.input_layernorm.weight");
  EXPECT_THAT(EditedModel("llama/tied").set("num_hidden_layers", 1).refusal(),
              HasSubstr("num_hidden_layers = 1"));
  EXPECT_THAT(EditedModel("llama/tied").set("tie_word_embeddings", false).refusal(), HasSubstr("lm_head"));
  EXPECT_THAT(EditedModel("llama/tied").set("attention_bias", true).refusal(),
              HasSubstr("layer 0 q_proj.bias"));
  EXPECT_THAT(EditedModel("llama/llama3_biases").set("mlp_bias", false).refusal(),
              AllOf(HasSubstr("layer 0 gate_proj"), HasSubstr("bias")));
  EXPECT_THAT(EditedModel("qwen3_moe/normalized").set("num_local_experts", 5).refusal(),
              AllOf(HasSubstr("layer 0 gate: shape [6, 64], expected [5, 64]")));
  EXPECT_THAT(EditedModel("qwen3_moe/normalized").set("mlp_only_layers", Json::array()).refusal(),
              HasSubstr("layer 1"));
}

TEST(Config, GemmaReadsBothGenerationsOfRotaryKeys) {
  const std::vector<float> expected = EditedModel("gemma3/windowed").logits();
  EditedModel older("gemma3/windowed");
  older.erase("rope_parameters")
      .set("rope_theta", 1e6)
      .set("rope_local_base_freq", 10000.0)
      .set("rope_scaling", object({{"rope_type", "linear"}, {"factor", 4.0}}));
  EXPECT_EQ(older.logits(), expected);
  EXPECT_EQ(older.erase("rope_theta").erase("rope_local_base_freq").logits(), expected) << "the defaults";
  EXPECT_NE(older.set("rope_local_base_freq", 20000.0).logits(), expected);
  EXPECT_NE(older.erase("rope_local_base_freq").erase("rope_scaling").logits(), expected);
}

TEST(Config, GemmaWithoutLayerTypesFollowsTheWindowPattern) {
  const std::vector<float> expected = EditedModel("gemma3/windowed").logits();
  EditedModel older("gemma3/windowed");
  older.erase("layer_types").set("sliding_window_pattern", 2);
  EXPECT_EQ(older.logits(), expected) << "and not the other key, which says 6";
  EXPECT_NE(older.erase("sliding_window_pattern").logits(), expected);
  EXPECT_EQ(older.set("_sliding_window_pattern", 2).logits(), expected);
}

TEST(Config, GemmaRefusesWhatItDoesNotCompute) {
  const auto gemma = [](std::string_view key, Json value) {
    return EditedModel("gemma3/windowed").set(key, std::move(value)).refusal();
  };
  EXPECT_THAT(gemma("attn_logit_softcapping", 50.0),
              AllOf(HasSubstr("attn_logit_softcapping"), HasSubstr("50")));
  EXPECT_THAT(gemma("hidden_activation", "gelu"),
              AllOf(HasSubstr("hidden_activation"), HasSubstr("\"gelu\"")));
  EXPECT_THAT(gemma("use_bidirectional_attention", true), HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(gemma("final_logit_softcapping", 0), HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(gemma("sliding_window", nullptr), HasSubstr("sliding_window"));
  EXPECT_THAT(EditedModel("gemma3/windowed").erase("layer_types").erase("sliding_window").refusal(),
              HasSubstr("sliding_window"));
  EXPECT_THAT(gemma("rope_parameters",
                    object({{"sliding_attention", object({{"rope_type", "linear"}, {"factor", 2.0}})}})),
              AllOf(HasSubstr("sliding_attention.rope_type"), HasSubstr("linear")));
  EXPECT_THAT(EditedModel("gemma3/windowed").erase("num_attention_heads").refusal(),
              AllOf(HasSubstr("num_key_value_heads"), HasSubstr("num_attention_heads")));
}

/// Declared weights by name, experts with their projection.
std::map<std::string, DeclaredWeight> declared_by_name(std::string_view config, ModelSpec& spec) {
  std::map<std::string, DeclaredWeight> by_name;
  for (const DeclaredWeight& weight : declared_for(parse_hf_config(config).value(), spec))
    by_name[weight.name + (weight.projection.empty() ? "" : "." + weight.projection)] = weight;
  return by_name;
}

TEST(Config, GemmaWrappersLeaveOutTheLibrarysDefaults) {
  // As gemma-3-4b says it; what is left out is 8 heads of 256 with 4 of keys, and a vocabulary of 262208.
  ModelSpec spec;
  auto weights = declared_by_name(R"({"model_type": "gemma3", "eos_token_id": [1, 106],
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16}, "torch_dtype": "bfloat16"})",
                                  spec);
  EXPECT_EQ(weights["embed_tokens"].out, 262208);
  EXPECT_FALSE(weights.contains("lm_head"));
  EXPECT_EQ(weights["layers.0.self_attn.q_proj"].out, 2048);
  EXPECT_EQ(weights["layers.0.self_attn.k_proj"].out, 1024);
  EXPECT_EQ(weights["layers.0.self_attn.q_norm.weight"].out, 256);
  EXPECT_EQ(weights["layers.33.post_feedforward_layernorm.weight"].added, 1);
  EXPECT_EQ(spec.kv_layers, std::vector<KvShape>(34, {4, 256, DType::kBF16}));
  EXPECT_EQ(spec.max_position_embeddings, 131072);
  for (size_t i = 0; i < spec.layers.size(); ++i)
    EXPECT_EQ(spec.layers[i].mixer, i % 6 == 5 ? MixerKind::kAttention : MixerKind::kWindowAttention) << i;
}

TEST(Config, GlmAirHasThePublishedShapes) {
  // specs/glm.md §1.1 and §7.
  ModelSpec spec;
  auto weights = declared_by_name(R"({"model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "use_qk_norm": false, "attention_bias": true, "partial_rotary_factor": 0.5,
    "rope_theta": 1000000, "rope_scaling": null, "rms_norm_eps": 1e-5, "vocab_size": 151552,
    "max_position_embeddings": 131072, "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
    "eos_token_id": [151329, 151336, 151338], "torch_dtype": "bfloat16"})",
                                  spec);
  const auto expect = [&](const std::string& name, int64_t out, int64_t in, bool has_bias = false) {
    ASSERT_TRUE(weights.contains(name)) << name;
    EXPECT_THAT((std::vector<int64_t>{weights[name].out, weights[name].in}), ElementsAre(out, in)) << name;
    EXPECT_EQ(weights[name].has_bias, has_bias) << name;
  };
  expect("lm_head", 151552, 4096);
  expect("layers.0.mlp.gate_proj", 10944, 4096);
  expect("layers.1.self_attn.q_proj", 12288, 4096, true);
  expect("layers.1.self_attn.v_proj", 1024, 4096, true);
  expect("layers.1.self_attn.o_proj", 4096, 12288);
  expect("layers.1.mlp.gate", 128, 4096);
  expect("layers.1.mlp.gate.e_score_correction_bias", 128, 0);
  expect("layers.45.mlp.down_proj", 4096, 1408);
  expect("layers.45.mlp.shared_experts.up_proj", 1408, 4096);
  EXPECT_FALSE(weights.contains("layers.1.self_attn.q_norm.weight"));
  EXPECT_FALSE(weights.contains("layers.46.input_layernorm.weight")) << "the draft head is not there";
  EXPECT_EQ(spec.kv_layers, std::vector<KvShape>(46, {8, 128, DType::kBF16}));
  for (size_t i = 0; i < spec.layers.size(); ++i)
    EXPECT_EQ(spec.layers[i].mlp, i == 0 ? MlpKind::kDense : MlpKind::kExperts) << i;
}

TEST(Config, GlmReadsPublishedKeys) {
  const std::vector<float> expected = EditedModel("glm4_moe/grouped_qk_norm").logits();
  EditedModel older("glm4_moe/grouped_qk_norm");
  older.erase("rope_parameters")
      .set("rope_theta", 1e6)
      .set("scoring_func", "sigmoid")
      .rename("n_routed_experts", "num_local_experts");
  EXPECT_EQ(older.logits(), expected);
  EXPECT_EQ(older.erase("partial_rotary_factor").logits(), expected) << "half a head is the default";
  EXPECT_NE(older.set("partial_rotary_factor", 0.25).logits(), expected);
}

TEST(Config, GlmRefusesRoutersThatItDoesNotHave) {
  const auto glm = [](std::string_view key, Json value) {
    return EditedModel("glm4_moe/grouped_qk_norm").set(key, std::move(value)).refusal();
  };
  EXPECT_THAT(glm("scoring_func", "softmax"), AllOf(HasSubstr("scoring_func"), HasSubstr("softmax")));
  EXPECT_THAT(glm("topk_method", "greedy"), AllOf(HasSubstr("topk_method"), HasSubstr("greedy")));
  EXPECT_THAT(glm("n_group", 3), AllOf(HasSubstr("n_group"), HasSubstr("3"), HasSubstr("10")));
  EXPECT_THAT(glm("n_group", 10), AllOf(HasSubstr("n_group"), HasSubstr("two experts")));
  EXPECT_THAT(glm("topk_group", 3), AllOf(HasSubstr("topk_group"), HasSubstr("3")));
  EXPECT_THAT(glm("num_experts_per_tok", 6), AllOf(HasSubstr("num_experts_per_tok"), HasSubstr("6")));
  EXPECT_THAT(glm("num_experts_per_tok", 5), "accepted");
}

TEST(Config, GlmTensorsThatContradictTheConfigAreRefused) {
  EXPECT_THAT(EditedModel("glm4_moe/grouped_qk_norm").set("use_qk_norm", false).refusal(),
              AllOf(HasSubstr("q_norm"), HasSubstr("use_qk_norm = false")));
  EXPECT_THAT(EditedModel("glm4_moe/grouped_qk_norm").set("attention_bias", false).refusal(),
              AllOf(HasSubstr("layer 0 q_proj"), HasSubstr("bias")));
  EXPECT_THAT(EditedModel("glm4_moe/grouped_qk_norm").set("first_k_dense_replace", 2).refusal(),
              HasSubstr("layer 1 gate_proj"));
  EXPECT_THAT(EditedModel("glm4_moe/grouped_qk_norm").set("n_shared_experts", 1).refusal(),
              HasSubstr("layer 1 shared_experts.gate_proj: shape [48, 48], expected [24, 48]"));
  EXPECT_THAT(EditedModel("glm4_moe/grouped_qk_norm").set("num_hidden_layers", 2).refusal(),
              HasSubstr("num_hidden_layers = 2"));
  EXPECT_THAT(EditedModel("glm4_moe/mtp").set("num_hidden_layers", 1).refusal(),
              HasSubstr("num_hidden_layers = 1"))
      << "layer 1 has no eh_proj, so it is no draft head";
}

TEST(Config, ManifestsSayWhatRoutersChoose) {
  const auto experts = [](const std::string& fixture) {
    const std::string folder = std::string(kSourceDir) + "/tests/golden/models/" + fixture;
    const HfConfig config = read_hf_config(folder).value();
    const Checkpoint checkpoint = Checkpoint::open(folder).value();
    WeightTable table(config.model_type, checkpoint, config.quantization);
    EXPECT_TRUE(make_model({config, table, {}}).ok()) << fixture;
    const ExpertsBinding& e = table.manifest().experts.at(0);
    return fmt::format("{}: {} of {} in {}", e.name, e.num_experts_per_tok, e.num_experts, e.num_groups);
  };
  EXPECT_EQ(experts("qwen3_moe/normalized"), "layer 0 mlp: 2 of 6 in 1");
  EXPECT_EQ(experts("qwen3_5_moe/per_expert"), "layer 0 mlp: 3 of 7 in 1");
  EXPECT_EQ(experts("glm4_moe/grouped_qk_norm"), "layer 1 mlp: 3 of 10 in 2");
  EXPECT_EQ(experts("gpt_oss/windowed"), "layer 0 mlp: 3 of 5 in 1");
  EXPECT_EQ(experts("nemotron_h/all_kinds"), "layer 1 mixer: 3 of 10 in 2");
}

TEST(QwenHybridConfig, OlderSpellingsAndMissingKeysGiveTheSameBits) {
  const std::vector<float> dense = EditedModel("qwen3_5/tied").logits();
  EXPECT_EQ(EditedModel("qwen3_5/tied").set("model_type", "qwen3_5").logits(), dense);
  EXPECT_EQ(EditedModel("qwen3_5/tied").set("output_gate_type", "swish").logits(), dense);
  EditedModel older("qwen3_5/tied");
  older.erase("rope_parameters").set("rope_scaling", nullptr).set("rope_theta", 10000000);
  EXPECT_EQ(older.set("partial_rotary_factor", 0.5).logits(), dense);
  EXPECT_NE(older.erase("partial_rotary_factor").logits(), dense) << "a quarter instead of a half";

  const std::vector<float> next = EditedModel("qwen3_next/mlx_4bit").logits();
  EXPECT_EQ(EditedModel("qwen3_next/mlx_4bit").erase("layer_types").erase("norm_topk_prob").logits(), next)
      << "full_attention_interval is 3";
  const std::vector<float> moe = EditedModel("qwen3_5_moe/per_expert").logits();
  EXPECT_EQ(EditedModel("qwen3_5_moe/per_expert").set("norm_topk_prob", true).logits(), moe);
  EXPECT_EQ(EditedModel("qwen3_5_moe/per_expert").set("model_type", "qwen3_5_moe").logits(), moe);
  EditedModel without_factor("qwen3_5_moe/per_expert");
  without_factor.erase("rope_parameters").erase("partial_rotary_factor").set("rope_theta", 1000000);
  EXPECT_EQ(without_factor.logits(), moe) << "a quarter is what it has";
}

TEST(QwenHybridConfig, LayersAndStatesFollowLayerTypes) {
  const auto model = EditedModel("qwen3_next/mixed").load().value();
  const ModelSpec& spec = model->model->spec();
  EXPECT_THAT(spec.layers, ElementsAre(LayerKind{MixerKind::kGatedDelta, MlpKind::kExperts},
                                       LayerKind{MixerKind::kGatedDelta, MlpKind::kDense},
                                       LayerKind{MixerKind::kAttention, MlpKind::kExperts}));
  EXPECT_THAT(spec.kv_layers, ElementsAre(KvShape{2, 16, DType::kBF16}));
  const RecurrentShape state = {
      .conv_channels = 112, .conv_taps = 4, .num_heads = 6, .key_dim = 16, .value_dim = 8, .num_gates = 12};
  EXPECT_THAT(spec.recurrent_layers, ElementsAre(state, state));
}

TEST(QwenHybridConfig, WhatCannotBeComputedIsRefusedByKeyAndValue) {
  const auto dense = [](std::string_view key, Json value) {
    return EditedModel("qwen3_5/tied").set(key, std::move(value)).refusal();
  };
  EXPECT_THAT(dense("attn_output_gate", false), AllOf(HasSubstr("attn_output_gate"), HasSubstr("false")));
  EXPECT_THAT(dense("output_gate_type", "sigmoid"),
              AllOf(HasSubstr("output_gate_type"), HasSubstr("sigmoid")));
  EXPECT_THAT(dense("linear_num_value_heads", 5),
              AllOf(HasSubstr("linear_num_value_heads"), HasSubstr("5"), HasSubstr("multiple")));
  EXPECT_THAT(dense("linear_conv_kernel_dim", 1), HasSubstr("linear_conv_kernel_dim"));
  EXPECT_THAT(dense("linear_key_head_dim", 2000000000), HasSubstr("linear_key_head_dim"));
  EXPECT_THAT(dense("linear_num_value_heads", 12),
              HasSubstr("layer 0 linear_attn.in_proj_qkv: shape [112, 64], expected [160, 64]"));
  const auto types = [&](const char* third, const char* others) {
    return dense("layer_types", Json::Array{others, "full_attention", third, others});
  };
  EXPECT_THAT(types("sliding_attention", "linear_attention"),
              AllOf(HasSubstr("layer_types"), HasSubstr("sliding_attention")));
  EXPECT_THAT(types("full_attention", "full_attention"), HasSubstr("at least one layer of linear attention"));
  EXPECT_THAT(dense("layer_types", Json::Array{"linear_attention"}), HasSubstr("4 entries"));
  EXPECT_THAT(EditedModel("qwen3_5_moe/per_expert").set("norm_topk_prob", false).refusal(),
              HasSubstr("norm_topk_prob"));
  EXPECT_THAT(EditedModel("qwen3_5_moe/per_expert").set("num_experts_per_tok", 8).refusal(),
              HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(EditedModel("qwen3_next/mixed").set("mlp_only_layers", Json::array()).refusal(),
              HasSubstr("layer 1 gate"));
}

TEST(QwenHybridConfig, TheDraftHeadFollowsItsKeys) {
  const auto head = [](std::string_view key, Json value) {
    return EditedModel("qwen3_5/wrapper_mtp").set_in_text_config(key, std::move(value)).load();
  };
  EXPECT_NE(head("mtp_num_hidden_layers", nullptr).value()->model->draft_head(), nullptr);
  EXPECT_EQ(head("mtp_num_hidden_layers", 0).value()->model->draft_head(), nullptr);
  EXPECT_THAT(head("mtp_num_hidden_layers", 2).status().message(), HasSubstr("mtp_num_hidden_layers"));
  EXPECT_THAT(head("mtp_use_dedicated_embeddings", true).status().message(),
              HasSubstr("mtp_use_dedicated_embeddings"));
}

}  // namespace
}  // namespace tensorfold
