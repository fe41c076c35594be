// server/openai_schema: bodies to structs, and the sentence for each wrong field.
#include "server/openai_schema.h"

#include "gmock/gmock.h"

namespace tensorfold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const SamplingDefaults kDefaults{.sampling = {.temperature = 0.5f, .top_k = 40, .seed = {}},
                                 .vocab_size = 100};

ChatRequest chat(const std::string& fields) {
  ChatRequest request;
  const auto error = parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}",
                                        kDefaults, request);
  EXPECT_FALSE(error.has_value()) << error->message;
  return request;
}

ApiError chat_error(const std::string& fields) {
  ChatRequest request;
  const auto error = parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}",
                                        kDefaults, request);
  EXPECT_TRUE(error.has_value()) << fields;
  return error.value_or(ApiError{});
}

CompletionRequest completion(const std::string& body) {
  CompletionRequest request;
  const auto error = parse_completion_request(body, kDefaults, request);
  EXPECT_FALSE(error.has_value()) << error->message;
  return request;
}

ApiError completion_error(const std::string& body) {
  CompletionRequest request;
  const auto error = parse_completion_request(body, kDefaults, request);
  EXPECT_TRUE(error.has_value()) << body;
  return error.value_or(ApiError{});
}

TEST(OpenAiSchema, LeavesOutFieldsToTheDefaults) {
  const GenerationFields fields = chat("").generation;
  EXPECT_EQ(fields.sampling.temperature, 0.5f);
  EXPECT_EQ(fields.sampling.top_k, 40);
  EXPECT_EQ(fields.sampling.top_p, 1.0f);
  EXPECT_FALSE(fields.sampling.seed.has_value());
  EXPECT_EQ(fields.max_tokens, -1);
  EXPECT_EQ(fields.num_choices, 1);
  EXPECT_EQ(fields.num_logprobs, -1);
  EXPECT_FALSE(fields.stream);
  EXPECT_TRUE(fields.stop.empty());
}

