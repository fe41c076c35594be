// Filters on text, numbers and single values, and the table of all filters.
#include "text/jinja_filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

/// soft_str(value): the text of a value; markup stays markup.
Value soft_str(Run& run, const Value& value) {
  return value.is_string() ? value : run.string(str(run, value));
}

/// A method of str applied to the text of the value.
Value call_method(Run& run, const Value& self, std::string_view method, Arguments& arguments) {
  const Value text = soft_str(run, self);
  return run.failed() ? Value() : find_string_method(method)(run, text, arguments);
}

template <const char* Method>
Value text_method(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {Method, {}}, arguments);
  return run.failed() ? Value() : call_method(run, self, Method, arguments);
}
constexpr char kUpper[] = "upper";
constexpr char kLower[] = "lower";
constexpr char kCapitalize[] = "capitalize";

// ---- Text ----

Value trim(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_trim", {"chars"}}, arguments);
  Arguments chars;
  if (!args[0].is_missing()) chars.positional = {args[0]};
  return run.failed() ? Value() : call_method(run, self, "strip", chars);
}

Value center(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_center", {"width"}}, arguments);
  Arguments width;
  width.positional = {args[0].is_missing() ? Value::integer(80) : args[0]};
  return run.failed() ? Value() : call_method(run, self, "center", width);
}

/// Upper case after each run of `-`, white space and opening brackets, lower case elsewhere.
Value title(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_title", {}}, arguments);
  const std::string text = str(run, self);
  if (run.failed() || !run.can_allocate(text.size() * 8)) return Value();
  const auto separates = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const char32_t c = next_code_point(text, i);
    if (separates(c)) {
      append_code_point(out, c);
      continue;
    }
    size_t end = i;
    for (size_t next = i; next < text.size() && !separates(next_code_point(text, next));) end = next;
    out += to_upper(std::string_view(text).substr(start, i - start));
    out += to_lower(std::string_view(text).substr(i, end - i));
    i = end;
  }
  return run.string(std::move(out));
}

Value replace(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_replace", {"old", "new", "count"}, 2}, arguments);
  if (run.failed()) return Value();
  const bool no_limit = args[2].is_missing() || args[2].is_none();
  const int64_t limit = no_limit ? -1 : need_index(run, args[2], "replace()");
  return run.string(replace_text(run, str(run, self), str(run, args[0]), str(run, args[1]), limit));
}

Value indent(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_indent", {"width", "first", "blank"}}, arguments);
  if (run.failed()) return Value();
  if (self.is_undefined()) return run.fail_undefined(self);
  if (!self.is_string()) {
    return run.fail(fmt::format("unsupported operand type(s) for +=: '{}' and 'str'", type_name(self)));
  }
  const bool is_text = args[0].is_string();
  const int64_t width = is_text ? 0 : args[0].is_missing() ? 4 : need_index(run, args[0], "indent()");
  if (run.failed() || !run.can_allocate(static_cast<size_t>(std::max<int64_t>(width, 0)))) return Value();
  const std::string pad =
      is_text ? args[0].as_string() : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  const bool pads_first = truth(run, args[1]), pads_blank = truth(run, args[2]);
  if (!run.can_allocate(self.as_string().size() * 17)) return Value();  // At worst every byte ends a line.
  const std::string text = self.as_string() + "\n";
  std::string out = pads_first ? pad : "";
  bool is_first = true;
  for (std::string_view line : split_lines(text)) {
    if (!is_first) out += "\n" + (pads_blank || !line.empty() ? pad : "");
    is_first = false;
    out += line;
    if (!run.can_allocate(out.size()) || !run.read(line.size() + pad.size())) return Value();
  }
  return run.string(std::move(out), self.as<StringObject>().markup);
}

Value truncate(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args =
      bind(run, {"do_truncate", {"length", "killwords", "end", "leeway"}}, arguments);
  if (run.failed()) return Value();
  const int64_t wanted = args[0].is_missing() ? 255 : need_index(run, args[0], "truncate()");
  const int64_t leeway =
      args[3].is_missing() || args[3].is_none() ? 5 : need_index(run, args[3], "truncate()");
  const std::string end = args[2].is_missing() ? "..." : str(run, args[2]);
  const int64_t kept = wanted - static_cast<int64_t>(count_code_points(end));
  if (!run.failed() && kept < 0)
    return run.fail(fmt::format("expected length >= {}, got {}", wanted - kept, wanted));
  if (!run.failed() && leeway < 0) return run.fail(fmt::format("expected leeway >= 0, got {}", leeway));
  const int64_t size = length(run, self);
  if (run.failed() || size - wanted <= leeway) return run.failed() ? Value() : self;
  if (!self.is_string())
    return run.fail(fmt::format("'{}' object has no attribute 'rsplit'", type_name(self)));
  std::string out =
      self.as_string().substr(0, code_point_offset(self.as_string(), static_cast<size_t>(kept)));
  if (!truth(run, args[1])) out = out.substr(0, out.rfind(' '));
  return run.string(out + end, self.as<StringObject>().markup);
}

