// The only file that includes Boost.Asio and Beast: Beast parses, the rest is one small state machine per
// connection. Each connection lives on a strand: everything below that is marked "on the strand" needs no
// lock. While a reply runs, reading goes on (a bounded amount), since only a read notices that the client has
// gone.
#include "server/http.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <csignal>
#include <ctime>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include "base/log.h"

namespace tensorfold {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

/// Bytes of later requests that are taken in while a reply runs; more wait in the kernel.
constexpr size_t kMaxPipelinedBytes = 64 << 10;
/// Taken by one read.
constexpr size_t kReadBytes = 16 << 10;
/// Connections beyond the limit that may still be told so; more are closed without a word.
constexpr size_t kMaxRefusals = 64;
/// How long a closed connection is read to its end, so that a reset does not destroy the reply on its way.
constexpr std::chrono::seconds kLingerTime{2};
/// At shutdown, what cancelled replies get to say so.
constexpr std::chrono::seconds kCancelGrace{2};

std::chrono::milliseconds to_duration(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text;
}

std::string plain_error_body(int, std::string_view message) {
  return fmt::format("{{\"error\":\"{}\"}}", message);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  for (size_t i = 0; i < a.size(); ++i)
    if (lower(a[i]) != lower(b[i])) return false;
  return true;
}

class Connection;

/// What connections need of their server; shared by all threads.
struct Context {
  HttpServerOptions options;
  HttpHandler handler;
  asio::io_context io;
  std::atomic<bool> stopping{false};
  std::function<void(const std::shared_ptr<Connection>&)> on_closed;
};

/// One client. Owned by the server's set and by whatever operation or reply is under way. After construction
/// every function runs on the strand unless it says otherwise.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Context& context, tcp::socket socket)
      : context_(context),
        socket_(std::move(socket)),
        read_timer_(socket_.get_executor()),
        write_timer_(socket_.get_executor()) {}

  auto executor() { return socket_.get_executor(); }

  void start() {
    if (closed_) return;  // by a shutdown that came first
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    wait_for_request();
    read_more();
  }

  /// Answers 503 to whatever comes, because there are too many connections.
  void refuse() {
    reply_id_ = next_reply_id_++;
    keep_alive_ = false;
    send_error(503, "the server has reached its limit of open connections");
    read_more();
  }

  /// The shutdown has begun: an idle connection closes now, a busy one after its reply.
  void stop() {
    keep_alive_ = false;
    if (reply_id_ != 0) return;
    if (writing_.empty()) return close();
    close_when_sent_ = true;
  }

  /// Tells the running reply to end; the client still gets what that makes of it. Without one there is
  /// nothing to wait for.
  void cancel_reply() {
    if (closed_) return;
    if (reply_id_ == 0 && writing_.empty()) return close();
    notify_cancel();
  }

  /// Ends the connection at once.
  void close() {
    if (closed_) return;
    closed_ = true;
    reply_id_ = 0;
    error_code ignored;
    read_timer_.cancel();
    write_timer_.cancel();
    socket_.close(ignored);
    notify_cancel();
    context_.on_closed(shared_from_this());
  }

  // The reply with this id speaks; an id that is not the running one is ignored.

  void send(uint64_t id, HttpResponse response) {
    if (id != reply_id_ || is_streaming_) return;
    append_head(response, fmt::format("Content-Length: {}\r\n", response.body.size()));
    if (!is_head_) pending_ += response.body;
    end_reply();
  }

  void start_stream(uint64_t id, HttpResponse head) {
    if (id != reply_id_ || is_streaming_) return;
    is_streaming_ = true;
    if (is_http_1_0_) keep_alive_ = false;
    append_head(head, is_http_1_0_ ? "" : "Transfer-Encoding: chunked\r\n");
    append_chunk(head.body);
    flush();
  }

  void write(uint64_t id, std::string piece) {
    if (id != reply_id_ || !is_streaming_) return;
    append_chunk(piece);
    if (static_cast<int64_t>(pending_.size()) > context_.options.max_unsent_bytes) {
      log_warning("http: a client left {} bytes of its stream unread; connection closed", pending_.size());
      return close();
    }
    flush();
  }

  void end_stream(uint64_t id) {
    if (id != reply_id_ || !is_streaming_) return;
    if (!is_http_1_0_ && !is_head_) pending_ += "0\r\n\r\n";
    end_reply();
  }

