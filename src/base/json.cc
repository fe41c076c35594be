// base/json.h over Boost.JSON's event parser; the only file that knows that library.
#include "base/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>

#include <charconv>
#include <cmath>

namespace tensorfold {
namespace {

namespace bj = boost::json;

/// Builds a Json from parse events. Values under construction live on a stack, so depth costs no recursion.
struct Builder {
  static constexpr std::size_t max_object_size = SIZE_MAX;
  static constexpr std::size_t max_array_size = SIZE_MAX;
  static constexpr std::size_t max_key_size = SIZE_MAX;
  static constexpr std::size_t max_string_size = SIZE_MAX;

  Json root;
  std::vector<Json> stack;
  std::vector<std::string> keys;
  std::string text;
  bool unique_keys = false;
  std::optional<std::string> duplicate_key;  ///< One that some object has had twice.

  void add(Json value) {
    if (stack.empty()) {
      root = std::move(value);
    } else if (stack.back().is_array()) {
      stack.back().push_back(std::move(value));
    } else {
      stack.back().as_object().emplace_back(std::move(keys.back()), std::move(value));
      keys.pop_back();
    }
  }
  /// Appending members is O(1); duplicates are removed once, when the object ends.
  void remove_duplicates(Json::Object& members) {
    std::vector<std::pair<std::string_view, size_t>> order;
    order.reserve(members.size());
    for (size_t i = 0; i < members.size(); ++i) order.emplace_back(members[i].first, i);
    std::sort(order.begin(), order.end());
    std::vector<bool> drop(members.size(), false);
    bool any = false;
    for (size_t i = 0; i + 1 < order.size(); ++i) {
      if (order[i].first != order[i + 1].first) continue;
      // Sorted by place within a key: hand the later value forward is the same as moving the last to the first.
      size_t first = i;
      while (i + 1 < order.size() && order[i + 1].first == order[first].first) drop[order[++i].second] = true;
      members[order[first].second].second = std::move(members[order[i].second].second);
      duplicate_key = members[order[first].second].first;
      any = true;
    }
    if (!any) return;
    Json::Object kept;
    for (size_t i = 0; i < members.size(); ++i) {
      if (!drop[i]) kept.push_back(std::move(members[i]));
    }
    members = std::move(kept);
  }

  using error = boost::system::error_code;
  bool on_document_begin(error&) { return true; }
  bool on_document_end(error&) { return true; }
  bool on_object_begin(error&) { stack.push_back(Json::object()); return true; }
  bool on_array_begin(error&) { stack.push_back(Json::array()); return true; }
  bool end_container() {
    Json value = std::move(stack.back());
    stack.pop_back();
    add(std::move(value));
    return true;
  }
  bool on_object_end(std::size_t, error& failure) {
    remove_duplicates(stack.back().as_object());
    if (unique_keys && duplicate_key) {
      failure = bj::error::extra_data;  // Any error ends the parse; the message is made from duplicate_key.
      return false;
    }
    return end_container();
  }
  bool on_array_end(std::size_t, error&) { return end_container(); }
  bool on_key_part(bj::string_view part, std::size_t, error&) { text.append(part); return true; }
  bool on_key(bj::string_view part, std::size_t, error&) {
    text.append(part);
    keys.push_back(std::move(text));
    text.clear();
    return true;
  }
  bool on_string_part(bj::string_view part, std::size_t, error&) { text.append(part); return true; }
  bool on_string(bj::string_view part, std::size_t, error&) {
    text.append(part);
    add(Json(std::move(text)));
    text.clear();
    return true;
  }
  bool on_number_part(bj::string_view part, error&) { number.append(part); return true; }
  bool on_int64(int64_t value, bj::string_view, error&) { number.clear(); add(Json(value)); return true; }
  bool on_uint64(uint64_t value, bj::string_view, error&) { number.clear(); add(Json(value)); return true; }
  bool on_double(double value, bj::string_view part, error&) {
    // Boost's own conversion is off by an ulp at times; the digits are read again, exactly.
    number.append(part);
    std::from_chars(number.data(), number.data() + number.size(), value);
    number.clear();
    add(Json(value));
    return true;
  }
  bool on_bool(bool value, error&) { add(Json(value)); return true; }
  bool on_null(error&) { add(Json()); return true; }
  bool on_comment_part(bj::string_view, error&) { return true; }
  bool on_comment(bj::string_view, error&) { return true; }

