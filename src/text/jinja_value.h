// The values of the template language, with Python's types: what a template can hold, and who owns it.
// Leaves what operators do with them to jinja_ops.h and how they print to jinja_text.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "text/jinja_limits.h"

namespace tensorfold::jinja {

class Run;
class Object;

/// Integers have 128 bits where Python's are unbounded: every 64-bit number of a request fits with room for
/// arithmetic, and what exceeds it is an error instead of a wrong number.
using Int = __int128;

enum class Kind : uint8_t {
  kMissing,  ///< No value at all: an unset variable or an argument that was not given. Never seen by
             ///< templates.
  kNone,
  kBool,
  kInt,
  kFloat,
  kUndefined,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kDictView,  ///< keys(), values() or items() of a mapping.
  kIterator,  ///< A generator: can be consumed once.
  kNamespace,
  kFunction,
  kMacro,
  kLoop,
  kCycler,
  kJoiner,
};

/// A value: small ones inside, the others shared. Copies share the object, which is immutable except for
/// namespaces, iterators, loops, cyclers and joiners. Used by one thread at a time, except constants of a
/// parsed template, which nobody changes.
class Value {
 public:
  Value() = default;  ///< kMissing
  explicit Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  static Value none() { return Value(std::in_place, NoneTag{}); }
  static Value boolean(bool value) { return Value(std::in_place, value); }
  static Value integer(Int value) { return Value(std::in_place, value); }
  static Value real(double value) { return Value(std::in_place, value); }

  inline Kind kind() const;
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_missing() const { return data_.index() == 0; }
  bool is_none() const { return data_.index() == 1; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_string() const { return is(Kind::kString); }
  bool is_sequence() const { return is(Kind::kList) || is(Kind::kTuple); }
  /// True for bool, int and float, as for Python's arithmetic.
  bool is_number() const { return data_.index() >= 2 && data_.index() <= 4; }
  /// True for int and bool.
  bool is_integral() const { return data_.index() == 2 || data_.index() == 3; }

  bool as_bool() const { return std::get<bool>(data_); }
  /// An int, or a bool as 0 or 1.
  Int as_int() const { return data_.index() == 2 ? Int{std::get<bool>(data_)} : std::get<Int>(data_); }
  /// Any number as a double.
  double as_float() const {
    return data_.index() == 4 ? std::get<double>(data_) : static_cast<double>(as_int());
  }

  const std::shared_ptr<Object>& object() const { return std::get<std::shared_ptr<Object>>(data_); }
  /// The object as its own type; the caller has looked at kind().
  template <class T>
  T& as() const {
    TF_DCHECK(is(T::kKind));
    return static_cast<T&>(*object());
  }
  inline const std::string& as_string() const;
  /// The elements of a list or tuple.
  inline const std::vector<Value>& as_sequence() const;

  /// Python's `is`: the same object, or equal small values of one type.
  bool same_as(const Value& other) const { return data_ == other.data_; }

 private:
  struct NoneTag {
    bool operator==(const NoneTag&) const { return true; }
  };
  using Data = std::variant<std::monostate, NoneTag, bool, Int, double, std::shared_ptr<Object>>;
  template <class Small>
  Value(std::in_place_t, Small value) : data_(std::in_place_type<Small>, value) {}
  Data data_;
};

/// Counts the bytes of live objects of one render, and knows those that can be part of a reference cycle.
/// Owned by the render's Run; every object made for the render points to it and must die before it.
class Heap {
 public:
  ~Heap();
  size_t live_bytes() const { return live_bytes_; }
  /// Empties every object that can hold a later one, so that no cycle survives the render.
  void break_cycles();

 private:
  friend class Object;
  friend class CyclicObject;
  size_t live_bytes_ = 0;
  class CyclicObject* first_ = nullptr;
};

/// Destroys values without one stack frame per level of nesting.
void dispose(std::vector<Value>&& values);

/// What a Value shares. `heap` is null for constants of a template.
class Object {
 public:
  Object(Heap* heap, Kind kind, size_t bytes) : heap_(heap), bytes_(bytes + 64), kind_(kind) {
    if (heap_ != nullptr) heap_->live_bytes_ += bytes_;
  }
  virtual ~Object() {
    if (heap_ != nullptr) heap_->live_bytes_ -= bytes_;
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  Kind kind() const { return kind_; }

 protected:
  /// Counts growth of an object that is not immutable.
  void add_bytes(size_t bytes) {
    bytes_ += bytes;
    if (heap_ != nullptr) heap_->live_bytes_ += bytes;
  }
  Heap* heap_;

 private:
  size_t bytes_;
  Kind kind_;
};

/// An object that may come to hold values younger than itself. The heap can empty it.
class CyclicObject : public Object, public std::enable_shared_from_this<CyclicObject> {
 public:
  CyclicObject(Heap* heap, Kind kind, size_t bytes);
  ~CyclicObject() override;
  virtual void clear() = 0;

 private:
  friend class Heap;
  void unlink();
  CyclicObject* previous_ = nullptr;
  CyclicObject* next_ = nullptr;
};

struct StringObject : Object {
  static constexpr Kind kKind = Kind::kString;
  StringObject(Heap* heap, std::string value, bool is_markup);
  const std::string text;
  const size_t length;  ///< Code points.
  const bool markup;    ///< Came from `safe` or `escape`: joining it with plain text escapes that text.
  bool is_ascii() const { return length == text.size(); }
};

/// A list or a tuple.
struct SequenceObject : Object {
  SequenceObject(Heap* heap, Kind kind, std::vector<Value> values)
      : Object(heap, kind, values.capacity() * sizeof(Value)), items(std::move(values)) {}
  ~SequenceObject() override { dispose(std::move(items)); }
  std::vector<Value> items;
  bool is_group = false;  ///< A pair made by groupby, whose parts are also called grouper and list.
};

/// A mapping in insertion order. Keys are hashable; the builder sees to that (jinja_ops.h, DictBuilder).
struct DictObject : Object {
  static constexpr Kind kKind = Kind::kDict;
  using Entry = std::pair<Value, Value>;
  DictObject(Heap* heap, std::vector<Entry> members, std::unordered_multimap<uint64_t, uint32_t> hashes)
      : Object(heap, kKind, members.capacity() * sizeof(Entry) + hashes.size() * 48),
        entries(std::move(members)),
        index(std::move(hashes)) {}
  ~DictObject() override;
  std::vector<Entry> entries;
  /// Hash of a key → place in entries; empty for small mappings, which are searched in order.
  std::unordered_multimap<uint64_t, uint32_t> index;
  /// The value under a string key, or nullptr: the common case, without hashing other types.
  const Value* find(std::string_view key) const;
};

struct RangeObject : Object {
  static constexpr Kind kKind = Kind::kRange;
  RangeObject(Heap* heap, Int start, Int stop, Int step)
      : Object(heap, kKind, 48), start(start), stop(stop), step(step) {}
  Int length() const;
  const Int start, stop, step;
};

struct DictViewObject : Object {
  static constexpr Kind kKind = Kind::kDictView;
  enum class Part : uint8_t { kKeys, kValues, kItems };
  DictViewObject(Heap* heap, Value dict, Part part)
      : Object(heap, kKind, 32), dict(std::move(dict)), part(part) {}
  const DictObject& mapping() const { return dict.as<DictObject>(); }
  const Value dict;
  const Part part;
};

/// Yields values once. `held` keeps what it reads from; derived classes hold values nowhere else.
class IteratorObject : public CyclicObject {
 public:
  static constexpr Kind kKind = Kind::kIterator;
  explicit IteratorObject(Heap* heap, std::vector<Value> values)
      : CyclicObject(heap, kKind, sizeof(Value) * values.size()), held(std::move(values)) {}
  ~IteratorObject() override { dispose(std::move(held)); }
  void clear() override {
    dispose(std::move(held));
    held.clear();
  }
  /// The next value, or false at the end and after a failure.
  bool next(Run& run, Value& out);

 protected:
  virtual bool produce(Run& run, Value& out) = 0;
  std::vector<Value> held;

 private:
  bool is_done_ = false;
};

/// Why a value is not there; the reason becomes the error when something needs the value.
struct UndefinedObject : Object {
  static constexpr Kind kKind = Kind::kUndefined;
  explicit UndefinedObject(Heap* heap, std::string hint)
      : Object(heap, kKind, hint.size()), hint(std::move(hint)) {}
  UndefinedObject(Heap* heap, Value name, std::string_view owner)
      : Object(heap, kKind, 48), name(std::move(name)), owner(owner) {}
  const std::string hint;        ///< The whole message, or empty.
  const Value name;              ///< What was looked for.
  const std::string_view owner;  ///< Type of what it was looked for in; empty for a variable. Static storage.
};

class NamespaceObject : public CyclicObject {
 public:
  static constexpr Kind kKind = Kind::kNamespace;
  explicit NamespaceObject(Heap* heap) : CyclicObject(heap, kKind, 64) {}
  ~NamespaceObject() override { clear(); }
  void clear() override;
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
  std::vector<std::pair<std::string, Value>> attributes;
};

/// Arguments of a call as written: by position, then by name.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

/// A built-in function, or a method bound to its value.
struct FunctionObject : Object {
  static constexpr Kind kKind = Kind::kFunction;
  using Body = Value (*)(Run& run, const Value& self, Arguments& arguments);
  FunctionObject(Heap* heap, std::string_view name, Body body, Value self)
      : Object(heap, kKind, 64), name(name), body(body), self(std::move(self)) {}
  const std::string_view name;  ///< Static storage.
  const Body body;
  const Value self;
};

struct CyclerObject : Object {
  static constexpr Kind kKind = Kind::kCycler;
  CyclerObject(Heap* heap, std::vector<Value> values)
      : Object(heap, kKind, values.size() * sizeof(Value)), items(std::move(values)) {}
  ~CyclerObject() override { dispose(std::move(items)); }
  std::vector<Value> items;
  size_t position = 0;
};

struct JoinerObject : Object {
  static constexpr Kind kKind = Kind::kJoiner;
  JoinerObject(Heap* heap, Value text) : Object(heap, kKind, 32) { separator.push_back(std::move(text)); }
  ~JoinerObject() override { dispose(std::move(separator)); }
  std::vector<Value> separator;  ///< One value.
  bool is_used = false;
};

Kind Value::kind() const {
  constexpr Kind kSmall[] = {Kind::kMissing, Kind::kNone, Kind::kBool, Kind::kInt, Kind::kFloat};
  return data_.index() < 5 ? kSmall[data_.index()] : object()->kind();
}
const std::string& Value::as_string() const { return as<StringObject>().text; }
const std::vector<Value>& Value::as_sequence() const {
  TF_DCHECK(is_sequence());
  return static_cast<SequenceObject&>(*object()).items;
}

/// A string that belongs to a template, not to a render.
Value constant_string(std::string text);

/// Python's name of the value's type: "str", "NoneType", "dict", "Undefined", ...
std::string_view type_name(const Value& value);

/// The state of one render that every operation shares: memory, limits and the first failure. A failure
/// sticks: operations then return missing or undefined values, statements stop, and the caller reports it.
/// Used by one thread; must outlive every value made through it.
class Run {
 public:
  explicit Run(const Limits& limits) : limits_(limits) {}

