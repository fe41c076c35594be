// How values print: str and repr, printf-style and str.format formatting, JSON as Python's json.dumps.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace tensorfold::jinja {

/// str(value): what `{{ }}` prints. Undefined prints nothing.
std::string str(Run& run, const Value& value);
/// Appends str(value) to out.
void append_str(Run& run, const Value& value, std::string& out);
/// repr(value)
std::string repr(Run& run, const Value& value);
/// repr of a string: quotes, backslashes and what is not printable escaped.
std::string string_repr(std::string_view text);

/// markupsafe.escape of plain text: & < > ' " as entities.
std::string escape_html(std::string_view text);

/// format % arguments; `arguments` is a tuple, a mapping or one value.
Value printf_format(Run& run, const Value& format, const Value& arguments);
/// format.format(*positional, **keywords)
Value brace_format(Run& run, const Value& format, const Arguments& arguments);
/// format(value, spec), for numbers and strings.
std::string format_value(Run& run, const Value& value, std::string_view spec);

/// Options of json.dumps.
struct JsonOptions {
  bool ensure_ascii = false;
  bool has_indent = false;  ///< Pretty-printed, one `indent` per level.
  std::string indent;
  std::string item_separator;
  std::string key_separator;
  bool sort_keys = false;
};
/// json.dumps(value); what JSON cannot hold is a failure.
std::string json_dumps(Run& run, const Value& value, const JsonOptions& options);

}  // namespace tensorfold::jinja
