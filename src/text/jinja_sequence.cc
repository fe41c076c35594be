// Iteration, lengths, items and slices; building mappings.
#include <algorithm>
#include <functional>

#include "text/jinja_ops.h"
#include "text/jinja_text.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

/// held[0] is the value iterated over.
class SequenceIterator : public IteratorObject {
 public:
  using IteratorObject::IteratorObject;

 private:
  bool produce(Run&, Value& out) override {
    if (held.empty() || next_ >= held[0].as_sequence().size()) return false;
    out = held[0].as_sequence()[next_++];
    return true;
  }
  size_t next_ = 0;
};

class StringIterator : public IteratorObject {
 public:
  using IteratorObject::IteratorObject;

 private:
  bool produce(Run& run, Value& out) override {
    if (held.empty() || next_ >= held[0].as_string().size()) return false;
    const std::string& text = held[0].as_string();
    const size_t start = next_;
    next_code_point(text, next_);
    out = run.string(text.substr(start, next_ - start));
    return true;
  }
  size_t next_ = 0;
};

/// held[0] is a mapping.
class DictIterator : public IteratorObject {
 public:
  DictIterator(Heap* heap, std::vector<Value> values, DictViewObject::Part part)
      : IteratorObject(heap, std::move(values)), part_(part) {}

 private:
  bool produce(Run& run, Value& out) override {
    if (held.empty() || next_ >= held[0].as<DictObject>().entries.size()) return false;
    const auto& [key, value] = held[0].as<DictObject>().entries[next_++];
    switch (part_) {
      case DictViewObject::Part::kKeys:
        out = key;
        break;
      case DictViewObject::Part::kValues:
        out = value;
        break;
      case DictViewObject::Part::kItems:
        out = run.tuple({key, value});
        break;
    }
    return true;
  }
  DictViewObject::Part part_;
  size_t next_ = 0;
};

class RangeIterator : public IteratorObject {
 public:
  using IteratorObject::IteratorObject;

 private:
  bool produce(Run&, Value& out) override {
    if (held.empty() || next_ >= held[0].as<RangeObject>().length()) return false;
    const auto& range = held[0].as<RangeObject>();
    out = Value::integer(range.start + range.step * next_++);
    return true;
  }
  Int next_ = 0;
};

template <class T, class... Args>
std::shared_ptr<IteratorObject> make_iterator(Run& run, std::vector<Value> held, Args... args) {
  const Value value = run.make<T>(std::move(held), args...);
  if (value.is_missing()) return nullptr;
  return std::static_pointer_cast<IteratorObject>(value.object());
}

std::optional<Value> item_at(const std::vector<Value>& items, const Value& key) {
  std::optional<Int> index = as_index(key);
  if (!index) return std::nullopt;
  const Int size = static_cast<Int>(items.size());
  if (*index < 0) *index += size;
  if (*index < 0 || *index >= size) return std::nullopt;
  return items[static_cast<size_t>(*index)];
}

std::optional<Value> char_at(Run& run, const StringObject& string, const Value& key) {
  std::optional<Int> index = as_index(key);
  if (!index) return std::nullopt;
  const Int size = static_cast<Int>(string.length);
  if (*index < 0) *index += size;
  if (*index < 0 || *index >= size) return std::nullopt;
  size_t start = static_cast<size_t>(*index);
  if (!string.is_ascii()) {
    run.read(string.text.size());
    start = code_point_offset(string.text, start);
  }
  size_t end = start;
  next_code_point(string.text, end);
  return run.string(string.text.substr(start, end - start), string.markup);
}

std::optional<Value> range_at(const RangeObject& range, const Value& key) {
  std::optional<Int> index = as_index(key);
  if (!index) return std::nullopt;
  if (*index < 0) *index += range.length();
  if (*index < 0 || *index >= range.length()) return std::nullopt;
  return Value::integer(range.start + range.step * *index);
}

/// The positions a slice selects: start, start + step, ... (count of them).
struct Selection {
  Int start, stop, step, count;
};

