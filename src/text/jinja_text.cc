// str, repr and JSON.
#include "text/jinja_text.h"

#include <algorithm>
#include <numeric>

#include "base/json.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

/// Writes repr recursively. `open` holds the namespaces being written: one inside itself prints as `{...}`.
class ReprWriter {
 public:
  ReprWriter(Run& run, std::string& out) : run_(run), out_(out) {}

  void write(const Value& value) {
    const DepthGuard guard(run_);
    if (!guard || !run_.step() || !run_.can_allocate(out_.size())) return;
    switch (value.kind()) {
      case Kind::kString: {
        const auto& string = value.as<StringObject>();
        const std::string quoted = string_repr(string.text);
        out_ += string.markup ? "Markup(" + quoted + ")" : quoted;
        break;
      }
      case Kind::kUndefined:
        out_ += "Undefined";
        break;
      case Kind::kList:
        write_items("[", value.as_sequence(), "]");
        break;
      case Kind::kTuple:
        write_items("(", value.as_sequence(), value.as_sequence().size() == 1 ? ",)" : ")");
        break;
      case Kind::kDict:
        write_dict(value.as<DictObject>());
        break;
      case Kind::kDictView:
        write_view(value.as<DictViewObject>());
        break;
      case Kind::kNamespace:
        write_namespace(value);
        break;
      default:
        out_ += str(run_, value);
    }
  }

 private:
  void write_items(std::string_view open, const std::vector<Value>& items, std::string_view close) {
    out_ += open;
    for (size_t i = 0; i < items.size() && !run_.failed(); ++i) {
      if (i > 0) out_ += ", ";
      write(items[i]);
    }
    out_ += close;
  }
  void write_dict(const DictObject& dict) {
    out_ += '{';
    for (size_t i = 0; i < dict.entries.size() && !run_.failed(); ++i) {
      if (i > 0) out_ += ", ";
      write(dict.entries[i].first);
      out_ += ": ";
      write(dict.entries[i].second);
    }
    out_ += '}';
  }
  void write_view(const DictViewObject& view) {
    std::vector<Value> items;
    for (const auto& [key, value] : view.mapping().entries) {
      if (view.part == DictViewObject::Part::kItems) {
        items.push_back(run_.tuple({key, value}));
      } else {
        items.push_back(view.part == DictViewObject::Part::kKeys ? key : value);
      }
    }
    constexpr std::string_view kOpen[] = {"dict_keys([", "dict_values([", "dict_items(["};
    write_items(kOpen[static_cast<int>(view.part)], items, "])");
  }
  void write_namespace(const Value& value) {
    out_ += "<Namespace {";
    const bool is_open =
        std::any_of(open_.begin(), open_.end(), [&](const Value& v) { return v.same_as(value); });
    if (is_open) {
      out_ += "...";
    } else {
      open_.push_back(value);
      const auto& attributes = value.as<NamespaceObject>().attributes;
      for (size_t i = 0; i < attributes.size() && !run_.failed(); ++i) {
        out_ += (i > 0 ? ", " : "") + string_repr(attributes[i].first) + ": ";
        write(attributes[i].second);
      }
      open_.pop_back();
    }
    out_ += "}>";
  }

  Run& run_;
  std::string& out_;
  std::vector<Value> open_;
};

/// The text of a float or integer in JSON.
std::string json_number(const Value& value) {
  if (value.is_integral()) return int_text(value.as_int());
  return dump_json(Json(value.as_float()));
}

class JsonWriter {
 public:
  JsonWriter(Run& run, const JsonOptions& options, std::string& out)
      : run_(run), options_(options), out_(out) {}

