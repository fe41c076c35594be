// Python's str methods.
#include <algorithm>
#include <optional>

#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

const std::string& text_of(const Value& self) { return self.as_string(); }
bool markup_of(const Value& self) { return self.as<StringObject>().markup; }

/// A result of the same flavour (plain or markup) as self.
Value like(Run& run, const Value& self, std::string_view text) {
  return run.string(std::string(text), markup_of(self));
}

/// The text of an argument that must be a string.
std::string_view need_string(Run& run, const Value& value, std::string_view function) {
  if (value.is_string()) return value.as_string();
  if (value.is_undefined()) run.fail_undefined(value);
  run.fail(fmt::format("{}() argument must be str, not {}", function, type_name(value)));
  return "";
}

// ---- Case ----

template <std::string (*Convert)(std::string_view)>
Value converted(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"str method", {}}, arguments);
  if (run.failed() || !run.can_allocate(text_of(self).size() * 8)) return Value();
  return like(run, self, Convert(text_of(self)));
}

// ---- Stripping ----

template <bool Left, bool Right>
Value strip(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"strip", {""}}, arguments);
  if (run.failed() || !run.read(text_of(self).size())) return Value();
  std::string_view text = text_of(self);
  if (args[0].is_missing() || args[0].is_none()) {
    if (Left) text.remove_prefix(leading_space(text));
    if (Right) text.remove_suffix(trailing_space(text));
    return text.size() == text_of(self).size() ? self : like(run, self, text);
  }
  const std::string_view chars = need_string(run, args[0], "strip");
  std::u32string set;
  for (size_t i = 0; i < chars.size();) set += next_code_point(chars, i);
  const auto is_in = [&](size_t at) { return set.find(next_code_point(text, at)) != std::u32string::npos; };
  while (Left && !text.empty() && is_in(0)) {
    size_t next = 0;
    next_code_point(text, next);
    text.remove_prefix(next);
    if (!run.step(static_cast<int64_t>(set.size() / 64))) return Value();
  }
  while (Right && !text.empty()) {
    size_t last = text.size() - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    if (!is_in(last)) break;
    text.remove_suffix(text.size() - last);
    if (!run.step(static_cast<int64_t>(set.size() / 64))) return Value();
  }
  return text.size() == text_of(self).size() ? self : like(run, self, text);
}

Value remove_prefix(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"removeprefix", {""}, 1}, arguments);
  if (run.failed()) return Value();
  const std::string_view prefix = need_string(run, args[0], "removeprefix");
  const std::string_view text = text_of(self);
  return text.starts_with(prefix) ? like(run, self, text.substr(prefix.size())) : self;
}
Value remove_suffix(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"removesuffix", {""}, 1}, arguments);
  if (run.failed()) return Value();
  const std::string_view suffix = need_string(run, args[0], "removesuffix");
  const std::string_view text = text_of(self);
  return text.ends_with(suffix) ? like(run, self, text.substr(0, text.size() - suffix.size())) : self;
}

// ---- Splitting and joining ----

/// Memory that a list of so many pieces takes at least; checked while they are found.
constexpr size_t kBytesPerPiece = 160;
bool can_add_piece(Run& run, const std::vector<std::string_view>& pieces) {
  return run.can_allocate((pieces.size() + 1) * kBytesPerPiece);
}

Value pieces_to_list(Run& run, const Value& self, std::vector<std::string_view> pieces, bool is_reversed) {
  if (is_reversed) std::reverse(pieces.begin(), pieces.end());
  if (run.failed()) return Value();
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (std::string_view piece : pieces) items.push_back(like(run, self, piece));
  return run.list(std::move(items));
}

/// Pieces between runs of white space, from the left; what follows the last split keeps its trailing space.
std::vector<std::string_view> split_spaces(Run& run, std::string_view text, int64_t max) {
  std::vector<std::string_view> pieces;
  text.remove_prefix(leading_space(text));
  while (!text.empty() && max-- != 0 && can_add_piece(run, pieces)) {
    size_t end = 0;
    for (size_t next = 0; next < text.size(); end = next) {
      if (is_space(next_code_point(text, next))) break;
    }
    pieces.push_back(text.substr(0, end));
    text.remove_prefix(end);
    text.remove_prefix(leading_space(text));
  }
  if (!text.empty()) pieces.push_back(text);
  return pieces;
}

