// POST /v1/completions: prompts as they are, without a template.
#pragma once

#include <memory>

#include "server/generation.h"
#include "server/http.h"

namespace tensorfold {

/// Answers the request. On the connection's thread; returns once the work is queued.
void handle_completion(ServerContext& context, const HttpRequest& request, std::shared_ptr<HttpReply> reply);

}  // namespace tensorfold
