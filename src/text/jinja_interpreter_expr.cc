// Expressions, calls and macros.
#include "text/jinja_filters.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"

namespace tensorfold::jinja {

Value Interpreter::eval(const Expr& expr) {
  const DepthGuard guard(run_);
  if (!guard || !run_.step()) return Value();
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kName:
      return eval_name(expr);
    case ExprKind::kTuple:
    case ExprKind::kList:
    case ExprKind::kDict:
      return eval_display(expr);
    case ExprKind::kAttribute: {
      const Value object = eval(*expr.operands[0]);
      run_.line = expr.line;
      return run_.failed() ? Value() : get_attribute(run_, object, expr.value);
    }
    case ExprKind::kItem:
      return eval_item(expr);
    case ExprKind::kCall:
      return eval_call(expr, Value());
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return eval_builtin(expr, nullptr);
    case ExprKind::kUnary: {
      const Value operand = eval(*expr.operands[0]);
      run_.line = expr.line;
      return run_.failed() ? Value() : unary(run_, expr.operators[0], operand);
    }
    case ExprKind::kBinary: {
      const Value left = eval(*expr.operands[0]);
      const Value right = run_.failed() ? Value() : eval(*expr.operands[1]);
      run_.line = expr.line;
      return run_.failed() ? Value() : binary(run_, expr.operators[0], left, right);
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = eval(*expr.operands[0]);
      if (run_.failed() || truth(run_, left) == (expr.kind == ExprKind::kOr)) return left;
      return eval(*expr.operands[1]);
    }
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kConditional:
      return eval_conditional(expr);
    case ExprKind::kSlice:
    case ExprKind::kAttributeTarget:
      break;
  }
  return run_.fail("this expression has no value");
}

Value Interpreter::eval_name(const Expr& expr) {
  const Value& value = cell(expr.cell);
  return value.is_missing() ? run_.undefined_name(expr.value) : value;
}

std::vector<Value> Interpreter::eval_operands(const Expr& expr, size_t first) {
  std::vector<Value> values;
  values.reserve(expr.operands.size() - first);
  for (size_t i = first; i < expr.operands.size() && !run_.failed(); ++i)
    values.push_back(eval(*expr.operands[i]));
  return values;
}

Value Interpreter::eval_display(const Expr& expr) {
  std::vector<Value> values = eval_operands(expr, 0);
  run_.line = expr.line;
  if (run_.failed()) return Value();
  if (expr.kind != ExprKind::kDict)
    return run_.sequence(expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple, std::move(values));
  DictBuilder builder(run_);
  for (size_t i = 0; i < values.size(); i += 2) builder.set(std::move(values[i]), std::move(values[i + 1]));
  return run_.failed() ? Value() : builder.finish();
}