  bool failed() const { return failed_; }
  /// Records the first failure with the current line; returns a missing value for `return run.fail(...)`.
  Value fail(std::string message);
  /// As fail, for what Python would raise on an undefined operand.
  Value fail_undefined(const Value& undefined);
  const std::string& error() const { return error_; }
  int error_line() const { return error_line_; }

  /// Spends steps; false once the render has failed.
  bool step(int64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.max_steps) fail("the template takes too long (step limit reached)");
    return !failed_;
  }
  /// Spends the steps of reading or writing that much text.
  bool read(size_t bytes) { return step(static_cast<int64_t>(bytes / 64)); }
  /// Spends the steps of looking for `needle` bytes in `text` bytes.
  bool search(size_t text, size_t needle) {
    return step(static_cast<int64_t>(text / 64 * (1 + needle / 64)));
  }
  /// True when `bytes` more may be allocated.
  bool can_allocate(size_t bytes) {
    if (bytes > limits_.max_memory_bytes || heap_.live_bytes() + bytes > limits_.max_memory_bytes) {
      fail("the template uses too much memory (memory limit reached)");
    }
    return !failed_;
  }

  // Makers of values. Each checks the memory limit and returns a missing value when it is reached.
  Value string(std::string text, bool markup = false);
  Value list(std::vector<Value> items) { return sequence(Kind::kList, std::move(items)); }
  Value tuple(std::vector<Value> items) { return sequence(Kind::kTuple, std::move(items)); }
  Value sequence(Kind kind, std::vector<Value> items);
  Value undefined(std::string hint);
  Value undefined_name(Value name) { return make<UndefinedObject>(std::move(name), std::string_view()); }
  /// `name` (a string or a number) was looked for in `owner`.
  Value undefined_member(const Value& owner, Value name);
  Value function(std::string_view name, FunctionObject::Body body, Value self = Value()) {
    return make<FunctionObject>(name, body, std::move(self));
  }
  /// A mapping with string keys and its values, as parsed; integers, floats and order as in the text.
  Value from_json(const Json& json);

  template <class T, class... Args>
  Value make(Args&&... args) {
    if (!can_allocate(0)) return Value();
    return Value(std::shared_ptr<Object>(std::make_shared<T>(&heap_, std::forward<Args>(args)...)));
  }

  Heap& heap() { return heap_; }
  const Limits& limits() const { return limits_; }

  /// What strftime_now prints, as a civil time without zone. Unset: the local clock, read once per render.
  std::optional<std::chrono::local_seconds> now;
  int line = 1;   ///< Line of what is being evaluated.
  int depth = 0;  ///< See DepthGuard.

 private:
  Heap heap_;
  Limits limits_;
  int64_t steps_ = 0;
  bool failed_ = false;
  std::string error_;
  int error_line_ = 0;
};

/// Counts one level of nested evaluation for its lifetime; false when the limit is reached.
class DepthGuard {
 public:
  explicit DepthGuard(Run& run) : run_(run) {
    if (++run_.depth > run_.limits().max_depth)
      run_.fail("the template nests too deeply (depth limit reached)");
  }
  ~DepthGuard() { --run_.depth; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  explicit operator bool() const { return !run_.failed(); }

 private:
  Run& run_;
};

}  // namespace tensorfold::jinja
