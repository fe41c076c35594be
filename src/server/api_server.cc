// Routes and access. A request passes, in this order: its origin, the route, the method, the API key.
#include "server/api_server.h"

#include <fmt/format.h>

#include <ctime>
#include <random>
#include <utility>

#include "base/hash.h"
#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/generation.h"
#include "server/openai_schema.h"

namespace tensorfold {
namespace {

/// Whether two secrets are equal, in a time that does not tell how much of them is.
bool equal_secrets(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  return difference == 0;
}

std::string http_error_body(int status, std::string_view message) {
  return error_json({.status = status,
                     .message = std::string(message),
                     .type = status >= 500 ? "server_error" : "invalid_request_error",
                     .param = {},
                     .code = {}});
}

/// What decides a reply's bytes beside the request, folded into one name.
std::string system_fingerprint(const LoadedModel& model) {
  const std::string text = fmt::format("{}\n{}", model.ops->info().arithmetic_id, model.name);
  return fmt::format("fp_{:016x}", hash_bytes(std::as_bytes(std::span(text))));
}

}  // namespace

struct ApiServer::Impl {
  using Handle = void (Impl::*)(const HttpRequest&, const std::shared_ptr<HttpReply>&);
  struct Route {
    std::string_view method;
    std::string_view path;
    Handle handle;
    bool is_open = false;  ///< Needs no API key.
  };
  static const Route kRoutes[];

  ApiServerOptions options;
  ServerContext context;
  int64_t started = static_cast<int64_t>(std::time(nullptr));  ///< Unix seconds.
  // The engine goes first, because its events hold replies and replies hold connections of the server.
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<Engine> engine;

  void handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  bool is_foreign_page(const HttpRequest& request) const;
  bool has_key(const HttpRequest& request) const;
  void answer_preflight(HttpReply& reply) const;
  Json model_json() const;