std::optional<Int> slice_part(Run& run, const Value& value) {
  if (value.is_none()) return std::nullopt;
  const std::optional<Int> index = as_index(value);
  if (!index) run.fail("slice indices must be integers or None or have an __index__ method");
  // Far beyond any length, and small enough that sums cannot overflow.
  constexpr Int kFar = Int{1} << 64;
  return index ? std::clamp(*index, -kFar, kFar) : Int{0};
}

/// Python's slice.indices().
Selection select(Run& run, Int length, const Value& start, const Value& stop, const Value& step) {
  const Int by = slice_part(run, step).value_or(1);
  if (by == 0) run.fail("slice step cannot be zero");
  const std::optional<Int> from = slice_part(run, start), to = slice_part(run, stop);
  if (run.failed()) return {0, 0, 1, 0};
  const Int low = by > 0 ? 0 : -1, high = by > 0 ? length : length - 1;
  const auto place = [&](Int at) { return std::clamp(at < 0 ? at + length : at, low, high); };
  const Int first = from ? place(*from) : (by > 0 ? low : high);
  const Int last = to ? place(*to) : (by > 0 ? high : low);
  const Int span = by > 0 ? last - first : first - last;
  const Int stride = by > 0 ? by : -by;
  return {first, last, by, span <= 0 ? 0 : (span - 1) / stride + 1};
}

Value slice_string(Run& run, const StringObject& string, const Selection& chosen) {
  if (!run.read(string.text.size())) return Value();
  if (chosen.step == 1) {
    const auto at = [&](Int index) {
      return string.is_ascii() ? static_cast<size_t>(index)
                               : code_point_offset(string.text, static_cast<size_t>(index));
    };
    if (chosen.count == 0) return run.string("", string.markup);
    const size_t begin = at(chosen.start);
    return run.string(string.text.substr(begin, at(chosen.start + chosen.count) - begin), string.markup);
  }
  if (!run.can_allocate((string.length + 1) * sizeof(size_t))) return Value();
  std::vector<size_t> offsets;
  for (size_t i = 0; i < string.text.size(); next_code_point(string.text, i)) offsets.push_back(i);
  offsets.push_back(string.text.size());
  std::string out;
  for (Int k = 0; k < chosen.count; ++k) {
    const size_t i = static_cast<size_t>(chosen.start + k * chosen.step);
    out.append(string.text, offsets[i], offsets[i + 1] - offsets[i]);
  }
  return run.string(std::move(out), string.markup);
}

}  // namespace

std::optional<Int> as_index(const Value& value) {
  return value.is_integral() ? std::optional<Int>(value.as_int()) : std::nullopt;
}

int64_t need_index(Run& run, const Value& value, std::string_view what) {
  if (value.is_undefined()) run.fail_undefined(value);
  if (!value.is_integral()) {
    run.fail(fmt::format("{}: '{}' object cannot be interpreted as an integer", what, type_name(value)));
    return 0;
  }
  return static_cast<int64_t>(std::clamp(value.as_int(), Int{INT64_MIN}, Int{INT64_MAX}));
}

std::optional<int64_t> try_length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(value.as<StringObject>().length);
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.as_sequence().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as<DictObject>().entries.size());
    case Kind::kRange:
      return static_cast<int64_t>(value.as<RangeObject>().length());
    case Kind::kDictView:
      return static_cast<int64_t>(value.as<DictViewObject>().mapping().entries.size());
    default:
      return std::nullopt;
  }
}

int64_t length(Run& run, const Value& value) {
  const std::optional<int64_t> known = try_length(value);
  if (!known) run.fail(fmt::format("object of type '{}' has no len()", type_name(value)));
  return known.value_or(0);
}

bool is_iterable(const Value& value) { return try_length(value).has_value() || value.is(Kind::kIterator); }

