// Statements, scopes and loops.
#include "text/jinja_interpreter.h"

#include "text/jinja_filters.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"

namespace tensorfold::jinja {

/// The items of an iterable for which a loop's `if` holds, evaluated in the loop test's own function when the
/// loop asks for the next item. held[0] is the source.
class TestedIterator : public IteratorObject {
 public:
  TestedIterator(Heap* heap, std::vector<Value> values, Interpreter* interpreter, const Stmt* stmt,
                 Activation* outer)
      : IteratorObject(heap, std::move(values)), interpreter_(interpreter), stmt_(stmt), outer_(outer) {}

 private:
  bool produce(Run& run, Value& out) override {
    if (held.empty()) return false;
    Interpreter& in = *interpreter_;
    Activation* const previous = in.current_;
    if (activation_ == nullptr) {
      activation_ = in.push_activation(stmt_->test_function, outer_);
      in.enter(stmt_->test_scope);
    }
    in.current_ = activation_;
    bool passes = false;
    Value item;
    while (!passes && !run.failed() && held[0].as<IteratorObject>().next(run, item)) {
      in.assign(*stmt_->test_target, item);
      passes = truth(run, in.eval(*stmt_->condition));
      if (passes) out = in.eval(*stmt_->test_target);  // A tuple of targets comes out as a tuple.
    }
    in.current_ = previous;
    return passes && !run.failed();
  }
  Interpreter* const interpreter_;
  const Stmt* const stmt_;
  Activation* const outer_;
  Activation* activation_ = nullptr;
};

// ---- Render ----

Interpreter::~Interpreter() {
  for (Activation& activation : activations_) dispose(std::move(activation.cells));
  context_.clear();
  run_.heap().break_cycles();
}

bool Interpreter::render(std::string& out) {
  current_ = push_activation(template_.function, nullptr);
  enter(template_.scope);
  exec_body(template_.body, out);
  return !run_.failed();
}

bool Interpreter::check_output(const std::string& out) {
  if (out.size() > run_.limits().max_output_bytes) {
    run_.fail("the template writes too much text (output limit reached)");
  }
  return run_.can_allocate(captured_bytes_ + out.size());
}

// ---- Scopes ----

Activation* Interpreter::push_activation(const FunctionPlan& plan, Activation* outer) {
  Activation* activation = nullptr;
  if (!free_activations_.empty()) {
    activation = free_activations_.back();
    free_activations_.pop_back();
  } else {
    run_.can_allocate((activations_.size() + 1) * (sizeof(Activation) + plan.num_cells * sizeof(Value)));
    activation = &activations_.emplace_back();
  }
  activation->outer = outer;
  activation->cells.assign(plan.num_cells, Value());
  current_ = activation;
  return activation;
}

void Interpreter::pop_activation(const FunctionPlan& plan, Activation* activation, Activation* previous) {
  current_ = previous;
  if (plan.has_inner_functions) return;
  dispose(std::move(activation->cells));
  activation->cells.clear();
  free_activations_.push_back(activation);
}

Value& Interpreter::cell(CellRef ref) {
  Activation* activation = current_;
  for (; ref.up > 0; --ref.up) activation = activation->outer;
  return activation->cells[ref.index];
}

Value Interpreter::resolve(const std::string& name) {
  const auto at = context_.find(name);
  return at != context_.end() ? at->second : find_global(run_, name);
}

void Interpreter::enter(const ScopePlan& scope) {
  for (const CellLoad& load : scope.loads) {
    Value& target = current_->cells[load.index];
    switch (load.source) {
      case CellLoad::Source::kNothing:
        target = Value();
        break;
      case CellLoad::Source::kCell:
        target = cell(load.cell);
        break;
      case CellLoad::Source::kContext:
        target = resolve(load.name);
        break;
    }
  }
}

void Interpreter::leave(const ScopePlan& scope) {
  for (const uint32_t index : scope.cells) current_->cells[index] = Value();
}

// ---- Statements ----

Interpreter::Signal Interpreter::exec_body(const Body& body, std::string& out) {
  for (const StmtPtr& stmt : body) {
    if (run_.failed()) return Signal::kBreak;
    const Signal signal = exec(*stmt, out);
    if (signal != Signal::kNone) return signal;
  }
  return Signal::kNone;
}

Interpreter::Signal Interpreter::exec(const Stmt& stmt, std::string& out) {
  const DepthGuard guard(run_);
  run_.line = stmt.line;
  if (!guard || !run_.step()) return Signal::kBreak;
  switch (stmt.kind) {
    case StmtKind::kOutput:
      exec_output(stmt, out);
      break;
    case StmtKind::kIf:
      return exec_if(stmt, out);
    case StmtKind::kFor:
      return exec_for(stmt, out);
    case StmtKind::kAssign:
      exec_assign(stmt);
      break;
    case StmtKind::kAssignBlock:
    case StmtKind::kFilterBlock:
      return exec_capture(stmt, out);
    case StmtKind::kMacro:
      cell(stmt.cell) = run_.make<MacroObject>(&stmt, current_);
      break;
    case StmtKind::kCallBlock:
      exec_call_block(stmt, out);
      break;
    case StmtKind::kWith:
      return exec_with(stmt, out);
    case StmtKind::kBreak:
      return Signal::kBreak;
    case StmtKind::kContinue:
      return Signal::kContinue;
  }
  return Signal::kNone;
}

void Interpreter::exec_output(const Stmt& stmt, std::string& out) {
  for (const ExprPtr& expr : stmt.exprs) {
    const Value value = expr->kind == ExprKind::kConst ? expr->value : eval(*expr);
    if (run_.failed()) return;
    append_str(run_, value, out);
    if (!check_output(out)) return;
  }
}

Interpreter::Signal Interpreter::exec_if(const Stmt& stmt, std::string& out) {
  if (truth(run_, eval(*stmt.condition))) return exec_body(stmt.body, out);
  for (const StmtPtr& branch : stmt.elifs) {
    if (run_.failed()) return Signal::kNone;
    run_.line = branch->line;
    if (truth(run_, eval(*branch->condition))) return exec_body(branch->body, out);
  }
  return exec_body(stmt.otherwise, out);
}

void Interpreter::exec_assign(const Stmt& stmt) {
  const Value value = eval(*stmt.value);
  if (!run_.failed()) assign(*stmt.target, value);
}

void Interpreter::assign(const Expr& target, const Value& value) {
  switch (target.kind) {
    case ExprKind::kName:
      cell(target.cell) = value;
      break;
    case ExprKind::kAttributeTarget: {
      const Value object = cell(target.cell);
      if (!object.is(Kind::kNamespace)) {
        run_.fail("cannot assign attribute on non-namespace object");
      } else {
        set_namespace_attribute(run_, object, target.attribute.as_string(), value);
      }
      break;
    }
    default:
      unpack(target, value);
  }
}

void Interpreter::unpack(const Expr& target, const Value& value) {
  const auto iterator = iterate(run_, value);
  if (iterator == nullptr) return;
  const size_t wanted = target.operands.size();
  std::vector<Value> items;
  Value item;
  while (items.size() < wanted && iterator->next(run_, item)) items.push_back(item);
  if (!run_.failed() && items.size() < wanted) {
    run_.fail(fmt::format("not enough values to unpack (expected {}, got {})", wanted, items.size()));
  } else if (iterator->next(run_, item)) {
    run_.fail(fmt::format("too many values to unpack (expected {})", wanted));
  }
  for (size_t i = 0; i < wanted && !run_.failed(); ++i) assign(*target.operands[i], items[i]);
}

/// `set` and `filter` blocks: what the body writes, filtered, goes to a variable or to the output.
Interpreter::Signal Interpreter::exec_capture(const Stmt& stmt, std::string& out) {
  enter(stmt.scope);
  std::string text;
  captured_bytes_ += out.size();
  const Signal signal = exec_body(stmt.body, text);
  captured_bytes_ -= out.size();
  if (signal == Signal::kNone && !run_.failed()) {
    run_.line = stmt.line;
    const Value value =
        stmt.value != nullptr ? eval_builtin(*stmt.value, &text) : run_.string(std::move(text));
    if (run_.failed()) return Signal::kNone;
    if (stmt.target != nullptr) {
      assign(*stmt.target, value);
    } else {
      append_str(run_, value, out);
      check_output(out);
    }
  }
  leave(stmt.scope);
  return signal;
}

void Interpreter::exec_call_block(const Stmt& stmt, std::string& out) {
  const Value block = run_.make<MacroObject>(&stmt, current_);
  captured_bytes_ += out.size();
  const Value result = run_.failed()           ? Value()
                       : stmt.value == nullptr ? call(block, {})
                                               : eval_call(*stmt.value, block);
  captured_bytes_ -= out.size();
  if (run_.failed()) return;
  append_str(run_, result, out);
  check_output(out);
}

Interpreter::Signal Interpreter::exec_with(const Stmt& stmt, std::string& out) {
  enter(stmt.scope);
  for (size_t i = 0; i < stmt.exprs.size() && !run_.failed(); i += 2) {
    const Value value = eval(*stmt.exprs[i + 1]);
    if (!run_.failed()) assign(*stmt.exprs[i], value);
  }
  const Signal signal = exec_body(stmt.body, out);
  leave(stmt.scope);
  return signal;
}

// ---- Loops ----

Interpreter::Signal Interpreter::exec_for(const Stmt& stmt, std::string& out) {
  const Value iterable = eval(*stmt.value);
  if (run_.failed()) return Signal::kNone;
  if (!stmt.is_recursive) return run_loop(stmt, iterable, current_, 0, out);
  std::string text;
  captured_bytes_ += out.size();
  exec_recursive_for(stmt, iterable, current_, 0, text);
  captured_bytes_ -= out.size();
  out += text;
  check_output(out);
  return Signal::kNone;
}

void Interpreter::exec_recursive_for(const Stmt& stmt, const Value& iterable, Activation* outer,
                                     int64_t depth0, std::string& out) {
  Activation* const previous = current_;
  Activation* const activation = push_activation(stmt.function, outer);
  run_loop(stmt, iterable, outer, depth0, out);
  pop_activation(stmt.function, activation, previous);
}

/// Iterates in the current activation. `outer` is where the loop statement stands.
Interpreter::Signal Interpreter::run_loop(const Stmt& stmt, const Value& iterable, Activation* outer,
                                          int64_t depth0, std::string& out) {
  auto iterator = iterate(run_, iterable);
  Value source = iterable;
  if (stmt.condition != nullptr && iterator != nullptr) {
    std::vector<Value> held = {Value(std::static_pointer_cast<Object>(iterator))};
    source = run_.make<TestedIterator>(std::move(held), this, &stmt, outer);
    iterator = run_.failed() ? nullptr : std::static_pointer_cast<IteratorObject>(source.object());
  }
  if (iterator == nullptr) return Signal::kNone;
  const Value loop =
      run_.make<LoopObject>(source, iterator, stmt.is_recursive ? &stmt : nullptr, outer, depth0);
  if (run_.failed()) return Signal::kNone;

  // As in Jinja, only an iteration that runs to the end of the body keeps `else` from running.
  bool is_any_complete = false;
  Value item;
  while (loop.as<LoopObject>().advance(run_, item)) {
    assign(*stmt.target, item);
    if (stmt.loop_cell >= 0) current_->cells[static_cast<size_t>(stmt.loop_cell)] = loop;
    if (run_.failed()) break;
    enter(stmt.scope);
    const Signal signal = exec_body(stmt.body, out);
    if (signal == Signal::kBreak) break;
    if (signal == Signal::kNone) is_any_complete = true;
  }
  leave(stmt.scope);
  if (is_any_complete || stmt.otherwise.empty() || run_.failed()) return Signal::kNone;
  enter(stmt.else_scope);
  const Signal signal = exec_body(stmt.otherwise, out);
  leave(stmt.else_scope);
  return signal;
}

bool LoopObject::pull(Run& run, Value& item) {
  return held_[kIterator].is(Kind::kIterator) && held_[kIterator].as<IteratorObject>().next(run, item);
}

bool LoopObject::advance(Run& run, Value& item) {
  if (!held_[kAfter].is_missing()) {
    item = std::move(held_[kAfter]);
    held_[kAfter] = Value();
  } else if (!pull(run, item)) {
    return false;
  }
  ++index0;
  held_[kPrevious] = std::move(held_[kCurrent]);
  held_[kCurrent] = item;
  return true;
}

const Value& LoopObject::peek(Run& run) {
  if (held_[kAfter].is_missing()) {
    Value item;
    if (pull(run, item)) held_[kAfter] = std::move(item);
  }
  return held_[kAfter];
}

int64_t LoopObject::length(Run& run) {
  if (length_) return *length_;
  length_ = try_length(held_[kIterable]);
  if (length_) return *length_;
  // A generator has no length: what is left of it becomes a list.
  std::vector<Value> rest = to_vector(run, held_[kIterator]);
  length_ = static_cast<int64_t>(rest.size()) + index0 + 1 + (held_[kAfter].is_missing() ? 0 : 1);
  held_[kIterator] = iterator_over(run, std::move(rest));
  return *length_;
}

bool LoopObject::changed(Run& run, Value values) {
  if (!held_[kChanged].is_missing() && equal(run, held_[kChanged], values)) return false;
  held_[kChanged] = std::move(values);
  return true;
}

namespace {

Value loop_cycle(Run& run, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) return run.fail("no items for cycling given");
  const size_t index = static_cast<size_t>(self.as<LoopObject>().index0);
  return arguments.positional[index % arguments.positional.size()];
}
Value loop_changed(Run& run, const Value& self, Arguments& arguments) {
  const Value values = run.tuple(std::move(arguments.positional));
  return run.failed() ? Value() : Value::boolean(self.as<LoopObject>().changed(run, values));
}

}  // namespace

