// One call in the formats that models write it in, once it is complete.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/output_parser.h"

namespace tensorfold {

struct ToolCall {
  std::string name;       ///< Not empty.
  std::string arguments;  ///< Text of a JSON object.
};

/// Whether `body`, the text so far, may become a call. Looks at its first 512 bytes at most, in which a call
/// has shown itself.
bool may_begin_call(ToolSyntax syntax, std::string_view body);

/// The call, or nothing where `body` is malformed in any way. JSON that the model wrote itself is taken over
/// as it wrote it, so that no digit of a number is lost; of an argument given twice the last counts. Values
/// without a type of their own become JSON by the function's schema (output_parser_values.h).
std::optional<ToolCall> parse_call(ToolSyntax syntax, std::string_view body, const ToolSchemas& tools);

/// The text of the value of a key in the text of a JSON object; of equal keys, the last. Nothing without it.
std::optional<std::string_view> json_member_text(std::string_view object, std::string_view key);

/// Bytes of the JSON object that `text` begins with, if it is one: up to the bracket that closes the first. 0
/// without.
size_t json_object_bytes(std::string_view text);

/// Whether `text` is one JSON object.
bool is_json_object(std::string_view text);

}  // namespace tensorfold
