// Values of a call's arguments that models write without quotes, and the JSON that they mean by the
// function's schema.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace tensorfold {

/// `text` without white space at its ends.
std::string_view trimmed(std::string_view text);

/// JSON text of a value of the XML format. `schema` is the argument's JSON schema, or null. In this order:
/// "null", in any case, is null; without a schema, or where it allows strings alone, the text is a string as
/// it is; then integer (3.0 is 3), number, boolean, object and array, those that the schema allows; where it
/// names no type, any JSON value and then any Python literal. What fits nothing is a string.
std::string xml_argument(const Json* schema, std::string_view text);

/// JSON text of a value of GLM's format: a string as it is where the schema allows strings alone, else JSON,
/// else a Python literal, else a string.
std::string glm_argument(const Json* schema, std::string_view text);

/// The value of a Python literal: None, True, False, numbers, strings in either quotes, lists, tuples (as
/// arrays) and dictionaries with keys that are strings. Nothing for other text, and beyond 32 levels.
std::optional<Json> parse_python_literal(std::string_view text);

}  // namespace tensorfold
