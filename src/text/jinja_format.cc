// printf-style formatting (`'%05.1f' % x`, the format filter) and str.format.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/json.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

/// More digits than any double has; beyond it only zeros or errors of the template follow.
constexpr int64_t kMaxPrecision = 5000;

/// A format specification, of either syntax.
struct Spec {
  char32_t fill = U' ';
  char align = 0;  ///< '<' '>' '^' '=' or 0 for the type's default.
  char sign = 0;   ///< '+' ' ' or 0 for minus only.
  bool alternate = false;
  int64_t width = 0;
  char grouping = 0;  ///< ',' '_' or 0.
  std::optional<int64_t> precision;
  char type = 0;
};

/// Puts fill around text, or between sign (its first prefix_size bytes) and digits for '='.
std::string pad(Run& run, const std::string& text, size_t prefix_size, const Spec& spec, char default_align) {
  const int64_t missing = spec.width - static_cast<int64_t>(count_code_points(text));
  if (missing <= 0) return text;
  if (!run.can_allocate(static_cast<size_t>(missing) * 4) || !run.step(missing / 64)) return "";
  const auto fill = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) append_code_point(out, spec.fill);
    return out;
  };
  switch (spec.align != 0 ? spec.align : default_align) {
    case '<':
      return text + fill(missing);
    case '^':
      return fill(missing / 2) + text + fill(missing - missing / 2);
    case '=':
      return text.substr(0, prefix_size) + fill(missing) + text.substr(prefix_size);
    default:
      return fill(missing) + text;
  }
}

std::string group_digits(std::string digits, char separator, size_t size) {
  for (size_t at = digits.size(); separator != 0 && at > size;) digits.insert(at -= size, 1, separator);
  return digits;
}

std::string with_case(std::string text, bool upper) { return upper ? to_upper(text) : text; }

