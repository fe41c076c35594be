// Server-sent events as OpenAI streams them (WHATWG HTML, 9.2): one `data:` line of JSON per event, and a
// last [DONE].
#pragma once

#include <string>
#include <string_view>

namespace tensorfold {

inline constexpr std::string_view kSseContentType = "text/event-stream; charset=utf-8";

/// `json` is on one line.
inline std::string sse_event(std::string_view json) {
  std::string event = "data: ";
  event.append(json).append("\n\n");
  return event;
}

/// Ends a stream that is whole. A stream without it is not.
inline std::string sse_done() { return sse_event("[DONE]"); }

}  // namespace tensorfold