TEST(OpenAiSchema, ReadsEverySamplingField) {
  const GenerationFields fields =
      chat(
          R"(,"temperature":0.25,"top_p":0.5,"top_k":7,"min_p":0.125,"seed":-1,"max_tokens":9,"n":3,"stop":["a","b"],
             "stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":4,"ignore_eos":true,
             "draft":false,"model":"m")")
          .generation;
  EXPECT_EQ(fields.sampling.temperature, 0.25f);
  EXPECT_EQ(fields.sampling.top_p, 0.5f);
  EXPECT_EQ(fields.sampling.top_k, 7);
  EXPECT_EQ(fields.sampling.min_p, 0.125f);
  EXPECT_EQ(fields.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(fields.max_tokens, 9);
  EXPECT_EQ(fields.num_choices, 3);
  EXPECT_THAT(fields.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(fields.stream);
  EXPECT_TRUE(fields.include_usage);
  EXPECT_EQ(fields.num_logprobs, 4);
  EXPECT_TRUE(fields.ignore_eos);
  EXPECT_FALSE(fields.draft);
  EXPECT_EQ(fields.model, "m");
}

TEST(OpenAiSchema, DraftsUnlessARequestDeclines) {
  EXPECT_TRUE(chat("").generation.draft);
  EXPECT_EQ(chat_error(R"(,"draft":"lookup")").param, "draft");
}

TEST(OpenAiSchema, UsageSaysWhatDraftsDidWhereADrafterGuessed) {
  Usage usage{.prompt_tokens = 3, .completion_tokens = 9};
  EXPECT_EQ(usage_json(usage).find("speculative"), nullptr);
  usage.speculative.drafter = "lookup";
  usage.speculative.rounds = 4;
  usage.speculative.drafted = 10;
  usage.speculative.accepted = 5;
  usage.speculative.zero_accept_rounds = 1;
  usage.speculative.passes_avoided = 5;
  usage.speculative.search = {.searches = 6, .matches = 4, .match_tokens = 10};
  usage.speculative.computing_ms = 1.5;
  usage.speculative.drafters = {{.name = "lookup", .rounds = 1, .drafted = 3, .accepted = 2},
                                {.name = "mtp", .rounds = 3, .drafted = 7, .accepted = 3}};
  DraftUsage sum = usage.speculative;
  sum.add(usage.speculative);
  EXPECT_EQ(dump_json(*usage_json(usage).find("speculative")),
            R"({"drafter":"lookup","rounds":4,"drafted":10,"accepted":5,"accepted_per_pass":1.25,)"
            R"("acceptance_rate":0.5,"zero_accept_rounds":1,"passes_avoided":5,"searches":6,"matches":4,)"
            R"("mean_match_tokens":2.5,"computing_ms":1.5,"drafters":[)"
            R"({"name":"lookup","rounds":1,"drafted":3,"accepted":2},)"
            R"({"name":"mtp","rounds":3,"drafted":7,"accepted":3}]})");
  EXPECT_EQ(dump_json(speculative_json(sum)),
            R"({"drafter":"lookup","rounds":8,"drafted":20,"accepted":10,"accepted_per_pass":1.25,)"
            R"("acceptance_rate":0.5,"zero_accept_rounds":2,"passes_avoided":10,"searches":12,"matches":8,)"
            R"("mean_match_tokens":2.5,"computing_ms":3.0,"drafters":[)"
            R"({"name":"lookup","rounds":2,"drafted":6,"accepted":4},)"
            R"({"name":"mtp","rounds":6,"drafted":14,"accepted":6}]})");
}

TEST(OpenAiSchema, TakesNullAsLeftOut) {
  const GenerationFields fields =
      chat(R"(,"temperature":null,"stop":null,"seed":null,"logprobs":null,"n":null)").generation;
  EXPECT_EQ(fields.sampling.temperature, 0.5f);
  EXPECT_EQ(fields.num_choices, 1);
}

TEST(OpenAiSchema, TakesWholeDoublesAsIntegersAndNothingElse) {
  EXPECT_EQ(chat(R"(,"max_tokens":5.0)").generation.max_tokens, 5);
  EXPECT_EQ(chat_error(R"(,"max_tokens":5.5)").param, "max_tokens");
  EXPECT_EQ(chat_error(R"(,"max_tokens":"5")").param, "max_tokens");
  EXPECT_EQ(chat_error(R"(,"max_tokens":1e300)").param, "max_tokens");
  EXPECT_EQ(chat_error(R"(,"max_tokens":true)").param, "max_tokens");
  EXPECT_EQ(chat_error(R"(,"seed":18446744073709551615)").param, "seed");
}

TEST(OpenAiSchema, TakesAVanishingTemperatureAsGreedy) {
  EXPECT_EQ(chat(R"(,"temperature":1e-30)").generation.sampling.temperature, 0.0f);
  EXPECT_EQ(chat(R"(,"temperature":0)").generation.sampling.temperature, 0.0f);
  EXPECT_GT(chat(R"(,"temperature":0.001)").generation.sampling.temperature, 0.0f);
}

TEST(OpenAiSchema, PrefersTheNewerNameOfMaxTokens) {
  EXPECT_EQ(chat(R"(,"max_completion_tokens":8)").generation.max_tokens, 8);
  EXPECT_EQ(chat(R"(,"max_completion_tokens":8,"max_tokens":8)").generation.max_tokens, 8);
  EXPECT_EQ(chat_error(R"(,"max_completion_tokens":8,"max_tokens":9)").param, "max_completion_tokens");
}

TEST(OpenAiSchema, SaysWhatIsWrongWithAValueAndShowsIt) {
  const ApiError error = chat_error(R"(,"temperature":"hot")");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "temperature");
  EXPECT_EQ(error.message, "'temperature' must be a number from 0 to 100, not \"hot\"");
  EXPECT_LT(chat_error(R"(,"temperature":")" + std::string(100000, 'x') + "\"").message.size(), 200u);
}