std::string digits_of(Int value, int base) {
  std::string out;
  auto rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  do {
    out += "0123456789abcdef"[static_cast<int>(rest % base)];
    rest /= base;
  } while (rest != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string sign_text(bool is_negative, char sign) {
  return is_negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

std::string format_int(Run& run, Int value, const Spec& spec) {
  const char lower = static_cast<char>(spec.type == 'X' ? 'x' : spec.type);
  const int base = lower == 'x' ? 16 : lower == 'o' ? 8 : lower == 'b' ? 2 : 10;
  std::string prefix = sign_text(value < 0, spec.sign);
  if (spec.alternate && base != 10) {
    prefix += '0';
    prefix += spec.type;
  }
  std::string digits = with_case(digits_of(value, base), spec.type == 'X');
  // A precision (printf only) is the least number of digits.
  const int64_t least = std::min(spec.precision.value_or(0), kMaxPrecision);
  if (static_cast<int64_t>(digits.size()) < least)
    digits.insert(0, static_cast<size_t>(least) - digits.size(), '0');
  digits = group_digits(std::move(digits), spec.grouping, base == 10 ? 3 : 4);
  return pad(run, prefix + digits, prefix.size(), spec, '>');
}

/// Digits of a finite, non-negative float.
std::string float_digits(double value, char type, std::optional<int64_t> precision) {
  const int digits = static_cast<int>(std::min(precision.value_or(6), kMaxPrecision));
  std::string buffer(static_cast<size_t>(digits) + 340, 0);
  const auto write = [&](std::chars_format format, int count) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format, count).ptr;
    return buffer.substr(0, static_cast<size_t>(end - buffer.data()));
  };
  if (type == 'f' || type == '%') return write(std::chars_format::fixed, digits);
  if (type == 'e') return write(std::chars_format::scientific, digits);
  if (type == 'g') return write(std::chars_format::general, std::max(digits, 1));
  if (!precision) return python_float_repr(value);
  // No type but a precision: as 'g', with at least one digit after the point when not in exponent form.
  std::string text = write(std::chars_format::general, std::max(digits, 1));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string format_float(Run& run, double value, const Spec& spec) {
  const bool is_upper = spec.type == 'F' || spec.type == 'E' || spec.type == 'G';
  const char type = static_cast<char>(is_upper ? spec.type + 32 : spec.type == 'n' ? 'g' : spec.type);
  if (spec.alternate) run.fail("alternate form (#) of a float is not supported");
  if (type == '%') value *= 100;
  const std::string prefix = sign_text(std::signbit(value) && !std::isnan(value), spec.sign);
  const double magnitude = std::abs(value);
  std::string digits = std::isnan(value)   ? "nan"
                       : std::isinf(value) ? "inf"
                                           : float_digits(magnitude, type, spec.precision);
  const size_t whole = std::min(digits.find_first_of(".e"), digits.size());
  if (std::isfinite(value))
    digits = group_digits(digits.substr(0, whole), spec.grouping, 3) + digits.substr(whole);
  if (type == '%') digits += '%';
  return pad(run, prefix + with_case(digits, is_upper), prefix.size(), spec, '>');
}

std::string format_text(Run& run, std::string text, const Spec& spec) {
  if (spec.precision) text.resize(code_point_offset(text, static_cast<size_t>(*spec.precision)));
  return pad(run, text, 0, spec, '<');
}

/// Reads a decimal number at text[i]; nullopt when there is none. Clamped: no use of it can be larger.
std::optional<int64_t> read_number(std::string_view text, size_t& i) {
  if (i >= text.size() || text[i] < '0' || text[i] > '9') return std::nullopt;
  int64_t number = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    number = std::min<int64_t>(number * 10 + (text[i] - '0'), int64_t{1} << 40);
  }
  return number;
}

/// repr with everything outside ASCII escaped.
std::string ascii_repr(Run& run, const Value& value) {
  const std::string text = repr(run, value);
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else {
      const uint32_t code = c;
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  return out;
}

/// One run of `format % arguments`.
class PrintfFormatter {
 public:
  PrintfFormatter(Run& run, const Value& format, const Value& arguments)
      : run_(run),
        text_(format.as_string()),
        is_markup_(format.as<StringObject>().markup),
        arguments_(arguments) {
    if (arguments.is(Kind::kTuple)) {
      positional_ = arguments.as_sequence();
    } else {
      positional_ = {arguments};
    }
  }

  Value format() {
    size_t i = 0;
    while (i < text_.size() && !run_.failed()) {
      if (text_[i] != '%') {
        out_ += text_[i++];
      } else {
        format_field(++i);
      }
      if (!run_.can_allocate(out_.size())) break;
    }
    // What takes an index or a key may be left unused.
    const bool is_mapping = !arguments_.is(Kind::kTuple) && !arguments_.is_string() &&
                            !arguments_.is(Kind::kDictView) && try_length(arguments_).has_value();
    if (next_ < positional_.size() && !is_mapping) {
      run_.fail("not all arguments converted during string formatting");
    }
    return run_.string(std::move(out_), is_markup_);
  }

 private:
  void format_field(size_t& i) {
    if (i < text_.size() && text_[i] == '%') {
      out_ += '%';
      ++i;
      return;
    }
    std::optional<Value> keyed;
    if (i < text_.size() && text_[i] == '(') keyed = read_key(i);
    Spec spec;
    read_flags(i, spec);
    read_width(i, spec);
    while (i < text_.size() && (text_[i] == 'h' || text_[i] == 'l' || text_[i] == 'L')) ++i;
    if (i >= text_.size()) {
      run_.fail("incomplete format");
      return;
    }
    spec.type = text_[i++];
    const Value value = keyed ? *keyed : next_argument();
    if (!run_.failed()) out_ += convert(value, spec);
  }

  std::optional<Value> read_key(size_t& i) {
    size_t end = i + 1;
    for (int open = 1; end < text_.size(); ++end) {
      open += text_[end] == '(' ? 1 : text_[end] == ')' ? -1 : 0;
      if (open == 0) break;
    }
    if (end >= text_.size()) return run_.fail("incomplete format key");
    const Value key = run_.string(text_.substr(i + 1, end - i - 1));
    i = end + 1;
    if (arguments_.is_undefined()) return run_.fail_undefined(arguments_);
    if (!arguments_.is(Kind::kDict)) return run_.fail("format requires a mapping");
    const std::optional<Value> value = try_item(run_, arguments_, key);
    next_ = positional_.size();
    return value ? *value : run_.fail(repr(run_, key));
  }

  void read_flags(size_t& i, Spec& spec) {
    for (; i < text_.size(); ++i) {
      switch (text_[i]) {
        case '-':
          spec.align = '<';
          break;
        case '+':
          spec.sign = '+';
          break;
        case ' ':
          spec.sign = spec.sign == '+' ? '+' : ' ';
          break;
        case '#':
          spec.alternate = true;
          break;
        case '0':
          spec.fill = U'0';
          if (spec.align == 0) spec.align = '=';
          break;
        default:
          return;
      }
    }
  }

  void read_width(size_t& i, Spec& spec) {
    spec.width = read_count(i).value_or(0);
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (i < text_.size() && text_[i] == '.') {
      ++i;
      spec.precision = std::max<int64_t>(read_count(i).value_or(0), 0);
    }
  }

  std::optional<int64_t> read_count(size_t& i) {
    if (i >= text_.size() || text_[i] != '*') return read_number(text_, i);
    ++i;
    const Value count = next_argument();
    if (!count.is_integral()) run_.fail("* wants int");
    return run_.failed()
               ? 0
               : std::clamp(need_index(run_, count, "width"), -(int64_t{1} << 40), int64_t{1} << 40);
  }

  Value next_argument() {
    if (next_ >= positional_.size()) return run_.fail("not enough arguments for format string");
    return positional_[next_++];
  }

  std::string convert(const Value& value, Spec spec) {
    if (spec.align == '<') spec.fill = U' ';
    switch (spec.type) {
      case 's':
        return text(str(run_, value), value, spec);
      case 'r':
        return text(repr(run_, value), value, spec);
      case 'a':
        return text(ascii_repr(run_, value), value, spec);
      case 'c':
        return convert_char(value, spec);
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return convert_int(value, spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return convert_float(value, spec);
      default:
        run_.fail(fmt::format("unsupported format character '{}'", spec.type));
        return "";
    }
  }

  std::string text(std::string converted, const Value& value, Spec spec) {
    if (is_markup_ && !(value.is_string() && value.as<StringObject>().markup))
      converted = escape_html(converted);
    spec.fill = U' ';
    if (spec.align != '<') spec.align = '>';
    return format_text(run_, std::move(converted), spec);
  }

  std::string convert_char(const Value& value, const Spec& spec) {
    std::string c;
    if (value.is_integral() && value.as_int() >= 0 && value.as_int() < 0x110000) {
      append_code_point(c, static_cast<char32_t>(value.as_int()));
    } else if (value.is_string() && value.as<StringObject>().length == 1) {
      c = value.as_string();
    } else {
      run_.fail("%c requires int or char");
    }
    return text(c, Value::none(), spec);
  }

  std::string convert_int(const Value& value, Spec spec) {
    const bool is_decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (value.is_undefined()) run_.fail_undefined(value);
    Int number = 0;
    if (value.is_integral()) {
      number = value.as_int();
    } else if (is_decimal && value.is(Kind::kFloat) && std::abs(value.as_float()) < 0x1p127) {
      number = static_cast<Int>(value.as_float());
    } else {
      run_.fail(fmt::format("%{} format: {} is required, not {}", spec.type,
                            is_decimal ? "a real number" : "an integer", type_name(value)));
    }
    return format_int(run_, number, spec);
  }

  std::string convert_float(const Value& value, const Spec& spec) {
    if (value.is_undefined()) run_.fail_undefined(value);
    if (!value.is_number()) {
      run_.fail(fmt::format("must be real number, not {}", type_name(value)));
      return "";
    }
    return format_float(run_, value.as_float(), spec);
  }

  Run& run_;
  const std::string& text_;
  const bool is_markup_;
  const Value arguments_;
  std::vector<Value> positional_;
  size_t next_ = 0;
  std::string out_;
};

/// Reads `[[fill]align][sign][#][0][width][grouping][.precision][type]`; false when something is left over.
bool parse_spec(std::string_view text, Spec& spec) {
  size_t i = 0;
  const auto is_align = [&](size_t at) {
    return at < text.size() && std::string_view("<>^=").find(text[at]) != std::string_view::npos;
  };
  size_t after_fill = 0;
  const char32_t first = text.empty() ? 0 : next_code_point(text, after_fill);
  if (is_align(after_fill)) {
    spec.fill = first;
    spec.align = text[after_fill];
    i = after_fill + 1;
  } else if (is_align(0)) {
    spec.align = text[i++];
  }
  const auto accept = [&](std::string_view any) {
    return i < text.size() && any.find(text[i]) != std::string_view::npos ? text[i++] : '\0';
  };
  if (const char sign = accept("+- ")) spec.sign = sign == '-' ? '\0' : sign;
  spec.alternate = accept("#") != 0;
  if (accept("0") != 0 && spec.align == 0) {
    spec.fill = U'0';
    spec.align = '=';
  }
  spec.width = read_number(text, i).value_or(0);
  spec.grouping = accept(",_");
  if (accept(".") != 0) {
    spec.precision = read_number(text, i);
    if (!spec.precision) return false;
  }
  spec.type = accept("bcdeEfFgGnosxX%");
  return i == text.size();
}

/// One run of str.format: replacement fields `{name.attribute[item]!conversion:spec}`.
class BraceFormatter {
 public:
  BraceFormatter(Run& run, const Arguments& arguments, bool is_markup)
      : run_(run), arguments_(arguments), is_markup_(is_markup) {}

  std::string format(std::string_view text, int depth) {
    std::string out;
    for (size_t i = 0; i < text.size() && !run_.failed();) {
      const char c = text[i++];
      const bool is_doubled = i < text.size() && text[i] == c;
      if (c != '{' && c != '}') {
        out += c;
      } else if (is_doubled) {
        out += c;
        ++i;
      } else if (c == '}') {
        run_.fail("Single '}' encountered in format string");
      } else {
        out += format_field(text, i, depth);
      }
      if (!run_.can_allocate(out.size())) break;
    }
    return out;
  }

 private:
  std::string format_field(std::string_view text, size_t& i, int depth) {
    if (depth > 2) run_.fail("Max string recursion exceeded");
    const size_t start = i;
    int open = 1;
    for (; i < text.size() && open > 0; ++i) open += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (open > 0)
      run_.fail(start == text.size() ? "Single '{' encountered in format string"
                                     : "expected '}' before end of string");
    if (run_.failed()) return "";
    const std::string_view field = text.substr(start, i - 1 - start);
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    char conversion = 0;
    size_t spec_at = name_end;
    if (spec_at < field.size() && field[spec_at] == '!') {
      conversion = spec_at + 1 < field.size() ? field[spec_at + 1] : ' ';
      spec_at += 2;
    }
    const std::string_view spec = spec_at < field.size() ? field.substr(spec_at + 1) : std::string_view();
    Value value = convert(find(field.substr(0, name_end)), conversion);
    const std::string full_spec = format(spec, depth + 1);
    if (run_.failed()) return "";
    const std::string text_of_value = format_value(run_, value, full_spec);
    const bool is_safe = !is_markup_ || (value.is_string() && value.as<StringObject>().markup);
    return is_safe ? text_of_value : escape_html(text_of_value);
  }

  Value convert(const Value& value, char conversion) {
    switch (conversion) {
      case 0:
        return value;
      case 's':
        return run_.string(str(run_, value));
      case 'r':
        return run_.string(repr(run_, value));
      case 'a':
        return run_.string(ascii_repr(run_, value));
      default:
        return run_.fail(fmt::format("Unknown conversion specifier '{}'", conversion));
    }
  }

  Value find(std::string_view name) {
    size_t i = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, i));
    while (i < name.size() && !run_.failed()) {
      if (name[i] == '.') {
        const size_t end = std::min(name.find_first_of(".[", i + 1), name.size());
        value = get_attribute(run_, value, run_.string(std::string(name.substr(i + 1, end - i - 1))));
        i = end;
      } else {
        const size_t end = name.find(']', i);
        if (end == std::string_view::npos) return run_.fail("Missing ']' in format string");
        value = get_item(run_, value, item_key(name.substr(i + 1, end - i - 1)));
        i = end + 1;
      }
    }
    return value;
  }

  Value item_key(std::string_view key) {
    size_t end = 0;
    const std::optional<int64_t> number = read_number(key, end);
    return number && end == key.size() ? Value::integer(*number) : run_.string(std::string(key));
  }

  Value argument(std::string_view name) {
    size_t end = 0;
    std::optional<int64_t> index = read_number(name, end);
    if (name.empty()) {
      index = automatic_++;
      end = 0;
    }
    if (index && end == name.size()) {
      (name.empty() ? is_automatic_ : is_manual_) = true;
      if (is_automatic_ && is_manual_) {
        return run_.fail("cannot switch between manual field specification and automatic field numbering");
      }
      if (*index < static_cast<int64_t>(arguments_.positional.size())) return arguments_.positional[*index];
      return run_.fail(fmt::format("Replacement index {} out of range for positional args tuple", *index));
    }
    for (const auto& [key, value] : arguments_.keywords) {
      if (key == name) return value;
    }
    return run_.fail(string_repr(name));
  }

  Run& run_;
  const Arguments& arguments_;
  const bool is_markup_;
  int64_t automatic_ = 0;
  bool is_automatic_ = false;
  bool is_manual_ = false;
};

}  // namespace

