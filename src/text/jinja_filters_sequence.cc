// Filters over sequences. Those that are generators in Python are lazy here too: what is not consumed is not
// evaluated, and a second use finds nothing.
#include <algorithm>
#include <functional>
#include <numeric>

#include "text/jinja_filters.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

/// Produces values with a function over `held`. The function itself captures no values.
class LazyIterator : public IteratorObject {
 public:
  using Body = std::function<bool(Run& run, std::vector<Value>& held, Value& out)>;
  LazyIterator(Heap* heap, std::vector<Value> values, Body body)
      : IteratorObject(heap, std::move(values)), body_(std::move(body)) {}

 private:
  bool produce(Run& run, Value& out) override { return !held.empty() && body_(run, held, out); }
  Body body_;
};

Value lazy(Run& run, std::vector<Value> held, LazyIterator::Body body) {
  return run.make<LazyIterator>(std::move(held), std::move(body));
}

/// Turns a held value into its iterator, once. False when it cannot be iterated.
bool open(Run& run, Value& source) {
  if (source.is(Kind::kIterator)) return true;
  const auto iterator = iterate(run, source);
  if (iterator == nullptr) return false;
  source = Value(std::static_pointer_cast<Object>(iterator));
  return true;
}
bool pull(Run& run, const Value& source, Value& out) { return source.as<IteratorObject>().next(run, out); }

/// The path of `attribute=`: names and indexes to follow from an item. Missing and none: the item itself.
std::vector<Value> attribute_path(Run& run, const Value& attribute) {
  if (attribute.is_missing() || attribute.is_none()) return {};
  if (!attribute.is_string()) return {attribute};
  std::vector<Value> path;
  std::string_view rest = attribute.as_string();
  while (true) {
    const size_t end = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, end);
    const bool is_index = !part.empty() && part.size() < 18 &&
                          std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    path.push_back(is_index ? Value::integer(std::stoll(std::string(part))) : run.string(std::string(part)));
    if (end == rest.size()) return path;
    rest.remove_prefix(end + 1);
  }
}

/// Follows the path. A missing part becomes `otherwise` where one is given.
Value follow(Run& run, Value item, const std::vector<Value>& path, const Value& otherwise = Value()) {
  for (const Value& part : path) {
    item = get_item(run, item, part);
    if (run.failed()) return Value();
    if (item.is_undefined() && !otherwise.is_missing() && !otherwise.is_none()) item = otherwise;
  }
  return item;
}

Value fold_case(Run& run, const Value& value, bool case_sensitive) {
  return !case_sensitive && value.is_string() ? run.string(to_lower(value.as_string())) : value;
}

/// Arguments kept in an iterator: positional values, then those of the keywords, at the end of `held`.
struct StoredArguments {
  StoredArguments(std::vector<Value>& held, Arguments& arguments) : first(held.size()) {
    for (Value& value : arguments.positional) held.push_back(std::move(value));
    for (auto& [name, value] : arguments.keywords) {
      names.push_back(name);
      held.push_back(std::move(value));
    }
  }
  Arguments restore(Run& run, const std::vector<Value>& held) const {
    Arguments arguments;
    run.step(static_cast<int64_t>(held.size() / 4));
    const auto begin = held.begin() + static_cast<std::ptrdiff_t>(first);
    const auto middle = held.end() - static_cast<std::ptrdiff_t>(names.size());
    arguments.positional.assign(begin, middle);
    for (size_t i = 0; i < names.size(); ++i)
      arguments.keywords.emplace_back(names[i], middle[static_cast<std::ptrdiff_t>(i)]);
    return arguments;
  }
  size_t first;
  std::vector<std::string> names;
};

/// map's two forms: an attribute path, or a filter with its arguments.
Value map_item(Run& run, const Value& item, Arguments arguments) {
  const auto keyword = [&](std::string_view name) {
    for (const auto& [key, value] : arguments.keywords) {
      if (key == name) return value;
    }
    return Value();
  };
  const Value attribute = keyword("attribute");
  if (arguments.positional.empty() && !attribute.is_missing()) {
    for (const auto& [name, value] : arguments.keywords) {
      if (name != "attribute" && name != "default")
        return run.fail(fmt::format("Unexpected keyword argument '{}'", name));
    }
    return follow(run, item, attribute_path(run, attribute), keyword("default"));
  }
  if (arguments.positional.empty()) return run.fail("map requires a filter argument");
  const Value name = arguments.positional.front();
  arguments.positional.erase(arguments.positional.begin());
  return apply_filter(run, name, item, arguments);
}

