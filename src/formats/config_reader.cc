// Lookups, checks and messages of formats/config_reader.h.
#include "formats/config_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tensorfold {
namespace {

/// Enough of a value to recognize it in a message.
std::string spell_found(const Json& value) {
  constexpr size_t kMaxBytes = 80;
  if (value.is_array() || value.is_object()) {
    const size_t count = value.is_array() ? value.as_array().size() : value.as_object().size();
    return fmt::format("an {} of {}", value.kind_name(), count);
  }
  std::string text = dump_json(value, {.ensure_ascii = true});
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  return text;
}

constexpr std::string_view kPositiveInt = "expected a positive integer below 2^31";

std::string item(const std::string& place, size_t index) { return fmt::format("{}[{}]", place, index); }

}  // namespace

ConfigReader::ConfigReader(std::string file, const Json& object)
    : file_(std::move(file)),
      layers_{{.prefix = "", .object = &object}},
      status_(std::make_shared<Status>()) {
  if (!object.is_object()) *status_ = corrupt("{}: expected an object, found {}", file_, spell_found(object));
}

ConfigReader ConfigReader::lifted(std::string_view key) const {
  ConfigReader reader = *this;
  const Json* inner = find(key);
  if (inner == nullptr || !inner->is_object()) return reader;
  const std::string prefix = fmt::format("{}{}.", layer_of(key)->prefix, key);
  reader.layers_.insert(reader.layers_.begin(), {.prefix = prefix, .object = inner});
  return reader;
}

const ConfigReader::Layer* ConfigReader::layer_of(std::string_view key) const {
  for (const Layer& layer : layers_) {
    if (layer.object->find(key) != nullptr) return &layer;
  }
  return nullptr;
}

const Json* ConfigReader::find(std::string_view key) const {
  const Layer* layer = layer_of(key);
  if (layer == nullptr) return nullptr;
  const Json* value = layer->object->find(key);
  return value->is_null() ? nullptr : value;
}

std::string ConfigReader::where(std::string_view key) const {
  const Layer* layer = layer_of(key);
  return fmt::format("{}: {}{}", file_, (layer == nullptr ? layers_.front() : *layer).prefix, key);
}

void ConfigReader::report(StatusCode code, const std::string& place, std::string_view expected,
                          const Json* found) {
  if (!status_->ok()) return;
  const std::string detail = found == nullptr ? "but it is missing" : "found " + spell_found(*found);
  *status_ = make_error(code, "{}: {}, {}", place, expected, detail);
}

void ConfigReader::fail(StatusCode code, std::string_view key, std::string_view expected) {
  report(code, where(key), expected, find(key));
}

const Json* ConfigReader::require(std::string_view key, std::string_view expected) {
  const Json* value = find(key);
  if (value == nullptr) fail(StatusCode::kCorrupt, key, expected);
  return value;
}

int64_t ConfigReader::checked_int(const Json& value, const std::string& place, int64_t least,
                                  int64_t substitute) {
  if (value.is_int() && value.as_int() >= least && value.as_int() <= INT32_MAX) return value.as_int();
  report(StatusCode::kCorrupt, place, least == 1 ? kPositiveInt : "expected an integer from 0 to 2^31-1",
         &value);
  return substitute;
}

double ConfigReader::checked_number(const Json& value, const std::string& place, bool positive,
                                    double substitute) {
  if (value.is_number()) {
    const double number = value.as_double();
    if (std::isfinite(number) && (!positive || number > 0)) return number;
  }
  report(StatusCode::kCorrupt, place, positive ? "expected a positive number" : "expected a number", &value);
  return substitute;
}

int64_t ConfigReader::positive_int(std::string_view key) {
  const Json* value = require(key, kPositiveInt);
  return value == nullptr ? 1 : checked_int(*value, where(key), 1, 1);
}

int64_t ConfigReader::positive_int(std::string_view key, int64_t fallback) {
  const Json* value = find(key);
  return value == nullptr ? fallback : checked_int(*value, where(key), 1, fallback);
}

int64_t ConfigReader::non_negative_int(std::string_view key, int64_t fallback) {
  const Json* value = find(key);
  return value == nullptr ? fallback : checked_int(*value, where(key), 0, fallback);
}

