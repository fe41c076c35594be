// What Python's operators and built-in protocols do with template values: truth, equality, order, arithmetic,
// iteration, items. All failures go to the Run and carry Python's wording.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/jinja_value.h"

namespace tensorfold::jinja {

enum class Operator : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,  // arithmetic
  kNeg,
  kPos,
  kNot,  // unary
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,  // comparison
};
std::string_view operator_text(Operator op);

/// bool(value)
bool truth(Run& run, const Value& value);
/// a == b, deep. Never an error except for limits.
bool equal(Run& run, const Value& a, const Value& b);
/// Order of two numbers, or nullopt when one is NaN.
std::optional<int> compare_numbers(const Value& a, const Value& b);
/// `a op b` for any comparison operator; false after a failure.
bool compare(Run& run, Operator op, const Value& a, const Value& b);
/// needle in haystack
bool contains(Run& run, const Value& needle, const Value& haystack);
/// hash(value), equal for equal values; an error for lists and mappings.
uint64_t hash(Run& run, const Value& value);

Value unary(Run& run, Operator op, const Value& operand);
/// Arithmetic operators; `%` on a string formats as printf does.
Value binary(Run& run, Operator op, const Value& a, const Value& b);

/// len(value), or nullopt when the value has none. Not a failure.
std::optional<int64_t> try_length(const Value& value);
int64_t length(Run& run, const Value& value);
/// iter(value); null after a failure. An iterator is its own iterator.
std::shared_ptr<IteratorObject> iterate(Run& run, const Value& value);
bool is_iterable(const Value& value);
/// list(value)
std::vector<Value> to_vector(Run& run, const Value& value);
/// The values from the last to the first; nullptr when Python's reversed() refuses the type.
std::shared_ptr<IteratorObject> reversed(Run& run, const Value& value);

/// object[key]: nullopt where Python raises LookupError or TypeError, which is not a failure here.
std::optional<Value> try_item(Run& run, const Value& object, const Value& key);
/// object[start:stop:step]; absent parts are none.
Value slice(Run& run, const Value& object, const Value& start, const Value& stop, const Value& step);

/// The value as an index (bool or int), or nullopt.
std::optional<Int> as_index(const Value& value);
/// Fails with "expected an integer" naming `what` unless the value is an index; clamps to 64 bits.
int64_t need_index(Run& run, const Value& value, std::string_view what);

/// Builds a mapping: later values replace earlier ones in their place.
class DictBuilder {
 public:
  explicit DictBuilder(Run& run) : run_(run) {}
  void reserve(size_t count) { entries_.reserve(count); }
  /// A key that is not hashable is a failure.
  void set(Value key, Value value);
  Value finish();

 private:
  /// Above this many entries a hash index is cheaper than a search.
  static constexpr size_t kIndexFrom = 8;
  std::optional<size_t> find(const Value& key, uint64_t key_hash);
  Run& run_;
  std::vector<DictObject::Entry> entries_;
  std::unordered_multimap<uint64_t, uint32_t> index_;
};

/// The value under any hashable key, or nullptr.
const Value* dict_find(Run& run, const DictObject& dict, const Value& key);

/// Yields the elements of a vector.
Value iterator_over(Run& run, std::vector<Value> values);

/// Stable sort by `less`, which may be inconsistent (NaN) or fail without harm.
void stable_sort(std::vector<size_t>& order, const std::function<bool(size_t, size_t)>& less);

/// Python's decimal spelling of an integer.
std::string int_text(Int value);

}  // namespace tensorfold::jinja
