// Which requests are turns of one conversation (Request::session), so that guesses for one are looked for in
// the others. Decides who can tell, by speed alone, what somebody else's texts hold, and so errs on the side
// of keeping apart.
//
//   prompt_cache_key         requests with an equal one, whatever their texts
//   a chat without it        chats that begin with the same messages up to the first of the user's
//   a completion without it  with a `user`, those whose prompts begin with the same 64 tokens; else none,
//   because
//                            the same first tokens may well be two people's
//
// `user` and `safety_identifier` never join: requests that differ in them are never turns of one
// conversation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/json.h"
#include "engine/engine.h"
#include "server/openai_schema.h"

namespace tensorfold {

/// `messages` as in ChatRequest.
std::optional<SessionKey> chat_session(const GenerationFields& fields, const Json& messages);

std::optional<SessionKey> completion_session(const GenerationFields& fields, std::span<const int32_t> prompt);

}  // namespace tensorfold
