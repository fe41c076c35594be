// Tokens to syntax tree. The grammar and the error texts are those of Jinja 3.1 with the extensions that
// transformers enables (break, continue, generation); block, extends, include, import and autoescape are
// refused.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/jinja_ast.h"

namespace tensorfold::jinja {

/// Nodes on the longest way down an expression, and statements inside statements. Far above what people
/// write; low enough that walking a tree needs little stack.
inline constexpr int kMaxTreeDepth = 200;

/// Parses a template and resolves its variables. Errors are kInvalidArgument, "line N: reason".
Result<Template> parse(std::string_view source);

}  // namespace tensorfold::jinja