  void root(const HttpRequest&, const std::shared_ptr<HttpReply>& reply);
  void health(const HttpRequest&, const std::shared_ptr<HttpReply>& reply);
  void metrics(const HttpRequest&, const std::shared_ptr<HttpReply>& reply);
  void models(const HttpRequest&, const std::shared_ptr<HttpReply>& reply);
  void model(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void chat(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void completion(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
};

/// A path that ends in '/' stands for everything below it.
const ApiServer::Impl::Route ApiServer::Impl::kRoutes[] = {
    {"POST", "/v1/chat/completions", &Impl::chat},
    {"POST", "/v1/completions", &Impl::completion},
    {"GET", "/v1/models", &Impl::models},
    {"GET", "/v1/models/", &Impl::model},
    {"GET", "/metrics", &Impl::metrics},
    {"GET", "/health", &Impl::health, true},
    {"GET", "/", &Impl::root, true},
};

/// A reply that allows the page of a permitted origin to read it.
class CorsReply : public HttpReply {
 public:
  CorsReply(std::shared_ptr<HttpReply> reply, std::string origin)
      : reply_(std::move(reply)), origin_(std::move(origin)) {}
  void send(HttpResponse response) override { reply_->send(allow(std::move(response))); }
  void start_stream(HttpResponse head) override { reply_->start_stream(allow(std::move(head))); }
  void write(std::string piece) override { reply_->write(std::move(piece)); }
  void end_stream() override { reply_->end_stream(); }
  void on_cancel(std::function<void()> callback) override { reply_->on_cancel(std::move(callback)); }
  void post(std::function<void()> task) override { reply_->post(std::move(task)); }

 private:
  HttpResponse allow(HttpResponse response) const {
    response.headers.push_back({"Access-Control-Allow-Origin", origin_});
    response.headers.push_back({"Vary", "Origin"});
    return response;
  }
  std::shared_ptr<HttpReply> reply_;
  std::string origin_;
};

void ApiServer::Impl::handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& plain_reply) {
  context.metrics.count_request();
  std::shared_ptr<HttpReply> reply = plain_reply;
  if (!request.header("Origin").empty()) {
    if (is_foreign_page(request))
      return send_error(
          *reply, {.status = 403,
                   .message = fmt::format("pages of {} may not call this server; start it with --cors-origin "
                                          "to allow them",
                                          request.header("Origin").substr(0, 200)),
                   .param = {},
                   .code = "origin_not_allowed"});
    if (!options.cors_origin.empty())
      reply = std::make_shared<CorsReply>(plain_reply, std::string(request.header("Origin")));
    if (request.method == "OPTIONS") return answer_preflight(*reply);
  }
  std::string allowed;
  for (const Route& route : kRoutes) {
    const bool is_prefix = route.path.size() > 1 && route.path.back() == '/';
    if (is_prefix ? !request.path.starts_with(route.path) : request.path != route.path) continue;
    allowed = route.method == "GET" ? "GET, HEAD" : "POST";
    if (request.method != route.method && !(request.method == "HEAD" && route.method == "GET")) continue;
    if (!route.is_open && !has_key(request))
      return send_error(*reply,
                        {.status = 401,
                         .message = "this server asks for an API key: send it as 'Authorization: Bearer KEY'",
                         .param = {},
                         .code = "invalid_api_key"});
    return (this->*route.handle)(request, reply);
  }
  const std::string path = request.path.substr(0, 200);
  if (allowed.empty())
    return send_error(
        *reply, {.status = 404, .message = fmt::format("no such path: {}", path), .param = {}, .code = {}});
  reply->send(
      {.status = 405,
       .body = error_json({.status = 405,
                           .message = fmt::format("{} takes {}, not {}", path, allowed, request.method),
                           .param = {},
                           .code = {}}),
       .headers = {{"Allow", allowed}}});
}

/// A browser sends the page's origin along, also where the page could not read the reply; without this rule
/// any page could put a local server to work.
bool ApiServer::Impl::is_foreign_page(const HttpRequest& request) const {
  const std::string_view origin = request.header("Origin");
  if (options.cors_origin == "*" || origin == options.cors_origin) return false;
  const size_t scheme_end = origin.find("://");
  return scheme_end == std::string_view::npos || origin.substr(scheme_end + 3) != request.header("Host");
}

bool ApiServer::Impl::has_key(const HttpRequest& request) const {
  if (options.api_key.empty()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view value = request.header("Authorization");
  return value.starts_with(kScheme) && equal_secrets(value.substr(kScheme.size()), options.api_key);
}

void ApiServer::Impl::answer_preflight(HttpReply& reply) const {
  reply.send({.status = 204,
              .body = {},
              .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                          {"Access-Control-Allow-Headers", "Authorization, Content-Type"},
                          {"Access-Control-Max-Age", "600"}}});
}

void ApiServer::Impl::root(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  reply->send(
      {.status = 200,
       .content_type = "text/plain; charset=utf-8",
       .body = fmt::format("TensorFold serves {}.\n\nPOST /v1/chat/completions\nPOST /v1/completions\n"
                           "GET  /v1/models\nGET  /health\nGET  /metrics\n",
                           context.model_name),
       .headers = {}});
}

void ApiServer::Impl::health(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  reply->send({.status = 200, .body = R"({"status":"ok"})", .headers = {}});
}

void ApiServer::Impl::metrics(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  reply->send({.status = 200,
               .content_type = "text/plain; version=0.0.4; charset=utf-8",
               .body = context.metrics.text(engine->stats(), http->num_connections()),
               .headers = {}});
}

Json ApiServer::Impl::model_json() const {
  Json json = Json::object();
  json.set("id", context.model_name);
  json.set("object", "model");
  json.set("created", started);
  json.set("owned_by", "tensorfold");
  json.set("max_model_len", engine->context_tokens());
  return json;
}

void ApiServer::Impl::models(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  Json json = Json::object();
  json.set("object", "list");
  json.set("data", Json(Json::Array{model_json()}));
  reply->send({.status = 200, .body = dump_json(json), .headers = {}});
}

void ApiServer::Impl::model(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  // Clients write the '/' of org/name as it is or as %2F.
  std::string id = request.path.substr(std::string_view("/v1/models/").size());
  if (const size_t slash = id.find("%2F"); slash != std::string::npos)
    id = fmt::format("{}/{}", id.substr(0, slash), id.substr(slash + 3));
  if (const std::optional<ApiError> error = check_model(context, id)) return send_error(*reply, *error);
  reply->send({.status = 200, .body = dump_json(model_json()), .headers = {}});
}

void ApiServer::Impl::chat(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  handle_chat_completion(context, request, reply);
}

void ApiServer::Impl::completion(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  handle_completion(context, request, reply);
}

ApiServer::ApiServer() : impl_(std::make_unique<Impl>()) {}
ApiServer::~ApiServer() = default;

Result<std::unique_ptr<ApiServer>> ApiServer::create(const ApiServerOptions& options) {
  std::unique_ptr<ApiServer> server(new ApiServer());
  Impl& impl = *server->impl_;
  impl.options = options;
  HttpServerOptions http = options.http;
  http.error_body = http_error_body;
  TF_ASSIGN_OR_RETURN(
      impl.http, HttpServer::listen(http, [&impl](HttpRequest&& request, std::shared_ptr<HttpReply> reply) {
        impl.handle(request, reply);
      }));
  return server;
}

uint16_t ApiServer::port() const { return impl_->http->port(); }

void ApiServer::set_default_sampling(const SamplingParams& sampling) {
  impl_->context.defaults.sampling = sampling;
}

void ApiServer::stop_on_signals() { impl_->http->stop_on_signals(); }

void ApiServer::run(std::unique_ptr<Engine> engine) {
  Impl& impl = *impl_;
  const LoadedModel& model = engine->model();
  impl.context.engine = engine.get();
  impl.context.model_name = impl.options.model_name.empty() ? model.name : impl.options.model_name;
  impl.context.fingerprint = system_fingerprint(model);
  impl.context.date = impl.options.date;
  impl.context.chat = impl.options.chat;
  impl.context.defaults.vocab_size = model.model->spec().vocab_size;
  std::random_device random;
  impl.context.next_id = (static_cast<uint64_t>(random()) << 32) | random();
  impl.engine = std::move(engine);
  impl.http->run();
  impl.engine.reset();
}

void ApiServer::stop() { impl_->http->stop(); }

}  // namespace tensorfold
