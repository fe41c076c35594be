// See request_fields.h.
#include "server/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/nearest_name.h"

namespace tensorfold {

std::string shown(const Json& value) {
  constexpr size_t kMaxBytes = 60;
  std::string text = dump_json(value, {.spaces = true, .ensure_ascii = true});
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  return text;
}

const Json* RequestFields::take(std::string_view name) {
  known_.emplace_back(name);
  const Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool RequestFields::boolean(std::string_view name, bool fallback) {
  const Json* value = take(name);
  if (value == nullptr) return fallback;
  if (value->is_bool()) return value->as_bool();
  fail(name, fmt::format("'{}' must be true or false, not {}", name, shown(*value)));
  return fallback;
}

std::string RequestFields::text(std::string_view name, std::string_view fallback) {
  const Json* value = take(name);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->as_string();
  fail(name, fmt::format("'{}' must be a string, not {}", name, shown(*value)));
  return std::string(fallback);
}

std::optional<int64_t> RequestFields::integer(std::string_view name, int64_t least, int64_t most) {
  const Json* value = take(name);
  if (value == nullptr) return std::nullopt;
  // Some clients write every number as 5.0. Up to 2^53 a double holds every integer.
  const double real = value->is_number() ? value->as_double() : 0.5;
  if (value->is_int() || (std::trunc(real) == real && std::abs(real) <= 9007199254740992.0)) {
    const int64_t number = value->is_int() ? value->as_int() : static_cast<int64_t>(real);
    if (number >= least && number <= most) return number;
  }
  fail(name, fmt::format("'{}' must be an integer from {} to {}, not {}", name, least, most, shown(*value)));
  return std::nullopt;
}

std::optional<double> RequestFields::number(std::string_view name, double least, double most) {
  const Json* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number() && value->as_double() >= least && value->as_double() <= most)
    return value->as_double();
  fail(name, fmt::format("'{}' must be a number from {} to {}, not {}", name, least, most, shown(*value)));
  return std::nullopt;
}

void RequestFields::unsupported(std::string_view name, const std::vector<std::string>& neutral) {
  const Json* value = take(name);
  if (value == nullptr) return;
  for (const std::string& text : neutral) {
    const Json allowed = parse_json(text).value();
    if (*value == allowed) return;
    if (value->is_number() && allowed.is_number() && value->as_double() == allowed.as_double()) return;
  }
  fail(name,
       fmt::format(
           "'{}' is not supported: {} would have to change the reply and does not{}", name, shown(*value),
           neutral.empty() ? "; leave it out" : fmt::format("; leave it out or send {}", neutral[0])));
}

void RequestFields::fail(std::string_view param, std::string message) {
  if (!error_) error_ = FieldError{std::string(param), std::move(message)};
}

void RequestFields::refuse_unread() {
  for (const auto& [name, value] : object_.as_object()) {
    // Some clients write every field they know, null where they have nothing to say.
    if (value.is_null() || std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string nearest = nearest_name(name, known_);
    return fail(name, fmt::format("unknown field {}{}", shown(Json(name)),
                                  nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
  }
}

}  // namespace tensorfold