/// select, reject and their attr forms: does the test hold for an item?
bool passes(Run& run, const Value& item, Arguments arguments, bool by_attribute) {
  auto& args = arguments.positional;
  Value subject = item;
  if (by_attribute) {
    if (args.empty()) run.fail("Missing parameter for attribute name");
    if (run.failed()) return false;
    subject = follow(run, item, attribute_path(run, args.front()));
    args.erase(args.begin());
  }
  if (args.empty()) return truth(run, subject);
  const Value name = args.front();
  args.erase(args.begin());
  return truth(run, apply_test(run, name, subject, arguments));
}

Value filtered(Run& run, const Value& self, Arguments& arguments, bool by_attribute, bool wanted) {
  std::vector<Value> held = {self};
  const StoredArguments stored(held, arguments);
  return lazy(run, std::move(held), [=](Run& r, std::vector<Value>& values, Value& out) {
    if (!truth(r, values[0]) || !open(r, values[0])) return false;
    while (pull(r, values[0], out)) {
      if (passes(r, out, stored.restore(r, values), by_attribute) == wanted) return !r.failed();
    }
    return false;
  });
}

/// sort keys of items: the attributes of `attribute` (several, separated by commas), case folded.
std::vector<Value> sort_keys(Run& run, const std::vector<Value>& items, const Value& attribute,
                             bool case_sensitive) {
  std::vector<std::vector<Value>> paths;
  if (attribute.is_string()) {
    std::string_view rest = attribute.as_string();
    for (size_t end; (end = rest.find(',')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      paths.push_back(attribute_path(run, run.string(std::string(rest.substr(0, end)))));
    }
    paths.push_back(attribute_path(run, run.string(std::string(rest))));
  } else {
    paths.push_back(attribute_path(run, attribute));
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const auto& path : paths) parts.push_back(fold_case(run, follow(run, item, path), case_sensitive));
    if (run.failed()) return {};
    keys.push_back(run.list(std::move(parts)));
  }
  return keys;
}

/// The `reverse` argument of Python's sorted(), which must be an integer or boolean.
bool is_reversed(Run& run, const Value& value) {
  return !value.is_missing() && need_index(run, value, "reverse") != 0;
}

/// The order in which `keys` ascend, or descend with equal ones still in their first order.
std::vector<size_t> sorted_order(Run& run, const std::vector<Value>& keys, bool is_descending) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  stable_sort(order, [&](size_t a, size_t b) {
    if (run.failed()) return false;
    return is_descending ? compare(run, Operator::kLt, keys[b], keys[a])
                         : compare(run, Operator::kLt, keys[a], keys[b]);
  });
  return order;
}

/// Appends `fill` until the row has `wanted` items; nothing when there is no fill.
void fill_up(Run& run, std::vector<Value>& row, const Value& wanted, const Value& fill) {
  if (fill.is_missing() || fill.is_none()) return;
  const int64_t count = need_index(run, wanted, "batch()");
  if (!run.can_allocate(static_cast<size_t>(std::max<int64_t>(count, 0)) * sizeof(Value)) ||
      !run.step(std::max<int64_t>(count, 0)))
    return;
  while (static_cast<int64_t>(row.size()) < count) row.push_back(fill);
}

Value extreme(Run& run, const Value& self, Arguments& arguments, std::string_view name, Operator better) {
  const std::vector<Value> args = bind(run, {name, {"case_sensitive", "attribute"}}, arguments);
  const auto iterator = run.failed() ? nullptr : iterate(run, self);
  if (iterator == nullptr) return Value();
  const std::vector<Value> path = attribute_path(run, args[1]);
  const bool case_sensitive = truth(run, args[0]);
  Value best, best_key;
  for (Value item; iterator->next(run, item);) {
    const Value key = fold_case(run, follow(run, item, path), case_sensitive);
    if (run.failed()) return Value();
    if (!best.is_missing() && !compare(run, better, key, best_key)) continue;
    best = item;
    best_key = key;
  }
  if (run.failed()) return Value();
  return best.is_missing() ? run.undefined("No aggregated item, sequence was empty.") : best;
}

}  // namespace