Value printf_format(Run& run, const Value& format, const Value& arguments) {
  return PrintfFormatter(run, format, arguments).format();
}

Value brace_format(Run& run, const Value& format, const Arguments& arguments) {
  const bool is_markup = format.as<StringObject>().markup;
  return run.string(BraceFormatter(run, arguments, is_markup).format(format.as_string(), 1), is_markup);
}

std::string format_value(Run& run, const Value& value, std::string_view text) {
  if (text.empty()) return str(run, value);
  Spec spec;
  const bool is_valid = parse_spec(text, spec);
  const auto unknown = [&] {
    run.fail(fmt::format("Invalid format specifier '{}' for object of type '{}'", text, type_name(value)));
    return std::string();
  };
  if (!is_valid) return unknown();
  if (value.is_string()) {
    const bool fits = (spec.type == 0 || spec.type == 's') && spec.align != '=' && spec.sign == 0 &&
                      !spec.alternate && spec.grouping == 0;
    return fits ? format_text(run, value.as_string(), spec) : unknown();
  }
  const bool is_float_type =
      std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != 0;
  if (value.is(Kind::kFloat) || (value.is_integral() && is_float_type)) {
    return is_float_type || spec.type == 0 || spec.type == 'n' ? format_float(run, value.as_float(), spec)
                                                               : unknown();
  }
  if (!value.is_integral() || spec.precision || spec.type == 's') return unknown();
  if (spec.type == 'c') {
    if (value.as_int() < 0 || value.as_int() > 0x10ffff) run.fail("%c arg not in range(0x110000)");
    std::string c;
    if (!run.failed()) append_code_point(c, static_cast<char32_t>(value.as_int()));
    return pad(run, c, 0, spec, '<');
  }
  if (spec.type == 'n') spec.type = 'd';
  return format_int(run, value.as_int(), spec);
}

}  // namespace tensorfold::jinja
