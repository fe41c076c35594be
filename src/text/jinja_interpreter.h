// Walks the tree of a template and writes its text. Knows statements, calls, macros and loops; everything
// that values do is in jinja_ops.h, jinja_methods.h and jinja_filters.h.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace tensorfold::jinja {

/// The variables of one call of a function (CellRef), and the activation that it was made in.
struct Activation {
  Activation* outer = nullptr;
  std::vector<Value> cells;
};

class Interpreter;

struct MacroObject : Object {
  static constexpr Kind kKind = Kind::kMacro;
  MacroObject(Heap* heap, const Stmt* definition, Activation* defined_in)
      : Object(heap, kKind, 32), definition(definition), defined_in(defined_in) {}
  const Stmt* const definition;
  Activation* const defined_in;
};

/// The `loop` variable, and the iteration itself.
class LoopObject : public CyclicObject {
 public:
  static constexpr Kind kKind = Kind::kLoop;
  /// `recursive`, if any, is the loop statement that `loop(...)` runs again, inside `outer`.
  LoopObject(Heap* heap, Value iterable, std::shared_ptr<IteratorObject> iterator, const Stmt* recursive,
             Activation* outer, int64_t depth0)
      : CyclicObject(heap, kKind, 256), recursive(recursive), outer(outer), depth0(depth0) {
    held_.resize(kNumHeld);
    held_[kIterable] = std::move(iterable);
    held_[kIterator] = Value(std::static_pointer_cast<Object>(std::move(iterator)));
  }
  ~LoopObject() override { dispose(std::move(held_)); }
  void clear() override {
    dispose(std::move(held_));
    held_.assign(kNumHeld, Value());
  }

  /// Moves to the next item.
  bool advance(Run& run, Value& item);
  int64_t length(Run& run);
  /// The item after the current one, which stays next; missing at the end.
  const Value& peek(Run& run);
  const Value& previous() const { return held_[kPrevious]; }
  bool changed(Run& run, Value values);

  const Stmt* const recursive;
  Activation* const outer;
  const int64_t depth0;
  int64_t index0 = -1;

 private:
  enum { kIterable, kIterator, kPrevious, kCurrent, kAfter, kChanged, kNumHeld };
  bool pull(Run& run, Value& item);
  std::vector<Value> held_;
  std::optional<int64_t> length_;
};

// Pieces of Python's protocols for the objects above, used by jinja_methods.cc and jinja_text.cc.
std::optional<Value> loop_attribute(Run& run, const Value& loop, std::string_view name);
std::optional<Value> macro_attribute(Run& run, const Value& macro, std::string_view name);
/// repr of a macro or loop.
std::string describe(Run& run, const Value& value);

/// One render. Variables are given before; output is complete when render returns true.
class Interpreter {
 public:
  Interpreter(const Template& parsed, const Limits& limits) : template_(parsed), run_(limits) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Run& run() { return run_; }
  /// A variable of the template's context; a later one of the same name replaces it.
  void set_variable(std::string name, Value value) { context_[std::move(name)] = std::move(value); }
  /// False after a failure, which run() tells.
  bool render(std::string& out);

 private:
  enum class Signal { kNone, kBreak, kContinue };
  friend class TestedIterator;

  // Statements (jinja_interpreter.cc)
  Signal exec_body(const Body& body, std::string& out);
  Signal exec(const Stmt& stmt, std::string& out);
  void exec_output(const Stmt& stmt, std::string& out);
  Signal exec_if(const Stmt& stmt, std::string& out);
  Signal exec_for(const Stmt& stmt, std::string& out);
  void exec_recursive_for(const Stmt& stmt, const Value& iterable, Activation* outer, int64_t depth0,
                          std::string& out);
  Signal run_loop(const Stmt& stmt, const Value& iterable, Activation* outer, int64_t depth0,
                  std::string& out);
  Signal exec_capture(const Stmt& stmt, std::string& out);
  void exec_call_block(const Stmt& stmt, std::string& out);
  Signal exec_with(const Stmt& stmt, std::string& out);
  void exec_assign(const Stmt& stmt);
  void assign(const Expr& target, const Value& value);
  void unpack(const Expr& target, const Value& value);
  /// True while output may grow; the limit is a failure.
  bool check_output(const std::string& out);

  // Variables
  void enter(const ScopePlan& scope);
  void leave(const ScopePlan& scope);
  Value& cell(CellRef ref);
  Value resolve(const std::string& name);

  // Expressions (jinja_interpreter_expr.cc)
  Value eval(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_display(const Expr& expr);
  Value eval_item(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Value eval_conditional(const Expr& expr);
  Value eval_call(const Expr& expr, Value caller);
  Value eval_builtin(const Expr& expr, const std::string* block_text);
  bool eval_arguments(const Expr& expr, Arguments& arguments);
  std::vector<Value> eval_operands(const Expr& expr, size_t first);

  // Calls
  Value call(const Value& callee, Arguments arguments);
  Value call_macro(const MacroObject& macro, Arguments arguments);
  bool bind_macro(const Stmt& definition, Arguments& arguments, Activation& activation);
  Value call_loop(const Value& loop, Arguments arguments);
  Value call_joiner(const Value& joiner, Arguments arguments);

  /// A new activation, current until release(). Those that inner functions may refer to live until the render
  /// ends.
  Activation* push_activation(const FunctionPlan& plan, Activation* outer);
  void pop_activation(const FunctionPlan& plan, Activation* activation, Activation* previous);

  const Template& template_;
  Run run_;
  std::unordered_map<std::string, Value> context_;
  std::deque<Activation> activations_;
  std::vector<Activation*> free_activations_;
  Activation* current_ = nullptr;
  size_t captured_bytes_ = 0;  ///< In the output buffers that are open now.
};

}  // namespace tensorfold::jinja
