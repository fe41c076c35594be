// See output_parser_values.h. Rules: specs chat-templates C2 and glm 9.4. JSON in the model's own spelling
// stays as it is written; only what is no JSON is spelled anew.
#include "text/output_parser_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace tensorfold {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

/// The JSON types that a schema allows, null apart.
enum Type : unsigned { kString = 1, kInteger = 2, kNumber = 4, kBoolean = 8, kContainer = 16 };

/// By how the names begin: models and clients write JSON schema's names, Python's and others.
unsigned type_of_name(std::string_view name) {
  constexpr std::pair<std::string_view, unsigned> kNames[] = {
      {"str", kString},    {"text", kString},    {"char", kString},   {"varchar", kString},
      {"enum", kString},   {"int", kInteger},    {"long", kInteger},  {"num", kNumber},
      {"float", kNumber},  {"double", kNumber},  {"bool", kBoolean},  {"object", kContainer},
      {"arr", kContainer}, {"dict", kContainer}, {"list", kContainer}};
  for (const auto& [start, type] : kNames)
    if (name.starts_with(start)) return type;
  return 0;
}

unsigned type_of_value(const Json& value) {
  if (value.is_string()) return kString;
  if (value.is_bool()) return kBoolean;
  if (value.is_double()) return kNumber;
  if (value.is_number()) return kInteger;
  return value.is_null() ? 0u : unsigned{kContainer};
}

unsigned schema_types(const Json& schema, int depth = 0) {
  unsigned types = 0;
  if (const Json* type = schema.find("type")) {
    if (type->is_string()) types |= type_of_name(type->as_string());
    if (type->is_array())
      for (const Json& name : type->as_array())
        if (name.is_string()) types |= type_of_name(name.as_string());
  }
  if (types != 0 || depth > 4) return types;
  if (const Json* value = schema.find("const")) types |= type_of_value(*value);
  if (const Json* values = schema.find("enum"); values != nullptr && values->is_array())
    for (const Json& value : values->as_array()) types |= type_of_value(value);
  for (const char* key : {"anyOf", "oneOf", "allOf"})
    if (const Json* variants = schema.find(key); variants != nullptr && variants->is_array())
      for (const Json& variant : variants->as_array()) types |= schema_types(variant, depth + 1);
  return types;
}

