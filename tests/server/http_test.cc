// server/http over real sockets: what a client sees, and what the handler is told.
#include "server/http.h"

#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "base/log.h"
#include "gmock/gmock.h"
#include "tests/server/raw_client.h"

namespace tensorfold {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// A request the handler was given and has not answered.
struct Received {
  HttpRequest request;
  std::shared_ptr<HttpReply> reply;
};

/// A server whose test answers the requests by hand.
class HttpTest : public testing::Test {
 protected:
  void start(HttpServerOptions options = {}) {
    options.port = 0;
    Result<std::unique_ptr<HttpServer>> server =
        HttpServer::listen(options, [this](HttpRequest&& request, std::shared_ptr<HttpReply> reply) {
          std::lock_guard lock(mutex_);
          received_.push_back({std::move(request), std::move(reply)});
          arrived_.notify_all();
        });
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    thread_ = std::thread([this] { server_->run(); });
  }

  ~HttpTest() override {
    if (!server_) return;
    received_.clear();
    stop_and_join();
  }

  void stop_and_join() {
    if (!thread_.joinable()) return;
    server_->stop();
    server_->stop();
    thread_.join();
  }

  Received next() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::seconds(20), [this] { return !received_.empty(); })) {
      ADD_FAILURE() << "no request came within 20 s";
      return {};
    }
    Received received = std::move(received_.front());
    received_.pop_front();
    return received;
  }

  size_t num_waiting() {
    std::lock_guard lock(mutex_);
    return received_.size();
  }

  uint16_t port() const { return server_->port(); }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Received> received_;  ///< Guarded by mutex_.
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

