// formats/hf_config.h: both generations of config.json, rotary parameters, generation defaults; published
// files.
#include "formats/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/memory_file_system.h"
#include "tests/support/shared_data.h"

namespace tensorfold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

HfConfig parse(std::string_view text) {
  Result<HfConfig> config = parse_hf_config(text);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return std::move(config).value();
}

TEST(HfConfigTest, ReadsTypeDtypeAndEndIds) {
  const HfConfig flat = parse(
      R"({"model_type":"llama","architectures":["LlamaForCausalLM"],"torch_dtype":"float16","eos_token_id":2})");
  EXPECT_EQ(flat.model_type, "llama");
  EXPECT_THAT(flat.architectures, ElementsAre("LlamaForCausalLM"));
  EXPECT_EQ(flat.dtype, DType::kF16);
  EXPECT_THAT(flat.eos_token_ids, ElementsAre(2));
  EXPECT_FALSE(flat.quantization.is_present);
  const HfConfig nested = parse(
      R"({"model_type":"outer","dtype":"bfloat16","eos_token_id":1,)"
      R"("text_config":{"model_type":"inner","dtype":"float32","eos_token_id":[5,6],"hidden_size":8}})");
  EXPECT_EQ(nested.model_type, "outer");
  EXPECT_EQ(nested.dtype, DType::kF32);
  EXPECT_THAT(nested.eos_token_ids, ElementsAre(5, 6));
  EXPECT_EQ(nested.reader().positive_int("hidden_size"), 8);
  EXPECT_EQ(parse(R"({"model_type":"x"})").dtype, DType::kBF16);
}

TEST(HfConfigTest, WrongFilesAreOneSentence) {
  const std::pair<const char*, const char*> kCases[] = {
      {"", "config.json: JSON line 1"},
      {"[]", "config.json: expected an object, found array"},
      {"{}", "config.json: model_type: expected a string, but it is missing"},
      {R"({"model_type":3})", "config.json: model_type: expected a string, found 3"},
      {R"({"model_type":"x","torch_dtype":"int8"})",
       "config.json: torch_dtype: expected one of bfloat16, float16, float32, found \"int8\""},
      {R"({"model_type":"x","text_config":{"eos_token_id":-1}})",
       "config.json: text_config.eos_token_id: expected an integer from 0 to 2^31-1, found -1"},
      {R"({"model_type":"x","quantization":{"bits":7}})",
       "config.json: quantization.bits: affine has 2, 3, 4, 5, 6 or 8, found 7"},
  };
  for (const auto& [text, message] : kCases) {
    EXPECT_THAT(parse_hf_config(text).status().message(), testing::StartsWith(message)) << text;
  }
}

TEST(HfConfigTest, InfinitiesAndNanAreReadInBothSpellings) {
  const HfConfig config = parse(
      R"({"model_type":"x","words":[-Infinity, 0.5,Infinity,NaN],"a \\\" [Infinity":"\\\\","s":"NaN \" Infinity",)"
      R"("objects":[{"__float__": "-Infinity"},{"__float__":"Infinity"},{"__float__":"NaN"}],"bad":[Infinity]})");
  ConfigReader reader = config.reader();
  const double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(reader.extended_number_list("words"),
              ElementsAre(-kInfinity, 0.5, kInfinity, testing::IsNan()));
  EXPECT_THAT(reader.extended_number_list("objects"), ElementsAre(-kInfinity, kInfinity, testing::IsNan()));
  EXPECT_EQ(reader.string("s"), "NaN \" Infinity") << "words in strings are text";
  EXPECT_TRUE(reader.has("a \\\" [Infinity"));
  EXPECT_TRUE(reader.status().ok()) << reader.status().message();
  reader.number_list("bad");
  EXPECT_EQ(reader.status().message(), "config.json: bad[0]: expected a number, found an object of 1");
  for (const char* text : {R"({"model_type":"x","a":Infinit})", R"({"model_type":"x","a":NaNs})",
                           R"({"model_type":"x","a":--Infinity})", R"({"model_type":"x","a":1Infinity})"})
    EXPECT_EQ(parse_hf_config(text).status().code(), StatusCode::kCorrupt) << text;
}

TEST(HfConfigTest, FilesAreNamedByTheirFolder) {
  MemoryFileSystem files;
  EXPECT_EQ(read_hf_config("m", files).status().code(), StatusCode::kNotFound);
  files.put("m/config.json", "{}");
  EXPECT_THAT(read_hf_config("m", files).status().message(),
              testing::StartsWith("m: config.json: model_type"));
  files.put("m/config.json", std::string(16'000'001, ' '));
  EXPECT_THAT(read_hf_config("m", files).status().message(), HasSubstr("expected at most"));
}

RopeConfig read_rope(const std::string& members, Status& status, const RopeDefaults& defaults = {}) {
  const Json json = *parse_json("{" + members + "}");
  ConfigReader reader("config.json", json);
  const RopeConfig rope = read_rope_config(reader, defaults);
  status = reader.status();
  return rope;
}