Value wordcount(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_wordcount", {}}, arguments);
  const std::string text = str(run, self);
  Int count = 0;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    const bool is_word = is_alnum(c) || c == '_';
    count += is_word && !in_word ? 1 : 0;
    in_word = is_word;
  }
  return Value::integer(count);
}

Value format(Run& run, const Value& self, Arguments& arguments) {
  const Value text = soft_str(run, self);
  if (!arguments.positional.empty() && !arguments.keywords.empty()) {
    return run.fail("can't handle positional and keyword arguments at the same time");
  }
  if (arguments.keywords.empty()) return printf_format(run, text, run.tuple(std::move(arguments.positional)));
  DictBuilder builder(run);
  for (auto& [name, value] : arguments.keywords) builder.set(run.string(name), value);
  return printf_format(run, text, builder.finish());
}

std::string quote_url(std::string_view text, bool for_query) {
  std::string out;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          std::string_view("_.-~").find(c) != std::string_view::npos ||
                          (c == '/' && !for_query);
    if (is_plain) {
      out += c;
    } else if (c == ' ' && for_query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value urlencode(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_urlencode", {}}, arguments);
  if (run.failed()) return Value();
  if (self.is_string() || !is_iterable(self)) return run.string(quote_url(str(run, self), false));
  const Value pairs =
      self.is(Kind::kDict) ? run.make<DictViewObject>(self, DictViewObject::Part::kItems) : self;
  std::string out;
  for (const Value& pair : to_vector(run, pairs)) {
    const std::vector<Value> parts = to_vector(run, pair);
    if (parts.size() != 2) return run.fail("not enough or too many values to unpack (expected 2)");
    if (!out.empty()) out += '&';
    out += quote_url(str(run, parts[0]), true) + "=" + quote_url(str(run, parts[1]), true);
    if (!run.can_allocate(out.size())) return Value();
  }
  return run.string(std::move(out));
}

Value escape(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"escape", {}}, arguments);
  if (self.is_string() && self.as<StringObject>().markup) return self;
  return run.string(escape_html(str(run, self)), true);
}
Value forceescape(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_forceescape", {}}, arguments);
  return run.string(escape_html(str(run, self)), true);
}
Value safe(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_mark_safe", {}}, arguments);
  return run.string(str(run, self), true);
}
Value string(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"soft_str", {}}, arguments);
  return soft_str(run, self);
}

// ---- Numbers ----

Value abs(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"abs", {}}, arguments);
  if (self.is(Kind::kFloat)) return Value::real(std::abs(self.as_float()));
  if (self.is_integral()) {
    return self.as_int() < 0 ? unary(run, Operator::kNeg, self) : Value::integer(self.as_int());
  }
  return run.fail(fmt::format("bad operand type for abs(): '{}'", type_name(self)));
}

/// Text without surrounding white space and with digit-separating underscores taken out; nullopt when one of
/// them does not stand between digits.
std::optional<std::string> number_text(std::string_view text) {
  text.remove_prefix(leading_space(text));
  text.remove_suffix(trailing_space(text));
  std::string out;
  const auto is_digit_at = [&](size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

/// float(text)
std::optional<double> parse_float(std::string_view text) {
  const std::optional<std::string> cleaned = number_text(text);
  if (!cleaned || cleaned->empty()) return std::nullopt;
  const char* begin = cleaned->data();
  const char* end = begin + cleaned->size();
  if (*begin == '+' || *begin == '-') ++begin;
  const bool is_word = begin != end && std::isalpha(static_cast<unsigned char>(*begin)) != 0;
  const std::string word = to_lower(std::string_view(begin, static_cast<size_t>(end - begin)));
  if (begin == end || *begin == '+' || *begin == '-') return std::nullopt;
  if (is_word && word != "inf" && word != "infinity" && word != "nan") return std::nullopt;
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (stop != end || (error != std::errc() && error != std::errc::result_out_of_range)) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    // Too large is infinite, too small is zero; the exponent's sign tells which.
    const bool is_small = cleaned->find("e-") != std::string::npos ||
                          cleaned->find("E-") != std::string::npos ||
                          cleaned->find_first_of("123456789") > cleaned->find('.');
    value = is_small ? 0.0 : HUGE_VAL;
  }
  return (*cleaned)[0] == '-' ? -value : value;
}

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  return c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 99;
}

