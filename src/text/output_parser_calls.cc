// See output_parser_calls.h. Formats: specs chat-templates C2 and glm 9.4.
#include "text/output_parser_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/output_parser_values.h"

namespace tensorfold {
namespace {

constexpr size_t kNotFound = std::string_view::npos;
/// Longest name of a function or an argument: beyond it, text is no name.
constexpr size_t kMaxNameBytes = 256;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Reads a text from its front.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  void skip_space() {
    while (!text_.empty() && is_space(text_.front())) text_.remove_prefix(1);
  }
  /// GLM models also write a line break as backslash and n.
  void skip_space_or_written_breaks() {
    for (skip_space(); skip("\\n");) skip_space();
  }
  bool skip(std::string_view part) {
    if (!text_.starts_with(part)) return false;
    text_.remove_prefix(part.size());
    return true;
  }
  /// The text before the next `end`, which is skipped.
  std::optional<std::string_view> until(std::string_view end) {
    const size_t at = text_.find(end);
    if (at == kNotFound) return std::nullopt;
    const std::string_view found = text_.substr(0, at);
    text_.remove_prefix(at + end.size());
    return found;
  }
  bool is_empty() const { return text_.empty(); }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
};

/// A function's or an argument's name: something, on one line, that is no markup.
bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.find_first_of("<>\n\r") == kNotFound;
}

/// Arguments in the order in which they were first given.
class Arguments {
 public:
  void set(std::string_view key, std::string value) {
    for (auto& [known, old] : members_)
      if (known == key) return old = std::move(value), void();
    members_.emplace_back(key, std::move(value));
  }
  std::string json() const {
    std::string text = "{";
    for (const auto& [key, value] : members_) {
      if (text.size() > 1) text += ", ";
      append_json_string(text, key);
      text += ": " + value;
    }
    return text + "}";
  }

 private:
  std::vector<std::pair<std::string, std::string>> members_;
};

/// Also Llama's, which differs in a key.
std::optional<ToolCall> parse_hermes(std::string_view body) {
  const std::string_view text = trimmed(body);
  const Result<Json> json = parse_json(text);
  if (!json.ok() || !json->is_object()) return std::nullopt;
  const Json* name = json->find("name");
  if (name == nullptr || !name->is_string() || name->as_string().empty()) return std::nullopt;
  const std::string_view key = json->find("arguments") != nullptr ? "arguments" : "parameters";
  const Json* arguments = json->find(key);
  ToolCall call{.name = name->as_string(), .arguments = "{}"};
  if (arguments == nullptr || arguments->is_null()) return call;
  if (arguments->is_object())
    call.arguments = json_member_text(text, key).value_or("{}");
  else if (arguments->is_string() && is_json_object(arguments->as_string()))
    call.arguments = trimmed(arguments->as_string());
  else
    return std::nullopt;
  return call;
}