/// As split_spaces from the right; pieces come last first.
std::vector<std::string_view> rsplit_spaces(Run& run, std::string_view text, int64_t max) {
  std::vector<std::string_view> pieces;
  text.remove_suffix(trailing_space(text));
  while (!text.empty() && max-- != 0 && can_add_piece(run, pieces)) {
    size_t start = text.size();
    while (start > 0) {
      size_t at = start - 1;
      while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
      size_t next = at;
      if (is_space(next_code_point(text, next))) break;
      start = at;
    }
    pieces.push_back(text.substr(start));
    text = text.substr(0, start);
    text.remove_suffix(trailing_space(text));
  }
  if (!text.empty()) pieces.push_back(text);
  return pieces;
}

std::vector<std::string_view> split_at(Run& run, std::string_view text, std::string_view separator,
                                       int64_t max) {
  std::vector<std::string_view> pieces;
  for (size_t at;
       max-- != 0 && can_add_piece(run, pieces) && (at = text.find(separator)) != std::string_view::npos;) {
    pieces.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  pieces.push_back(text);
  return pieces;
}

std::vector<std::string_view> rsplit_at(Run& run, std::string_view text, std::string_view separator,
                                        int64_t max) {
  std::vector<std::string_view> pieces;
  for (size_t at;
       max-- != 0 && can_add_piece(run, pieces) && (at = text.rfind(separator)) != std::string_view::npos;) {
    pieces.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  pieces.push_back(text);
  return pieces;
}

template <bool FromRight>
Value split(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"split", {"sep", "maxsplit"}}, arguments);
  if (run.failed() || !run.read(text_of(self).size())) return Value();
  const int64_t max = args[1].is_missing() ? -1 : need_index(run, args[1], "split()");
  const int64_t limit = max < 0 ? -1 : max;
  if (args[0].is_missing() || args[0].is_none()) {
    return pieces_to_list(
        run, self,
        FromRight ? rsplit_spaces(run, text_of(self), limit) : split_spaces(run, text_of(self), limit),
        FromRight);
  }
  const std::string_view separator = need_string(run, args[0], "split");
  if (separator.empty()) run.fail("empty separator");
  if (run.failed() || !run.search(text_of(self).size(), separator.size())) return Value();
  return pieces_to_list(run, self,
                        FromRight ? rsplit_at(run, text_of(self), separator, limit)
                                  : split_at(run, text_of(self), separator, limit),
                        FromRight);
}

Value splitlines(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"splitlines", {"keepends"}}, arguments);
  // At worst every byte ends a line.
  if (run.failed() || !run.read(text_of(self).size()) || !run.can_allocate(text_of(self).size() * 16))
    return Value();
  return pieces_to_list(run, self, split_lines(text_of(self), truth(run, args[0])), false);
}

template <bool FromRight>
Value partition(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"partition", {""}, 1}, arguments);
  if (run.failed() || !run.read(text_of(self).size())) return Value();
  const std::string_view separator = need_string(run, args[0], "partition");
  if (separator.empty()) run.fail("empty separator");
  if (run.failed() || !run.search(text_of(self).size(), separator.size())) return Value();
  const std::string_view text = text_of(self);
  const size_t at = FromRight ? text.rfind(separator) : text.find(separator);
  if (at == std::string_view::npos) {
    const Value empty = like(run, self, "");
    return run.tuple(FromRight ? std::vector<Value>{empty, empty, self}
                               : std::vector<Value>{self, empty, empty});
  }
  return run.tuple({like(run, self, text.substr(0, at)), like(run, self, separator),
                    like(run, self, text.substr(at + separator.size()))});
}

Value join(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"join", {""}, 1}, arguments);
  if (run.failed()) return Value();
  std::string out;
  size_t i = 0;
  for (const Value& item : to_vector(run, args[0])) {
    if (!item.is_string()) {
      return run.fail(fmt::format("sequence item {}: expected str instance, {} found", i, type_name(item)));
    }
    if (i++ > 0) out += text_of(self);
    const bool is_safe = !markup_of(self) || markup_of(item);
    out += is_safe ? item.as_string() : escape_html(item.as_string());
    if (!run.can_allocate(out.size())) return Value();
  }
  return like(run, self, out);
}

