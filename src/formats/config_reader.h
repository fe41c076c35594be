// Typed access to config.json and its like: every value is checked where it is read, and a wrong one is
// reported with its file, its path and what was found. Families read their structs with it; hf_config.h reads
// the shared parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

/// Reads keys of one JSON object, or of several laid over each other (`text_config` over the root): the first
/// that has the key decides. A null is as good as an absent key. Errors are collected, not returned: after
/// the first, status() holds it and values are harmless substitutes (the fallback, else 1, false, empty), so
/// a family reads all its fields and then returns status() before it uses any. Copies and sub-objects share
/// the status. The Json must outlive the reader. One thread.
class ConfigReader {
 public:
  /// `file` opens every message: "config.json".
  ConfigReader(std::string file, const Json& object);

  /// The same reader with the members of `key` laid over it, if that is an object.
  ConfigReader lifted(std::string_view key) const;

  bool has(std::string_view key) const { return find(key) != nullptr; }

  /// The raw value, or nullptr when absent or null.
  const Json* find(std::string_view key) const;

  /// Integers from 1, or 0, to 2^31-1: a product of two fits in int64. The form without fallback requires the
  /// key.
  int64_t positive_int(std::string_view key);
  int64_t positive_int(std::string_view key, int64_t fallback);
  int64_t non_negative_int(std::string_view key, int64_t fallback);

  /// Finite numbers; integers are numbers.
  double positive_number(std::string_view key);
  double positive_number(std::string_view key, double fallback);
  double number(std::string_view key, double fallback);
  std::optional<double> optional_number(std::string_view key);

  bool boolean(std::string_view key, bool fallback);
  std::optional<bool> optional_boolean(std::string_view key);
  std::string string(std::string_view key);
  std::string string(std::string_view key, std::string_view fallback);

  /// Absent: empty. Token ids and the like: integers from 0 to 2^31-1; a single one stands for a list of one.
  std::vector<int64_t> int_or_list(std::string_view key);
  std::vector<int64_t> int_list(std::string_view key);
  std::vector<double> number_list(std::string_view key);
  /// The same with infinities and NaN, which Hugging Face writes as {"__float__": "Infinity"}, "-Infinity" or
  /// "NaN".
  std::vector<double> extended_number_list(std::string_view key);
  std::vector<std::string> string_list(std::string_view key);

  /// One of `choices` by its spelling; anything else is kUnsupported and names them all.
  template <class Enum>
  Enum choice(std::string_view key, Enum fallback,
              std::span<const std::pair<std::string_view, std::type_identity_t<Enum>>> choices) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    std::string names;
    for (const auto& [name, result] : choices) {
      if (value->is_string() && value->as_string() == name) return result;
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    fail(StatusCode::kUnsupported, key, "expected one of " + names);
    return fallback;
  }

  /// A sub-object, or nothing when absent. Another kind of value is an error.
  std::optional<ConfigReader> object(std::string_view key);

  /// The members of the topmost object, for objects whose keys are data.
  const Json::Object& members() const;

  /// Records "file: path: <expected>, found <value>" unless there is an error already.
  void fail(StatusCode code, std::string_view key, std::string_view expected);

  /// "file: path.key", for messages of the caller's own.
  std::string where(std::string_view key) const;

  /// The first error of this reader and its relatives.
  const Status& status() const { return *status_; }

 private:
  struct Layer {
    std::string prefix;  ///< "text_config." or "".
    const Json* object;
  };
  ConfigReader() = default;
  const Layer* layer_of(std::string_view key) const;
  const Json* require(std::string_view key, std::string_view expected);
  const Json::Array& array(std::string_view key, std::string_view expected);
  void report(StatusCode code, const std::string& place, std::string_view expected, const Json* found);
  int64_t checked_int(const Json& value, const std::string& place, int64_t least, int64_t substitute);
  double checked_number(const Json& value, const std::string& place, bool positive, double substitute);

  std::string file_;
  std::vector<Layer> layers_;  ///< Topmost first; never empty.
  std::shared_ptr<Status> status_;
};

}  // namespace tensorfold
