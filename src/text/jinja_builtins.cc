// Tests (`is defined`, ...) and global functions (range, namespace, ...).
#include <algorithm>
#include <chrono>
#include <clocale>
#include <ctime>

#include "text/jinja_filters.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"

namespace tensorfold::jinja {
namespace {

// ---- Tests ----

template <bool (*Test)(const Value&)>
Value simple(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"test", {}}, arguments);
  return Value::boolean(Test(self));
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is(Kind::kBool); }
bool is_true(const Value& value) { return is_boolean(value) && value.as_bool(); }
bool is_false(const Value& value) { return is_boolean(value) && !value.as_bool(); }
bool is_integer(const Value& value) { return value.is(Kind::kInt); }
bool is_float(const Value& value) { return value.is(Kind::kFloat); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is(Kind::kDict); }
bool is_escaped(const Value& value) { return value.is_string() && value.as<StringObject>().markup; }
/// Whatever has a length and takes an index: mappings and undefined values too.
bool is_sequence(const Value& value) { return try_length(value).has_value() && !value.is(Kind::kDictView); }
bool is_iterable_value(const Value& value) { return is_iterable(value) || value.is(Kind::kLoop); }
/// An undefined value has a __call__, if only to complain.
bool is_callable(const Value& value) {
  return value.is(Kind::kFunction) || value.is(Kind::kMacro) || value.is(Kind::kLoop) ||
         value.is(Kind::kJoiner) || value.is_undefined();
}

template <Operator Op>
Value compares(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {operator_text(Op), {""}, 1}, arguments);
  return run.failed() ? Value() : Value::boolean(compare(run, Op, self, args[0]));
}

/// value % divisor == remainder
Value has_remainder(Run& run, const Value& self, const Value& divisor, Int remainder) {
  const Value rest = binary(run, Operator::kMod, self, divisor);
  return run.failed() ? Value() : Value::boolean(equal(run, rest, Value::integer(remainder)));
}
Value is_odd(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"test_odd", {}}, arguments);
  return has_remainder(run, self, Value::integer(2), 1);
}
Value is_even(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"test_even", {}}, arguments);
  return has_remainder(run, self, Value::integer(2), 0);
}
Value is_divisible(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"test_divisibleby", {"num"}, 1}, arguments);
  return run.failed() ? Value() : has_remainder(run, self, args[0], 0);
}

Value is_same(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"test_sameas", {"other"}, 1}, arguments);
  if (run.failed()) return Value();
  // Equal strings are usually one object in Python (literals and keys are interned); here they always are.
  if (self.is_string() && args[0].is_string()) return Value::boolean(equal(run, self, args[0]));
  return Value::boolean(self.same_as(args[0]));
}

Value cased(Run& run, const Value& self, Arguments& arguments, std::string_view method) {
  bind(run, {"test", {}}, arguments);
  const Value text = run.string(str(run, self));
  Arguments none;
  return run.failed() ? Value() : find_string_method(method)(run, text, none);
}
Value is_lower_text(Run& run, const Value& self, Arguments& arguments) {
  return cased(run, self, arguments, "islower");
}
Value is_upper_text(Run& run, const Value& self, Arguments& arguments) {
  return cased(run, self, arguments, "isupper");
}

Value is_filter(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"test_filter", {}}, arguments);
  hash(run, self);
  return Value::boolean(self.is_string() && find_filter(self.as_string()) != nullptr);
}
Value is_test(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"test_test", {}}, arguments);
  hash(run, self);
  return Value::boolean(self.is_string() && find_test(self.as_string()) != nullptr);
}

struct Entry {
  std::string_view name;
  Builtin body;
};
constexpr Entry kTests[] = {
    {"!=", compares<Operator::kNe>},
    {"<", compares<Operator::kLt>},
    {"<=", compares<Operator::kLe>},
    {"==", compares<Operator::kEq>},
    {">", compares<Operator::kGt>},
    {">=", compares<Operator::kGe>},
    {"boolean", simple<is_boolean>},
    {"callable", simple<is_callable>},
    {"defined", simple<is_defined>},
    {"divisibleby", is_divisible},
    {"eq", compares<Operator::kEq>},
    {"equalto", compares<Operator::kEq>},
    {"escaped", simple<is_escaped>},
    {"even", is_even},
    {"false", simple<is_false>},
    {"filter", is_filter},
    {"float", simple<is_float>},
    {"ge", compares<Operator::kGe>},
    {"greaterthan", compares<Operator::kGt>},
    {"gt", compares<Operator::kGt>},
    {"in", compares<Operator::kIn>},
    {"integer", simple<is_integer>},
    {"iterable", simple<is_iterable_value>},
    {"le", compares<Operator::kLe>},
    {"lessthan", compares<Operator::kLt>},
    {"lower", is_lower_text},
    {"lt", compares<Operator::kLt>},
    {"mapping", simple<is_mapping>},
    {"ne", compares<Operator::kNe>},
    {"none", simple<is_none>},
    {"number", simple<is_number>},
    {"odd", is_odd},
    {"sameas", is_same},
    {"sequence", simple<is_sequence>},
    {"string", simple<is_string>},
    {"test", is_test},
    {"true", simple<is_true>},
    {"undefined", simple<is_undefined>},
    {"upper", is_upper_text},
};

// ---- Globals ----

Value range(Run& run, const Value&, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"range", {"", "", ""}, 1}, arguments);
  if (run.failed()) return Value();
  Int parts[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (!args[i].is_missing()) parts[i] = need_index(run, args[i], "range()");
  }
  if (args[1].is_missing()) {
    parts[1] = parts[0];
    parts[0] = 0;
  }
  if (!run.failed() && parts[2] == 0) return run.fail("range() arg 3 must not be zero");
  const Value made = run.make<RangeObject>(parts[0], parts[1], parts[2]);
  constexpr int kMaxRange = 100'000;  // The sandbox's MAX_RANGE.
  if (!run.failed() && made.as<RangeObject>().length() > kMaxRange) {
    return run.fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  }
  return made;
}

/// dict(mapping or pairs, **keywords) into a builder.
void fill(Run& run, Arguments& arguments, DictBuilder& builder) {
  if (arguments.positional.size() > 1) {
    run.fail(fmt::format("dict expected at most 1 argument, got {}", arguments.positional.size()));
    return;
  }
  if (!arguments.positional.empty() && arguments.positional[0].is_undefined()) {
    run.fail_undefined(arguments.positional[0]);
  } else if (!arguments.positional.empty() && arguments.positional[0].is(Kind::kDict)) {
    for (const auto& [key, value] : arguments.positional[0].as<DictObject>().entries) builder.set(key, value);
  } else if (!arguments.positional.empty()) {
    for (const Value& pair : to_vector(run, arguments.positional[0])) {
      const std::vector<Value> parts = to_vector(run, pair);
      if (!run.failed() && parts.size() != 2)
        run.fail("dictionary update sequence element has length other than 2");
      if (run.failed()) return;
      builder.set(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.keywords) builder.set(run.string(name), value);
}

Value dict(Run& run, const Value&, Arguments& arguments) {
  DictBuilder builder(run);
  fill(run, arguments, builder);
  return builder.finish();
}

Value make_namespace(Run& run, const Value&, Arguments& arguments) {
  DictBuilder builder(run);
  fill(run, arguments, builder);
  const Value attributes = builder.finish();
  const Value made = run.make<NamespaceObject>();
  if (run.failed()) return Value();
  for (const auto& [key, value] : attributes.as<DictObject>().entries) {
    if (!key.is_string()) continue;  // Cannot be read or written by any template.
    set_namespace_attribute(run, made, key.as_string(), value);
  }
  return made;
}

Value cycler(Run& run, const Value&, Arguments& arguments) {
  if (!arguments.keywords.empty()) return run.fail("cycler() takes no keyword arguments");
  if (arguments.positional.empty()) return run.fail("at least one item has to be provided");
  return run.make<CyclerObject>(std::move(arguments.positional));
}

Value joiner(Run& run, const Value&, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"joiner", {"sep"}}, arguments);
  return run.make<JoinerObject>(args[0].is_missing() ? run.string(", ") : args[0]);
}

Value raise_exception(Run& run, const Value&, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"raise_exception", {"message"}, 1}, arguments);
  return run.failed() ? Value() : run.fail("raise_exception: " + str(run, args[0]));
}