std::string quoted(std::string_view text) {
  std::string json;
  append_json_string(json, text);
  return json;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

/// Digits with a sign as a JSON integer of any size; "3.0" is 3.
std::optional<std::string> as_integer(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  const size_t num_digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view fraction = text.substr(num_digits);
  const bool is_whole =
      fraction.empty() || (fraction[0] == '.' && fraction.find_first_not_of('0', 1) == fraction.npos);
  if (num_digits == 0 || !is_whole) return std::nullopt;
  std::string_view digits = text.substr(0, num_digits);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return fmt::format("{}{}", is_negative && digits != "0" ? "-" : "", digits);
}

std::optional<std::string> as_number(std::string_view text) {
  const Result<Json> json = parse_json(text);
  if (json.ok()) return json->is_number() ? std::optional(std::string(text)) : std::nullopt;
  const std::optional<Json> literal = parse_python_literal(text);
  if (!literal || !literal->is_number()) return std::nullopt;
  return dump_json(*literal);
}

std::optional<std::string> as_container(std::string_view text) {
  const auto is_container = [](const Json& value) { return value.is_object() || value.is_array(); };
  const Result<Json> json = parse_json(text);
  if (json.ok()) return is_container(*json) ? std::optional(std::string(text)) : std::nullopt;
  const std::optional<Json> literal = parse_python_literal(text);
  if (!literal || !is_container(*literal)) return std::nullopt;
  return dump_json(*literal, {.spaces = true});
}

/// Any JSON, any Python literal.
std::optional<std::string> as_anything(std::string_view text) {
  if (parse_json(text).ok()) return std::string(text);
  if (const std::optional<Json> literal = parse_python_literal(text))
    return dump_json(*literal, {.spaces = true});
  return std::nullopt;
}

std::optional<std::string> as_types(unsigned types, std::string_view text) {
  if (types & (kInteger | kNumber))
    if (auto integer = as_integer(text)) return integer;
  if (types & kNumber)
    if (auto number = as_number(text)) return number;
  if (types & kBoolean)
    if (const std::string word = lower(text); word == "true" || word == "false") return word;
  if (types & kContainer)
    if (auto container = as_container(text)) return container;
  return std::nullopt;
}

/// A recursive descent over the literals of Python's grammar.
class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  std::optional<Json> read_all() {
    std::optional<Json> value = read(0);
    skip_space();
    return text_.empty() ? std::move(value) : std::nullopt;
  }

 private:
  static constexpr int kMaxDepth = 32;

  void skip_space() { text_.remove_prefix(std::min(text_.find_first_not_of(kSpace), text_.size())); }
  bool skip(std::string_view part) {
    skip_space();
    if (!text_.starts_with(part)) return false;
    text_.remove_prefix(part.size());
    return true;
  }

  std::optional<Json> read(int depth) {
    skip_space();
    if (text_.empty() || depth > kMaxDepth) return std::nullopt;
    switch (text_.front()) {
      case '[':
        return read_items(']', depth);
      case '(':
        return read_items(')', depth);
      case '{':
        return read_dictionary(depth);
      case '\'':
      case '"':
        return read_string();
      default:
        return read_word();
    }
  }

  std::optional<Json> read_items(char close, int depth) {
    text_.remove_prefix(1);
    Json items = Json::array();
    const std::string_view end(&close, 1);
    bool has_comma = false;
    while (!skip(end)) {
      std::optional<Json> item = read(depth + 1);
      if (!item) return std::nullopt;
      items.push_back(*std::move(item));
      has_comma = skip(",");
      if (has_comma) continue;
      if (!skip(end)) return std::nullopt;
      break;
    }
    // (1) is 1; (1,) is a tuple.
    if (close == ')' && items.as_array().size() == 1 && !has_comma) return items.as_array()[0];
    return items;
  }

  std::optional<Json> read_dictionary(int depth) {
    text_.remove_prefix(1);
    Json object = Json::object();
    while (!skip("}")) {
      const std::optional<Json> key = read(depth + 1);
      if (!key || !key->is_string() || !skip(":")) return std::nullopt;
      std::optional<Json> value = read(depth + 1);
      if (!value) return std::nullopt;
      object.set(key->as_string(), *std::move(value));
      if (skip(",")) continue;
      if (!skip("}")) return std::nullopt;
      break;
    }
    return object;
  }

  std::optional<Json> read_string() {
    const char quote = text_.front();
    text_.remove_prefix(1);
    std::string out;
    while (!text_.empty()) {
      const char c = text_.front();
      text_.remove_prefix(1);
      if (c == quote) return Json(std::move(out));
      if (c == '\n') return std::nullopt;
      if (c != '\\') {
        out += c;
      } else if (!read_escape(out)) {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  /// After a backslash. Escapes by number are JSON's business: they are read as such, or not at all.
  bool read_escape(std::string& out) {
    if (text_.empty()) return false;
    const char c = text_.front();
    text_.remove_prefix(1);
    constexpr std::string_view kNames = "ntrbf\\'\"", kValues = "\n\t\r\b\f\\'\"";
    if (const size_t found = kNames.find(c); found != kNames.npos) return out += kValues[found], true;
    if (c == '\n') return true;
    if (c == 'u') {
      const Result<Json> character = parse_json(fmt::format("\"\\u{}\"", text_.substr(0, 4)));
      if (!character.ok()) return false;
      text_.remove_prefix(4);
      return out += character->as_string(), true;
    }
    if (c == 'x' || c == 'N' || c == 'U' || (c >= '0' && c <= '7')) return false;
    out += {'\\', c};  // Python keeps what it does not know
    return true;
  }

  std::optional<Json> read_word() {
    const size_t size = std::min(text_.find_first_of(" \t\n\r,:]})"), text_.size());
    const std::string_view word = text_.substr(0, size);
    text_.remove_prefix(size);
    if (word == "None") return Json();
    if (word == "True" || word == "False") return Json(word == "True");
    return read_number(word);
  }

  static std::optional<Json> read_number(std::string_view word) {
    std::string_view digits = word;
    if (digits.starts_with('+')) digits.remove_prefix(1);
    if (digits.find_first_not_of("+-.0123456789eE") != digits.npos) return std::nullopt;
    int64_t integer = 0;
    const char* end = digits.data() + digits.size();
    if (const auto read = std::from_chars(digits.data(), end, integer);
        read.ec == std::errc() && read.ptr == end)
      return Json(integer);
    double number = 0;
    const auto read = std::from_chars(digits.data(), end, number);
    // Digits beyond 64 bits would lose some: they stay text.
    const bool is_real = digits.find_first_of(".eE") != digits.npos;
    if (read.ec != std::errc() || read.ptr != end || !std::isfinite(number) || !is_real) return std::nullopt;
    return Json(number);
  }

  std::string_view text_;
};

}  // namespace

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::string xml_argument(const Json* schema, std::string_view text) {
  const std::string_view word = trimmed(text);
  if (lower(word) == "null") return "null";
  if (schema == nullptr) return quoted(text);
  const unsigned types = schema_types(*schema);
  const std::optional<std::string> typed = types == 0 ? as_anything(word) : as_types(types, word);
  return typed ? *typed : quoted(text);
}

std::string glm_argument(const Json* schema, std::string_view text) {
  if (schema != nullptr && schema_types(*schema) == kString) return quoted(text);
  const std::optional<std::string> typed = as_anything(trimmed(text));
  return typed ? *typed : quoted(text);
}

std::optional<Json> parse_python_literal(std::string_view text) { return PythonReader(text).read_all(); }

}  // namespace tensorfold
