// The scope analysis. Follows idtracking.py and the frames of compiler.py of Jinja 3.1.
#include "text/jinja_scope.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "text/jinja_filters.h"
#include "text/jinja_text.h"

namespace tensorfold::jinja {
namespace {

/// A Python function that Jinja would write, with its local variables: (nesting level, name) → cell. Scopes
/// at the same level of one function share a variable of the same name, as they do in Python.
struct Function {
  Function* outer = nullptr;
  std::map<std::pair<int, std::string>, uint32_t> cells;
  bool has_inner = false;

  uint32_t cell(int level, const std::string& name) {
    return cells.emplace(std::make_pair(level, name), static_cast<uint32_t>(cells.size())).first->second;
  }
};

enum class LoadKind { kParameter, kContext, kAlias, kUndefined };

/// The names of one scope: those it refers to or stores and does not find outside, and how each starts. A
/// branch of an `if` is analyzed as a layer over the scope it stands in.
struct Symbols {
  struct Load {
    LoadKind kind;
    const Symbols* source = nullptr;  ///< kAlias: the outer scope whose variable is copied.
  };
  Symbols* parent = nullptr;
  int level = 0;
  Function* function = nullptr;
  const Symbols* under = nullptr;  ///< Of a layer: the scope, or the layer, that it lies on.
  std::map<std::string, Load> loads;
  std::set<std::string> stores;

  Symbols layer() const {
    Symbols branch;
    branch.parent = parent;
    branch.level = level;
    branch.function = function;
    branch.under = this;
    return branch;
  }
  bool has(const std::string& name) const {
    for (const Symbols* at = this; at != nullptr; at = at->under) {
      if (at->loads.count(name) != 0) return true;
    }
    return false;
  }
  bool has_stored(const std::string& name) const {
    for (const Symbols* at = this; at != nullptr; at = at->under) {
      if (at->stores.count(name) != 0) return true;
    }
    return false;
  }
  const Symbols* find_outside(const std::string& name) const {
    return parent != nullptr ? parent->find(name) : nullptr;
  }
  const Symbols* find(const std::string& name) const { return has(name) ? this : find_outside(name); }

  void load(const std::string& name) {
    if (find(name) == nullptr) loads[name] = {LoadKind::kContext};
  }
  void store(const std::string& name) {
    stores.insert(name);
    if (has(name)) return;
    const Symbols* outer = find_outside(name);
    loads[name] = outer != nullptr ? Load{LoadKind::kAlias, outer} : Load{LoadKind::kUndefined};
  }
  void declare_parameter(const std::string& name) {
    stores.insert(name);
    loads[name] = {LoadKind::kParameter};
  }
  /// Joins what the branches of an `if` did. A variable that only branches store starts with its outer value.
  void merge_branches(const std::vector<Symbols>& branches) {
    std::set<std::string> stored;
    for (const Symbols& branch : branches) {
      for (const std::string& name : branch.stores) {
        if (!has_stored(name)) stored.insert(name);
      }
    }
    for (const Symbols& branch : branches) {
      for (const auto& [name, how] : branch.loads) loads[name] = how;
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const std::string& name : stored) {
      const Symbols* outer = find_outside(name);
      loads[name] = outer != nullptr ? Load{LoadKind::kAlias, outer} : Load{LoadKind::kContext};
    }
  }
};

// ---- Finding the symbols of a scope ----

void scan_expr(Symbols& symbols, const Expr& expr) {
  if (expr.kind == ExprKind::kName || expr.kind == ExprKind::kAttributeTarget)
    symbols.load(expr.value.as_string());
  for_each_child(expr, [&](const Expr& child) { scan_expr(symbols, child); });
}
void scan_optional(Symbols& symbols, const ExprPtr& expr) {
  if (expr != nullptr) scan_expr(symbols, *expr);
}

void scan_target(Symbols& symbols, const Expr& target, bool is_parameter) {
  switch (target.kind) {
    case ExprKind::kAttributeTarget:
      symbols.load(target.value.as_string());
      break;
    case ExprKind::kName:
      is_parameter ? symbols.declare_parameter(target.value.as_string())
                   : symbols.store(target.value.as_string());
      break;
    default:
      for (const ExprPtr& part : target.operands) scan_target(symbols, *part, is_parameter);
  }
}

void scan_body(Symbols& symbols, const Body& body);

void scan_if(Symbols& symbols, const Stmt& stmt) {
  scan_expr(symbols, *stmt.condition);
  std::vector<Symbols> branches;
  for (const Body* body : {&stmt.body, &stmt.elifs, &stmt.otherwise}) {
    branches.push_back(symbols.layer());
    scan_body(branches.back(), *body);
  }
  symbols.merge_branches(branches);
}

/// What a statement does to the scope it stands in; inner scopes are looked at when they are entered.
void scan_stmt(Symbols& symbols, const Stmt& stmt) {
  switch (stmt.kind) {
    case StmtKind::kOutput:
      for (const ExprPtr& expr : stmt.exprs) scan_expr(symbols, *expr);
      break;
    case StmtKind::kIf:
      scan_if(symbols, stmt);
      break;
    case StmtKind::kFor:
    case StmtKind::kCallBlock:
    case StmtKind::kFilterBlock:
      scan_optional(symbols, stmt.value);
      break;
    case StmtKind::kAssign:
      scan_expr(symbols, *stmt.value);
      scan_target(symbols, *stmt.target, false);
      break;
    case StmtKind::kAssignBlock:
      scan_target(symbols, *stmt.target, false);
      break;
    case StmtKind::kMacro:
      symbols.store(stmt.name);
      break;
    case StmtKind::kWith:
      for (size_t i = 1; i < stmt.exprs.size(); i += 2) scan_expr(symbols, *stmt.exprs[i]);
      break;
    case StmtKind::kBreak:
    case StmtKind::kContinue:
      break;
  }
}

void scan_body(Symbols& symbols, const Body& body) {
  for (const StmtPtr& stmt : body) scan_stmt(symbols, *stmt);
}

// ---- Is a special name used? ----

/// Which of some names a body reads before anything in it assigns them, walking it in source order as Jinja
/// does.
class UndeclaredNames {
 public:
  explicit UndeclaredNames(std::set<std::string> names) : names_(std::move(names)) {}