/// int(text, base): nullopt where Python raises ValueError; a number beyond 128 bits is a failure.
std::optional<Int> parse_int(Run& run, std::string_view text, int64_t base) {
  const std::optional<std::string> cleaned = number_text(text);
  if (!cleaned || cleaned->empty() || (base != 0 && (base < 2 || base > 36))) return std::nullopt;
  std::string_view digits = *cleaned;
  const bool is_negative = digits[0] == '-';
  if (digits[0] == '-' || digits[0] == '+') digits.remove_prefix(1);
  const auto prefix_base = [&]() -> int64_t {
    if (digits.size() < 3 || digits[0] != '0') return 0;
    const char c = static_cast<char>(digits[1] | 0x20);
    return c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
  }();
  if (prefix_base != 0 && (base == 0 || base == prefix_base)) {
    digits.remove_prefix(2);
    base = prefix_base;
  } else if (base == 0) {
    base = 10;
  }
  if (digits.empty()) return std::nullopt;
  Int value = 0;
  for (const char c : digits) {
    if (digit_value(c) >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Int{base}, &value) ||
        __builtin_add_overflow(value, Int{digit_value(c)}, &value)) {
      run.fail("integer does not fit in 128 bits");
    }
  }
  return is_negative ? -value : value;
}

Value float_to_int(Run& run, double value) {
  if (std::abs(value) < 0x1p126) return Value::integer(static_cast<Int>(value));
  return run.fail("integer does not fit in 128 bits");
}

Value to_int(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_int", {"default", "base"}}, arguments);
  if (run.failed()) return Value();
  const Value otherwise = args[0].is_missing() ? Value::integer(0) : args[0];
  if (self.is_undefined()) return run.fail_undefined(self);
  if (self.is_integral()) return Value::integer(self.as_int());
  if (self.is(Kind::kFloat)) {
    if (std::isinf(self.as_float())) return run.fail("cannot convert float infinity to integer");
    return std::isnan(self.as_float()) ? otherwise : float_to_int(run, self.as_float());
  }
  if (!self.is_string()) return otherwise;
  const int64_t base = args[1].is_missing() ? 10 : need_index(run, args[1], "int()");
  if (const std::optional<Int> value = parse_int(run, self.as_string(), base)) return Value::integer(*value);
  const std::optional<double> value = parse_float(self.as_string());
  return value && std::isfinite(*value) ? float_to_int(run, *value) : otherwise;
}

Value to_float(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_float", {"default"}}, arguments);
  if (run.failed()) return Value();
  if (self.is_undefined()) return run.fail_undefined(self);
  if (self.is_number()) return Value::real(self.as_float());
  const std::optional<double> value = self.is_string() ? parse_float(self.as_string()) : std::nullopt;
  if (value) return Value::real(*value);
  return args[0].is_missing() ? Value::real(0) : args[0];
}

/// round(value, digits): half to even on the exact binary value.
double round_float(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 330) return value;
  if (digits < -310) return std::copysign(0.0, value);
  if (digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(value / scale) * scale;
  }
  char buffer[700];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, static_cast<int>(digits))
          .ptr;
  double rounded = value;
  std::from_chars(buffer, end, rounded);
  return rounded;
}

Value round_int(Run& run, Int value, int64_t digits) {
  if (digits >= 0) return Value::integer(value);
  if (digits < -38) return Value::integer(0);
  Int unit = 1;
  for (; digits < 0; ++digits) unit *= 10;
  Int rest = value % unit;
  if (rest < 0) rest += unit;
  const Int down = value - rest;
  const bool is_odd = down / unit % 2 != 0;
  const bool up = rest * 2 > unit || (rest * 2 == unit && is_odd);
  return binary(run, Operator::kAdd, Value::integer(down), Value::integer(up ? unit : 0));
}

Value round(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_round", {"precision", "method"}}, arguments);
  if (run.failed()) return Value();
  const std::string method = args[1].is_missing() ? "common" : str(run, args[1]);
  if (method != "common" && method != "ceil" && method != "floor") {
    return run.fail("method must be common, ceil or floor");
  }
  const int64_t digits = args[0].is_missing() ? 0 : need_index(run, args[0], "round()");
  if (self.is_undefined() && method != "common") return run.fail_undefined(self);
  if (!run.failed() && !self.is_number()) {
    return run.fail(fmt::format("type {} doesn't define __round__ method", type_name(self)));
  }
  if (run.failed()) return Value();
  if (method == "common") {
    return self.is_integral() ? round_int(run, self.as_int(), digits)
                              : Value::real(round_float(self.as_float(), digits));
  }
  const Value scale = binary(run, Operator::kPow, Value::integer(10), Value::integer(digits));
  const Value scaled = binary(run, Operator::kMul, self, scale);
  if (run.failed()) return Value();
  const double number = scaled.as_float();
  if (!std::isfinite(number)) return run.fail("cannot convert float infinity or NaN to integer");
  const double whole = method == "ceil" ? std::ceil(number) : std::floor(number);
  return binary(run, Operator::kDiv, scaled.is_integral() ? scaled : float_to_int(run, whole), scale);
}