// ---- Searching ----

/// self[start:end] for the optional bounds of find, count, startswith; nullopt when start is past the end.
struct Window {
  std::string_view text;
  size_t first = 0;  ///< Code point index of the window's start.
};
std::optional<Window> window(Run& run, const Value& self, const Value& start, const Value& end) {
  const Int size = static_cast<Int>(self.as<StringObject>().length);
  const auto place = [&](const Value& bound, Int otherwise) {
    if (bound.is_missing() || bound.is_none()) return otherwise;
    const Int at = need_index(run, bound, "slice indices");
    return at < 0 ? std::max(at + size, Int{0}) : at;
  };
  const Int from = place(start, 0), to = std::min(place(end, size), size);
  if (run.failed() || !run.read(text_of(self).size()) || from > to) return std::nullopt;
  const size_t begin = code_point_offset(text_of(self), static_cast<size_t>(from));
  const size_t stop =
      to == size ? text_of(self).size() : code_point_offset(text_of(self), static_cast<size_t>(to));
  return Window{std::string_view(text_of(self)).substr(begin, stop - begin), static_cast<size_t>(from)};
}

/// Code point index of an occurrence, or -1.
template <bool FromRight>
int64_t find_index(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"find", {"", "", ""}, 1}, arguments);
  if (run.failed()) return -1;
  const std::string_view needle = need_string(run, args[0], "find");
  const std::optional<Window> in = window(run, self, args[1], args[2]);
  if (!in || run.failed() || !run.search(in->text.size(), needle.size())) return -1;
  const size_t at = FromRight ? in->text.rfind(needle) : in->text.find(needle);
  if (at == std::string_view::npos) return -1;
  return static_cast<int64_t>(in->first + count_code_points(in->text.substr(0, at)));
}
template <bool FromRight>
Value find(Run& run, const Value& self, Arguments& arguments) {
  return Value::integer(find_index<FromRight>(run, self, arguments));
}
template <bool FromRight>
Value index(Run& run, const Value& self, Arguments& arguments) {
  const int64_t at = find_index<FromRight>(run, self, arguments);
  return at < 0 ? run.fail("substring not found") : Value::integer(at);
}

/// Non-overlapping occurrences; an empty pattern has one more than there are code points.
size_t count_places(std::string_view text, std::string_view pattern) {
  if (pattern.empty()) return count_code_points(text) + 1;
  size_t count = 0;
  for (size_t at = 0; (at = text.find(pattern, at)) != std::string_view::npos; at += pattern.size()) ++count;
  return count;
}

Value count(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"count", {"", "", ""}, 1}, arguments);
  if (run.failed()) return Value();
  const std::string_view needle = need_string(run, args[0], "count");
  const std::optional<Window> in = window(run, self, args[1], args[2]);
  if (!in || run.failed() || !run.search(in->text.size(), needle.size())) return Value::integer(0);
  return Value::integer(static_cast<Int>(count_places(in->text, needle)));
}

template <bool AtEnd>
Value starts_or_ends_with(Run& run, const Value& self, Arguments& arguments) {
  constexpr std::string_view kName = AtEnd ? "endswith" : "startswith";
  const std::vector<Value> args = bind(run, {kName, {"", "", ""}, 1}, arguments);
  if (run.failed()) return Value();
  const std::optional<Window> in = window(run, self, args[1], args[2]);
  const std::vector<Value> affixes =
      args[0].is(Kind::kTuple) ? args[0].as_sequence() : std::vector<Value>{args[0]};
  for (const Value& affix : affixes) {
    const std::string_view text = need_string(run, affix, kName);
    if (run.failed()) return Value();
    if (in && (AtEnd ? in->text.ends_with(text) : in->text.starts_with(text))) return Value::boolean(true);
  }
  return Value::boolean(false);
}

/// Bytes of the result of replacing `times` occurrences; checked before anything is built.
bool can_replace(Run& run, size_t size, size_t old_size, size_t new_size, size_t times) {
  size_t added = 0;
  if (__builtin_mul_overflow(times, new_size, &added)) added = SIZE_MAX / 2;
  return run.can_allocate(size - times * old_size + added) && run.read(size + added);
}