/// Waits for a callback.
class Signal {
 public:
  void set() {
    std::lock_guard lock(mutex_);
    is_set_ = true;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this] { return is_set_; });
  }
  bool is_set() {
    std::lock_guard lock(mutex_);
    return is_set_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

TEST_F(HttpTest, GivesTheHandlerTheWholeRequest) {
  start();
  RawClient client(port());
  client.send("POST /v1/x?y=1 HTTP/1.1\r\nHost: h\r\nX-Test: a b\r\nContent-Length: 5\r\n\r\nhello");
  const Received received = next();
  EXPECT_EQ(received.request.method, "POST");
  EXPECT_EQ(received.request.path, "/v1/x");
  EXPECT_EQ(received.request.header("x-test"), "a b");
  EXPECT_EQ(received.request.body, "hello");
  received.reply->send({.status = 201, .body = "{\"a\":1}", .headers = {{"X-Reply", "yes"}}});
  const std::string reply = client.read_reply();
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 201 Created\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(reply, HasSubstr("X-Reply: yes\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\n{\"a\":1}"));
}

TEST_F(HttpTest, KeepsTheConnectionAndAnswersPipelinedRequestsInOrder) {
  start();
  RawClient client(port());
  client.send("GET /1 HTTP/1.1\r\n\r\n");
  Received first = next();
  client.send("GET /2 HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\n\r\n");
  // Time for the server to have read them: a whole exchange on another connection.
  RawClient other(port());
  other.send("GET /other HTTP/1.1\r\n\r\n");
  next().reply->send({.body = "other", .headers = {}});
  EXPECT_THAT(other.read_reply(), EndsWith("other"));
  EXPECT_EQ(num_waiting(), 0u) << "later requests must wait for this reply";
  first.reply->send({.body = "/1", .headers = {}});
  EXPECT_THAT(client.read_reply(), EndsWith("/1"));
  for (const char* path : {"/2", "/3"}) {
    const Received received = next();
    EXPECT_EQ(received.request.path, path);
    received.reply->send({.body = path, .headers = {}});
    EXPECT_THAT(client.read_reply(), EndsWith(path));
  }
  EXPECT_TRUE(client.is_open());
}

TEST_F(HttpTest, TakesARequestWhoseHalvesComeBeforeAndAfterTheLastReply) {
  start();
  RawClient client(port());
  client.send("GET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.1\r\nContent-Length: 6\r\n\r\nfir");
  next().reply->send({.body = "one", .headers = {}});
  EXPECT_THAT(client.read_reply(), EndsWith("one"));
  client.send("st");
  client.send("!");
  const Received received = next();
  EXPECT_EQ(received.request.path, "/2");
  EXPECT_EQ(received.request.body, "first!");
}

TEST_F(HttpTest, StreamsInChunksAndTakesTheNextRequestAfterwards) {
  start();
  RawClient client(port());
  client.send("GET /s HTTP/1.1\r\n\r\n");
  const Received received = next();
  received.reply->start_stream({.content_type = "text/event-stream", .body = "one", .headers = {}});
  EXPECT_THAT(client.read_until("3\r\none\r\n"), HasSubstr("Transfer-Encoding: chunked\r\n"));
  received.reply->write("");
  received.reply->write("sixteen bytes!!!");
  EXPECT_EQ(client.read_until("!!!\r\n"), "10\r\nsixteen bytes!!!\r\n");
  received.reply->end_stream();
  received.reply->write("too late");
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  client.send("GET /t HTTP/1.1\r\n\r\n");
  next().reply->send({.body = "next", .headers = {}});
  EXPECT_THAT(client.read_reply(), EndsWith("next"));
}

TEST_F(HttpTest, AnswersHttp10WithoutChunksAndCloses) {
  start();
  RawClient client(port());
  client.send("GET /s HTTP/1.0\r\n\r\n");
  const Received received = next();
  received.reply->start_stream({.body = "one", .headers = {}});
  received.reply->write("two");
  received.reply->end_stream();
  const std::string all = client.read_to_end();
  EXPECT_THAT(all, Not(HasSubstr("chunked")));
  EXPECT_THAT(all, EndsWith("\r\n\r\nonetwo"));
}

TEST_F(HttpTest, SendsNoBodyToHead) {
  start();
  RawClient client(port());
  client.send("HEAD /h HTTP/1.1\r\nConnection: close\r\n\r\n");
  next().reply->send({.body = "body", .headers = {}});
  const std::string all = client.read_to_end();
  EXPECT_THAT(all, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_THAT(all, EndsWith("\r\n\r\n"));
}

TEST_F(HttpTest, TellsAHandlerThatItsClientHasGone) {
  start();
  Signal cancelled;
  RawClient client(port());
  client.send("GET /s HTTP/1.1\r\n\r\n");
  const Received received = next();
  received.reply->on_cancel([&] { cancelled.set(); });
  received.reply->start_stream({.body = "one", .headers = {}});
  client.read_until("one");
  EXPECT_FALSE(cancelled.is_set());
  client.close_now();
  EXPECT_TRUE(cancelled.wait());
}

TEST_F(HttpTest, TellsAHandlerThatItsClientWentBeforeItAsked) {
  start();
  Signal cancelled;
  RawClient client(port());
  client.send("GET /s HTTP/1.1\r\n\r\n");
  const Received received = next();
  client.close_now();
  received.reply->on_cancel([&] { cancelled.set(); });
  EXPECT_TRUE(cancelled.wait());
}

TEST_F(HttpTest, DoesNotCancelAReplyThatEnded) {
  start();
  Signal cancelled, ran;
  RawClient client(port());
  client.send("GET /s HTTP/1.1\r\n\r\n");
  const Received received = next();
  received.reply->on_cancel([&] { cancelled.set(); });
  received.reply->send({.body = "x", .headers = {}});
  client.read_reply();
  client.close_now();
  stop_and_join();
  EXPECT_FALSE(cancelled.is_set());
}

TEST_F(HttpTest, CutsOffAClientThatDoesNotRead) {
  set_log_level(LogLevel::kError);
  HttpServerOptions options;
  options.max_unsent_bytes = 1 << 16;
  start(options);
  Signal cancelled;
  RawClient client(port(), 4096);
  client.send("GET /s HTTP/1.1\r\n\r\n");
  const Received received = next();
  received.reply->on_cancel([&] { cancelled.set(); });
  received.reply->start_stream({.body = "start", .headers = {}});
  // Far more than kernel buffers and the bound hold: without the bound this would all be kept.
  const std::string piece(1 << 16, 'x');
  for (int i = 0; i < 1024 && !cancelled.is_set(); ++i) received.reply->write(piece);
  EXPECT_TRUE(cancelled.wait());
  EXPECT_THAT(client.read_to_end(), Not(HasSubstr("0\r\n\r\n"))) << "a cut stream must not look whole";
}

TEST_F(HttpTest, ClosesAClientThatTakesNoByteInTime) {
  set_log_level(LogLevel::kError);
  HttpServerOptions options;
  options.write_timeout_s = 0.05;
  start(options);
  Signal cancelled;
  RawClient client(port(), 4096);
  client.send("GET /s HTTP/1.1\r\n\r\n");
  const Received received = next();
  received.reply->on_cancel([&] { cancelled.set(); });
  received.reply->start_stream({.body = std::string(8 << 20, 'x'), .headers = {}});
  EXPECT_TRUE(cancelled.wait());
}

TEST_F(HttpTest, RefusesLargeBodiesAndHeads) {
  HttpServerOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 1000;
  start(options);
  RawClient announced(port());
  announced.send("POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_THAT(announced.read_to_end(), StartsWith("HTTP/1.1 413 "));
  RawClient chunked(port());
  chunked.send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'x') +
               "\r\n0\r\n\r\n");
  EXPECT_THAT(chunked.read_to_end(), StartsWith("HTTP/1.1 413 "));
  RawClient head(port());
  head.send("GET / HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n");
  EXPECT_THAT(head.read_to_end(), StartsWith("HTTP/1.1 431 "));
  RawClient fits(port());
  fits.send("POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + std::string(1000, 'x'));
  EXPECT_EQ(next().request.body.size(), 1000u);
}

TEST_F(HttpTest, RefusesWhatIsNotHttp) {
  start();
  for (const char* text : {"hello\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                           "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                           "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
                           "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    RawClient client(port());
    client.send(text);
    EXPECT_THAT(client.read_to_end(), StartsWith("HTTP/1.1 400 ")) << text;
  }
  EXPECT_EQ(num_waiting(), 0u);
}

TEST_F(HttpTest, TellsAClientToSendItsBodyWhereItAsks) {
  start();
  RawClient client(port());
  client.send("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("body");
  EXPECT_EQ(next().request.body, "body");
}

TEST_F(HttpTest, DropsARequestThatDoesNotArriveInTime) {
  HttpServerOptions options;
  options.request_timeout_s = 0.05;
  start(options);
  RawClient client(port());
  client.send("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo");
  EXPECT_THAT(client.read_to_end(), StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpTest, ClosesAnIdleConnectionWithoutAWord) {
  HttpServerOptions options;
  options.idle_timeout_s = 0.05;
  start(options);
  RawClient client(port());
  EXPECT_EQ(client.read_to_end(), "");
}

TEST_F(HttpTest, TellsConnectionsBeyondTheLimitToComeBack) {
  HttpServerOptions options;
  options.max_connections = 1;
  start(options);
  RawClient first(port());
  first.send("GET /1 HTTP/1.1\r\n\r\n");
  const Received received = next();
  RawClient second(port());
  EXPECT_THAT(second.read_to_end(), StartsWith("HTTP/1.1 503 "));
  received.reply->send({.body = "first", .headers = {}});
  EXPECT_THAT(first.read_reply(), EndsWith("first"));
}

TEST_F(HttpTest, AnswersForAHandlerThatDroppedTheReply) {
  start();
  RawClient client(port());
  client.send("GET /1 HTTP/1.1\r\nConnection: close\r\n\r\n");
  next().reply.reset();
  EXPECT_THAT(client.read_to_end(), StartsWith("HTTP/1.1 500 "));
  RawClient streaming(port());
  streaming.send("GET /2 HTTP/1.1\r\n\r\n");
  Received received = next();
  received.reply->start_stream({.body = "half", .headers = {}});
  received.reply.reset();
  EXPECT_THAT(streaming.read_to_end(), Not(HasSubstr("0\r\n\r\n"))) << "half a stream must not look whole";
}

TEST_F(HttpTest, LetsRunningRepliesEndAtShutdown) {
  start();
  RawClient idle(port()), busy(port());
  busy.send("GET /1 HTTP/1.1\r\n\r\n");
  const Received received = next();
  server_->stop();
  EXPECT_EQ(idle.read_to_end(), "");
  received.reply->send({.body = "done", .headers = {}});
  const std::string all = busy.read_to_end();
  EXPECT_THAT(all, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(all, EndsWith("done"));
  busy.close_now();
  thread_.join();
}

TEST_F(HttpTest, CancelsRepliesThatOutliveTheDrainTime) {
  HttpServerOptions options;
  options.drain_timeout_s = 0.05;
  start(options);
  RawClient client(port());
  client.send("GET /1 HTTP/1.1\r\n\r\n");
  const Received received = next();
  received.reply->on_cancel(
      [&] { received.reply->send({.status = 503, .body = "cancelled", .headers = {}}); });
  server_->stop();
  EXPECT_THAT(client.read_to_end(), EndsWith("cancelled"));
  client.close_now();
  thread_.join();
}

TEST(HttpSignalTest, ASignalBetweenTheAnnouncementAndTheFirstRequestIsAShutdown) {
  HttpServerOptions options;
  options.port = 0;
  const auto server = HttpServer::listen(options, [](HttpRequest&&, std::shared_ptr<HttpReply>) {});
  ASSERT_TRUE(server.ok()) << server.status().message();
  (*server)->stop_on_signals();
  raise(SIGINT);
  (*server)->run();
}

TEST_F(HttpTest, ReportsAPortInUseAndAHostThatIsNone) {
  start();
  HttpServerOptions options;
  options.port = port();
  const auto ignore = [](HttpRequest&&, std::shared_ptr<HttpReply>) {};
  const auto taken = HttpServer::listen(options, ignore);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.status().code(), StatusCode::kAddressInUse);
  EXPECT_THAT(taken.status().message(), HasSubstr(std::to_string(port())));
  options.host = "no such host";
  const auto unknown = HttpServer::listen(options, ignore);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorfold
