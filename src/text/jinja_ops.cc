// Truth, equality, order, hashing, arithmetic.
#include "text/jinja_ops.h"

#include <cmath>
#include <functional>
#include <limits>

#include "text/jinja_text.h"

namespace tensorfold::jinja {
namespace {

int sign(Int value) { return value < 0 ? -1 : value > 0 ? 1 : 0; }

/// An int against a double, exactly: the double is compared as an integer when it is one.
std::optional<int> compare_int_float(Int a, double b) {
  if (std::isnan(b)) return std::nullopt;
  constexpr double kTwo127 = 0x1p127;
  if (b >= kTwo127) return -1;
  if (b < -kTwo127) return 1;
  const double floor = std::floor(b);
  const Int whole = static_cast<Int>(floor);
  if (a != whole) return a < whole ? -1 : 1;
  return floor < b ? -1 : 0;
}

bool equal_sequences(Run& run, const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equal(run, a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(Run& run, const DictObject& a, const DictObject& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = dict_find(run, b, key);
    if (other == nullptr || !equal(run, value, *other)) return false;
  }
  return true;
}

bool equal_ranges(const RangeObject& a, const RangeObject& b) {
  const Int count = a.length();
  if (count != b.length()) return false;
  if (count == 0) return true;
  return a.start == b.start && (count == 1 || a.step == b.step);
}

/// keys() and items() compare as sets of what they yield.
bool equal_views(Run& run, const Value& a, const Value& b) {
  const auto& left = a.as<DictViewObject>();
  const auto& right = b.as<DictViewObject>();
  if (left.part != right.part || left.part == DictViewObject::Part::kValues) return false;
  if (left.part == DictViewObject::Part::kItems) return equal_dicts(run, left.mapping(), right.mapping());
  if (left.mapping().entries.size() != right.mapping().entries.size()) return false;
  for (const auto& [key, value] : left.mapping().entries) {
    if (dict_find(run, right.mapping(), key) == nullptr) return false;
  }
  return true;
}

Value fail_operands(Run& run, std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) return run.fail_undefined(a);
  if (b.is_undefined()) return run.fail_undefined(b);
  return run.fail(
      fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b)));
}

bool order_holds(Operator op, int order) {
  switch (op) {
    case Operator::kLt:
      return order < 0;
    case Operator::kLe:
      return order <= 0;
    case Operator::kGt:
      return order > 0;
    default:
      return order >= 0;
  }
}

bool fail_order(Run& run, Operator op, const Value& a, const Value& b) {
  if (a.is_undefined() || b.is_undefined()) {
    run.fail_undefined(a.is_undefined() ? a : b);
  } else {
    run.fail(fmt::format("'{}' not supported between instances of '{}' and '{}'", operator_text(op),
                         type_name(a), type_name(b)));
  }
  return false;
}

/// Lexicographic: the first unequal pair decides, else the lengths.
bool compare_sequences(Run& run, Operator op, const std::vector<Value>& a, const std::vector<Value>& b) {
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!equal(run, a[i], b[i])) return compare(run, op, a[i], b[i]);
  }
  return order_holds(op, sign(static_cast<Int>(a.size()) - static_cast<Int>(b.size())));
}

Value out_of_range(Run& run) { return run.fail("integer result does not fit in 128 bits"); }

Value int_power(Run& run, Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) return run.fail("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Int result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return out_of_range(run);
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return out_of_range(run);
  }
  return Value::integer(result);
}

Int floor_div(Int a, Int b) {
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value int_arithmetic(Run& run, Operator op, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case Operator::kAdd:
      return __builtin_add_overflow(a, b, &result) ? out_of_range(run) : Value::integer(result);
    case Operator::kSub:
      return __builtin_sub_overflow(a, b, &result) ? out_of_range(run) : Value::integer(result);
    case Operator::kMul:
      return __builtin_mul_overflow(a, b, &result) ? out_of_range(run) : Value::integer(result);
    case Operator::kPow:
      return int_power(run, a, b);
    default:
      break;
  }
  if (b == 0) {
    return run.fail(op == Operator::kDiv ? "division by zero" : "integer division or modulo by zero");
  }
  if (op == Operator::kDiv) {
    return Value::real(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  }
  if (b == -1) {  // The one quotient that overflows, and remainder 0.
    if (op == Operator::kMod) return Value::integer(0);
    return __builtin_sub_overflow(Int{0}, a, &result) ? out_of_range(run) : Value::integer(result);
  }
  const Int quotient = floor_div(a, b);
  return Value::integer(op == Operator::kFloorDiv ? quotient : a - quotient * b);
}

/// Python's divmod of floats: the remainder has the divisor's sign, the quotient is rounded to an integer.
std::pair<double, double> float_divmod(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), remainder};
  const double floor = std::floor(quotient);
  return {quotient - floor > 0.5 ? floor + 1 : floor, remainder};
}