Value replace(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"replace", {"", "", ""}, 2}, arguments);
  if (run.failed()) return Value();
  const std::string_view from = need_string(run, args[0], "replace");
  std::string to(need_string(run, args[1], "replace"));
  const int64_t limit = args[2].is_missing() ? -1 : need_index(run, args[2], "replace()");
  if (run.failed()) return Value();
  if (markup_of(self) && !markup_of(args[1])) to = escape_html(to);
  return like(run, self, replace_text(run, text_of(self), from, to, limit));
}

// ---- Padding ----

template <int Left, int Right>  // Shares of the padding: 1 0, 0 1, or 1 1 for center.
Value justify(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"justify", {"", ""}, 1}, arguments);
  if (run.failed()) return Value();
  const int64_t width = need_index(run, args[0], "width");
  const std::string fill(args[1].is_missing() ? " " : need_string(run, args[1], "fillchar"));
  if (count_code_points(fill) != 1) run.fail("The fill character must be exactly one character long");
  if (run.failed()) return Value();
  const int64_t missing = width - static_cast<int64_t>(self.as<StringObject>().length);
  if (missing <= 0) return self;
  if (!run.can_allocate(static_cast<size_t>(missing) * fill.size()) || !run.step(missing / 64))
    return Value();
  const int64_t left = Left == 0 ? 0 : Right == 0 ? missing : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text_of(self);
  for (int64_t i = left; i < missing; ++i) out += fill;
  return like(run, self, out);
}

Value zfill(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"zfill", {""}, 1}, arguments);
  if (run.failed()) return Value();
  const int64_t missing =
      need_index(run, args[0], "width") - static_cast<int64_t>(self.as<StringObject>().length);
  if (run.failed() || missing <= 0) return run.failed() ? Value() : self;
  if (!run.can_allocate(static_cast<size_t>(missing)) || !run.step(missing / 64)) return Value();
  std::string out = text_of(self);
  const size_t at = !out.empty() && (out[0] == '+' || out[0] == '-') ? 1 : 0;
  return like(run, self, out.insert(at, static_cast<size_t>(missing), '0'));
}

Value expandtabs(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"expandtabs", {"tabsize"}}, arguments);
  const int64_t size = args[0].is_missing() ? 8 : need_index(run, args[0], "expandtabs()");
  if (run.failed() || !run.read(text_of(self).size())) return Value();
  std::string out;
  int64_t column = 0;
  for (size_t i = 0; i < text_of(self).size();) {
    const char32_t c = next_code_point(text_of(self), i);
    if (c != '\t') {
      append_code_point(out, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    } else if (size > 0) {
      const int64_t gap = size - column % size;
      if (!run.can_allocate(out.size() + static_cast<size_t>(gap)) || !run.step(gap / 64)) return Value();
      out.append(static_cast<size_t>(gap), ' ');
      column += gap;
    }
  }
  return like(run, self, out);
}

// ---- Predicates ----

template <bool (*Test)(char32_t), bool Empty = false>
Value all_chars(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"str method", {}}, arguments);
  if (!run.read(text_of(self).size())) return Value();
  for (size_t i = 0; i < text_of(self).size();) {
    if (!Test(next_code_point(text_of(self), i))) return Value::boolean(false);
  }
  return Value::boolean(Empty || !text_of(self).empty());
}
bool is_ascii_char(char32_t c) { return c < 0x80; }

template <bool (*Wanted)(char32_t), bool (*Refused)(char32_t)>
Value all_cased(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"str method", {}}, arguments);
  bool found = false;
  for (size_t i = 0; i < text_of(self).size();) {
    const char32_t c = next_code_point(text_of(self), i);
    if (Refused(c) || is_title(c)) return Value::boolean(false);
    found = found || Wanted(c);
  }
  return Value::boolean(found);
}

Value is_title_text(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"istitle", {}}, arguments);
  bool found = false, after_cased = false;
  for (size_t i = 0; i < text_of(self).size();) {
    const char32_t c = next_code_point(text_of(self), i);
    const bool starts = is_upper(c) || is_title(c);
    if ((starts && after_cased) || (is_lower(c) && !after_cased)) return Value::boolean(false);
    after_cased = starts || is_lower(c);
    found = found || after_cased;
  }
  return Value::boolean(found);
}