  void visit_body(const Body& body) {
    for (const StmtPtr& stmt : body) visit_stmt(*stmt);
  }
  bool found(const std::string& name) const { return found_.count(name) != 0; }

 private:
  void visit_expr(const Expr& expr) {
    if (expr.kind == ExprKind::kName && names_.count(expr.value.as_string()) != 0)
      found_.insert(expr.value.as_string());
    for_each_child(expr, [&](const Expr& child) { visit_expr(child); });
  }
  void visit_optional(const ExprPtr& expr) {
    if (expr != nullptr) visit_expr(*expr);
  }
  void visit_target(const Expr& target) {
    if (target.kind == ExprKind::kName) names_.erase(target.value.as_string());
    for (const ExprPtr& part : target.operands) visit_target(*part);
  }
  void visit_stmt(const Stmt& stmt) {
    const bool value_first = stmt.kind == StmtKind::kCallBlock;
    if (value_first) visit_optional(stmt.value);
    if (stmt.target != nullptr) visit_target(*stmt.target);
    if (!value_first && stmt.kind != StmtKind::kFilterBlock) visit_optional(stmt.value);
    if (stmt.kind == StmtKind::kIf) visit_optional(stmt.condition);
    for (const Parameter& parameter : stmt.parameters) names_.erase(parameter.name);
    for (const Parameter& parameter : stmt.parameters) visit_optional(parameter.default_value);
    const size_t stride = stmt.kind == StmtKind::kWith ? 2 : 1;  // `with` has its targets between the values.
    for (size_t i = 0; stride == 2 && i < stmt.exprs.size(); i += 2) visit_target(*stmt.exprs[i]);
    for (size_t i = stride - 1; i < stmt.exprs.size(); i += stride) visit_expr(*stmt.exprs[i]);
    visit_body(stmt.body);
    visit_body(stmt.elifs);
    visit_body(stmt.otherwise);
    if (stmt.kind == StmtKind::kFilterBlock) visit_optional(stmt.value);
    if (stmt.kind == StmtKind::kFor) visit_optional(stmt.condition);
  }
  std::set<std::string> names_;
  std::set<std::string> found_;
};

bool stores_loop(const Expr& target) {
  if (target.kind == ExprKind::kName && target.value.as_string() == "loop") return true;
  return std::any_of(target.operands.begin(), target.operands.end(),
                     [](const ExprPtr& t) { return stores_loop(*t); });
}

/// The line of an assignment to `loop` in a statement, or 0.
int line_of_loop_store(const Stmt& stmt) {
  if (stmt.target != nullptr && stores_loop(*stmt.target)) return stmt.target->line;
  for (const Body* body : {&stmt.body, &stmt.elifs, &stmt.otherwise}) {
    for (const StmtPtr& inner : *body) {
      if (const int line = line_of_loop_store(*inner)) return line;
    }
  }
  return 0;
}

ExprPtr clone_target(const Expr& target) {
  auto copy = std::make_unique<Expr>(target.kind, target.line);
  copy->value = target.value;
  for (const ExprPtr& part : target.operands) copy->operands.push_back(clone_target(*part));
  return copy;
}

// ---- Resolving ----

/// Where a statement stands.
struct Frame {
  Symbols* symbols = nullptr;
  Function* function = nullptr;
  bool is_soft = false;  ///< Directly inside an `if`: unknown filters are errors only when reached.
  bool in_loop = false;  ///< break and continue have a loop in the same function.
};

class Resolver {
 public:
  Status run(Template& parsed) {
    Function function;
    Symbols symbols;
    symbols.function = &function;
    scan_body(symbols, parsed.body);
    resolve_body(parsed.body, {&symbols, &function});
    parsed.scope = plan(symbols, true);
    finish(parsed.function, function);
    return error_.empty() ? Status() : invalid_argument("line {}: {}", line_, error_);
  }

