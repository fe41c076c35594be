// server/api_server over a real engine and real sockets, with several clients at a time: what ThreadSanitizer
// and AddressSanitizer should see of the server. What each field does is tested in openai_client_test.py.
#include "server/api_server.h"

#include <chrono>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "base/json.h"
#include "gmock/gmock.h"
#include "tests/server/raw_client.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/toy_model.h"

namespace tensorfold {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// Of a completion that does not end by itself.
std::string completion_body(const std::string& prompt, int max_tokens, bool stream) {
  Json json = Json::object();
  json.set("prompt", prompt);
  json.set("max_tokens", max_tokens);
  json.set("ignore_eos", true);
  json.set("stream", stream);
  return dump_json(json);
}

/// Of HTTP/1.0, so that the server closes after the reply and sends a stream without chunk sizes.
std::string post(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.0\r\nAuthorization: Bearer key\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

/// A server of a toy model that asks for the API key "key".
class ApiServerTest : public testing::Test {
 protected:
  /// Seconds of decoding, so that a reply that is to be cut short cannot end before.
  static constexpr int kContext = 32768;

  void SetUp() override {
    ASSERT_TRUE(write_toy_model({.max_position_embeddings = kContext}, folder_.path()).ok());
    std::ofstream(folder_.path() + "/chat_template.jinja") << "{{ messages[0].content }}";
    auto model = load_model(folder_.path(), {.num_threads = 2});
    ASSERT_TRUE(model.ok()) << model.status().message();
    auto engine = Engine::create(*model, {.max_sequences = 8, .pass_tokens = 64});
    ASSERT_TRUE(engine.ok()) << engine.status().message();

    ApiServerOptions options;
    options.http.port = 0;
    options.http.drain_timeout_s = 600;
    options.http.max_unsent_bytes = 1 << 30;  // a test that is slow to read is no fault
    options.api_key = "key";
    options.model_name = "toy";
    auto server = ApiServer::create(options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    thread_ = std::thread([this, e = std::move(engine).value()]() mutable { server_->run(std::move(e)); });
  }

  void TearDown() override {
    if (!thread_.joinable()) return;
    server_->stop();
    server_->stop();
    thread_.join();
  }

  /// Everything that the server answers to `request` before it closes.
  std::string ask(const std::string& request) {
    RawClient client(server_->port());
    client.send(request);
    return client.read_to_end();
  }

  std::string get(const std::string& path) {
    return ask("GET " + path + " HTTP/1.0\r\nAuthorization: Bearer key\r\n\r\n");
  }

  /// The text of a completion, whichever way it comes; a failure and "" when it is not whole.
  std::string complete(const std::string& prompt, int max_tokens, bool stream) {
    const std::string reply = ask(post("/v1/completions", completion_body(prompt, max_tokens, stream)));
    const size_t head = reply.find("\r\n\r\n");
    const bool is_whole = reply.starts_with("HTTP/1.1 200 ") && head != std::string::npos &&
                          (!stream || reply.ends_with("\n\ndata: [DONE]\n\n"));
    EXPECT_TRUE(is_whole) << reply;
    if (!is_whole) return "";
    return stream ? stream_text(reply.substr(head + 4)) : choice_text(reply.substr(head + 4));
  }

  static std::string choice_text(const std::string& json_text) {
    const Result<Json> json = parse_json(json_text);
    const Json* choices = json.ok() ? json->find("choices") : nullptr;
    EXPECT_TRUE(choices != nullptr && choices->as_array().size() == 1) << json_text;
    return choices == nullptr ? "" : choices->as_array().at(0).find("text")->as_string();
  }

  static std::string stream_text(const std::string& events) {
    std::string text;
    for (size_t begin = 0; begin < events.size();) {
      const size_t end = events.find("\n\n", begin);
      const std::string event = events.substr(begin, end - begin);
      if (event != "data: [DONE]") text += choice_text(event.substr(std::string_view("data: ").size()));
      begin = end + 2;
    }
    return text;
  }

  int64_t metric(const std::string& name) {
    const std::string text = get("/metrics");
    const size_t at = text.find("\n" + name + " ");
    EXPECT_NE(at, std::string::npos) << text;
    return at == std::string::npos ? -1 : std::stoll(text.substr(at + name.size() + 2));
  }

  /// Polls for up to a minute, which no passing test comes near.
  void wait_for_metric(const std::string& name, int64_t wanted) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    int64_t value = metric(name);
    for (; value != wanted && std::chrono::steady_clock::now() < deadline; value = metric(name))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(value, wanted) << name;
  }

  TemporaryFolder folder_;
  std::unique_ptr<ApiServer> server_;
  std::thread thread_;
};

constexpr const char* kCancelled = "tensorfold_replies_total{outcome=\"cancelled\"}";

TEST_F(ApiServerTest, SixClientsAtOnceHaveTheRepliesOfOneAlone) {
  constexpr int kTokens = 40;
  std::vector<std::string> alone, together(6);
  for (size_t i = 0; i < together.size(); ++i)
    alone.push_back(complete("prompt " + std::string(i * 30, 'x'), kTokens, i % 2 == 1));
  std::vector<std::thread> clients;
  for (size_t i = 0; i < together.size(); ++i)
    clients.emplace_back([this, i, &reply = together[i]] {
      reply = complete("prompt " + std::string(i * 30, 'x'), kTokens, i % 2 == 0);
    });
  // Whoever watches meets the engine and the counters as well.
  while (metric("tensorfold_replies_total{outcome=\"done\"}") < 12 && !testing::Test::HasFailure())
    EXPECT_THAT(get("/v1/models"), HasSubstr("\"max_model_len\":" + std::to_string(kContext)));
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(together, alone);
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_EQ(metric("tensorfold_generated_tokens_total"), 12 * kTokens);
  wait_for_metric("tensorfold_kv_pages_used", 0);
}

TEST_F(ApiServerTest, AClientThatLeavesMidStreamCancelsItsOwnReplyOnly) {
  const std::string expected = complete("stays", 60, false);
  RawClient leaving(server_->port());
  leaving.send(post("/v1/completions", completion_body("leaves", kContext - 100, true)));
  EXPECT_THAT(leaving.read_until("\n\n"), StartsWith("HTTP/1.1 200 "));
  std::string reply;
  std::thread staying([&] { reply = complete("stays", 60, true); });
  leaving.close_now();
  staying.join();
  EXPECT_EQ(reply, expected);
  wait_for_metric(kCancelled, 1);
  wait_for_metric("tensorfold_sequences_running", 0);
  EXPECT_EQ(metric("tensorfold_kv_pages_used"), 0);
  EXPECT_LT(metric("tensorfold_generated_tokens_total"), kContext);
}

TEST_F(ApiServerTest, AClientThatLeavesBeforeAWholeReplyCancelsIt) {
  RawClient leaving(server_->port());
  leaving.send(post("/v1/completions", completion_body("leaves", kContext - 100, false)));
  wait_for_metric("tensorfold_sequences_running", 1);
  leaving.close_now();
  wait_for_metric(kCancelled, 1);
}

TEST_F(ApiServerTest, SeveralChoicesOfAChatShareOneStream) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"Hello"}],"n":3,"max_tokens":20,"ignore_eos":true,"stream":true})";
  const std::string reply = ask(post("/v1/chat/completions", body));
  EXPECT_THAT(reply, EndsWith("data: [DONE]\n\n"));
  for (const char* index : {"\"index\":0", "\"index\":1", "\"index\":2"})
    EXPECT_THAT(reply, HasSubstr(index));
  EXPECT_EQ(metric("tensorfold_generated_tokens_total"), 60);
}