TEST(RopeConfigTest, BothLayoutsOfLlama3GiveTheSame) {
  const std::string scaling =
      R"("rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192)";
  const std::string old_layout = R"("rope_theta":500000.0,"rope_scaling":{)" + scaling + "}";
  const std::string new_layout = R"("rope_parameters":{"rope_theta":500000.0,)" + scaling + "}";
  for (const std::string& members : {old_layout, new_layout}) {
    Status status;
    const RopeConfig rope = read_rope(members, status);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(rope.kind, RopeKind::kLlama3);
    EXPECT_EQ(rope.theta, 500000.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.high_freq_factor, 4.0);
    EXPECT_EQ(rope.original_max_position_embeddings, 8192);
  }
}

TEST(RopeConfigTest, DefaultsAndOldSpellingsAreRead) {
  Status status;
  EXPECT_EQ(read_rope("", status).theta, 10000.0);
  EXPECT_EQ(read_rope(R"("rope_scaling":null,"rope_theta":1000000)", status).theta, 1e6);
  EXPECT_EQ(read_rope(R"("rope_scaling":{"type":"linear","factor":2})", status).kind, RopeKind::kLinear);
  EXPECT_EQ(
      read_rope(R"("rope_scaling":{"type":"su","short_factor":[1.5],"long_factor":[2,3]})", status).kind,
      RopeKind::kLongRope);
  const std::string outside = R"("original_max_position_embeddings":4096,"rope_scaling":{"type":"longrope"})";
  EXPECT_EQ(read_rope(outside, status).original_max_position_embeddings, 4096);
  EXPECT_EQ(read_rope(outside, status).factor, 0.0);  // Not given: it follows from the two lengths.
  const RopeConfig none = read_rope("", status, {.theta = 150000.0, .partial_rotary_factor = 0.25});
  EXPECT_EQ(none.theta, 150000.0);
  EXPECT_EQ(none.partial_rotary_factor, 0.25);
  EXPECT_TRUE(status.ok());
}

TEST(RopeConfigTest, TheInnerPartialFactorWinsAndTheOuterIsAFallback) {
  Status status;
  EXPECT_EQ(
      read_rope(R"("partial_rotary_factor":0.5,"rope_parameters":{"partial_rotary_factor":0.25})", status)
          .partial_rotary_factor,
      0.25);
  EXPECT_EQ(read_rope(R"("partial_rotary_factor":0.5,"rope_parameters":{})", status).partial_rotary_factor,
            0.5);
  EXPECT_TRUE(status.ok());
  read_rope(R"("partial_rotary_factor":1.5,"rope_parameters":{})", status);
  EXPECT_EQ(status.message(), "config.json: partial_rotary_factor: expected a number in (0, 1], found 1.5");
}

TEST(RopeConfigTest, AScalingObjectReplacesParameters) {
  Status status;
  const RopeConfig rope = read_rope(
      R"("rope_theta":7,"rope_scaling":{"rope_type":"linear","factor":3},"rope_parameters":{"rope_type":"yarn","rope_theta":9})",
      status);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(rope.kind, RopeKind::kLinear);
  EXPECT_EQ(rope.theta, 7.0);
}

TEST(RopeConfigTest, ParametersPerKindOfLayerAreTold) {
  const std::string members =
      R"("rope_parameters":{"full_attention":{"rope_type":"linear","factor":8,"rope_theta":1e6},)"
      R"("sliding_attention":{"rope_type":"default","rope_theta":10000}})";
  Status status;
  EXPECT_EQ(read_rope(members, status).factor, 8.0);
  EXPECT_EQ(read_rope(members, status).theta, 1e6);
  const RopeConfig sliding = read_rope(members, status, {.theta = 5.0, .layer_type = "sliding_attention"});
  EXPECT_EQ(sliding.kind, RopeKind::kDefault);
  EXPECT_EQ(sliding.theta, 10000.0);
  EXPECT_TRUE(status.ok());
}

TEST(RopeConfigTest, WrongOnesNameKeyAndValue) {
  Status status;
  read_rope(R"("rope_scaling":{"rope_type":"spiral","factor":2})", status);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              testing::StartsWith("config.json: rope_scaling.rope_type: expected one of default, "));
  EXPECT_THAT(status.message(), testing::EndsWith("found \"spiral\""));
  read_rope(R"("rope_scaling":{"rope_type":"yarn"})", status);
  EXPECT_EQ(status.message(),
            "config.json: rope_scaling.factor: expected a positive number, but it is missing");
  read_rope(R"("rope_scaling":{"rope_type":"llama3","factor":2,"low_freq_factor":4,"high_freq_factor":4})",
            status);
  EXPECT_THAT(status.message(),
              HasSubstr("rope_scaling.low_freq_factor: expected a number below high_freq_factor"));
  read_rope(R"("rope_theta":0)", status);
  EXPECT_EQ(status.message(), "config.json: rope_theta: expected a positive number, found 0");
}