std::shared_ptr<IteratorObject> iterate(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kIterator:
      return std::static_pointer_cast<IteratorObject>(value.object());
    case Kind::kUndefined:
      return make_iterator<SequenceIterator>(run, {});
    case Kind::kList:
    case Kind::kTuple:
      return make_iterator<SequenceIterator>(run, {value});
    case Kind::kString:
      return make_iterator<StringIterator>(run, {value});
    case Kind::kDict:
      return make_iterator<DictIterator>(run, {value}, DictViewObject::Part::kKeys);
    case Kind::kDictView: {
      const auto& view = value.as<DictViewObject>();
      return make_iterator<DictIterator>(run, {view.dict}, view.part);
    }
    case Kind::kRange:
      return make_iterator<RangeIterator>(run, {value});
    default:
      run.fail(fmt::format("'{}' object is not iterable", type_name(value)));
      return nullptr;
  }
}

std::vector<Value> to_vector(Run& run, const Value& value) {
  if (value.is_sequence()) {
    run.step(static_cast<int64_t>(value.as_sequence().size()));
    return run.can_allocate(value.as_sequence().size() * sizeof(Value)) ? value.as_sequence()
                                                                        : std::vector<Value>();
  }
  std::vector<Value> items;
  const auto iterator = iterate(run, value);
  for (Value item; iterator != nullptr && iterator->next(run, item);) {
    items.push_back(std::move(item));
    if (!run.can_allocate(items.capacity() * sizeof(Value))) break;
  }
  return items;
}

Value iterator_over(Run& run, std::vector<Value> values) {
  Value list = run.list(std::move(values));
  if (list.is_missing()) return Value();
  return run.make<SequenceIterator>(std::vector<Value>{std::move(list)});
}

std::shared_ptr<IteratorObject> reversed(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange: {
      std::vector<Value> items = to_vector(run, value);
      std::reverse(items.begin(), items.end());
      return iterate(run, iterator_over(run, std::move(items)));
    }
    default:
      return nullptr;
  }
}

std::optional<Value> try_item(Run& run, const Value& object, const Value& key) {
  switch (object.kind()) {
    case Kind::kDict: {
      if (key.is_string()) {
        const Value* value = object.as<DictObject>().find(key.as_string());
        return value != nullptr ? std::optional<Value>(*value) : std::nullopt;
      }
      if (key.is(Kind::kList) || key.is(Kind::kDict) || key.is(Kind::kDictView)) return std::nullopt;
      const Value* value = dict_find(run, object.as<DictObject>(), key);
      return value != nullptr ? std::optional<Value>(*value) : std::nullopt;
    }
    case Kind::kList:
    case Kind::kTuple:
      return item_at(object.as_sequence(), key);
    case Kind::kString:
      return char_at(run, object.as<StringObject>(), key);
    case Kind::kRange:
      return range_at(object.as<RangeObject>(), key);
    default:
      return std::nullopt;
  }
}

Value slice(Run& run, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) return run.fail_undefined(object);
  if (!object.is_string() && !object.is_sequence() && !object.is(Kind::kRange)) {
    return run.fail(object.is(Kind::kDict)
                        ? "unhashable type: 'slice'"
                        : fmt::format("'{}' object is not subscriptable", type_name(object)));
  }
  const Selection chosen = select(run, length(run, object), start, stop, step);
  if (!run.step(static_cast<int64_t>(chosen.count)) || run.failed()) return Value();
  if (object.is_string()) return slice_string(run, object.as<StringObject>(), chosen);
  if (object.is(Kind::kRange)) {
    const auto& range = object.as<RangeObject>();
    const auto at = [&](Int k) { return range.start + range.step * k; };
    return run.make<RangeObject>(at(chosen.start), at(chosen.stop), range.step * chosen.step);
  }
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(chosen.count));
  for (Int k = 0; k < chosen.count; ++k) {
    items.push_back(object.as_sequence()[static_cast<size_t>(chosen.start + k * chosen.step)]);
  }
  return run.sequence(object.kind(), std::move(items));
}