TEST(OpenAiSchema, RefusesFieldsThatWouldHaveToChangeTheReply) {
  EXPECT_EQ(chat_error(R"(,"presence_penalty":0.1)").param, "presence_penalty");
  EXPECT_EQ(chat_error(R"(,"logit_bias":{"1":2})").param, "logit_bias");
  EXPECT_EQ(chat_error(R"(,"min_tokens":1)").param, "min_tokens");
  EXPECT_EQ(chat_error(R"(,"response_format":{"type":"json_schema"})").param, "response_format");
  EXPECT_EQ(chat_error(R"(,"guided_json":{})").param, "guided_json");
  chat(
      R"(,"presence_penalty":0.0,"logit_bias":{},"min_tokens":0,"response_format":{"type":"text"},"suffix":null)"
      R"(,"modalities":["text"])");
}

TEST(OpenAiSchema, RefusesUnknownFieldsWithTheNearestKnownOne) {
  const ApiError error = chat_error(R"(,"max_token":5)");
  EXPECT_EQ(error.param, "max_token");
  EXPECT_EQ(error.message, "unknown field \"max_token\"; did you mean 'max_tokens'?");
  EXPECT_EQ(chat_error(R"(,"entirely_unknown":5)").message, "unknown field \"entirely_unknown\"");
  chat(R"(,"entirely_unknown":null)");
}

TEST(OpenAiSchema, ReportsTheFirstErrorOnly) {
  EXPECT_EQ(chat_error(R"(,"n":0,"temperature":-1)").param, "temperature") << "in the order of reading";
}

TEST(OpenAiSchema, ChecksMessagesAtTheirPlace) {
  ChatRequest request;
  const auto param = [&](const std::string& messages) {
    const auto error = parse_chat_request("{\"messages\":" + messages + "}", kDefaults, request);
    return error ? error->param : "none";
  };
  EXPECT_EQ(param("[]"), "messages");
  EXPECT_EQ(param("{}"), "messages");
  EXPECT_EQ(param("[1]"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role":"user","content":"x"},{"role":""}])"), "messages[1].role");
  EXPECT_EQ(param(R"([{"role":"user","content":5}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0]");
  EXPECT_EQ(param(R"([{"role":"user","content":[{"type":"text","text":"x"},{"type":"input_audio"}]}])"),
            "messages[0].content[1]");
  EXPECT_EQ(param(R"([{"role":"assistant","tool_calls":[{}]}])"), "messages[0].tool_calls");
  EXPECT_EQ(
      param(
          R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}])"),
      "none");
}

TEST(OpenAiSchema, PassesToolsUnlessNoneAreWanted) {
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  EXPECT_TRUE(chat(tools).tools.is_array());
  EXPECT_TRUE(chat(tools + R"(,"tool_choice":"auto")").tools.is_array());
  EXPECT_TRUE(chat(tools + R"(,"tool_choice":"none")").tools.is_null());
  EXPECT_TRUE(chat(R"(,"tools":[])").tools.is_null());
  EXPECT_EQ(chat_error(tools + R"(,"tool_choice":"required")").param, "tool_choice");
  EXPECT_EQ(chat_error(tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})").param,
            "tool_choice");
  for (const char* wrong : {"[5]", "{}", "[{\"type\":\"function\"}]", "[{\"function\":{\"name\":\"\"}}]"})
    EXPECT_EQ(chat_error(std::string(R"(,"tools":)") + wrong).param, "tools") << wrong;
  EXPECT_TRUE(chat(tools).parallel_tool_calls);
  EXPECT_FALSE(chat(tools + R"(,"parallel_tool_calls":false)").parallel_tool_calls);
}