Value float_power(Run& run, double base, double exponent) {
  if (base == 0 && exponent < 0) return run.fail("0.0 cannot be raised to a negative power");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) && exponent != std::floor(exponent)) {
    return run.fail("complex numbers are not supported");
  }
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) {
    return run.fail("(34, 'Numerical result out of range')");
  }
  return Value::real(result);
}

Value float_arithmetic(Run& run, Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::real(a + b);
    case Operator::kSub:
      return Value::real(a - b);
    case Operator::kMul:
      return Value::real(a * b);
    case Operator::kPow:
      return float_power(run, a, b);
    default:
      break;
  }
  if (b == 0) {
    return run.fail(op == Operator::kDiv        ? "float division by zero"
                    : op == Operator::kFloorDiv ? "float floor division by zero"
                                                : "float modulo");
  }
  if (op == Operator::kDiv) return Value::real(a / b);
  const auto [quotient, remainder] = float_divmod(a, b);
  return Value::real(op == Operator::kFloorDiv ? quotient : remainder);
}

Value add_strings(Run& run, const StringObject& a, const StringObject& b) {
  if (!run.can_allocate(a.text.size() + b.text.size())) return Value();
  if (!a.markup && !b.markup) return run.string(a.text + b.text);
  return run.string((a.markup ? a.text : escape_html(a.text)) + (b.markup ? b.text : escape_html(b.text)),
                    true);
}

Value add_sequences(Run& run, const Value& a, const Value& b) {
  const auto& left = a.as_sequence();
  const auto& right = b.as_sequence();
  if (!run.step(static_cast<int64_t>(left.size() + right.size()))) return Value();
  if (!run.can_allocate((left.size() + right.size()) * sizeof(Value))) return Value();
  std::vector<Value> joined;
  joined.reserve(left.size() + right.size());
  joined.insert(joined.end(), left.begin(), left.end());
  joined.insert(joined.end(), right.begin(), right.end());
  return run.sequence(a.kind(), std::move(joined));
}

/// The product of a string, list or tuple and a count.
Value repeat(Run& run, const Value& value, Int count) {
  const size_t unit =
      value.is_string() ? value.as_string().size() : value.as_sequence().size() * sizeof(Value);
  if (count <= 0 || unit == 0) count = 0;
  if (count > static_cast<Int>(run.limits().max_memory_bytes)) count = run.limits().max_memory_bytes + Int{1};
  size_t bytes = 0;
  if (__builtin_mul_overflow(unit, static_cast<size_t>(count), &bytes)) bytes = SIZE_MAX;
  if (!run.can_allocate(bytes) || !run.read(bytes)) return Value();
  if (value.is_string()) {
    std::string text;
    text.reserve(bytes);
    for (Int i = 0; i < count; ++i) text += value.as_string();
    return run.string(std::move(text), value.as<StringObject>().markup);
  }
  const auto& items = value.as_sequence();
  std::vector<Value> repeated;
  repeated.reserve(items.size() * static_cast<size_t>(count));
  for (Int i = 0; i < count; ++i) repeated.insert(repeated.end(), items.begin(), items.end());
  return run.sequence(value.kind(), std::move(repeated));
}

}  // namespace

std::string_view operator_text(Operator op) {
  constexpr std::string_view kTexts[] = {"+",   "-",  "*",  "/", "//", "%", "** or pow()", "-",  "+",
                                         "not", "==", "!=", "<", "<=", ">", ">=",          "in", "not in"};
  return kTexts[static_cast<int>(op)];
}

bool truth(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kNone:
    case Kind::kUndefined:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kDictView:
      return length(run, value) != 0;
    default:
      return true;
  }
}

bool equal(Run& run, const Value& a, const Value& b) {
  if (!run.step()) return false;
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.same_as(b)) return true;
  if (a.kind() != b.kind()) return false;
  const DepthGuard guard(run);
  if (!guard) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
      return true;
    case Kind::kString:
      return run.read(a.as_string().size()) && a.as_string() == b.as_string();
    case Kind::kList:
    case Kind::kTuple:
      return equal_sequences(run, a.as_sequence(), b.as_sequence());
    case Kind::kDict:
      return equal_dicts(run, a.as<DictObject>(), b.as<DictObject>());
    case Kind::kRange:
      return equal_ranges(a.as<RangeObject>(), b.as<RangeObject>());
    case Kind::kDictView:
      return equal_views(run, a, b);
    case Kind::kFunction: {
      const auto& left = a.as<FunctionObject>();
      const auto& right = b.as<FunctionObject>();
      return left.body == right.body && left.self.same_as(right.self);
    }
    default:
      return false;  // Identity only.
  }
}

std::optional<int> compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral())
    return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  if (a.is_integral()) return compare_int_float(a.as_int(), b.as_float());
  if (b.is_integral()) {
    const std::optional<int> order = compare_int_float(b.as_int(), a.as_float());
    return order ? std::optional<int>(-*order) : std::nullopt;
  }
  const double x = a.as_float(), y = b.as_float();
  if (std::isnan(x) || std::isnan(y)) return std::nullopt;
  return x < y ? -1 : x > y ? 1 : 0;
}

