// A chat template from anywhere: compiling and rendering it ends, in bounded memory and stack, with text or
// an error.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/chat_template.h"

namespace {

using tensorfold::ChatTemplate;
using tensorfold::Json;

/// A little of everything that a request can hold.
const ChatTemplate::Input& small_input() {
  static const ChatTemplate::Input input = [] {
    ChatTemplate::Input made;
    made.messages = *tensorfold::parse_json(R"([
      {"role": "system", "content": "Be kind. äöü 你好"},
      {"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "image"}]},
      {"role": "assistant", "content": "<think>\nx\n</think>\n\ny", "reasoning_content": "r",
       "tool_calls": [{"id": "a", "type": "function",
                       "function": {"name": "f", "arguments": {"n": 1, "x": 1.5, "l": [true, null]}}}]},
      {"role": "tool", "content": "{\"ok\": 1}"}])");
    made.tools =
        *tensorfold::parse_json(R"([{"type": "function", "function": {"name": "f", "description": "d",
      "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}])");
    made.add_generation_prompt = true;
    made.kwargs = {{"enable_thinking", Json(true)}, {"n", Json(3)}, {"s", Json("a,b c")}};
    made.special_tokens = {{"bos_token", Json("<s>")}, {"eos_token", Json("</s>")}};
    made.now = *tensorfold::parse_chat_date("2025-06-30");
    return made;
  }();
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto compiled = ChatTemplate::parse(std::string(source), "fuzz");
  if (!compiled.ok()) return 0;
  tensorfold::jinja::Limits limits;
  limits.max_steps = 200'000;
  limits.max_memory_bytes = size_t{16} << 20;
  limits.max_output_bytes = size_t{1} << 20;
  limits.max_depth = 400;
  const auto rendered = (*compiled)->render(small_input(), limits);
  if (rendered.ok()) {
    TF_CHECK(rendered->size() <= limits.max_output_bytes);
    // The same input gives the same text.
    TF_CHECK(*(*compiled)->render(small_input(), limits) == *rendered);
  }
  return 0;
}
