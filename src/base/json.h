// A JSON value that keeps the order of keys and the difference between 1 and 1.0, with strict parsing and
// the two spellings the project writes. Used for configs, request bodies, tokenizer files and templates' arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace tensorfold {

/// An owned JSON value. Objects keep insertion order; of duplicate keys the last one wins, in the place of the first.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value) : value_(value) { narrow_unsigned(); }
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_uint() const { return std::holds_alternative<uint64_t>(value_); }  ///< Above int64 only.
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_int() || is_uint() || is_double(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  /// Accessors require the matching kind (TF_CHECK); as_double accepts every number.
  bool as_bool() const;
  int64_t as_int() const;
  uint64_t as_uint() const;
  double as_double() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  /// The member of an object, or nullptr when this is no object or has no such key. Linear in the number of keys.
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);

  /// Sets a member, replacing one of the same key. Turns null into an object first.
  void set(std::string_view key, Json value);
  void push_back(Json value);

  /// "null", "boolean", "integer", "number", "string", "array", "object": for messages.
  std::string_view kind_name() const;

  friend bool operator==(const Json& a, const Json& b) { return a.value_ == b.value_; }

 private:
  void narrow_unsigned();
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

/// Parses one JSON text (RFC 8259, UTF-8 checked, nothing after it but white space). Nesting is limited to
/// max_depth. Errors are kInvalidArgument with line and column.
/// Integers outside 64 bits become doubles; numbers with a fraction or exponent are doubles.
Result<Json> parse_json(std::string_view text, int max_depth = 64);

/// What parse_json refuses beyond RFC 8259.
struct JsonLimits {
  int max_depth = 64;        ///< Of nested arrays and objects.
  bool unique_keys = false;  ///< A key that an object has twice is an error, named; otherwise the last one wins.
};
Result<Json> parse_json(std::string_view text, const JsonLimits& limits);

/// How dump_json spells a value.
struct JsonStyle {
  int indent = -1;            ///< -1: one line; otherwise spaces per level, and a newline after each item.
  bool spaces = false;        ///< One line with ", " and ": " (Python's json.dumps) instead of "," and ":".
  bool ensure_ascii = false;  ///< Non-ASCII as \uXXXX.
};

/// Doubles are written as Python's repr does (shortest that reads back, always with '.', 'e', or a word);
/// non-finite ones as NaN, Infinity, -Infinity.
std::string dump_json(const Json& value, const JsonStyle& style = {});

/// Appends `text` as a JSON string with its quotes. Invalid UTF-8 bytes become U+FFFD.
void append_json_string(std::string& out, std::string_view text, bool ensure_ascii = false);

/// Python's repr of a float: "1.0", "1e-05", "nan", "inf", "-inf".
std::string python_float_repr(double value);

}  // namespace tensorfold