 private:
  void fail(int line, std::string reason) {
    if (!error_.empty()) return;
    line_ = line;
    error_ = std::move(reason);
  }

  static void finish(FunctionPlan& plan, const Function& function) {
    plan.num_cells = static_cast<uint32_t>(function.cells.size());
    plan.has_inner_functions = function.has_inner;
  }

  static Symbols inner_symbols(const Frame& frame, Function* function) {
    Symbols symbols;
    symbols.parent = frame.symbols;
    symbols.level = frame.symbols->level + 1;
    symbols.function = function;
    return symbols;
  }

  static CellRef cell_of(const Symbols& owner, const std::string& name, const Function* from) {
    CellRef cell;
    for (; from != owner.function; from = from->outer) ++cell.up;
    cell.index = owner.function->cell(owner.level, name);
    return cell;
  }

  /// The variable that `name` means in the frame. Names that the analysis has not seen come from the context.
  static CellRef cell(const Frame& frame, const std::string& name) {
    const Symbols* owner = frame.symbols->find(name);
    if (owner == nullptr) {
      frame.symbols->load(name);
      owner = frame.symbols;
    }
    return cell_of(*owner, name, frame.function);
  }

  /// Entry and exit of a scope. A function's own scope needs no exit: its cells go with it.
  static ScopePlan plan(const Symbols& symbols, bool is_function_scope) {
    ScopePlan result;
    for (const auto& [name, how] : symbols.loads) {
      const uint32_t index = symbols.function->cell(symbols.level, name);
      if (!is_function_scope) result.cells.push_back(index);
      switch (how.kind) {
        case LoadKind::kParameter:
          break;
        case LoadKind::kUndefined:
          result.loads.push_back({index, CellLoad::Source::kNothing, {}, {}});
          break;
        case LoadKind::kContext:
          result.loads.push_back({index, CellLoad::Source::kContext, {}, name});
          break;
        case LoadKind::kAlias:
          result.loads.push_back(
              {index, CellLoad::Source::kCell, cell_of(*how.source, name, symbols.function), {}});
          break;
      }
    }
    return result;
  }

  // ---- Expressions ----

  void resolve_expr(Expr& expr, const Frame& frame) {
    switch (expr.kind) {
      case ExprKind::kName:
      case ExprKind::kAttributeTarget:
        expr.cell = cell(frame, expr.value.as_string());
        break;
      case ExprKind::kFilter:
      case ExprKind::kTest:
        resolve_builtin(expr, frame);
        break;
      case ExprKind::kConditional: {
        Frame soft = frame;
        soft.is_soft = true;
        resolve_children(expr, soft);
        return;
      }
      default:
        break;
    }
    resolve_children(expr, frame);
  }
  void resolve_children(Expr& expr, const Frame& frame) {
    for_each_child(expr, [&](Expr& child) { resolve_expr(child, frame); });
  }
  void resolve_optional(const ExprPtr& expr, const Frame& frame) {
    if (expr != nullptr) resolve_expr(*expr, frame);
  }