double ConfigReader::positive_number(std::string_view key) {
  const Json* value = require(key, "expected a positive number");
  return value == nullptr ? 1.0 : checked_number(*value, where(key), true, 1.0);
}

double ConfigReader::positive_number(std::string_view key, double fallback) {
  const Json* value = find(key);
  return value == nullptr ? fallback : checked_number(*value, where(key), true, fallback);
}

double ConfigReader::number(std::string_view key, double fallback) {
  const Json* value = find(key);
  return value == nullptr ? fallback : checked_number(*value, where(key), false, fallback);
}

std::optional<double> ConfigReader::optional_number(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return checked_number(*value, where(key), false, 0.0);
}

bool ConfigReader::boolean(std::string_view key, bool fallback) {
  return optional_boolean(key).value_or(fallback);
}

std::optional<bool> ConfigReader::optional_boolean(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->as_bool();
  fail(StatusCode::kCorrupt, key, "expected true or false");
  return std::nullopt;
}

std::string ConfigReader::string(std::string_view key) {
  return require(key, "expected a string") == nullptr ? "" : string(key, "");
}

std::string ConfigReader::string(std::string_view key, std::string_view fallback) {
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->as_string();
  fail(StatusCode::kCorrupt, key, "expected a string");
  return std::string(fallback);
}

const Json::Array& ConfigReader::array(std::string_view key, std::string_view expected) {
  static const Json::Array* const kEmpty = new Json::Array;
  const Json* value = find(key);
  if (value == nullptr) return *kEmpty;
  if (value->is_array()) return value->as_array();
  fail(StatusCode::kCorrupt, key, expected);
  return *kEmpty;
}

std::vector<int64_t> ConfigReader::int_or_list(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr || value->is_array()) return int_list(key);
  return {checked_int(*value, where(key), 0, 0)};
}

std::vector<int64_t> ConfigReader::int_list(std::string_view key) {
  std::vector<int64_t> list;
  for (const Json& value : array(key, "expected a list of integers")) {
    list.push_back(checked_int(value, item(where(key), list.size()), 0, 0));
  }
  return list;
}

std::vector<double> ConfigReader::number_list(std::string_view key) {
  std::vector<double> list;
  for (const Json& value : array(key, "expected a list of numbers")) {
    list.push_back(checked_number(value, item(where(key), list.size()), false, 0.0));
  }
  return list;
}

std::vector<double> ConfigReader::extended_number_list(std::string_view key) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr std::pair<std::string_view, double> kWords[] = {
      {"Infinity", kInfinity}, {"-Infinity", -kInfinity}, {"NaN", std::numeric_limits<double>::quiet_NaN()}};
  std::vector<double> list;
  for (const Json& value : array(key, "expected a list of numbers")) {
    const Json* word = value.find("__float__");
    const auto* known = std::find_if(std::begin(kWords), std::end(kWords), [word](const auto& entry) {
      return word != nullptr && word->is_string() && word->as_string() == entry.first;
    });
    list.push_back(known != std::end(kWords)
                       ? known->second
                       : checked_number(value, item(where(key), list.size()), false, 0.0));
  }
  return list;
}

std::vector<std::string> ConfigReader::string_list(std::string_view key) {
  std::vector<std::string> list;
  for (const Json& value : array(key, "expected a list of strings")) {
    if (!value.is_string()) {
      report(StatusCode::kCorrupt, item(where(key), list.size()), "expected a string", &value);
    }
    list.push_back(value.is_string() ? value.as_string() : "");
  }
  return list;
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    fail(StatusCode::kCorrupt, key, "expected an object");
    return std::nullopt;
  }
  ConfigReader reader;
  reader.file_ = file_;
  reader.layers_ = {{.prefix = fmt::format("{}{}.", layer_of(key)->prefix, key), .object = value}};
  reader.status_ = status_;
  return reader;
}

const Json::Object& ConfigReader::members() const {
  static const Json::Object* const kEmpty = new Json::Object;
  return layers_.front().object->is_object() ? layers_.front().object->as_object() : *kEmpty;
}

}  // namespace tensorfold