std::string_view without_outer_line_breaks(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

std::optional<ToolCall> parse_xml(std::string_view body, const ToolSchemas& tools) {
  Reader reader(body);
  reader.skip_space();
  if (!reader.skip("<function=")) return std::nullopt;
  const auto name = reader.until(">");
  if (!name || !is_name(trimmed(*name))) return std::nullopt;
  ToolCall call{.name = std::string(trimmed(*name)), .arguments = {}};
  Arguments arguments;
  for (reader.skip_space(); reader.skip("<parameter="); reader.skip_space()) {
    const auto key = reader.until(">");
    if (!key || !is_name(trimmed(*key))) return std::nullopt;
    const auto value = reader.until("</parameter>");
    if (!value) return std::nullopt;
    arguments.set(trimmed(*key),
                  xml_argument(tools.argument(call.name, trimmed(*key)), without_outer_line_breaks(*value)));
  }
  if (!reader.skip("</function>")) return std::nullopt;
  reader.skip_space();
  if (!reader.is_empty()) return std::nullopt;
  call.arguments = arguments.json();
  return call;
}

std::optional<ToolCall> parse_glm(std::string_view body, const ToolSchemas& tools) {
  Reader reader(body);
  const size_t name_bytes = std::min(body.find('<'), body.size());
  std::string_view name = body.substr(0, name_bytes);
  reader.skip(name);
  if (const size_t written_break = name.find("\\n"); written_break != kNotFound)
    name = name.substr(0, written_break);
  name = trimmed(name);
  if (!is_name(name)) return std::nullopt;
  ToolCall call{.name = std::string(name), .arguments = {}};
  Arguments arguments;
  while (reader.skip("<arg_key>")) {
    const auto key = reader.until("</arg_key>");
    if (!key || !is_name(trimmed(*key))) return std::nullopt;
    reader.skip_space_or_written_breaks();
    if (!reader.skip("<arg_value>")) return std::nullopt;
    const auto value = reader.until("</arg_value>");
    if (!value) return std::nullopt;
    arguments.set(trimmed(*key), glm_argument(tools.argument(call.name, trimmed(*key)), *value));
    reader.skip_space_or_written_breaks();
  }
  if (!reader.is_empty()) return std::nullopt;
  call.arguments = arguments.json();
  return call;
}

/// Whether text begins as a call does.
enum class Beginning { kNo, kMaybe, kYes };

Beginning begins_with(std::string_view text, std::string_view start) {
  if (text.starts_with(start)) return Beginning::kYes;
  return start.starts_with(text) ? Beginning::kMaybe : Beginning::kNo;
}

Beginning begins_as_hermes(std::string_view text) { return begins_with(text, "{"); }

/// The first key is one that a call has; an answer in JSON seldom has them.
Beginning begins_as_llama(std::string_view text) {
  Reader reader(text);
  if (!reader.skip("{")) return begins_with(text, "{");
  reader.skip_space();
  Beginning best = Beginning::kNo;
  for (const std::string_view key :
       {"\"name\"", "\"type\"", "\"function\"", "\"parameters\"", "\"arguments\""})
    best = std::max(best, begins_with(reader.rest(), key));
  return best;
}

/// A name, then white space and a tag.
Beginning begins_as_glm(std::string_view text) {
  const size_t name_end = std::min(text.find_first_of(" \t\n\r<\\"), text.size());
  if (text.empty()) return Beginning::kMaybe;
  if (name_end > kMaxNameBytes || name_end == 0) return Beginning::kNo;
  Reader reader(text.substr(name_end));
  reader.skip_space_or_written_breaks();
  const Beginning key = begins_with(reader.rest(), "<arg_key>"),
                  end = begins_with(reader.rest(), "</tool_call>");
  return std::max({key, end, reader.rest() == "\\" ? Beginning::kMaybe : Beginning::kNo});
}

/// The end of the JSON string that begins at text[begin].
size_t string_end(std::string_view text, size_t begin) {
  size_t at = begin + 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

/// The end of the value that begins at text[begin]: the comma or bracket after it on its own level.
size_t value_end(std::string_view text, size_t begin) {
  int depth = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      at = string_end(text, at) - 1;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth-- == 0) return at;
    } else if (c == ',' && depth == 0) {
      return at;
    }
  }
  return text.size();
}

}  // namespace

bool may_begin_call(ToolSyntax syntax, std::string_view body) {
  // Each piece of text asks again; without a limit white space without end would take quadratic time.
  constexpr size_t kMaxBytes = 512;
  std::string_view text = body.substr(0, kMaxBytes);
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  const Beginning beginning = syntax == ToolSyntax::kHermes  ? begins_as_hermes(text)
                              : syntax == ToolSyntax::kLlama ? begins_as_llama(text)
                              : syntax == ToolSyntax::kXml   ? begins_with(text, "<function=")
                              : syntax == ToolSyntax::kGlm   ? begins_as_glm(text)
                                                             : Beginning::kNo;
  return beginning == Beginning::kYes || (beginning == Beginning::kMaybe && body.size() <= kMaxBytes);
}

std::optional<ToolCall> parse_call(ToolSyntax syntax, std::string_view body, const ToolSchemas& tools) {
  switch (syntax) {
    case ToolSyntax::kHermes:
    case ToolSyntax::kLlama:
      return parse_hermes(body);
    case ToolSyntax::kXml:
      return parse_xml(body, tools);
    case ToolSyntax::kGlm:
      return parse_glm(body, tools);
    default:
      return std::nullopt;
  }
}

std::optional<std::string_view> json_member_text(std::string_view object, std::string_view key) {
  std::optional<std::string_view> found;
  size_t at = object.find('{');
  while (at != kNotFound && at < object.size() && object[at] != '}') {
    const size_t name_begin = object.find('"', at);
    if (name_begin == kNotFound) break;
    const size_t name_end = string_end(object, name_begin);
    const size_t value_begin = object.find(':', name_end);
    if (value_begin == kNotFound) break;
    const size_t end = value_end(object, value_begin + 1);
    const Result<Json> name = parse_json(object.substr(name_begin, name_end - name_begin));
    if (name.ok() && name->is_string() && name->as_string() == key)
      found = trimmed(object.substr(value_begin + 1, end - value_begin - 1));
    at = end;
  }
  return found;
}

size_t json_object_bytes(std::string_view text) {
  if (!text.starts_with('{')) return 0;
  int depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"')
      at = string_end(text, at) - 1;
    else if (text[at] == '{')
      ++depth;
    else if (text[at] == '}' && --depth == 0)
      return at + 1;
  }
  return text.size();
}

bool is_json_object(std::string_view text) {
  const Result<Json> json = parse_json(text);
  return json.ok() && json->is_object();
}

}  // namespace tensorfold