bool compare(Run& run, Operator op, const Value& a, const Value& b) {
  if (!run.step()) return false;
  switch (op) {
    case Operator::kEq:
      return equal(run, a, b);
    case Operator::kNe:
      return !equal(run, a, b) && !run.failed();
    case Operator::kIn:
      return contains(run, a, b);
    case Operator::kNotIn:
      return !contains(run, a, b) && !run.failed();
    default:
      break;
  }
  const DepthGuard guard(run);
  if (!guard) return false;
  if (a.is_number() && b.is_number()) {
    const std::optional<int> order = compare_numbers(a, b);
    return order && order_holds(op, *order);
  }
  if (a.is_string() && b.is_string()) {
    // Byte order of UTF-8 is code point order.
    if (!run.read(std::min(a.as_string().size(), b.as_string().size()))) return false;
    return order_holds(op, a.as_string().compare(b.as_string()));
  }
  if (a.is_sequence() && a.kind() == b.kind())
    return compare_sequences(run, op, a.as_sequence(), b.as_sequence());
  return fail_order(run, op, a, b);
}

bool contains(Run& run, const Value& needle, const Value& haystack) {
  switch (haystack.kind()) {
    case Kind::kString:
      if (!needle.is_string()) {
        run.fail(fmt::format("'in <string>' requires string as left operand, not {}", type_name(needle)));
        return false;
      }
      return run.search(haystack.as_string().size(), needle.as_string().size()) &&
             haystack.as_string().find(needle.as_string()) != std::string::npos;
    case Kind::kDict:
      return dict_find(run, haystack.as<DictObject>(), needle) != nullptr;
    case Kind::kDictView: {
      const auto& view = haystack.as<DictViewObject>();
      if (view.part == DictViewObject::Part::kKeys) return dict_find(run, view.mapping(), needle) != nullptr;
      break;
    }
    default:
      if (is_iterable(haystack)) break;
      run.fail(fmt::format("argument of type '{}' is not iterable", type_name(haystack)));
      return false;
  }
  const auto iterator = iterate(run, haystack);
  for (Value item; iterator != nullptr && iterator->next(run, item);) {
    if (equal(run, item, needle)) return true;
  }
  return false;
}

uint64_t hash(Run& run, const Value& value) {
  if (!run.step()) return 0;
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      return std::hash<uint64_t>{}(static_cast<uint64_t>(value.as_int()));
    case Kind::kFloat: {
      // A whole float equals an int, so it must hash like it.
      const double number = value.as_float();
      if (number == std::floor(number) && std::abs(number) < 0x1p126) {
        return hash(run, Value::integer(static_cast<Int>(number)));
      }
      return std::hash<double>{}(number);
    }
    case Kind::kString:
      run.read(value.as_string().size());
      return std::hash<std::string_view>{}(value.as_string());
    case Kind::kTuple: {
      const DepthGuard guard(run);
      uint64_t mixed = 0x9e3779b97f4a7c15;
      if (!guard) return 0;
      for (const Value& item : value.as_sequence()) mixed = mixed * 31 + hash(run, item);
      return mixed;
    }
    case Kind::kList:
    case Kind::kDict:
    case Kind::kDictView:
      run.fail(fmt::format("unhashable type: '{}'", type_name(value)));
      return 0;
    case Kind::kRange:
      return static_cast<uint64_t>(value.as<RangeObject>().length());
    default:
      return static_cast<uint64_t>(value.kind());  // Few of these are ever keys; equality decides.
  }
}

Value unary(Run& run, Operator op, const Value& operand) {
  if (op == Operator::kNot) return Value::boolean(!truth(run, operand));
  if (operand.is_undefined()) return run.fail_undefined(operand);
  if (operand.is(Kind::kFloat))
    return Value::real(op == Operator::kNeg ? -operand.as_float() : operand.as_float());
  if (!operand.is_integral()) {
    return run.fail(
        fmt::format("bad operand type for unary {}: '{}'", operator_text(op), type_name(operand)));
  }
  if (op == Operator::kPos) return Value::integer(operand.as_int());
  return int_arithmetic(run, Operator::kSub, 0, operand.as_int());
}

Value binary(Run& run, Operator op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return int_arithmetic(run, op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return float_arithmetic(run, op, a.as_float(), b.as_float());
  if (op == Operator::kMod && a.is_string()) return printf_format(run, a, b);
  if (op == Operator::kAdd) {
    if (a.is_string() && b.is_string()) return add_strings(run, a.as<StringObject>(), b.as<StringObject>());
    if (a.is_sequence() && a.kind() == b.kind()) return add_sequences(run, a, b);
  }
  if (op == Operator::kMul) {
    if ((a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(run, a, b.as_int());
    if ((b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(run, b, a.as_int());
  }
  return fail_operands(run, operator_text(op), a, b);
}

}  // namespace tensorfold::jinja
