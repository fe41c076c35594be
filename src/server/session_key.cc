// See session_key.h.
#include "server/session_key.h"

#include <algorithm>
#include <string>

#include "base/hash.h"

namespace tensorfold {
namespace {

/// `kind` keeps keys of different origin apart. As JSON, so that no two lists are spelled alike.
SessionKey session_key(const char* kind, const std::string& user, Json name) {
  const std::string text = dump_json(Json(Json::Array{kind, user, std::move(name)}));
  return hash_bytes(std::as_bytes(std::span(text)));
}

}  // namespace

std::optional<SessionKey> chat_session(const GenerationFields& fields, const Json& messages) {
  if (!fields.prompt_cache_key.empty()) return session_key("key", fields.user, fields.prompt_cache_key);
  Json start = Json::array();
  for (const Json& message : messages.as_array()) {
    start.push_back(message);
    if (*message.find("role") == Json("user")) return session_key("chat", fields.user, std::move(start));
  }
  return std::nullopt;
}

std::optional<SessionKey> completion_session(const GenerationFields& fields,
                                             std::span<const int32_t> prompt) {
  constexpr size_t kStart = 64;
  if (!fields.prompt_cache_key.empty()) return session_key("key", fields.user, fields.prompt_cache_key);
  if (fields.user.empty()) return std::nullopt;
  Json start = Json::array();
  for (const int32_t token : prompt.first(std::min(kStart, prompt.size()))) start.push_back(Json(token));
  return session_key("completion", fields.user, std::move(start));
}

}  // namespace tensorfold
