// Typed access to the members of one component of tokenizer.json, with the component named in every message.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

/// Reads members of an object. The first problem sticks and makes later reads return defaults, so that a
/// parser checks status() once, after its last read. `json` must outlive the reader.
class TokenizerFields {
 public:
  /// `component` as the messages begin: "tokenizer.json: pre_tokenizer".
  TokenizerFields(const Json& json, std::string component) : json_(json), component_(std::move(component)) {
    if (!json.is_object()) fail("is {}, expected an object", json.kind_name());
  }

  const Status& status() const { return status_; }
  const std::string& component() const { return component_; }

  /// A member that must be there, null included. Null where it is missing.
  const Json& required(std::string_view key) {
    const Json* value = json_.find(key);
    if (value == nullptr) fail("'{}' is missing", key);
    return value == nullptr ? null_ : *value;
  }
  /// Null stands for absent.
  const Json* optional(std::string_view key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  std::string text(std::string_view key) { return checked_text(key, required(key)).value_or(std::string()); }
  std::optional<std::string> optional_text(std::string_view key) {
    const Json* value = optional(key);
    return value == nullptr ? std::nullopt : checked_text(key, *value);
  }
  bool flag(std::string_view key) { return checked_flag(key, required(key)); }
  bool flag_or(std::string_view key, bool absent) {
    const Json* value = optional(key);
    return value == nullptr ? absent : checked_flag(key, *value);
  }
  /// An integer in [0, most].
  int64_t count(std::string_view key, int64_t most) {
    const Json& value = required(key);
    if (!value.is_int() || value.as_int() < 0 || value.as_int() > most) {
      fail("'{}' is not an integer from 0 to {}", key, most);
      return 0;
    }
    return value.as_int();
  }
  /// An array; empty where there is a problem.
  const Json::Array& items(std::string_view key) {
    const Json& value = required(key);
    if (value.is_array()) return value.as_array();
    fail("'{}' is {}, expected an array", key, value.kind_name());
    return no_items_;
  }

  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    if (status_.ok())
      status_ = corrupt("{}: {}", component_, fmt::format(format, std::forward<Args>(args)...));
  }
  /// "COMPONENT: type 'T' is not supported".
  Status unsupported_type(std::string_view type) const {
    return unsupported("{}: type '{}' is not supported", component_, type);
  }

 private:
  std::optional<std::string> checked_text(std::string_view key, const Json& value) {
    if (value.is_string()) return value.as_string();
    fail("'{}' is {}, expected a string", key, value.kind_name());
    return std::nullopt;
  }
  bool checked_flag(std::string_view key, const Json& value) {
    if (value.is_bool()) return value.as_bool();
    fail("'{}' is {}, expected a boolean", key, value.kind_name());
    return false;
  }

  const Json& json_;
  std::string component_;
  Status status_;
  const Json null_;
  const Json::Array no_items_;
};

/// Components nest (Sequence in Sequence); deeper files are refused.
constexpr int kMaxComponentDepth = 16;

}  // namespace tensorfold