  void resolve_builtin(Expr& expr, const Frame& frame) {
    const bool is_filter = expr.kind == ExprKind::kFilter;
    expr.builtin = is_filter ? find_filter(expr.value.as_string()) : find_test(expr.value.as_string());
    if (expr.builtin == nullptr && !frame.is_soft) {
      fail(expr.line, fmt::format("No {} named {}.", is_filter ? "filter" : "test",
                                  string_repr(expr.value.as_string())));
    }
  }

  // ---- Statements ----

  void resolve_body(Body& body, const Frame& frame) {
    for (StmtPtr& stmt : body) resolve_stmt(*stmt, frame);
  }

  void resolve_stmt(Stmt& stmt, const Frame& frame) {
    switch (stmt.kind) {
      case StmtKind::kOutput:
        for (ExprPtr& expr : stmt.exprs) resolve_expr(*expr, frame);
        break;
      case StmtKind::kIf:
        resolve_if(stmt, frame);
        break;
      case StmtKind::kFor:
        resolve_for(stmt, frame);
        break;
      case StmtKind::kAssign:
        resolve_expr(*stmt.target, frame);
        resolve_expr(*stmt.value, frame);
        break;
      case StmtKind::kAssignBlock:
      case StmtKind::kFilterBlock:
        resolve_capture(stmt, frame);
        break;
      case StmtKind::kMacro:
        stmt.cell = cell(frame, stmt.name);
        resolve_function(stmt, frame);
        break;
      case StmtKind::kCallBlock:
        resolve_call_block(stmt, frame);
        break;
      case StmtKind::kWith:
        resolve_with(stmt, frame);
        break;
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        if (!frame.in_loop)
          fail(stmt.line,
               stmt.kind == StmtKind::kBreak ? "'break' outside loop" : "'continue' not properly in loop");
        break;
    }
  }

  void resolve_if(Stmt& stmt, const Frame& frame) {
    Frame soft = frame;
    soft.is_soft = true;
    resolve_expr(*stmt.condition, soft);
    resolve_body(stmt.body, soft);
    for (StmtPtr& branch : stmt.elifs) {
      resolve_expr(*branch->condition, soft);
      resolve_body(branch->body, soft);
    }
    resolve_body(stmt.otherwise, soft);
  }

  /// `set` and `filter` blocks. The filter of a filter block sees the block's variables; so does that of a
  /// set block.
  void resolve_capture(Stmt& stmt, const Frame& frame) {
    Symbols symbols = inner_symbols(frame, frame.function);
    scan_body(symbols, stmt.body);
    if (stmt.kind == StmtKind::kFilterBlock) scan_optional(symbols, stmt.value);
    const Frame inner = {&symbols, frame.function, false, frame.in_loop};
    resolve_body(stmt.body, inner);
    resolve_optional(stmt.value, inner);
    if (stmt.target != nullptr) resolve_expr(*stmt.target, frame);
    stmt.scope = plan(symbols, false);
  }

  void resolve_with(Stmt& stmt, const Frame& frame) {
    Symbols symbols = inner_symbols(frame, frame.function);
    for (size_t i = 0; i < stmt.exprs.size(); i += 2) scan_target(symbols, *stmt.exprs[i], true);
    scan_body(symbols, stmt.body);
    const Frame inner = {&symbols, frame.function, false, frame.in_loop};
    for (size_t i = 0; i < stmt.exprs.size(); ++i) resolve_expr(*stmt.exprs[i], i % 2 == 0 ? inner : frame);
    resolve_body(stmt.body, inner);
    stmt.scope = plan(symbols, false);
  }