TEST(OpenAiSchema, ReadsTheThinkingSwitchInEitherSpelling) {
  EXPECT_FALSE(chat("").thinking.has_value());
  EXPECT_EQ(chat(R"(,"enable_thinking":true)").thinking, true);
  EXPECT_EQ(chat(R"(,"thinking":{"type":"disabled"})").thinking, false);
  EXPECT_EQ(chat(R"(,"thinking":{"type":"enabled"},"enable_thinking":true)").thinking, true);
  EXPECT_EQ(chat_error(R"(,"thinking":{"type":"enabled"},"enable_thinking":false)").param, "thinking");
  EXPECT_EQ(chat_error(R"(,"thinking":{"type":"auto"})").param, "thinking");
  EXPECT_EQ(chat_error(R"(,"thinking":false)").param, "thinking");
  EXPECT_EQ(chat_error(R"(,"enable_thinking":1)").param, "enable_thinking");
}

TEST(OpenAiSchema, GathersTemplateVariables) {
  const ChatRequest request = chat(
      R"(,"chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low","date":"2025-01-01")");
  EXPECT_EQ(dump_json(request.template_kwargs), R"({"enable_thinking":false})");
  EXPECT_EQ(request.reasoning_effort, "low");
  EXPECT_EQ(request.date, "2025-01-01");
  EXPECT_TRUE(request.add_generation_prompt);
}

TEST(OpenAiSchema, ReadsEveryKindOfPrompt) {
  EXPECT_EQ(completion(R"({"prompt":"a"})").prompts.size(), 1u);
  EXPECT_EQ(completion(R"({"prompt":["a","b"]})").prompts[1].text, "b");
  EXPECT_THAT(completion(R"({"prompt":[1,99]})").prompts[0].tokens, ElementsAre(1, 99));
  EXPECT_THAT(completion(R"({"prompt":[[1],[2,3]]})").prompts[1].tokens, ElementsAre(2, 3));
  for (const char* prompt :
       {"{}", "5", "[]", "[[]]", "[100]", "[-1]", "[1,\"a\"]", "[\"a\",5]", "[1.5]", "null"})
    EXPECT_EQ(completion_error(std::string(R"({"prompt":)") + prompt + "}").param, "prompt") << prompt;
  EXPECT_EQ(completion_error("{}").param, "prompt");
}

TEST(OpenAiSchema, BoundsTheChoicesOfACompletion) {
  EXPECT_EQ(completion(R"({"prompt":["a","b"],"n":64})").generation.num_choices, 64);
  EXPECT_EQ(completion_error(R"({"prompt":["a","b"],"n":65})").param, "n");
}

TEST(OpenAiSchema, HasOpenAisDefaultLengthForCompletions) {
  EXPECT_EQ(completion(R"({"prompt":"a"})").generation.max_tokens, 16);
  EXPECT_EQ(completion(R"({"prompt":"a","max_tokens":5})").generation.max_tokens, 5);
}

TEST(OpenAiSchema, RefusesLogprobsOfTheEchoedPrompt) {
  EXPECT_EQ(completion(R"({"prompt":"a","logprobs":3})").generation.num_logprobs, 3);
  EXPECT_TRUE(completion(R"({"prompt":"a","echo":true})").echo);
  EXPECT_EQ(completion_error(R"({"prompt":"a","echo":true,"logprobs":1})").param, "echo");
}

TEST(OpenAiSchema, WritesErrorsAsOpenAiDoes) {
  EXPECT_EQ(error_json({.message = "m", .param = "p", .code = {}}),
            R"({"error":{"message":"m","type":"invalid_request_error","param":"p","code":null}})");
  EXPECT_EQ(to_api_error(Status(StatusCode::kBusy, "full")).status, 503);
  EXPECT_EQ(to_api_error(Status(StatusCode::kInvalidArgument, "bad")).status, 400);
  EXPECT_EQ(to_api_error(Status(StatusCode::kInternal, "broken")).status, 500);
  EXPECT_THAT(error_json(to_api_error(Status(StatusCode::kInternal, "broken"))), HasSubstr("server_error"));
}

}  // namespace
}  // namespace tensorfold
