// `tensorfold serve MODEL`: the OpenAI endpoint.
#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "cli/chat_flags.h"
#include "cli/command.h"
#include "cli/model_flags.h"
#include "engine/chat_prompt.h"
#include "server/api_server.h"

namespace tensorfold {
namespace {

class ServeCommand : public Command {
 public:
  CommandInfo info() const override {
    return {
        .name = "serve",
        .summary = "Serve a model at an OpenAI-compatible endpoint.",
        .details =
            "  tensorfold serve demo\n"
            "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", "
            "\"content\": \"Hello\"}]}'\n\n"
            "Listens on this machine only, unless --host says otherwise. Ctrl-C lets running replies end.",
        .log_level = LogLevel::kInfo};
  }

  void add_flags(Flags& flags) override {
    add_model_argument(flags, model_.model);
    add_model_flags(flags, model_);
    flags.text("host", "ADDRESS",
               "Address to listen on. Others than loopback can be reached by other machines.",
               server_.http.host);
    flags.integer("port", "Port to listen on; 0 takes a free one.", port_, 0, 65535);
    add_engine_flags(flags, engine_);
    add_draft_flags(flags, engine_);
    flags.count(
        "session-tokens",
        "Tokens of earlier turns in which guesses are looked for too, of all conversations together; 0 keeps "
        "none.",
        engine_.session_tokens);
    add_sampling_flags(flags, sampling_);
    flags.text("name", "NAME", "Id of the model at the endpoint. Default: the name of its folder or repo.",
               server_.model_name);
    flags.text("api-key", "KEY", "Requests must carry this key. Default: none is asked for.",
               server_.api_key);
    flags.text("cors-origin", "ORIGIN",
               "Web pages of this origin ('*': of any) may use the endpoint. Default: none.",
               server_.cors_origin);
    flags.text("date", "DATE",
               "Date that chat templates print, as 2026-11-29 or with a time (RFC 3339), where a request has "
               "no 'date'. "
               "Default: today's, as the machine says when the request comes.",
               server_.date);
    add_chat_flags(flags, chat_, /*has_tools=*/true);
    flags.bytes("max-body", "Largest request body.", server_.http.max_body_bytes, "");
    flags.integer("max-connections", "Open connections; further ones are told to come back.",
                  server_.http.max_connections, 1, 100000);
    flags.integer("drain",
                  "Seconds that running replies get to end at a shutdown, before they are cancelled.",
                  drain_s_, 0, 86400);
    flags.toggle("quiet", "No progress while loading.", model_.quiet);
  }

  Status run() override {
    TF_RETURN_IF_ERROR(check_template_date(server_.date));
    server_.http.port = static_cast<uint16_t>(port_);
    server_.http.drain_timeout_s = static_cast<double>(drain_s_);
    TF_ASSIGN_OR_RETURN(server_.chat, chat_settings(chat_));
    // The port first: a taken one is known before minutes of loading.
    TF_ASSIGN_OR_RETURN(std::unique_ptr<ApiServer> server, ApiServer::create(server_));
    TF_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, load_engine(model_, engine_));
    TF_RETURN_IF_ERROR(check_chat_settings(engine->model(), server_.chat));
    log_output_syntax(engine->model(), server_.chat);
    server->set_default_sampling(sampling_params(sampling_, engine->model().generation));
    // Whoever has read the next line may stop the server at once and expects an orderly end. Until then a
    // signal simply ends the program, so that loading can be given up.
    server->stop_on_signals();
    const bool is_ipv6 = server_.http.host.find(':') != std::string::npos;
    fmt::print("Serving {} at http://{}:{}/v1\n", engine->model().name,
               is_ipv6 ? "[" + server_.http.host + "]" : server_.http.host, server->port());
    std::fflush(stdout);
    server->run(std::move(engine));
    return {};
  }

 private:
  ModelFlags model_;
  EngineFlags engine_;
  SamplingFlags sampling_;
  ChatFlags chat_;
  ApiServerOptions server_;
  int64_t port_ = 8080;
  int64_t drain_s_ = 10;
};

}  // namespace

std::unique_ptr<Command> make_serve_command() { return std::make_unique<ServeCommand>(); }

}  // namespace tensorfold