TEST_F(ApiServerTest, RefusalsAreJsonAndLeaveTheServerServing) {
  const auto refuses = [&](const std::string& request, const char* status, const char* part) {
    const std::string reply = ask(request);
    EXPECT_THAT(reply, StartsWith(std::string("HTTP/1.1 ") + status + " ")) << request;
    EXPECT_THAT(reply, HasSubstr("{\"error\":{")) << request;
    EXPECT_THAT(reply, HasSubstr(part)) << request;
  };
  refuses(post("/v1/completions", "{\"prompt\": "), "400", "JSON");
  refuses(post("/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 0}"), "400", "max_tokens");
  refuses(post("/v1/completions", "{\"prompt\": \"x\", \"model\": \"other\"}"), "404", "other");
  refuses(post("/v1/nonsense", "{}"), "404", "/v1/nonsense");
  refuses("GET /v1/completions HTTP/1.0\r\nAuthorization: Bearer key\r\n\r\n", "405", "POST");
  refuses("GET /v1/models HTTP/1.0\r\nAuthorization: Bearer kez\r\n\r\n", "401", "API key");
  refuses("GET /metrics HTTP/1.0\r\n\r\n", "401", "API key");
  EXPECT_THAT(ask("GET /health HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(complete("still there", 5, false), complete("still there", 5, true));
}

TEST_F(ApiServerTest, AStopLetsAStreamEndAndASecondOneCutsItShort) {
  RawClient ends(server_->port()), cut(server_->port());
  ends.send(post("/v1/completions", completion_body("ends", 200, true)));
  ends.read_until("\n\n");
  cut.send(post("/v1/completions", completion_body("is cut", kContext - 100, true)));
  cut.read_until("\n\n");
  server_->stop();
  EXPECT_THAT(ends.read_to_end(), EndsWith("data: [DONE]\n\n"));
  server_->stop();
  const std::string rest = cut.read_to_end();
  EXPECT_THAT(rest, HasSubstr("\"code\":\"cancelled\""));
  EXPECT_THAT(rest, Not(HasSubstr("[DONE]"))) << "half a reply must not look whole";
  ends.close_now();
  cut.close_now();
  thread_.join();
}

}  // namespace
}  // namespace tensorfold