/// The host's local time, as datetime.now() would give it.
std::chrono::local_seconds local_now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return std::chrono::local_seconds(std::chrono::seconds(seconds + parts.tm_gmtoff));
}

std::tm civil_parts(std::chrono::local_seconds time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  std::tm parts{};
  parts.tm_year = static_cast<int>(date.year()) - 1900;
  parts.tm_mon = static_cast<int>(static_cast<unsigned>(date.month())) - 1;
  parts.tm_mday = static_cast<int>(static_cast<unsigned>(date.day()));
  parts.tm_hour = static_cast<int>(clock.hours().count());
  parts.tm_min = static_cast<int>(clock.minutes().count());
  parts.tm_sec = static_cast<int>(clock.seconds().count());
  parts.tm_wday = static_cast<int>(std::chrono::weekday(day).c_encoding());
  const std::chrono::local_days new_year = std::chrono::local_days(date.year() / std::chrono::January / 1);
  parts.tm_yday = static_cast<int>((day - new_year).count());
  parts.tm_isdst = -1;
  return parts;
}

/// Directives that Python answers itself for a time without zone and microseconds.
std::string resolve_python_directives(std::string_view format) {
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out += format[i];
      continue;
    }
    const char directive = format[++i];
    if (directive == 'f') {
      out += "000000";
    } else if (directive != 'z' && directive != 'Z') {
      out += '%';
      out += directive;
    }
  }
  return out;
}

/// strftime_now(format): the injected time in the C locale, whatever the process's locale is.
Value strftime_now(Run& run, const Value&, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"strftime_now", {"format"}, 1}, arguments);
  if (!run.failed() && !args[0].is_string()) run.fail("strftime() argument 1 must be str");
  if (run.failed()) return Value();
  if (!run.now) run.now = local_now();
  const std::tm parts = civil_parts(*run.now);
  // A final character tells an empty result from a buffer that is too small.
  const std::string format = resolve_python_directives(args[0].as_string()) + "|";
  constexpr size_t kMaxExpansion = 64;  // Of two characters, %c being the longest.
  if (!run.can_allocate(format.size() * kMaxExpansion)) return Value();
  std::string out(format.size() * kMaxExpansion, 0);
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  out.resize(strftime_l(out.data(), out.size(), format.c_str(), &parts, c_locale));
  if (out.empty()) return run.fail("strftime_now: the format is not usable");
  out.pop_back();
  return run.string(std::move(out));
}

Value lipsum(Run& run, const Value&, Arguments&) {
  return run.fail("lipsum() is random text and not supported");
}

constexpr Entry kGlobals[] = {{"cycler", cycler},
                              {"dict", dict},
                              {"joiner", joiner},
                              {"lipsum", lipsum},
                              {"namespace", make_namespace},
                              {"raise_exception", raise_exception},
                              {"range", range},
                              {"strftime_now", strftime_now}};

template <size_t N>
const Entry* find(const Entry (&entries)[N], std::string_view name) {
  const auto* at =
      std::lower_bound(std::begin(entries), std::end(entries), name,
                       [](const Entry& entry, std::string_view value) { return entry.name < value; });
  return at != std::end(entries) && at->name == name ? at : nullptr;
}

}  // namespace

Builtin find_test(std::string_view name) {
  const Entry* entry = find(kTests, name);
  return entry != nullptr ? entry->body : nullptr;
}

Value apply_test(Run& run, const Value& name, const Value& input, Arguments& arguments) {
  const Builtin test = name.is_string() ? find_test(name.as_string()) : nullptr;
  if (test == nullptr) return run.fail(fmt::format("No test named {}.", repr(run, name)));
  return test(run, input, arguments);
}

Value find_global(Run& run, std::string_view name) {
  const Entry* entry = find(kGlobals, name);
  return entry != nullptr ? run.function(entry->name, entry->body) : Value();
}

void set_namespace_attribute(Run& run, const Value& target, std::string_view name, Value value) {
  if (name.starts_with('_')) {
    run.fail(fmt::format(
        "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{}'. "
        "Please rename the attribute.",
        name));
    return;
  }
  if (!run.step(static_cast<int64_t>(target.as<NamespaceObject>().attributes.size() / 8))) return;
  target.as<NamespaceObject>().set(name, std::move(value));
}

}  // namespace tensorfold::jinja