  void set_on_cancel(uint64_t id, std::function<void()> callback) {
    if (id != reply_id_) return closed_ ? callback() : void();
    on_cancel_ = std::move(callback);
  }

  /// The reply was dropped by its owner: never let half of one look whole.
  void abandon(uint64_t id) {
    if (id != reply_id_) return;
    if (is_streaming_) return close();
    send_error(500, "the request was dropped by the server");
  }

 private:
  void notify_cancel() {
    if (on_cancel_) std::exchange(on_cancel_, nullptr)();
  }

  // Reading.

  void read_more() {
    if (is_reading_ || closed_ || input_.size() >= kMaxPipelinedBytes) return;
    is_reading_ = true;
    auto self = shared_from_this();
    socket_.async_read_some(asio::buffer(read_buffer_), [self](error_code error, size_t size) {
      self->is_reading_ = false;
      self->on_read(error, size);
    });
  }

  void on_read(error_code error, size_t size) {
    if (closed_) return;
    if (error) return on_end_of_input(error);
    if (is_lingering_) return read_more();  // discards
    input_.append(read_buffer_.data(), size);
    parse_input();
    read_more();
  }

  /// A client that has sent its last byte is taken to be gone, except that a complete reply still goes out.
  void on_end_of_input(error_code error) {
    const bool is_reply_complete = reply_id_ == 0 && !writing_.empty();
    if (error != asio::error::eof || !is_reply_complete) return close();
    close_when_sent_ = true;
  }

  /// Takes the next request out of the input, unless a reply is still running or unsent.
  void parse_input() {
    if (reply_id_ != 0 || close_when_sent_ || closed_ || !pending_.empty() || !writing_.empty()) return;
    if (input_.size() == 0) return;
    if (!parser_) begin_request();
    error_code error;
    do {
      input_.erase(0, parser_->put(asio::buffer(input_), error));
    } while (!error && !parser_->is_done() && input_.size() > 0);
    if (error && error != http::error::need_more) return refuse_request(error);
    if (parser_->is_header_done() && !parser_->is_done()) answer_expectation();
    if (parser_->is_done()) dispatch_request();
  }

  void begin_request() {
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(static_cast<uint32_t>(context_.options.max_header_bytes));
    parser_->body_limit(static_cast<uint64_t>(context_.options.max_body_bytes));
    expectation_answered_ = false;
    start_read_timer(context_.options.request_timeout_s);
  }

  /// A client that asked whether to send its body at all (curl does above 1 MB) is told to go on.
  void answer_expectation() {
    if (expectation_answered_ || !equal_ignoring_case(parser_->get()[http::field::expect], "100-continue"))
      return;
    expectation_answered_ = true;
    // Written at once and whole: 25 bytes fit any empty socket buffer, and nothing else is being sent here.
    error_code ignored;
    asio::write(socket_, asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")), ignored);
  }

  void refuse_request(error_code error) {
    reply_id_ = next_reply_id_++;
    keep_alive_ = false;
    is_head_ = false;
    parser_.reset();
    if (error == http::error::body_limit)
      return send_error(413, fmt::format("the request body is larger than the limit of {} bytes",
                                         context_.options.max_body_bytes));
    if (error == http::error::header_limit)
      return send_error(431, fmt::format("the request head is larger than the limit of {} bytes",
                                         context_.options.max_header_bytes));
    send_error(400, fmt::format("malformed HTTP request: {}", error.message()));
  }

  void dispatch_request();

  // Writing.

  void append_head(const HttpResponse& response, std::string_view length_line) {
    if (context_.stopping) keep_alive_ = false;
    pending_ += fmt::format(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\n{}Connection: {}\r\nDate: {}\r\nServer: tensorfold\r\n",
        response.status, std::string_view(http::obsolete_reason(http::int_to_status(response.status))),
        response.content_type, length_line, keep_alive_ ? "keep-alive" : "close", http_date());
    for (const HttpHeader& header : response.headers)
      pending_ += fmt::format("{}: {}\r\n", header.name, header.value);
    pending_ += "\r\n";
  }

  void append_chunk(std::string_view piece) {
    if (piece.empty() || is_head_) return;  // an empty chunk would end the stream
    if (is_http_1_0_)
      pending_ += piece;
    else
      pending_ += fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
  }

  void send_error(int status, std::string_view message) {
    const HttpErrorBody& body = context_.options.error_body;
    send(reply_id_, {.status = status,
                     .body = body ? body(status, message) : plain_error_body(status, message),
                     .headers = {}});
  }

  void end_reply() {
    reply_id_ = 0;
    is_streaming_ = false;
    on_cancel_ = nullptr;
    if (!keep_alive_) close_when_sent_ = true;
    flush();
    if (writing_.empty()) on_all_sent();  // the end of an HTTP/1.0 stream has no bytes of its own
  }

  /// Sends what is pending, unless a write is under way, whose end will.
  void flush() {
    if (closed_ || !writing_.empty() || pending_.empty()) return;
    std::swap(writing_, pending_);
    written_bytes_ = 0;
    write_some();
  }

  /// In pieces, so that the timer measures progress and a long reply to a slow reader may take its time.
  void write_some() {
    auto self = shared_from_this();
    start_write_timer();
    socket_.async_write_some(asio::buffer(writing_) + written_bytes_,
                             [self](error_code error, size_t size) { self->on_written(error, size); });
  }

  void on_written(error_code error, size_t size) {
    if (closed_) return;
    if (error) return close();
    written_bytes_ += size;
    if (written_bytes_ < writing_.size()) return write_some();
    write_timer_.cancel();
    writing_.clear();
    if (!pending_.empty()) return flush();
    on_all_sent();
  }

  void on_all_sent() {
    if (close_when_sent_) return linger();
    if (reply_id_ != 0) return;
    wait_for_request();
    parse_input();
    read_more();
  }

  /// Says that no more comes, and reads to the client's end of it for a moment (RFC 9112, 9.6).
  void linger() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    is_lingering_ = true;
    input_.clear();
    start_read_timer(std::chrono::duration<double>(kLingerTime).count());
    read_more();
  }

  // Timers. One that is set again, or cancelled, calls back with an error, which is ignored; where its call
  // was under way already, the state tells that it is out of date.

  void wait_for_request() {
    if (input_.size() == 0) start_read_timer(context_.options.idle_timeout_s);
  }

  void start_read_timer(double seconds) {
    read_timer_.expires_after(to_duration(seconds));
    auto self = shared_from_this();
    read_timer_.async_wait([self](error_code error) {
      if (!error) self->on_read_timeout();
    });
  }

  void on_read_timeout() {
    if (closed_ || reply_id_ != 0 || read_timer_.expiry() > std::chrono::steady_clock::now()) return;
    if (is_lingering_ || !parser_) return close();
    reply_id_ = next_reply_id_++;
    keep_alive_ = false;
    parser_.reset();
    send_error(408, "the request did not arrive in time");
  }

  void start_write_timer() {
    write_timer_.expires_after(to_duration(context_.options.write_timeout_s));
    auto self = shared_from_this();
    write_timer_.async_wait([self](error_code error) {
      if (error || self->closed_ || self->writing_.empty()) return;
      if (self->write_timer_.expiry() > std::chrono::steady_clock::now()) return;
      log_warning("http: a client took no byte of its reply in time; connection closed");
      self->close();
    });
  }

  Context& context_;
  tcp::socket socket_;
  asio::steady_timer read_timer_;
  asio::steady_timer write_timer_;

  /// The read under way writes here and not into input_, which parsing may shorten meanwhile.
  std::array<char, kReadBytes> read_buffer_;
  std::string input_;  ///< Received and not parsed.
  std::optional<http::request_parser<http::string_body>>
      parser_;  ///< The request being read, if one has begun.
  bool is_reading_ = false;
  bool expectation_answered_ = false;

  std::string pending_;  ///< To be written after writing_.
  std::string writing_;  ///< Owned by the write under way.
  size_t written_bytes_ = 0;

  uint64_t next_reply_id_ = 1;
  uint64_t reply_id_ = 0;  ///< Of the reply under way; 0: none.
  bool is_streaming_ = false;
  bool is_http_1_0_ = false;
  bool is_head_ = false;  ///< The request was HEAD: no body goes out.
  bool keep_alive_ = true;
  bool close_when_sent_ = false;
  bool is_lingering_ = false;
  bool closed_ = false;
  std::function<void()> on_cancel_;
};

