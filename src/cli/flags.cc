// Texts to values. Where the texts come from is command_line.cc's business.
#include "cli/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/nearest_name.h"

namespace tensorfold {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

/// A decimal number, then one of the units ("" is one of them or not).
Result<double> parse_with_unit(std::string_view text, std::span<const Unit> units, std::string_view example) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  if (error == std::errc() && number >= 0) {
    for (const Unit& unit : units)
      if (suffix == unit.name && number * unit.factor <= 4.6e18) return number * unit.factor;
  }
  return invalid_argument("'{}' is not a size such as {}", text, example);
}

template <class T>
Result<T> parse_number(std::string_view text, T least, T most) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least && number <= most)
    return number;
  return invalid_argument("'{}' is not {} from {} to {}", text,
                          std::is_integral_v<T> ? "an integer" : "a number", least, most);
}

/// Stores what `parse` makes of the text.
template <class Target, class Parse>
std::function<Status(std::string_view)> store(Target& target, Parse parse) {
  return [&target, parse](std::string_view text) -> Status {
    auto value = parse(text);
    if (!value.ok()) return value.status();
    target = *value;
    return {};
  };
}

Result<bool> parse_switch(std::string_view text) {
  for (const char* word : {"true", "1", "yes", "on"})
    if (text == word) return true;
  for (const char* word : {"false", "0", "no", "off"})
    if (text == word) return false;
  return invalid_argument("'{}' is neither true nor false", text);
}

}  // namespace

Result<int64_t> parse_bytes(std::string_view text) {
  static constexpr Unit kUnits[] = {
      {"", 1},      {"B", 1},      {"KB", 1e3},      {"MB", 1e6},      {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1 << 30}, {"TiB", 1099511627776.0},
      {"K", 1e3},   {"M", 1e6},    {"G", 1e9},       {"T", 1e12}};
  TF_ASSIGN_OR_RETURN(const double bytes, parse_with_unit(text, kUnits, "512MB, 2GB or 1.5GiB"));
  return static_cast<int64_t>(bytes);
}

Result<int64_t> parse_count(std::string_view text) {
  static constexpr Unit kUnits[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
  TF_ASSIGN_OR_RETURN(const double count, parse_with_unit(text, kUnits, "64K, 135M or 1.5B"));
  return static_cast<int64_t>(count);
}

std::string shown_bytes(int64_t bytes) {
  constexpr Unit kUnits[] = {{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}};
  for (const Unit& unit : kUnits)
    if (static_cast<double>(bytes) >= unit.factor)
      return fmt::format("{:.2f} {}", static_cast<double>(bytes) / unit.factor, unit.name);
  return fmt::format("{} B", bytes);
}

void Flags::argument(std::string name, std::string help, std::string& target, bool is_required) {
  flags_.push_back({.name = std::move(name),
                    .value_name = {},
                    .help = std::move(help),
                    .default_text = {},
                    .is_argument = true,
                    .is_required = is_required,
                    .apply = store(target, [](std::string_view text) { return Result(std::string(text)); })});
}

void Flags::text(std::string name, std::string value_name, std::string help, std::string& target) {
  flags_.push_back({.name = std::move(name),
                    .value_name = std::move(value_name),
                    .help = std::move(help),
                    .default_text = target,
                    .apply = store(target, [](std::string_view text) { return Result(std::string(text)); })});
}

void Flags::integer(std::string name, std::string help, int64_t& target, int64_t least, int64_t most,
                    std::string zero_text) {
  const auto parse = [least, most](std::string_view text) {
    return parse_number<int64_t>(text, least, most);
  };
  flags_.push_back(
      {.name = std::move(name),
       .value_name = "N",
       .help = std::move(help),
       .default_text = target == 0 && !zero_text.empty() ? std::move(zero_text) : fmt::format("{}", target),
       .apply = store(target, parse)});
}

void Flags::integer(std::string name, std::string help, std::optional<int64_t>& target, int64_t least,
                    int64_t most) {
  const auto parse = [least, most](std::string_view text) {
    return parse_number<int64_t>(text, least, most);
  };
  flags_.push_back({.name = std::move(name),
                    .value_name = "N",
                    .help = std::move(help),
                    .default_text = {},
                    .apply = store(target, parse)});
}

void Flags::integers(std::string name, std::string help, std::vector<int64_t>& target, int64_t least,
                     int64_t most) {
  const auto parse = [least, most](std::string_view text) -> Result<std::vector<int64_t>> {
    std::vector<int64_t> numbers;
    for (size_t start = 0; start <= text.size();) {
      const size_t end = std::min(text.find(',', start), text.size());
      TF_ASSIGN_OR_RETURN(const int64_t number,
                          parse_number<int64_t>(text.substr(start, end - start), least, most));
      numbers.push_back(number);
      start = end + 1;
    }
    return numbers;
  };
  flags_.push_back({.name = std::move(name),
                    .value_name = "N,...",
                    .help = std::move(help),
                    .default_text = fmt::format("{}", fmt::join(target, ",")),
                    .apply = store(target, parse)});
}

void Flags::number(std::string name, std::string help, std::optional<double>& target, double least,
                   double most) {
  const auto parse = [least, most](std::string_view text) { return parse_number<double>(text, least, most); };
  flags_.push_back({.name = std::move(name),
                    .value_name = "X",
                    .help = std::move(help),
                    .default_text = {},
                    .apply = store(target, parse)});
}

void Flags::bytes(std::string name, std::string help, int64_t& target, std::string zero_text) {
  flags_.push_back({.name = std::move(name),
                    .value_name = "SIZE",
                    .help = std::move(help),
                    .default_text = target == 0 ? std::move(zero_text) : shown_bytes(target),
                    .apply = store(target, parse_bytes)});
}

void Flags::count(std::string name, std::string help, int64_t& target) {
  flags_.push_back({.name = std::move(name),
                    .value_name = "COUNT",
                    .help = std::move(help),
                    .default_text = target == 0 ? "" : fmt::format("{}", target),
                    .apply = store(target, parse_count)});
}

void Flags::choice(std::string name, std::string help, std::string& target,
                   std::vector<std::string> allowed) {
  std::string value_name = fmt::format("{}", fmt::join(allowed, "|"));
  const auto parse = [allowed = std::move(allowed)](std::string_view text) -> Result<std::string> {
    if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return std::string(text);
    const std::string nearest = nearest_name(text, allowed);
    return invalid_argument("'{}' is none of {}{}", text, fmt::join(allowed, ", "),
                            nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
  };
  flags_.push_back({.name = std::move(name),
                    .value_name = std::move(value_name),
                    .help = std::move(help),
                    .default_text = target,
                    .apply = store(target, parse)});
}

void Flags::toggle(std::string name, std::string help, bool& target) {
  flags_.push_back({.name = std::move(name),
                    .value_name = {},
                    .help = std::move(help),
                    .default_text = {},
                    .apply = store(target, parse_switch)});
}

void Flags::toggle(std::string name, std::string help, std::optional<bool>& target) {
  flags_.push_back({.name = std::move(name),
                    .value_name = {},
                    .help = std::move(help),
                    .default_text = {},
                    .apply = store(target, parse_switch)});
}

}  // namespace tensorfold