Value is_identifier(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"isidentifier", {}}, arguments);
  for (size_t i = 0; i < text_of(self).size();) {
    const bool is_first = i == 0;
    const char32_t c = next_code_point(text_of(self), i);
    if (!(is_first ? is_identifier_start(c) : is_identifier_part(c))) return Value::boolean(false);
  }
  return Value::boolean(!text_of(self).empty());
}

// ---- Formatting ----

Value format(Run& run, const Value& self, Arguments& arguments) { return brace_format(run, self, arguments); }

Value format_map(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"format_map", {""}, 1}, arguments);
  if (run.failed()) return Value();
  if (!args[0].is(Kind::kDict)) return run.fail("format_map() argument must be a mapping");
  Arguments named;
  for (const auto& [key, value] : args[0].as<DictObject>().entries) {
    if (key.is_string()) named.keywords.emplace_back(key.as_string(), value);
  }
  return brace_format(run, self, named);
}

Value not_supported(Run& run, const Value&, Arguments&) {
  return run.fail("encode(), translate() and maketrans() of strings are not supported");
}

struct Method {
  std::string_view name;
  FunctionObject::Body body;
};
constexpr Method kMethods[] = {
    {"capitalize", converted<to_capitalized>},
    {"casefold", converted<case_fold>},
    {"center", justify<1, 1>},
    {"count", count},
    {"encode", not_supported},
    {"endswith", starts_or_ends_with<true>},
    {"expandtabs", expandtabs},
    {"find", find<false>},
    {"format", format},
    {"format_map", format_map},
    {"index", index<false>},
    {"isalnum", all_chars<is_alnum>},
    {"isalpha", all_chars<is_alpha>},
    {"isascii", all_chars<is_ascii_char, true>},
    {"isdecimal", all_chars<is_decimal>},
    {"isdigit", all_chars<is_digit>},
    {"isidentifier", is_identifier},
    {"islower", all_cased<is_lower, is_upper>},
    {"isnumeric", all_chars<is_numeric>},
    {"isprintable", all_chars<is_printable, true>},
    {"isspace", all_chars<is_space>},
    {"istitle", is_title_text},
    {"isupper", all_cased<is_upper, is_lower>},
    {"join", join},
    {"ljust", justify<0, 1>},
    {"lower", converted<to_lower>},
    {"lstrip", strip<true, false>},
    {"maketrans", not_supported},
    {"partition", partition<false>},
    {"removeprefix", remove_prefix},
    {"removesuffix", remove_suffix},
    {"replace", replace},
    {"rfind", find<true>},
    {"rindex", index<true>},
    {"rjust", justify<1, 0>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"splitlines", splitlines},
    {"startswith", starts_or_ends_with<false>},
    {"strip", strip<true, true>},
    {"swapcase", converted<swap_case>},
    {"title", converted<to_title>},
    {"translate", not_supported},
    {"upper", converted<to_upper>},
    {"zfill", zfill},
};

}  // namespace

std::string replace_text(Run& run, std::string_view text, std::string_view from, std::string_view to,
                         int64_t limit) {
  if (!run.search(text.size(), from.size())) return "";
  const size_t most = limit < 0 ? SIZE_MAX : static_cast<size_t>(limit);
  const size_t times = std::min(most, count_places(text, from));
  if (!can_replace(run, text.size(), from.size(), to.size(), times)) return "";
  std::string out;
  size_t done = 0, at = 0;
  for (size_t i = 0; i < times; ++i) {
    // An empty pattern stands before each code point and at the end.
    if (from.empty() && i > 0) next_code_point(text, at);
    if (!from.empty()) at = text.find(from, at);
    out.append(text, done, at - done);
    out += to;
    at += from.size();
    done = at;
  }
  return out.append(text, done);
}

FunctionObject::Body find_string_method(std::string_view name) {
  const auto* at =
      std::lower_bound(std::begin(kMethods), std::end(kMethods), name,
                       [](const Method& method, std::string_view value) { return method.name < value; });
  return at != std::end(kMethods) && at->name == name ? at->body : nullptr;
}

}  // namespace tensorfold::jinja