std::optional<Value> loop_attribute(Run& run, const Value& value, std::string_view name) {
  auto& loop = value.as<LoopObject>();
  const int64_t index = loop.index0 + 1;
  if (name == "index") return Value::integer(index);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(loop.peek(run).is_missing());
  if (name == "length") return Value::integer(loop.length(run));
  if (name == "revindex") return Value::integer(loop.length(run) - loop.index0);
  if (name == "revindex0") return Value::integer(loop.length(run) - index);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem")
    return loop.index0 == 0 ? run.undefined("there is no previous item") : loop.previous();
  if (name == "nextitem") {
    const Value& next = loop.peek(run);
    return next.is_missing() ? run.undefined("there is no next item") : next;
  }
  if (name == "cycle") return run.function("cycle", loop_cycle, value);
  if (name == "changed") return run.function("changed", loop_changed, value);
  return std::nullopt;
}

std::string describe(Run& run, const Value& value) {
  if (value.is(Kind::kLoop)) {
    auto& loop = value.as<LoopObject>();
    const int64_t length = loop.length(run);
    return fmt::format("<LoopContext {}/{}>", loop.index0 + 1, length);
  }
  const std::string& name = value.as<MacroObject>().definition->name;
  return name.empty() ? "<Macro anonymous>" : fmt::format("<Macro {}>", string_repr(name));
}

}  // namespace tensorfold::jinja