namespace filters {

Value batch(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_batch", {"linecount", "fill_with"}, 1}, arguments);
  if (run.failed()) return Value();
  // held: source, count, fill value, and the item that was found to begin the next batch.
  return lazy(run, {self, args[0], args[1], Value()}, [](Run& r, std::vector<Value>& values, Value& out) {
    if (!open(r, values[0])) return false;
    std::vector<Value> row;
    if (!values[3].is_missing()) row.push_back(std::move(values[3]));
    values[3] = Value();
    for (Value item; pull(r, values[0], item); row.push_back(std::move(item))) {
      if (!r.can_allocate(row.size() * sizeof(Value))) return false;
      if (!equal(r, Value::integer(static_cast<Int>(row.size())), values[1])) continue;
      values[3] = std::move(item);
      out = r.list(std::move(row));
      return !r.failed();
    }
    if (row.empty() || r.failed()) return false;
    fill_up(r, row, values[1], values[2]);
    out = r.list(std::move(row));
    return !r.failed();
  });
}

Value slice(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_slice", {"slices", "fill_with"}, 1}, arguments);
  if (run.failed()) return Value();
  return lazy(
      run, {self, args[0], args[1]},
      [number = int64_t{0}](Run& r, std::vector<Value>& values, Value& out) mutable {
        if (number == 0) values[0] = r.list(to_vector(r, values[0]));
        const int64_t slices = need_index(r, values[1], "slice()");
        if (!r.failed() && slices == 0) r.fail("integer division or modulo by zero");
        if (r.failed() || number >= slices) return false;
        const auto& items = values[0].as_sequence();
        const int64_t size = static_cast<int64_t>(items.size()), each = size / slices, extra = size % slices;
        const auto start_of = [&](int64_t i) { return i * each + std::min(i, extra); };
        std::vector<Value> part(items.begin() + start_of(number), items.begin() + start_of(number + 1));
        if (!values[2].is_missing() && !values[2].is_none() && number >= extra) part.push_back(values[2]);
        ++number;
        out = r.list(std::move(part));
        return !r.failed();
      });
}

Value dictsort(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_dictsort", {"case_sensitive", "by", "reverse"}}, arguments);
  if (run.failed()) return Value();
  const std::string by = args[1].is_string() ? args[1].as_string() : args[1].is_missing() ? "key" : "";
  if (by != "key" && by != "value") return run.fail("You can only sort by either \"key\" or \"value\"");
  if (self.is_undefined()) return run.fail_undefined(self);
  if (!self.is(Kind::kDict))
    return run.fail(fmt::format("'{}' object has no attribute 'items'", type_name(self)));
  const auto& entries = self.as<DictObject>().entries;
  std::vector<Value> keys;
  for (const auto& [key, value] : entries) {
    keys.push_back(fold_case(run, by == "key" ? key : value, truth(run, args[0])));
  }
  std::vector<Value> pairs;
  for (size_t i : sorted_order(run, keys, is_reversed(run, args[2]))) {
    pairs.push_back(run.tuple({entries[i].first, entries[i].second}));
  }
  return run.list(std::move(pairs));
}

Value first(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_first", {}}, arguments);
  const auto iterator = run.failed() ? nullptr : iterate(run, self);
  Value item;
  if (iterator != nullptr && iterator->next(run, item)) return item;
  return run.failed() ? Value() : run.undefined("No first item, sequence was empty.");
}

Value last(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_last", {}}, arguments);
  if (run.failed()) return Value();
  if (self.is_sequence() && !self.as_sequence().empty()) return self.as_sequence().back();
  const auto iterator = self.is_undefined() ? iterate(run, self) : reversed(run, self);
  if (iterator == nullptr) return run.fail(fmt::format("'{}' object is not reversible", type_name(self)));
  Value item;
  if (iterator->next(run, item)) return item;
  return run.failed() ? Value() : run.undefined("No last item, sequence was empty.");
}

Value groupby(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args =
      bind(run, {"do_groupby", {"attribute", "default", "case_sensitive"}, 1}, arguments);
  if (run.failed()) return Value();
  const std::vector<Value> items = to_vector(run, self);
  const std::vector<Value> path = attribute_path(run, args[0]);
  std::vector<Value> keys;
  for (const Value& item : items) {
    keys.push_back(fold_case(run, follow(run, item, path, args[1]), truth(run, args[2])));
    if (run.failed()) return Value();
  }
  std::vector<Value> groups;
  const std::vector<size_t> order = sorted_order(run, keys, false);
  for (size_t i = 0; i < order.size() && !run.failed();) {
    std::vector<Value> members;
    const size_t start = i;
    for (; i < order.size() && equal(run, keys[order[i]], keys[order[start]]); ++i)
      members.push_back(items[order[i]]);
    if (i == start) break;  // NaN or a failure
    const Value group = run.tuple({follow(run, members[0], path, args[1]), run.list(members)});
    if (run.failed()) return Value();
    static_cast<SequenceObject&>(*group.object()).is_group = true;
    groups.push_back(group);
  }
  return run.list(std::move(groups));
}

Value items(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_items", {}}, arguments);
  if (run.failed()) return Value();
  return lazy(run, {self}, [is_open = false](Run& r, std::vector<Value>& values, Value& out) mutable {
    if (!is_open) {
      if (values[0].is_undefined()) return false;
      if (!values[0].is(Kind::kDict)) r.fail("Can only get item pairs from a mapping.");
      if (!r.failed()) values[0] = r.make<DictViewObject>(values[0], DictViewObject::Part::kItems);
      if (r.failed() || !open(r, values[0])) return false;
      is_open = true;
    }
    return pull(r, values[0], out);
  });
}

Value join(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_join", {"d", "attribute"}}, arguments);
  if (run.failed()) return Value();
  const std::string separator = args[0].is_missing() ? "" : str(run, args[0]);
  const std::vector<Value> path = attribute_path(run, args[1]);
  const auto iterator = iterate(run, self);
  std::string out;
  bool is_first = true;
  for (Value item; iterator != nullptr && iterator->next(run, item); is_first = false) {
    if (!is_first) out += separator;
    append_str(run, follow(run, item, path), out);
    if (!run.can_allocate(out.size())) return Value();
  }
  return run.failed() ? Value() : run.string(std::move(out));
}

Value list(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_list", {}}, arguments);
  return run.failed() ? Value() : run.list(to_vector(run, self));
}

Value map(Run& run, const Value& self, Arguments& arguments) {
  std::vector<Value> held = {self};
  const StoredArguments stored(held, arguments);
  return lazy(run, std::move(held), [=](Run& r, std::vector<Value>& values, Value& out) {
    if (!truth(r, values[0]) || !open(r, values[0])) return false;
    Value item;
    if (!pull(r, values[0], item)) return false;
    out = map_item(r, item, stored.restore(r, values));
    return !r.failed();
  });
}

Value max(Run& run, const Value& self, Arguments& arguments) {
  return extreme(run, self, arguments, "do_max", Operator::kGt);
}
Value min(Run& run, const Value& self, Arguments& arguments) {
  return extreme(run, self, arguments, "do_min", Operator::kLt);
}

Value select(Run& run, const Value& self, Arguments& arguments) {
  return filtered(run, self, arguments, false, true);
}
Value reject(Run& run, const Value& self, Arguments& arguments) {
  return filtered(run, self, arguments, false, false);
}
Value selectattr(Run& run, const Value& self, Arguments& arguments) {
  return filtered(run, self, arguments, true, true);
}
Value rejectattr(Run& run, const Value& self, Arguments& arguments) {
  return filtered(run, self, arguments, true, false);
}

Value reverse(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"do_reverse", {}}, arguments);
  if (run.failed()) return Value();
  if (self.is_string()) return jinja::slice(run, self, Value::none(), Value::none(), Value::integer(-1));
  if (!is_iterable(self)) return run.fail("argument must be iterable");
  std::vector<Value> values = to_vector(run, self);
  std::reverse(values.begin(), values.end());
  // Python returns a list for what has no reversed(), and an iterator for the others.
  return self.is(Kind::kIterator) ? run.list(std::move(values)) : iterator_over(run, std::move(values));
}