const Value* dict_find(Run& run, const DictObject& dict, const Value& key) {
  if (key.is_string()) return dict.find(key.as_string());
  const uint64_t key_hash = hash(run, key);
  if (run.failed()) return nullptr;
  if (dict.index.empty()) {
    for (const auto& [present, value] : dict.entries) {
      if (equal(run, present, key)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = dict.index.equal_range(key_hash);
  for (auto at = begin; at != end; ++at) {
    if (equal(run, dict.entries[at->second].first, key)) return &dict.entries[at->second].second;
  }
  return nullptr;
}

std::optional<size_t> DictBuilder::find(const Value& key, uint64_t key_hash) {
  if (index_.empty()) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (equal(run_, entries_[i].first, key)) return i;
    }
    return std::nullopt;
  }
  const auto [begin, end] = index_.equal_range(key_hash);
  for (auto at = begin; at != end; ++at) {
    if (equal(run_, entries_[at->second].first, key)) return at->second;
  }
  return std::nullopt;
}

void DictBuilder::set(Value key, Value value) {
  constexpr int kSteps = 4;  // What a new entry costs beside a search.
  const uint64_t key_hash = hash(run_, key);
  if (!run_.step(kSteps)) return;
  if (const std::optional<size_t> present = find(key, key_hash)) {
    entries_[*present].second = std::move(value);
    return;
  }
  if (!run_.can_allocate(entries_.size() * sizeof(DictObject::Entry))) return;
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() <= kIndexFrom) return;
  if (index_.empty()) {
    for (size_t i = 0; i + 1 < entries_.size(); ++i) {
      index_.emplace(hash(run_, entries_[i].first), static_cast<uint32_t>(i));
    }
  }
  index_.emplace(key_hash, static_cast<uint32_t>(entries_.size() - 1));
}

Value DictBuilder::finish() { return run_.make<DictObject>(std::move(entries_), std::move(index_)); }

void stable_sort(std::vector<size_t>& order, const std::function<bool(size_t, size_t)>& less) {
  // Merging runs of doubling width: every index stays in bounds whatever `less` answers, unlike
  // std::stable_sort.
  std::vector<size_t> merged(order.size());
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t left = 0; left < order.size(); left += 2 * width) {
      const size_t middle = std::min(left + width, order.size()),
                   right = std::min(left + 2 * width, order.size());
      size_t a = left, b = middle;
      for (size_t k = left; k < right; ++k) {
        const bool take_right = a == middle || (b < right && less(order[b], order[a]));
        merged[k] = take_right ? order[b++] : order[a++];
      }
    }
    order.swap(merged);
  }
}

std::string int_text(Int value) { return fmt::format("{}", value); }

Value Run::fail_undefined(const Value& undefined) {
  const auto& reason = undefined.as<UndefinedObject>();
  if (!reason.hint.empty()) return fail(reason.hint);
  if (reason.owner.empty()) return fail(fmt::format("{} is undefined", repr(*this, reason.name)));
  const std::string owner = reason.owner == "None" ? "None" : fmt::format("{} object", reason.owner);
  const std::string name = repr(*this, reason.name);
  return fail(reason.name.is_string() ? fmt::format("'{}' has no attribute {}", owner, name)
                                      : fmt::format("{} has no element {}", owner, name));
}

Value Run::from_json(const Json& json) {
  const DepthGuard guard(*this);
  if (!guard || !step()) return Value();
  if (json.is_null()) return Value::none();
  if (json.is_bool()) return Value::boolean(json.as_bool());
  if (json.is_int()) return Value::integer(json.as_int());
  if (json.is_uint()) return Value::integer(json.as_uint());
  if (json.is_double()) return Value::real(json.as_double());
  if (json.is_string()) {
    if (find_invalid_utf8(json.as_string()) != std::string_view::npos)
      return fail("a string is not valid UTF-8");
    return string(json.as_string());
  }
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.as_array().size());
    for (const Json& item : json.as_array()) items.push_back(from_json(item));
    return list(std::move(items));
  }
  DictBuilder builder(*this);
  builder.reserve(json.as_object().size());
  for (const auto& [key, value] : json.as_object()) {
    if (find_invalid_utf8(key) != std::string_view::npos) return fail("a key is not valid UTF-8");
    builder.set(string(key), from_json(value));
  }
  return builder.finish();
}

}  // namespace tensorfold::jinja