Value Interpreter::eval_item(const Expr& expr) {
  const Value object = eval(*expr.operands[0]);
  if (run_.failed()) return Value();
  const Expr& key = *expr.operands[1];
  if (key.kind != ExprKind::kSlice) {
    const Value index = eval(key);
    run_.line = expr.line;
    return run_.failed() ? Value() : get_item(run_, object, index);
  }
  Value parts[3] = {Value::none(), Value::none(), Value::none()};
  for (size_t i = 0; i < 3 && !run_.failed(); ++i) {
    if (key.operands[i] != nullptr) parts[i] = eval(*key.operands[i]);
  }
  run_.line = expr.line;
  return run_.failed() ? Value() : slice(run_, object, parts[0], parts[1], parts[2]);
}

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.operands[0]);
  for (size_t i = 0; i < expr.operators.size() && !run_.failed(); ++i) {
    Value right = eval(*expr.operands[i + 1]);
    run_.line = expr.line;
    if (run_.failed() || !compare(run_, expr.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_concat(const Expr& expr) {
  std::string text;
  for (const ExprPtr& operand : expr.operands) {
    const Value value = eval(*operand);
    if (run_.failed()) return Value();
    append_str(run_, value, text);
    if (!run_.can_allocate(text.size())) return Value();
  }
  return run_.string(std::move(text));
}

Value Interpreter::eval_conditional(const Expr& expr) {
  const bool holds = truth(run_, eval(*expr.operands[1]));
  if (run_.failed()) return Value();
  if (holds) return eval(*expr.operands[0]);
  if (expr.operands[2] != nullptr) return eval(*expr.operands[2]);
  return run_.undefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.", expr.line));
}

/// Arguments in the order in which they are written; operands[0] is the callee or subject.
bool Interpreter::eval_arguments(const Expr& expr, Arguments& arguments) {
  arguments.positional = eval_operands(expr, 1);
  for (const Keyword& keyword : expr.keywords) {
    if (run_.failed()) return false;
    arguments.keywords.emplace_back(keyword.name, eval(*keyword.value));
  }
  if (expr.star_args != nullptr && !run_.failed()) {
    for (Value& value : to_vector(run_, eval(*expr.star_args)))
      arguments.positional.push_back(std::move(value));
  }
  if (expr.star_kwargs != nullptr && !run_.failed()) {
    const Value mapping = eval(*expr.star_kwargs);
    if (!run_.failed() && mapping.is_undefined()) run_.fail_undefined(mapping);
    if (!run_.failed() && !mapping.is(Kind::kDict)) {
      run_.fail(fmt::format("argument after ** must be a mapping, not {}", type_name(mapping)));
    }
    if (run_.failed()) return false;
    for (const auto& [key, value] : mapping.as<DictObject>().entries) {
      if (!key.is_string()) run_.fail("keywords must be strings");
      if (run_.failed() || !run_.step(static_cast<int64_t>(expr.keywords.size()))) return false;
      for (const Keyword& keyword : expr.keywords) {
        if (keyword.name != key.as_string()) continue;
        run_.fail(fmt::format("got multiple values for keyword argument '{}'", keyword.name));
      }
      arguments.keywords.emplace_back(key.as_string(), value);
    }
  }
  return !run_.failed();
}

Value Interpreter::eval_builtin(const Expr& expr, const std::string* block_text) {
  // In a block's chain of filters, the innermost one has no operand: it takes the text.
  const Expr* inner = expr.operands[0].get();
  Value input;
  if (inner == nullptr) {
    input = run_.string(*block_text);
  } else if (block_text != nullptr && inner->kind == ExprKind::kFilter) {
    input = eval_builtin(*inner, block_text);
  } else {
    input = eval(*inner);
  }
  Arguments arguments;
  if (run_.failed() || !eval_arguments(expr, arguments)) return Value();
  run_.line = expr.line;
  if (expr.builtin == nullptr) {
    return run_.fail(fmt::format("No {} named {} found.", expr.kind == ExprKind::kFilter ? "filter" : "test",
                                 string_repr(expr.value.as_string())));
  }
  return expr.builtin(run_, input, arguments);
}

/// `caller`, when not missing, is the block of a call statement.
Value Interpreter::eval_call(const Expr& expr, Value caller) {
  const Value callee = eval(*expr.operands[0]);
  Arguments arguments;
  if (run_.failed() || !eval_arguments(expr, arguments)) return Value();
  if (!caller.is_missing()) arguments.keywords.emplace_back("caller", std::move(caller));
  run_.line = expr.line;
  return call(callee, std::move(arguments));
}

// ---- Calls ----

Value Interpreter::call(const Value& callee, Arguments arguments) {
  switch (callee.kind()) {
    case Kind::kFunction: {
      const auto& function = callee.as<FunctionObject>();
      return function.body(run_, function.self, arguments);
    }
    case Kind::kMacro:
      return call_macro(callee.as<MacroObject>(), std::move(arguments));
    case Kind::kLoop:
      return call_loop(callee, std::move(arguments));
    case Kind::kJoiner:
      return call_joiner(callee, std::move(arguments));
    case Kind::kUndefined:
      return run_.fail_undefined(callee);
    default:
      return run_.fail(fmt::format("'{}' object is not callable", type_name(callee)));
  }
}

Value Interpreter::call_joiner(const Value& joiner, Arguments arguments) {
  if (!arguments.positional.empty() || !arguments.keywords.empty())
    return run_.fail("a joiner takes no arguments");
  auto& object = joiner.as<JoinerObject>();
  if (object.is_used) return object.separator[0];
  object.is_used = true;
  return run_.string("");
}

Value Interpreter::call_loop(const Value& loop, Arguments arguments) {
  const auto& object = loop.as<LoopObject>();
  const std::vector<Value> args = bind(run_, {"loop", {"iterable"}, 1}, arguments);
  if (!run_.failed() && object.recursive == nullptr) {
    return run_.fail("The loop must have the 'recursive' marker to be called recursively.");
  }
  const DepthGuard guard(run_);
  if (!guard) return Value();
  std::string text;
  exec_recursive_for(*object.recursive, args[0], object.outer, object.depth0 + 1, text);
  return run_.failed() ? Value() : run_.string(std::move(text));
}

Value Interpreter::call_macro(const MacroObject& macro, Arguments arguments) {
  const DepthGuard guard(run_);
  if (!guard) return Value();
  const Stmt& definition = *macro.definition;
  Activation* const previous = current_;
  const int line = run_.line;
  Activation* const activation = push_activation(definition.function, macro.defined_in);
  std::string text;
  if (bind_macro(definition, arguments, *activation)) exec_body(definition.body, text);
  pop_activation(definition.function, activation, previous);
  if (run_.failed()) return Value();
  run_.line = line;
  return run_.string(std::move(text));
}

/// Puts arguments into the parameters' cells: by position, by name, then defaults in order, which may use the
/// parameters before them.
bool Interpreter::bind_macro(const Stmt& definition, Arguments& arguments, Activation& activation) {
  const auto& parameters = definition.parameters;
  auto& positional = arguments.positional;
  auto& keywords = arguments.keywords;
  const auto take_keyword = [&](std::string_view name) {
    Value value;
    run_.step(static_cast<int64_t>(keywords.size() / 4));
    for (auto at = keywords.begin(); at != keywords.end(); ++at) {
      if (at->first != name) continue;
      value = std::move(at->second);
      keywords.erase(at);
      break;
    }
    return value;
  };
  const std::string_view name = definition.name.empty() ? "None" : std::string_view(definition.name);
  for (size_t i = 0; i < parameters.size(); ++i) {
    activation.cells[parameters[i].cell] =
        i < positional.size() ? positional[i] : take_keyword(parameters[i].name);
  }
  if (definition.caller_cell >= 0) {
    Value caller = take_keyword("caller");
    const bool is_given = !caller.is_missing() && !caller.is_none();
    activation.cells[static_cast<size_t>(definition.caller_cell)] =
        is_given ? caller : run_.undefined("No caller defined");
  }
  if (definition.kwargs_cell >= 0) {
    DictBuilder builder(run_);
    for (auto& [key, value] : keywords) builder.set(run_.string(key), std::move(value));
    activation.cells[static_cast<size_t>(definition.kwargs_cell)] = builder.finish();
  } else if (!keywords.empty()) {
    const bool is_caller = keywords.front().first == "caller";
    run_.fail(is_caller
                  ? fmt::format("macro '{}' was invoked with two values for the special caller argument. "
                                "This is most likely a bug.",
                                name)
                  : fmt::format("macro '{}' takes no keyword argument '{}'", name, keywords.front().first));
  }
  const size_t surplus = positional.size() > parameters.size() ? positional.size() - parameters.size() : 0;
  if (definition.varargs_cell >= 0) {
    std::vector<Value> rest(positional.end() - static_cast<std::ptrdiff_t>(surplus), positional.end());
    activation.cells[static_cast<size_t>(definition.varargs_cell)] = run_.tuple(std::move(rest));
  } else if (surplus > 0) {
    run_.fail(fmt::format("macro '{}' takes not more than {} argument(s)", name, parameters.size()));
  }
  enter(definition.scope);
  for (const Parameter& parameter : parameters) {
    if (run_.failed()) return false;
    Value& target = activation.cells[parameter.cell];
    if (!target.is_missing()) continue;
    if (parameter.default_value != nullptr) {
      const Value value = eval(*parameter.default_value);
      activation.cells[parameter.cell] = value;
    } else {
      target = run_.undefined(fmt::format("parameter '{}' was not provided", parameter.name));
    }
  }
  return !run_.failed();
}

std::optional<Value> macro_attribute(Run& run, const Value& macro, std::string_view name) {
  const Stmt& definition = *macro.as<MacroObject>().definition;
  if (name == "name") return definition.name.empty() ? Value::none() : run.string(definition.name);
  if (name == "catch_kwargs") return Value::boolean(definition.kwargs_cell >= 0);
  if (name == "catch_varargs") return Value::boolean(definition.varargs_cell >= 0);
  if (name == "caller") return Value::boolean(definition.caller_cell >= 0);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const Parameter& parameter : definition.parameters) names.push_back(run.string(parameter.name));
  return run.tuple(std::move(names));
}

}  // namespace tensorfold::jinja
