// The syntax tree of a template, with the variables already resolved to cells (jinja_scope.h).
// Immutable after parsing; every render shares it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_ops.h"
#include "text/jinja_value.h"

namespace tensorfold::jinja {

/// Where a variable lives: cell `index` of the activation `up` levels out from the running one. Activations
/// belong to the functions that Jinja's compiler would write: the template, macros, call blocks, recursive
/// loops, filters of loops. Other scopes have their own cells in the activation of the function around them.
struct CellRef {
  uint32_t up = 0;
  uint32_t index = 0;
};

/// What a cell holds when its scope is entered.
struct CellLoad {
  enum class Source : uint8_t { kNothing, kCell, kContext };
  uint32_t index = 0;
  Source source = Source::kNothing;
  CellRef cell;      ///< kCell: an outer variable that the scope will assign to.
  std::string name;  ///< kContext: a variable given to the template, or a global.
};

/// A scope: cells to fill on entry and, except for parameters of functions, to empty on exit.
struct ScopePlan {
  std::vector<CellLoad> loads;
  std::vector<uint32_t> cells;
};

/// A function of the compiled template (see CellRef).
struct FunctionPlan {
  uint32_t num_cells = 0;
  /// A macro or loop made inside may outlive a call of it.
  bool has_inner_functions = false;
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConst,      ///< value
  kName,       ///< value: the name; cell
  kTuple,      ///< operands
  kList,       ///< operands
  kDict,       ///< operands: key, value, key, value, ...
  kAttribute,  ///< operands[0].value
  kItem,       ///< operands[0][operands[1]]
  kSlice,      ///< start, stop, step (null if absent); only as operands[1] of kItem
  kCall,       ///< operands[0](operands[1..], keywords, *star_args, **star_kwargs)
  kFilter,     ///< operands[0] | value(operands[1..], ...); operands[0] is null for the text of a block
  kTest,       ///< operands[0] is value(operands[1..], ...)
  kUnary,      ///< operators[0] operands[0]
  kBinary,     ///< operands[0] operators[0] operands[1]
  kAnd,        ///< operands[0] and operands[1]
  kOr,
  kCompare,          ///< operands[0] operators[0] operands[1] operators[1] ...
  kConcat,           ///< operands joined by ~
  kConditional,      ///< operands[0] if operands[1] else operands[2] (null if absent)
  kAttributeTarget,  ///< Target of `set`: value (the namespace's name), attribute; cell
};

struct Keyword {
  std::string name;
  ExprPtr value;
};

struct Expr {
  explicit Expr(ExprKind expr_kind, int expr_line) : kind(expr_kind), line(expr_line) {}
  ExprKind kind;
  int line;
  int depth = 1;  ///< Nodes on the longest way down, this one included.
  Value value;
  Value attribute;
  CellRef cell;
  std::vector<Operator> operators;
  std::vector<ExprPtr> operands;
  std::vector<Keyword> keywords;
  ExprPtr star_args;
  ExprPtr star_kwargs;
  FunctionObject::Body builtin = nullptr;  ///< kFilter, kTest; null: unknown, an error when reached.
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

enum class StmtKind : uint8_t {
  kOutput,       ///< exprs, printed in turn
  kIf,           ///< condition, body, elifs (kIf), otherwise
  kFor,          ///< target in value [if condition] [recursive]: body, otherwise
  kAssign,       ///< target = value
  kAssignBlock,  ///< target = body | value (a kFilter, or null)
  kMacro,        ///< name, parameters, body
  kCallBlock,    ///< parameters, body; value is the kCall, or null for a generation block
  kFilterBlock,  ///< body | value
  kWith,         ///< exprs: target, value, target, value, ...; body
  kBreak,
  kContinue,
};

/// A parameter of a macro or call block.
struct Parameter {
  std::string name;
  ExprPtr default_value;  ///< Null: undefined when not given.
  uint32_t cell = 0;
};

struct Stmt {
  Stmt(StmtKind stmt_kind, int stmt_line) : kind(stmt_kind), line(stmt_line) {}
  StmtKind kind;
  int line;
  bool is_recursive = false;
  std::string name;
  CellRef cell;  ///< kMacro: where the macro is stored.
  ExprPtr target;
  ExprPtr value;
  ExprPtr condition;
  std::vector<ExprPtr> exprs;
  Body body;
  Body elifs;
  Body otherwise;
  std::vector<Parameter> parameters;

  ScopePlan scope;             ///< Of body.
  ScopePlan else_scope;        ///< kFor: of otherwise.
  ScopePlan test_scope;        ///< kFor: of condition.
  FunctionPlan function;       ///< kMacro, kCallBlock, recursive kFor: of body.
  FunctionPlan test_function;  ///< kFor with a condition.
  ExprPtr test_target;         ///< kFor with a condition: target, in the cells of test_scope.
  /// Cells of the implicit parameters that the body uses, or -1. For kFor, loop_cell is that of `loop`.
  int64_t loop_cell = -1;
  int64_t caller_cell = -1;
  int64_t kwargs_cell = -1;
  int64_t varargs_cell = -1;
};

struct Template {
  Body body;
  ScopePlan scope;
  FunctionPlan function;
};

/// Calls visit(Expr&) for each direct child that is there, in the order of the source's syntax node.
template <class Visit>
void for_each_child(const Expr& expr, const Visit& visit) {
  // A conditional's test is analyzed first.
  if (expr.kind == ExprKind::kConditional) {
    visit(*expr.operands[1]);
    visit(*expr.operands[0]);
    if (expr.operands[2] != nullptr) visit(*expr.operands[2]);
    return;
  }
  for (const ExprPtr& operand : expr.operands) {
    if (operand != nullptr) visit(*operand);
  }
  for (const Keyword& keyword : expr.keywords) visit(*keyword.value);
  if (expr.star_args != nullptr) visit(*expr.star_args);
  if (expr.star_kwargs != nullptr) visit(*expr.star_kwargs);
}

}  // namespace tensorfold::jinja