  /// The body of a macro, call block or generation block: a function of its own.
  void resolve_function(Stmt& stmt, const Frame& frame) {
    frame.function->has_inner = true;
    Function function;
    function.outer = frame.function;
    Symbols symbols = inner_symbols(frame, &function);
    UndeclaredNames special({"caller", "kwargs", "varargs"});
    special.visit_body(stmt.body);
    bool has_caller_parameter = false;
    for (Parameter& parameter : stmt.parameters) {
      symbols.declare_parameter(parameter.name);
      parameter.cell = function.cell(symbols.level, parameter.name);
      if (parameter.name != "caller") continue;
      has_caller_parameter = true;
      if (special.found("caller") && parameter.default_value == nullptr) {
        fail(stmt.line,
             "When defining macros or call blocks the special \"caller\" argument must be omitted or be "
             "given a default.");
      }
    }
    const auto declare = [&](const std::string& name) -> int64_t {
      const bool is_parameter = std::any_of(stmt.parameters.begin(), stmt.parameters.end(),
                                            [&](const Parameter& p) { return p.name == name; });
      if (!special.found(name) || is_parameter) return -1;
      symbols.declare_parameter(name);
      return function.cell(symbols.level, name);
    };
    if (!has_caller_parameter) stmt.caller_cell = declare("caller");
    stmt.kwargs_cell = declare("kwargs");
    stmt.varargs_cell = declare("varargs");
    for (const Parameter& parameter : stmt.parameters) scan_optional(symbols, parameter.default_value);
    scan_body(symbols, stmt.body);
    const Frame inner = {&symbols, &function};
    for (const Parameter& parameter : stmt.parameters) resolve_optional(parameter.default_value, inner);
    resolve_body(stmt.body, inner);
    stmt.scope = plan(symbols, true);
    finish(stmt.function, function);
  }

  void resolve_call_block(Stmt& stmt, const Frame& frame) {
    resolve_function(stmt, frame);
    resolve_optional(stmt.value, frame);
    if (stmt.value == nullptr) return;
    for (const Keyword& keyword : stmt.value->keywords) {
      if (keyword.name == "caller") fail(stmt.line, "keyword argument repeated: caller");
    }
  }

  void resolve_for(Stmt& stmt, const Frame& frame) {
    if (const int line = line_of_loop_store(stmt)) {
      fail(line, "Can't assign to special loop variable in for-loop target");
    }
    if (stmt.condition != nullptr) resolve_loop_test(stmt, frame);
    Function own;
    own.outer = frame.function;
    Function* function = stmt.is_recursive ? &own : frame.function;
    if (stmt.is_recursive) frame.function->has_inner = true;

    Symbols symbols = inner_symbols(frame, function);
    UndeclaredNames special({"loop"});
    special.visit_body(stmt.body);
    if (stmt.is_recursive || special.found("loop")) {
      symbols.declare_parameter("loop");
      stmt.loop_cell = function->cell(symbols.level, "loop");
    }
    scan_target(symbols, *stmt.target, true);
    scan_body(symbols, stmt.body);
    const Frame inner = {&symbols, function, false, true};
    resolve_expr(*stmt.target, inner);
    resolve_expr(*stmt.value, frame);
    resolve_body(stmt.body, inner);
    stmt.scope = plan(symbols, false);

    Symbols else_symbols = inner_symbols(frame, function);
    scan_body(else_symbols, stmt.otherwise);
    resolve_body(stmt.otherwise, {&else_symbols, function, false, !stmt.is_recursive && frame.in_loop});
    stmt.else_scope = plan(else_symbols, false);
    if (stmt.is_recursive) finish(stmt.function, own);
  }

  /// The `if` of a loop: a generator function around the iterable, with its own copy of the targets.
  void resolve_loop_test(Stmt& stmt, const Frame& frame) {
    frame.function->has_inner = true;
    Function function;
    function.outer = frame.function;
    Symbols symbols = inner_symbols(frame, &function);
    scan_target(symbols, *stmt.target, true);
    scan_expr(symbols, *stmt.condition);
    const Frame inner = {&symbols, &function};
    stmt.test_target = clone_target(*stmt.target);
    resolve_expr(*stmt.test_target, inner);
    resolve_expr(*stmt.condition, inner);
    stmt.test_scope = plan(symbols, true);
    finish(stmt.test_function, function);
  }

  std::string error_;
  int line_ = 0;
};

}  // namespace

Status resolve_scopes(Template& parsed) { return Resolver().run(parsed); }

}  // namespace tensorfold::jinja