Value sort(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args =
      bind(run, {"do_sort", {"reverse", "case_sensitive", "attribute"}}, arguments);
  if (run.failed()) return Value();
  const std::vector<Value> values = to_vector(run, self);
  const std::vector<Value> keys = sort_keys(run, values, args[2], truth(run, args[1]));
  if (run.failed()) return Value();
  std::vector<Value> sorted;
  for (size_t i : sorted_order(run, keys, is_reversed(run, args[0]))) sorted.push_back(values[i]);
  return run.list(std::move(sorted));
}

Value sum(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_sum", {"attribute", "start"}}, arguments);
  if (run.failed()) return Value();
  const std::vector<Value> path = attribute_path(run, args[0]);
  Value total = args[1].is_missing() ? Value::integer(0) : args[1];
  if (total.is_string()) return run.fail("sum() can't sum strings [use ''.join(seq) instead]");
  const auto iterator = iterate(run, self);
  for (Value item; iterator != nullptr && iterator->next(run, item);) {
    total = binary(run, Operator::kAdd, total, follow(run, item, path));
  }
  return total;
}

Value unique(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"do_unique", {"case_sensitive", "attribute"}}, arguments);
  if (run.failed()) return Value();
  // held: source, case_sensitive, attribute, then the keys seen; `hashes` finds a key among them.
  using Hashes = std::unordered_multimap<uint64_t, size_t>;
  return lazy(
      run, {self, args[0], args[1]},
      [hashes = Hashes()](Run& r, std::vector<Value>& values, Value& out) mutable {
        if (!open(r, values[0])) return false;
        while (pull(r, values[0], out)) {
          const Value key = fold_case(r, follow(r, out, attribute_path(r, values[2])), truth(r, values[1]));
          if (r.failed()) return false;
          const uint64_t key_hash = hash(r, key);
          const auto [begin, end] = hashes.equal_range(key_hash);
          if (std::any_of(begin, end, [&](const auto& seen) { return equal(r, values[seen.second], key); }))
            continue;
          if (!r.can_allocate(values.size() * 96)) return false;
          hashes.emplace(key_hash, values.size());
          values.push_back(key);
          return !r.failed();
        }
        return false;
      });
}

}  // namespace filters
}  // namespace tensorfold::jinja