  std::string number;
};

void append_escape(std::string& out, uint32_t code_unit) { out += fmt::format("\\u{:04x}", code_unit); }

/// Decodes one UTF-8 sequence at text[i]; returns its length, or 0 when it is not valid.
int decode_utf8(std::string_view text, size_t i, uint32_t& code_point) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(text[k]); };
  const uint8_t lead = byte(i);
  const int length = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : (lead & 0xf0) == 0xe0 ? 3
                     : lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
  if (length == 0 || i + length > text.size()) return 0;
  code_point = length == 1 ? lead : lead & (0xff >> (length + 1));
  for (int k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
    code_point = (code_point << 6) | (byte(i + k) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xd800 && code_point < 0xe000;
  return code_point < kLeast[length] || surrogate || code_point > 0x10ffff ? 0 : length;
}

void dump(const Json& value, const JsonStyle& style, int depth, std::string& out);

void new_line(const JsonStyle& style, int depth, std::string& out) {
  if (style.indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(style.indent) * depth, ' ');
}

/// `[a,b]` or `{k:v}`: the separators and line breaks of a container with `count` items.
template <class Item>
void dump_container(char open, char close, size_t count, const JsonStyle& style, int depth, std::string& out,
                    const Item& item) {
  out += open;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += style.indent < 0 && style.spaces ? ", " : ",";
    new_line(style, depth + 1, out);
    item(i);
  }
  if (count > 0) new_line(style, depth, out);
  out += close;
}

void dump(const Json& value, const JsonStyle& style, int depth, std::string& out) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_int()) {
    out += std::to_string(value.as_int());
  } else if (value.is_uint()) {
    out += std::to_string(value.as_uint());
  } else if (value.is_double()) {
    const double number = value.as_double();
    out += std::isnan(number) ? "NaN" : std::isinf(number) ? (number > 0 ? "Infinity" : "-Infinity")
                                                           : python_float_repr(number);
  } else if (value.is_string()) {
    append_json_string(out, value.as_string(), style.ensure_ascii);
  } else if (value.is_array()) {
    const Json::Array& items = value.as_array();
    dump_container('[', ']', items.size(), style, depth, out,
                   [&](size_t i) { dump(items[i], style, depth + 1, out); });
  } else {
    const Json::Object& members = value.as_object();
    dump_container('{', '}', members.size(), style, depth, out, [&](size_t i) {
      append_json_string(out, members[i].first, style.ensure_ascii);
      out += style.spaces || style.indent >= 0 ? ": " : ":";
      dump(members[i].second, style, depth + 1, out);
    });
  }
}

}  // namespace

void Json::narrow_unsigned() {
  const uint64_t value = std::get<uint64_t>(value_);
  if (value <= static_cast<uint64_t>(INT64_MAX)) value_ = static_cast<int64_t>(value);
}

