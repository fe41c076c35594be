// Loading whole folders: what is read, and how a folder that lacks or contradicts something is refused.
#include "engine/loaded_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "tests/support/toy_model.h"

namespace tensorfold {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LoadModelTest : public testing::Test {
 protected:
  LoadModelTest() { TF_CHECK(write_toy_model({}, folder_.path()).ok()); }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write(const std::string& name, std::string_view content) { std::ofstream(path(name)) << content; }
  void remove(const std::string& name) { std::filesystem::remove(path(name)); }

  Status refusal(const LoadOptions& options = {.num_threads = 1}) {
    const auto loaded = load_model(folder_.path(), options);
    return loaded.ok() ? Status() : loaded.status();
  }

  TemporaryFolder folder_;
};

TEST_F(LoadModelTest, AWholeFolderLoads) {
  write("chat_template.jinja", "{{ messages[0].content }}");
  int64_t done = 0, total = 0;
  const auto loaded =
      load_model(folder_.path() + "/.", {.num_threads = 2, .progress = [&](int64_t d, int64_t t) {
                                           done = d;
                                           total = t;
                                         }});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ((*loaded)->name, std::filesystem::path(folder_.path()).filename());
  EXPECT_EQ((*loaded)->ops->info().name, "cpu");
  EXPECT_EQ((*loaded)->ops->info().num_threads, 2);
  EXPECT_EQ((*loaded)->model->spec().model_type, "llama");
  EXPECT_NE((*loaded)->tokenizer, nullptr);
  EXPECT_NE((*loaded)->chat, nullptr);
  EXPECT_FALSE((*loaded)->generation.eos_token_ids.empty());
  EXPECT_GT(total, 0);
  EXPECT_EQ(done, total);
}

TEST_F(LoadModelTest, OptionsReachTheModelAndItsOps) {
  const auto loaded = load_model(folder_.path(), {.use_reference_ops = true, .compute_f32 = true});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ((*loaded)->ops->info().name, "reference");
  EXPECT_EQ((*loaded)->model->spec().activation_dtype, DType::kF32);
  EXPECT_EQ((*loaded)->chat, nullptr) << "the toy has no template";
  EXPECT_THAT(refusal({.num_threads = 1, .context_tokens = 1025}).message(), HasSubstr("1025"));
}

TEST_F(LoadModelTest, MissingThingsAreNotFoundByName) {
  EXPECT_EQ(load_model(folder_.path() + "/nowhere", {}).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(load_model(folder_.path() + "/nowhere", {}).status().message(), HasSubstr("nowhere"));
  remove("tokenizer.json");
  EXPECT_EQ(refusal().code(), StatusCode::kNotFound);
  EXPECT_THAT(refusal().message(), HasSubstr("tokenizer.json"));
  EXPECT_TRUE(refusal({.num_threads = 1, .need_tokenizer = false}).ok());
  remove("model.safetensors");
  EXPECT_THAT(refusal({.num_threads = 1, .need_tokenizer = false}).message(), HasSubstr("safetensors"));
  remove("config.json");
  EXPECT_EQ(refusal().code(), StatusCode::kNotFound);
  EXPECT_THAT(refusal().message(), HasSubstr("config.json"));
}

TEST_F(LoadModelTest, WrongFilesAreRefusedEvenIfTheyAreNotNeeded) {
  write("chat_template.jinja", "{% if %}");
  EXPECT_THAT(refusal().message(), HasSubstr("template"));
  remove("chat_template.jinja");
  write("generation_config.json", "{\"top_p\": 7}");
  EXPECT_THAT(refusal().message(), AllOf(HasSubstr("generation_config.json"), HasSubstr("top_p")));
  remove("generation_config.json");
  write("tokenizer.json", "{");
  EXPECT_THAT(refusal({.num_threads = 1, .need_tokenizer = false}).message(), HasSubstr("tokenizer.json"));
}

TEST_F(LoadModelTest, ATokenizerLargerThanTheVocabularyIsRefused) {
  TemporaryFolder small;
  ASSERT_TRUE(write_toy_model({.vocab_size = kToyVocabSize}, small.path()).ok());
  ASSERT_TRUE(load_model(small.path(), {.num_threads = 1}).ok());
  Json tokenizer = parse_json(toy_tokenizer_json()).value();
  Json more = tokenizer.find("added_tokens")->as_array().at(0);
  more.set("id", kToyEndToken + 1);
  more.set("content", "<|more|>");
  tokenizer.find("added_tokens")->push_back(more);
  std::ofstream(small.path() + "/tokenizer.json") << dump_json(tokenizer);
  EXPECT_THAT(load_model(small.path(), {.num_threads = 1}).status().message(),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("264"), HasSubstr("vocab_size 264")));
}

TEST_F(LoadModelTest, ADraftModelOfTheSameTokenizerIsLoadedBeside) {
  TemporaryFolder small;
  ASSERT_TRUE(write_toy_model({.model_type = "qwen3", .num_layers = 1}, small.path()).ok());
  const auto loaded = load_model(folder_.path(), {.num_threads = 1, .draft_folder = small.path()});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_NE((*loaded)->draft_model, nullptr);
  EXPECT_EQ((*loaded)->draft_model->model->spec().model_type, "qwen3");
  EXPECT_EQ((*loaded)->draft_model->name, std::filesystem::path(small.path()).filename());
  EXPECT_EQ((*loaded)->draft_model->block_drafter, nullptr);
}

TEST_F(LoadModelTest, ADraftModelWithOtherTokensIsRefused) {
  TemporaryFolder small;
  ASSERT_TRUE(write_toy_model({.num_layers = 1}, small.path()).ok());
  const auto refusal_with = [&](Json tokenizer) {
    std::ofstream(small.path() + "/tokenizer.json") << dump_json(tokenizer);
    return refusal({.num_threads = 1, .draft_folder = small.path()}).message();
  };
  Json other = parse_json(toy_tokenizer_json()).value();
  Json more = other.find("added_tokens")->as_array().at(0);
  other.find("added_tokens")->as_array().at(0).set("content", "<|stop|>");
  EXPECT_THAT(refusal_with(other),
              AllOf(HasSubstr("draft model " + small.path()), HasSubstr("its token 263 is '<|stop|>'"),
                    HasSubstr("is '<|end|>'"), HasSubstr("same tokenizer")));
  other = parse_json(toy_tokenizer_json()).value();
  more.set("id", kToyEndToken + 1);
  more.set("content", "<|more|>");
  other.find("added_tokens")->push_back(more);
  EXPECT_THAT(refusal_with(other),
              AllOf(HasSubstr("has 265 tokens"), HasSubstr("has 264"), HasSubstr("same tokenizer")));
  EXPECT_THAT(refusal({.num_threads = 1, .draft_folder = small.path() + "/none"}).message(),
              HasSubstr(small.path() + "/none: no such folder (the draft model)"));
}

}  // namespace
}  // namespace tensorfold