// ---- Single values ----

Value length_filter(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"len", {}}, arguments);
  if (run.failed()) return Value();
  if (self.is(Kind::kLoop)) return get_attribute(run, self, run.string("length"));
  return Value::integer(length(run, self));
}

Value default_value(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_default", {"default_value", "boolean"}}, arguments);
  if (run.failed()) return Value();
  if (!self.is_undefined() && !(truth(run, args[1]) && !truth(run, self))) return self;
  return args[0].is_missing() ? run.string("") : args[0];
}

Value attr(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_attr", {"name"}, 1}, arguments);
  if (run.failed()) return Value();
  if (!args[0].is_string()) return run.fail("attribute name must be string");
  if (self.is_undefined()) return run.fail_undefined(self);
  const std::optional<Value> attribute = find_attribute(run, self, args[0]);
  return attribute ? *attribute : run.undefined_member(self, args[0]);
}

/// One of the two separators of json.dumps; `absent` where the argument was not given.
std::string separator(Run& run, const Value& separators, size_t index, std::string absent) {
  if (separators.is_missing() || separators.is_none()) return absent;
  const std::vector<Value> parts = to_vector(run, separators);
  if (parts.size() != 2 || !parts[index].is_string()) {
    run.fail("tojson: separators must be two strings");
    return "";
  }
  return parts[index].as_string();
}

Value tojson(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args =
      bind(run, {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}}, arguments);
  if (run.failed()) return Value();
  JsonOptions options;
  options.ensure_ascii = truth(run, args[0]);
  options.sort_keys = truth(run, args[3]);
  options.has_indent = !args[1].is_missing() && !args[1].is_none();
  if (options.has_indent && args[1].is_string()) {
    options.indent = args[1].as_string();
  } else if (options.has_indent) {
    const int64_t width = std::max<int64_t>(need_index(run, args[1], "tojson: indent"), 0);
    if (!run.can_allocate(static_cast<size_t>(width))) return Value();
    options.indent.assign(static_cast<size_t>(width), ' ');
  }
  options.item_separator = separator(run, args[2], 0, options.has_indent ? "," : ", ");
  options.key_separator = separator(run, args[2], 1, ": ");
  return run.failed() ? Value() : run.string(json_dumps(run, self, options));
}

Value not_supported(Run& run, const Value&, Arguments&) {
  return run.fail(
      "this filter is not supported (of Jinja's: filesizeformat, pprint, random, striptags, urlize, "
      "wordwrap, xmlattr)");
}

struct Entry {
  std::string_view name;
  Builtin body;
};
constexpr Entry kFilters[] = {
    {"abs", abs},
    {"attr", attr},
    {"batch", filters::batch},
    {"capitalize", text_method<kCapitalize>},
    {"center", center},
    {"count", length_filter},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", filters::dictsort},
    {"e", escape},
    {"escape", escape},
    {"filesizeformat", not_supported},
    {"first", filters::first},
    {"float", to_float},
    {"forceescape", forceescape},
    {"format", format},
    {"groupby", filters::groupby},
    {"indent", indent},
    {"int", to_int},
    {"items", filters::items},
    {"join", filters::join},
    {"last", filters::last},
    {"length", length_filter},
    {"list", filters::list},
    {"lower", text_method<kLower>},
    {"map", filters::map},
    {"max", filters::max},
    {"min", filters::min},
    {"pprint", not_supported},
    {"random", not_supported},
    {"reject", filters::reject},
    {"rejectattr", filters::rejectattr},
    {"replace", replace},
    {"reverse", filters::reverse},
    {"round", round},
    {"safe", safe},
    {"select", filters::select},
    {"selectattr", filters::selectattr},
    {"slice", filters::slice},
    {"sort", filters::sort},
    {"string", string},
    {"striptags", not_supported},
    {"sum", filters::sum},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"unique", filters::unique},
    {"upper", text_method<kUpper>},
    {"urlencode", urlencode},
    {"urlize", not_supported},
    {"wordcount", wordcount},
    {"wordwrap", not_supported},
    {"xmlattr", not_supported},
};

}  // namespace

Builtin find_filter(std::string_view name) {
  const auto* at =
      std::lower_bound(std::begin(kFilters), std::end(kFilters), name,
                       [](const Entry& entry, std::string_view value) { return entry.name < value; });
  return at != std::end(kFilters) && at->name == name ? at->body : nullptr;
}

Value apply_filter(Run& run, const Value& name, const Value& input, Arguments& arguments) {
  const Builtin filter = name.is_string() ? find_filter(name.as_string()) : nullptr;
  if (filter == nullptr) return run.fail(fmt::format("No filter named {}.", repr(run, name)));
  return filter(run, input, arguments);
}

}  // namespace tensorfold::jinja