bool Json::as_bool() const { TF_CHECK(is_bool()); return std::get<bool>(value_); }
int64_t Json::as_int() const { TF_CHECK(is_int()); return std::get<int64_t>(value_); }
uint64_t Json::as_uint() const {
  if (is_int()) return static_cast<uint64_t>(as_int());
  TF_CHECK(is_uint());
  return std::get<uint64_t>(value_);
}
double Json::as_double() const {
  if (is_int()) return static_cast<double>(as_int());
  if (is_uint()) return static_cast<double>(as_uint());
  TF_CHECK(is_double());
  return std::get<double>(value_);
}
const std::string& Json::as_string() const { TF_CHECK(is_string()); return std::get<std::string>(value_); }
const Json::Array& Json::as_array() const { TF_CHECK(is_array()); return std::get<Array>(value_); }
Json::Array& Json::as_array() { TF_CHECK(is_array()); return std::get<Array>(value_); }
const Json::Object& Json::as_object() const { TF_CHECK(is_object()); return std::get<Object>(value_); }
Json::Object& Json::as_object() { TF_CHECK(is_object()); return std::get<Object>(value_); }

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const Member& member : as_object()) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}
Json* Json::find(std::string_view key) { return const_cast<Json*>(std::as_const(*this).find(key)); }

void Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  if (Json* present = find(key)) {
    *present = std::move(value);
  } else {
    as_object().emplace_back(std::string(key), std::move(value));
  }
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
}

std::string_view Json::kind_name() const {
  constexpr std::string_view kNames[] = {"null",   "boolean", "integer", "integer",
                                         "number", "string",  "array",   "object"};
  return kNames[value_.index()];
}

Result<Json> parse_json(std::string_view text, int max_depth) {
  return parse_json(text, JsonLimits{.max_depth = max_depth});
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  bj::parse_options options;
  options.max_depth = static_cast<std::size_t>(limits.max_depth);
  bj::basic_parser<Builder> parser(options);
  parser.handler().unique_keys = limits.unique_keys;
  bj::error_code error;
  const size_t consumed = parser.write_some(false, text.data(), text.size(), error);
  std::string_view rest = text.substr(std::min(consumed, text.size()));
  const size_t tail = rest.find_first_not_of(" \t\r\n");
  if (!error && tail == std::string_view::npos) return std::move(parser.handler().root);
  const std::string_view before = text.substr(0, consumed + (error ? 0 : tail));
  const size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
  const size_t column = before.size() - (before.rfind('\n') + 1) + 1;
  const std::optional<std::string>& duplicate = parser.handler().duplicate_key;
  if (limits.unique_keys && duplicate) {
    return invalid_argument("JSON line {}, column {}: key \"{}\" occurs twice", line, column, *duplicate);
  }
  return invalid_argument("JSON line {}, column {}: {}", line, column,
                          error ? error.message() : std::string("text after the end of the value"));
}

std::string dump_json(const Json& value, const JsonStyle& style) {
  std::string out;
  dump(value, style, 0, out);
  return out;
}

void append_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    uint32_t code_point = 0;
    const int length = decode_utf8(text, i, code_point);
    if (length == 0) code_point = 0xfffd;
    if (code_point == '"' || code_point == '\\') {
      out += '\\';
      out += static_cast<char>(code_point);
    } else if (code_point < 0x20) {
      constexpr std::string_view kShort = "\b\t\n\f\r";
      const size_t at = kShort.find(static_cast<char>(code_point));
      if (at == std::string_view::npos) {
        append_escape(out, code_point);
      } else {
        out += '\\';
        out += "btnfr"[at];
      }
    } else if (ensure_ascii && code_point >= 0x10000) {
      append_escape(out, 0xd800 + ((code_point - 0x10000) >> 10));
      append_escape(out, 0xdc00 + ((code_point - 0x10000) & 0x3ff));
    } else if (ensure_ascii && code_point >= 0x7f) {
      append_escape(out, code_point);
    } else if (length == 0) {
      out += "\xef\xbf\xbd";
    } else {
      out.append(text.substr(i, length));
    }
    i += length == 0 ? 1 : length;
  }
  out += '"';
}

std::string python_float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific).ptr;
  // Python writes fixed notation for decimal exponents -4..15 and scientific (two exponent digits) beyond.
  const std::string_view scientific(digits, end - digits);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(std::string(scientific.substr(e + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  const auto fixed = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed).ptr;
  std::string out(digits, fixed - digits);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace tensorfold
