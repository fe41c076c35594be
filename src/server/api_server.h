// The OpenAI-compatible server: routes, access rules and what they share. Each generation endpoint is a file
// of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/chat_prompt.h"
#include "engine/engine.h"
#include "server/http.h"

namespace tensorfold {

struct ApiServerOptions {
  HttpServerOptions http;  ///< error_body is set by the server.
  std::string api_key;     ///< Requests must carry it as `Authorization: Bearer`; "": none is asked for.
  std::string
      cors_origin;         ///< Pages of this origin ("*": any) may call from a browser; "": none but our own.
  std::string date;        ///< Default of the request field `date`; "": none.
  std::string model_name;  ///< Id of the model at the endpoint; "": LoadedModel::name.
  ChatSettings chat;       ///< What holds for chats where a request says nothing.
};

/// Listens from create() on (so that a taken port is known before a model is loaded) and serves in run().
class ApiServer {
 public:
  /// kAddressInUse, kInvalidArgument (host) and kIo as HttpServer::listen.
  static Result<std::unique_ptr<ApiServer>> create(const ApiServerOptions& options);
  ~ApiServer();

  uint16_t port() const;

  /// What holds where a request says nothing. Before run().
  void set_default_sampling(const SamplingParams& sampling);

  /// As HttpServer::stop_on_signals(): call it before telling anyone that the server is there.
  void stop_on_signals();

  /// Serves until stop() or a signal. Owns the engine, which ends with it. Once.
  void run(std::unique_ptr<Engine> engine);

  /// As HttpServer::stop(). From any thread.
  void stop();

 private:
  ApiServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorfold
