// HTTP/1.1 as the rest of the server sees it: whole requests in, whole or streamed replies out. Owns sockets,
// limits, time-outs and the shutdown; knows nothing of OpenAI. Boost.Beast and Asio appear in http.cc only.
// Follows RFC 9110 and RFC 9112.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tensorfold {

struct HttpHeader {
  std::string name;
  std::string value;
};

/// One request, read completely and within the limits.
struct HttpRequest {
  std::string method;  ///< "GET", "POST", ... as sent.
  std::string path;    ///< Up to the '?', as sent (not percent-decoded).
  std::vector<HttpHeader> headers;
  std::string body;

  /// The first header of that name (case does not matter), or "".
  std::string_view header(std::string_view name) const;
};

/// A reply, or the head of a streamed one (`body` is then its first piece).
struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<HttpHeader> headers;  ///< Beside Content-Type, Content-Length, Connection, Date and Server.
};

/// The reply to one request: either send(), or start_stream(), write()... and end_stream(). Every function
/// may be called from any thread and returns at once; calls of one thread keep their order; calls after the
/// end, or after the client has gone, do nothing. Destroyed unfinished, it answers 500, or cuts a stream off.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(HttpResponse response) = 0;
  virtual void start_stream(HttpResponse head) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end_stream() = 0;

  /// Calls `callback` once, on the connection's thread, when nobody will read the reply any more (the client
  /// has gone or reads too slowly), or when a shutdown wants it to end now. Not called after the end of the
  /// reply.
  virtual void on_cancel(std::function<void()> callback) = 0;

  /// Runs `task` on the connection's thread, in the order of the calls; no two tasks of one reply at the same
  /// time. Also runs when the client has gone.
  virtual void post(std::function<void()> task) = 0;
};

/// Called for each request on a thread of the server, several at a time for different connections; must not
/// wait.
using HttpHandler = std::function<void(HttpRequest&& request, std::shared_ptr<HttpReply> reply)>;

/// Turns a refusal of this layer (malformed, too large, too many connections) into the body of the reply.
using HttpErrorBody = std::function<std::string(int status, std::string_view message)>;

struct HttpServerOptions {
  std::string host =
      "127.0.0.1";       ///< Address or name to listen on. Anything but loopback is reachable by others.
  uint16_t port = 8080;  ///< 0: any free one; see HttpServer::port().
  int num_threads = 4;   ///< Threads that read, write and call the handler.
  int64_t max_body_bytes = 32 << 20;    ///< Larger bodies are refused (413).
  int64_t max_header_bytes = 16 << 10;  ///< Larger heads are refused (431).
  int64_t max_unsent_bytes =
      1 << 20;                    ///< A stream with more unsent than this has lost its reader: cancelled.
  int64_t max_connections = 256;  ///< Further ones are answered 503 and closed.
  double request_timeout_s = 60;  ///< From the first byte of a request to its last.
  double idle_timeout_s = 120;    ///< An open connection without a request.
  double write_timeout_s = 60;    ///< Without the client taking a byte.
  double drain_timeout_s = 10;    ///< At shutdown: replies may go on this long before they are cancelled.
  HttpErrorBody error_body;       ///< Empty: plain JSON `{"error":"..."}`.
};

/// A listening server. The handler, and whatever it uses, must live until run() has returned; replies that
/// are still held elsewhere must be released before the server is destroyed.
class HttpServer {
 public:
  /// Binds and listens. kAddressInUse when the port is taken; kInvalidArgument for a host that is no address
  /// here.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpServerOptions& options, HttpHandler handler);
  ~HttpServer();

  uint16_t port() const;

  /// From now on SIGINT and SIGTERM mean stop(), also those that come before run(); a second one does not
  /// wait.
  void stop_on_signals();

  /// Serves until stop() or a signal, then lets running replies end (or cancels them after the drain time)
  /// and returns. Once.
  void run();

  /// Begins the shutdown. From any thread; the second call cancels replies at once.
  void stop();

  int64_t num_connections() const;

 private:
  HttpServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorfold
