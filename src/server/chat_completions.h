// POST /v1/chat/completions: messages through the model's chat template.
#pragma once

#include <memory>

#include "server/generation.h"
#include "server/http.h"

namespace tensorfold {

/// Answers the request. On the connection's thread; returns once the work is queued.
void handle_chat_completion(ServerContext& context, const HttpRequest& request,
                            std::shared_ptr<HttpReply> reply);

}  // namespace tensorfold