TEST(GenerationConfigTest, ReadsDefaultsAndReportsWhatIsNotApplied) {
  const HfConfig config = parse(R"({"model_type":"x","eos_token_id":9})");
  const auto read = parse_generation_config(
      R"({"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":0,"max_new_tokens":7,"eos_token_id":[1,2],)"
      R"("repetition_penalty":1.05,"presence_penalty":0.0,"no_repeat_ngram_size":3,"bad_words_ids":[[1]],"suppress_tokens":[],)"
      R"("transformers_version":"4.0"})",
      config);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->do_sample, true);
  EXPECT_EQ(read->temperature, 0.6);
  EXPECT_EQ(read->top_k, 20);
  EXPECT_EQ(read->top_p, 0.95);
  EXPECT_EQ(read->min_p, 0.0);
  EXPECT_EQ(read->max_new_tokens, 7);
  EXPECT_THAT(read->eos_token_ids, ElementsAre(1, 2));
  EXPECT_THAT(read->ignored,
              ElementsAre("repetition_penalty = 1.05", "no_repeat_ngram_size = 3", "bad_words_ids = [[1]]"));
}

TEST(GenerationConfigTest, AbsentFieldsAreEmptyAndEndIdsComeFromTheModel) {
  const HfConfig config = parse(R"({"model_type":"x","eos_token_id":9})");
  MemoryFileSystem files;
  const auto none = read_generation_config("m", config, files);
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(none->eos_token_ids, ElementsAre(9));
  files.put("m/generation_config.json", R"({"temperature":null,"top_k":null})");
  const auto empty = read_generation_config("m", config, files);
  ASSERT_TRUE(empty.ok());
  EXPECT_THAT(empty->eos_token_ids, ElementsAre(9));
  EXPECT_EQ(empty->temperature, std::nullopt);
  EXPECT_EQ(empty->top_k, std::nullopt);
}

TEST(GenerationConfigTest, ValuesOutOfRangeAreRefused) {
  const HfConfig config = parse(R"({"model_type":"x"})");
  for (const char* text :
       {R"({"temperature":-0.1})", R"({"top_p":0})", R"({"top_p":1.01})", R"({"min_p":-1})", R"({"min_p":2})",
        R"({"top_k":-1})", R"({"top_k":1.5})", R"({"max_new_tokens":0})", R"({"do_sample":1})", "[]", "{"}) {
    const Status status = parse_generation_config(text, config).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << text;
    EXPECT_THAT(status.message(), testing::StartsWith("generation_config.json: ")) << text;
  }
}

TEST(HfConfigTest, ReadsPublishedFiles) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const std::string folder = std::string(kSharedData) + "/checkpoints/";
  const auto gpt_oss = read_hf_config(folder + "gpt-oss-20b");
  ASSERT_TRUE(gpt_oss.ok()) << gpt_oss.status().message();
  EXPECT_EQ(gpt_oss->model_type, "gpt_oss");
  EXPECT_EQ(gpt_oss->quantization.quant_method, "mxfp4");
  EXPECT_EQ(gpt_oss->quantization.defaults.mode, QuantMode::kMxfp4);
  EXPECT_EQ(gpt_oss->quantization.modules_to_not_convert.size(), 4u);
  ConfigReader reader = gpt_oss->reader();
  const RopeConfig yarn = read_rope_config(reader);
  EXPECT_EQ(yarn.kind, RopeKind::kYarn);
  EXPECT_EQ(yarn.theta, 150000.0);
  EXPECT_EQ(yarn.factor, 32.0);
  EXPECT_EQ(yarn.original_max_position_embeddings, 4096);
  EXPECT_FALSE(yarn.truncate);
  EXPECT_THAT(read_generation_config(folder + "gpt-oss-20b", *gpt_oss)->eos_token_ids,
              ElementsAre(200002, 199999));

  const auto qwen = read_hf_config(folder + "qwen3.8-27b");
  ASSERT_TRUE(qwen.ok()) << qwen.status().message();
  EXPECT_EQ(qwen->model_type, "qwen3_5");
  EXPECT_THAT(qwen->eos_token_ids, ElementsAre(248044));
  reader = qwen->reader();
  EXPECT_EQ(reader.positive_int("hidden_size"), 5120);
  const RopeConfig rope = read_rope_config(reader);
  EXPECT_EQ(rope.theta, 1e7);
  EXPECT_EQ(rope.partial_rotary_factor, 0.25);
  EXPECT_THAT(rope.mrope_section, ElementsAre(11, 11, 10));
  EXPECT_TRUE(rope.mrope_interleaved);
  const auto generation = read_generation_config(folder + "qwen3.8-27b", *qwen);
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ(generation->top_k, 20);
  EXPECT_THAT(generation->eos_token_ids, ElementsAre(248046, 248044));
}

}  // namespace
}  // namespace tensorfold