/// The handle that the handler holds: carries calls over to the connection's strand.
class ReplyHandle : public HttpReply {
 public:
  ReplyHandle(std::shared_ptr<Connection> connection, uint64_t id)
      : connection_(std::move(connection)), id_(id) {}
  ~ReplyHandle() override {
    asio::post(connection_->executor(), [c = connection_, id = id_] { c->abandon(id); });
  }
  void send(HttpResponse response) override {
    post([c = connection_, id = id_, r = std::move(response)]() mutable { c->send(id, std::move(r)); });
  }
  void start_stream(HttpResponse head) override {
    post([c = connection_, id = id_, h = std::move(head)]() mutable { c->start_stream(id, std::move(h)); });
  }
  void write(std::string piece) override {
    post([c = connection_, id = id_, p = std::move(piece)]() mutable { c->write(id, std::move(p)); });
  }
  void end_stream() override {
    post([c = connection_, id = id_] { c->end_stream(id); });
  }
  void on_cancel(std::function<void()> callback) override {
    post([c = connection_, id = id_, f = std::move(callback)]() mutable {
      c->set_on_cancel(id, std::move(f));
    });
  }
  void post(std::function<void()> task) override { asio::post(connection_->executor(), std::move(task)); }

 private:
  std::shared_ptr<Connection> connection_;
  uint64_t id_;
};

void Connection::dispatch_request() {
  read_timer_.cancel();
  auto message = parser_->release();
  parser_.reset();
  keep_alive_ = message.keep_alive() && !context_.stopping;
  is_http_1_0_ = message.version() < 11;
  is_head_ = message.method() == http::verb::head;
  reply_id_ = next_reply_id_++;

  HttpRequest request;
  request.method = message.method_string();
  const std::string_view target = message.target();
  request.path = target.substr(0, target.find('?'));
  for (const auto& field : message)
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  request.body = std::move(message.body());
  context_.handler(std::move(request), std::make_shared<ReplyHandle>(shared_from_this(), reply_id_));
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& header : headers)
    if (equal_ignoring_case(header.name, name)) return header.value;
  return {};
}

struct HttpServer::Impl {
  Context context;
  // Everything of the server itself happens on one strand, as everything of a connection does on its own.
  asio::strand<asio::io_context::executor_type> strand = asio::make_strand(context.io);
  tcp::acceptor acceptor{strand};
  asio::signal_set signals{strand};
  asio::steady_timer accept_timer{strand};
  asio::steady_timer drain_timer{strand};
  asio::steady_timer grace_timer{strand};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> keep_running;

  mutable std::mutex mutex;
  std::unordered_set<std::shared_ptr<Connection>> connections;  ///< Guarded by mutex.
  bool cancelling = false;                                      ///< Guarded by mutex: the drain time is over.

  Status bind();
  void accept_next();
  void on_accepted(tcp::socket socket);
  void wait_for_signal();
  void stop();
  void cancel_replies();
  void close_all();
  void on_closed(const std::shared_ptr<Connection>& connection);
  template <class Function>
  void for_each_connection(Function function);
};

Status HttpServer::Impl::bind() {
  const HttpServerOptions& options = context.options;
  error_code error;
  tcp::resolver resolver(context.io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty())
    return invalid_argument("cannot listen on host '{}': {}", options.host, error.message());
  // A name such as localhost may stand for ::1 and 127.0.0.1; clients that are given an address try the
  // latter.
  tcp::endpoint endpoint = found.begin()->endpoint();
  for (const auto& candidate : found)
    if (candidate.endpoint().address().is_v4()) endpoint = candidate.endpoint();
  acceptor.open(endpoint.protocol(), error);
  // Lets a restart bind while old connections are in TIME_WAIT; two listeners at a time stay impossible on
  // Linux.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use)
    return make_error(StatusCode::kAddressInUse,
                      "{}:{} is in use by another program; choose another port or stop that program",
                      options.host, options.port);
  if (error)
    return make_error(StatusCode::kIo, "cannot listen on {}:{}: {}", options.host, options.port,
                      error.message());
  return {};
}