  void write(const Value& value, int level) {
    const DepthGuard guard(run_);
    if (!guard || !run_.step() || !run_.can_allocate(out_.size())) return;
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        break;
      case Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        break;
      case Kind::kInt:
      case Kind::kFloat:
        out_ += json_number(value);
        break;
      case Kind::kString:
        run_.read(value.as_string().size());
        append_json_string(out_, value.as_string(), options_.ensure_ascii);
        break;
      case Kind::kList:
      case Kind::kTuple:
        write_list(value.as_sequence(), level);
        break;
      case Kind::kDict:
        write_dict(value.as<DictObject>(), level);
        break;
      default:
        run_.fail(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
  }

 private:
  void write_list(const std::vector<Value>& items, int level) {
    out_ += '[';
    for (size_t i = 0; i < items.size() && !run_.failed(); ++i) {
      separate(i, level + 1);
      write(items[i], level + 1);
    }
    if (!items.empty()) new_line(level);
    out_ += ']';
  }

  void write_dict(const DictObject& dict, int level) {
    out_ += '{';
    const std::vector<size_t> order = key_order(dict);
    for (size_t i = 0; i < order.size() && !run_.failed(); ++i) {
      const auto& [key, value] = dict.entries[order[i]];
      separate(i, level + 1);
      write_key(key);
      out_ += options_.key_separator;
      write(value, level + 1);
    }
    if (!order.empty()) new_line(level);
    out_ += '}';
  }

  std::vector<size_t> key_order(const DictObject& dict) {
    std::vector<size_t> order(dict.entries.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (options_.sort_keys) {
      stable_sort(order, [&](size_t a, size_t b) {
        return compare(run_, Operator::kLt, dict.entries[a].first, dict.entries[b].first);
      });
    }
    return order;
  }

  void write_key(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        append_json_string(out_, key.as_string(), options_.ensure_ascii);
        break;
      case Kind::kNone:
        out_ += "\"null\"";
        break;
      case Kind::kBool:
        out_ += key.as_bool() ? "\"true\"" : "\"false\"";
        break;
      case Kind::kInt:
      case Kind::kFloat:
        out_ += '"' + json_number(key) + '"';
        break;
      default:
        run_.fail(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
  }

  void separate(size_t i, int level) {
    if (i > 0) out_ += options_.item_separator;
    new_line(level);
  }
  void new_line(int level) {
    if (!options_.has_indent) return;
    const size_t bytes = options_.indent.size() * static_cast<size_t>(level);
    if (!run_.can_allocate(out_.size() + bytes) || !run_.read(bytes)) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += options_.indent;
  }

  Run& run_;
  const JsonOptions& options_;
  std::string& out_;
};

std::string range_text(const RangeObject& range) {
  std::string text = fmt::format("range({}, {}", range.start, range.stop);
  if (range.step != 1) text += fmt::format(", {}", range.step);
  return text + ")";
}

}  // namespace

std::string string_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      append_code_point(out, c);
    } else {
      const uint32_t code = c;
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

void append_str(Run& run, const Value& value, std::string& out) {
  if (value.is_string()) {
    run.read(value.as_string().size());
    out += value.as_string();
  } else {
    out += str(run, value);
  }
}

std::string str(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.as_bool() ? "True" : "False";
    case Kind::kInt:
      return int_text(value.as_int());
    case Kind::kFloat:
      return python_float_repr(value.as_float());
    case Kind::kString:
      return value.as_string();
    case Kind::kRange:
      return range_text(value.as<RangeObject>());
    case Kind::kMacro:
    case Kind::kLoop:
      return describe(run, value);
    // Python prints an address here, which no template can mean to show.
    case Kind::kIterator:
      return "<generator object>";
    case Kind::kFunction:
      return fmt::format("<built-in function {}>", value.as<FunctionObject>().name);
    case Kind::kCycler:
      return "<Cycler object>";
    case Kind::kJoiner:
      return "<Joiner object>";
    default:
      return repr(run, value);
  }
}

std::string repr(Run& run, const Value& value) {
  std::string out;
  ReprWriter(run, out).write(value);
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string json_dumps(Run& run, const Value& value, const JsonOptions& options) {
  std::string out;
  JsonWriter(run, options, out).write(value, 0);
  return out;
}

}  // namespace tensorfold::jinja
