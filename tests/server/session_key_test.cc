// Which requests are taken for turns of one conversation, and above all which are not.
#include "server/session_key.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tensorfold {
namespace {

constexpr const char* kSystem = R"({"role":"system","content":"Be brief."})";

std::optional<SessionKey> chat(const std::string& messages, const std::string& fields = "") {
  ChatRequest request;
  const auto error = parse_chat_request(R"({"messages":[)" + messages + "]" + fields + "}", {}, request);
  EXPECT_FALSE(error) << error->message;
  return chat_session(request.generation, request.messages);
}

std::string said(const std::string& role, const std::string& content) {
  return R"({"role":")" + role + R"(","content":")" + content + R"("})";
}

std::optional<SessionKey> completion(int num_tokens, const std::string& fields = "") {
  CompletionRequest request;
  const auto error = parse_completion_request(R"({"prompt":"x")" + fields + "}", {}, request);
  EXPECT_FALSE(error) << error->message;
  std::vector<int32_t> prompt(static_cast<size_t>(num_tokens));
  std::iota(prompt.begin(), prompt.end(), 0);
  return completion_session(request.generation, prompt);
}

TEST(SessionKey, AChatFindsItselfByItsBeginning) {
  const std::string first = std::string(kSystem) + "," + said("user", "Hello");
  const std::string second = first + "," + said("assistant", "Hi") + "," + said("user", "Why?");
  ASSERT_TRUE(chat(first));
  EXPECT_EQ(chat(first), chat(second));
  EXPECT_EQ(chat(first), chat(second, R"(,"max_tokens":5,"temperature":0)"));
  EXPECT_NE(chat(first), chat(std::string(kSystem) + "," + said("user", "Hello!")));
  EXPECT_NE(chat(first), chat(said("user", "Hello")));
  EXPECT_FALSE(chat(kSystem)) << "a system message alone may be everybody's";
}

TEST(SessionKey, AKeyJoinsWhateverTheTexts) {
  const std::string key = R"(,"prompt_cache_key":"k")", other = R"(,"prompt_cache_key":"l")";
  ASSERT_TRUE(chat(said("user", "a"), key));
  EXPECT_EQ(chat(said("user", "a"), key), chat(said("user", "b"), key));
  EXPECT_EQ(chat(said("user", "a"), key), completion(10, key));
  EXPECT_NE(chat(said("user", "a"), key), chat(said("user", "a"), other));
  EXPECT_NE(chat(said("user", "a"), key), chat(said("user", "a")));
}

TEST(SessionKey, UsersAreKeptApart) {
  for (const char* field : {"user", "safety_identifier"}) {
    const auto of = [&](const char* name) { return std::string(",\"") + field + "\":\"" + name + "\""; };
    const std::string key = R"(,"prompt_cache_key":"k")";
    EXPECT_NE(chat(said("user", "a"), of("x")), chat(said("user", "a"), of("y")));
    EXPECT_NE(chat(said("user", "a"), of("x") + key), chat(said("user", "a"), of("y") + key));
    EXPECT_NE(chat(said("user", "a"), of("x")), chat(said("user", "a")));
    EXPECT_EQ(chat(said("user", "a"), of("x")), chat(said("user", "a"), of("x")));
  }
}

TEST(SessionKey, ACompletionBelongsToAConversationOnlyWhereItSaysWhose) {
  EXPECT_FALSE(completion(100));
  const std::string user = R"(,"user":5)";
  ASSERT_TRUE(completion(64, user));
  EXPECT_EQ(completion(64, user), completion(1000, user));
  EXPECT_NE(completion(63, user), completion(1000, user));
  EXPECT_NE(completion(64, user), completion(64, R"(,"user":6)"));
}

}  // namespace
}  // namespace tensorfold
