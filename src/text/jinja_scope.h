// Variables: which name means which cell where. Jinja compiles a template to Python functions, and the
// scoping that templates see (what a loop's `set` does, what a macro's free names are) follows from how it
// assigns Python variables; this does the same analysis, so that the same names are found in the same cases.
#pragma once

#include "base/status.h"
#include "text/jinja_ast.h"

namespace tensorfold::jinja {

/// Fills in the cells, scopes and builtins of a parsed template. Errors: unknown filters and tests where
/// Jinja reports them at compile time, break outside of a loop, assignment to `loop`. "line N: reason".
Status resolve_scopes(Template& parsed);

}  // namespace tensorfold::jinja
