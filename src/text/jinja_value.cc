// Ownership and accounting of template values.
#include "text/jinja_value.h"

#include "text/jinja_unicode.h"

namespace tensorfold::jinja {

Heap::~Heap() { TF_CHECK(live_bytes_ == 0, "a template value outlives its render"); }

void Heap::break_cycles() {
  while (first_ != nullptr) {
    // Clearing may drop the last other reference to the object itself.
    const std::shared_ptr<CyclicObject> keep = first_->shared_from_this();
    keep->unlink();
    keep->clear();
  }
}

CyclicObject::CyclicObject(Heap* heap, Kind kind, size_t bytes)
    : Object(heap, kind, bytes), next_(heap->first_) {
  if (next_ != nullptr) next_->previous_ = this;
  heap->first_ = this;
}

CyclicObject::~CyclicObject() { unlink(); }

void CyclicObject::unlink() {
  if (next_ != nullptr) next_->previous_ = previous_;
  if (previous_ != nullptr) {
    previous_->next_ = next_;
  } else if (heap_->first_ == this) {
    heap_->first_ = next_;
  }
  previous_ = next_ = nullptr;
}

void dispose(std::vector<Value>&& values) {
  // The outermost call on a thread empties the queue; calls that destroying an element makes only add to it.
  thread_local std::vector<Value>* pending = nullptr;
  if (pending != nullptr) {
    pending->insert(pending->end(), std::make_move_iterator(values.begin()),
                    std::make_move_iterator(values.end()));
    values.clear();
    return;
  }
  std::vector<Value> queue = std::move(values);
  pending = &queue;
  while (!queue.empty()) {
    const Value last = std::move(queue.back());
    queue.pop_back();
  }
  pending = nullptr;
}

StringObject::StringObject(Heap* heap, std::string value, bool is_markup)
    : Object(heap, kKind, value.capacity()),
      text(std::move(value)),
      length(count_code_points(text)),
      markup(is_markup) {}

DictObject::~DictObject() {
  std::vector<Value> values;
  values.reserve(entries.size() * 2);
  for (Entry& entry : entries) {
    values.push_back(std::move(entry.first));
    values.push_back(std::move(entry.second));
  }
  dispose(std::move(values));
}

const Value* DictObject::find(std::string_view key) const {
  const auto matches = [&](const Entry& entry) {
    return entry.first.is_string() && entry.first.as_string() == key;
  };
  if (index.empty()) {
    for (const Entry& entry : entries) {
      if (matches(entry)) return &entry.second;
    }
    return nullptr;
  }
  const auto [begin, end] = index.equal_range(std::hash<std::string_view>{}(key));
  for (auto at = begin; at != end; ++at) {
    if (matches(entries[at->second])) return &entries[at->second].second;
  }
  return nullptr;
}

Int RangeObject::length() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

bool IteratorObject::next(Run& run, Value& out) {
  const DepthGuard guard(run);
  if (is_done_ || !guard || !run.step()) return false;
  // A second use while this one is producing would be Python's "generator already executing"; here it ends.
  is_done_ = true;
  is_done_ = !produce(run, out) || run.failed();
  return !is_done_;
}

void NamespaceObject::clear() {
  std::vector<Value> values;
  for (auto& [name, value] : attributes) values.push_back(std::move(value));
  attributes.clear();
  dispose(std::move(values));
}

const Value* NamespaceObject::find(std::string_view name) const {
  for (const auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

void NamespaceObject::set(std::string_view name, Value value) {
  for (auto& [key, present] : attributes) {
    if (key != name) continue;
    present = std::move(value);
    return;
  }
  add_bytes(name.size() + 64);
  attributes.emplace_back(std::string(name), std::move(value));
}

Value constant_string(std::string text) {
  return Value(std::shared_ptr<Object>(std::make_shared<StringObject>(nullptr, std::move(text), false)));
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
      return "missing";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kString:
      return value.as<StringObject>().markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kRange:
      return "range";
    case Kind::kDictView: {
      constexpr std::string_view kNames[] = {"dict_keys", "dict_values", "dict_items"};
      return kNames[static_cast<int>(value.as<DictViewObject>().part)];
    }
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kFunction:
      return "builtin_function_or_method";
    case Kind::kMacro:
      return "Macro";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCycler:
      return "Cycler";
    case Kind::kJoiner:
      return "Joiner";
  }
  return "object";
}

Value Run::fail(std::string message) {
  if (!failed_) {
    failed_ = true;
    error_ = std::move(message);
    error_line_ = line;
  }
  return Value();
}

Value Run::string(std::string text, bool markup) {
  if (!read(text.size()) || !can_allocate(text.size())) return Value();
  return make<StringObject>(std::move(text), markup);
}

Value Run::sequence(Kind kind, std::vector<Value> items) {
  if (!can_allocate(items.capacity() * sizeof(Value))) return Value();
  return make<SequenceObject>(kind, std::move(items));
}

Value Run::undefined(std::string hint) { return make<UndefinedObject>(std::move(hint)); }

Value Run::undefined_member(const Value& owner, Value name) {
  return make<UndefinedObject>(std::move(name), owner.is_none() ? "None" : type_name(owner));
}

}  // namespace tensorfold::jinja