void HttpServer::Impl::accept_next() {
  acceptor.async_accept(asio::make_strand(context.io), [this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (!error) {
      on_accepted(std::move(socket));
      return accept_next();
    }
    // Out of file descriptors, most likely: trying again at once would spin.
    log_warning("http: accept failed: {}", error.message());
    accept_timer.expires_after(std::chrono::milliseconds(100));
    accept_timer.async_wait([this](error_code cancelled) {
      if (!cancelled) accept_next();
    });
  });
}

void HttpServer::Impl::on_accepted(tcp::socket socket) {
  auto connection = std::make_shared<Connection>(context, std::move(socket));
  bool refuse = false;
  {
    std::lock_guard lock(mutex);
    const size_t limit = static_cast<size_t>(context.options.max_connections);
    if (connections.size() >= limit + kMaxRefusals || context.stopping) return;
    refuse = connections.size() >= limit;
    connections.insert(connection);
  }
  asio::post(connection->executor(),
             [connection, refuse] { refuse ? connection->refuse() : connection->start(); });
}

void HttpServer::Impl::wait_for_signal() {
  signals.async_wait([this](error_code error, int) {
    if (error) return;
    wait_for_signal();
    stop();
  });
}

template <class Function>
void HttpServer::Impl::for_each_connection(Function function) {
  std::lock_guard lock(mutex);
  for (const auto& connection : connections)
    asio::post(connection->executor(), [connection, function] { function(*connection); });
}

/// On the strand. First call: no new work, and the drain time starts; second call: the drain time is
/// over.
void HttpServer::Impl::stop() {
  if (context.stopping.exchange(true)) return cancel_replies();
  error_code ignored;
  acceptor.close(ignored);
  accept_timer.cancel();
  for_each_connection([](Connection& connection) { connection.stop(); });
  drain_timer.expires_after(to_duration(context.options.drain_timeout_s));
  drain_timer.async_wait([this](error_code error) {
    if (!error) cancel_replies();
  });
  on_closed(nullptr);
}

void HttpServer::Impl::cancel_replies() {
  {
    std::lock_guard lock(mutex);
    if (connections.empty() || std::exchange(cancelling, true)) return;
  }
  for_each_connection([](Connection& connection) { connection.cancel_reply(); });
  grace_timer.expires_after(kCancelGrace);
  grace_timer.async_wait([this](error_code error) {
    if (!error) for_each_connection([](Connection& connection) { connection.close(); });
  });
}

/// Forgets a connection; after the last one of a shutdown, lets run() return. From any strand.
void HttpServer::Impl::on_closed(const std::shared_ptr<Connection>& connection) {
  bool finished = false;
  {
    std::lock_guard lock(mutex);
    if (connection) connections.erase(connection);
    finished = context.stopping && connections.empty();
  }
  if (!finished) return;
  asio::post(strand, [this] {
    signals.cancel();
    drain_timer.cancel();
    grace_timer.cancel();
    keep_running.reset();
  });
}

HttpServer::HttpServer() : impl_(std::make_unique<Impl>()) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpServerOptions& options,
                                                       HttpHandler handler) {
  std::unique_ptr<HttpServer> server(new HttpServer());
  Impl& impl = *server->impl_;
  impl.context.options = options;
  impl.context.handler = std::move(handler);
  impl.context.on_closed = [&impl](const std::shared_ptr<Connection>& connection) {
    impl.on_closed(connection);
  };
  TF_RETURN_IF_ERROR(impl.bind());
  return server;
}

uint16_t HttpServer::port() const {
  error_code ignored;
  return impl_->acceptor.local_endpoint(ignored).port();
}

void HttpServer::stop_on_signals() {
  impl_->signals.add(SIGINT);
  impl_->signals.add(SIGTERM);
  impl_->wait_for_signal();
}

void HttpServer::run() {
  Impl& impl = *impl_;
  impl.keep_running.emplace(impl.context.io.get_executor());
  asio::post(impl.strand, [&impl] { impl.accept_next(); });
  std::vector<std::jthread> threads;
  for (int i = 1; i < impl.context.options.num_threads; ++i)
    threads.emplace_back([&impl] { impl.context.io.run(); });
  impl.context.io.run();
}

void HttpServer::stop() {
  asio::post(impl_->strand, [impl = impl_.get()] { impl->stop(); });
}

int64_t HttpServer::num_connections() const {
  std::lock_guard lock(impl_->mutex);
  return static_cast<int64_t>(impl_->connections.size());
}

}  // namespace tensorfold
