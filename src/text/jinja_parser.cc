// Expressions, lowest binding first, and the token stream.
#include "text/jinja_parser.h"

#include <algorithm>

#include "text/jinja_parser_internal.h"
#include "text/jinja_scope.h"
#include "text/jinja_text.h"

namespace tensorfold::jinja {

// ---- Tokens ----

std::string describe(TokenKind kind, std::string_view text) {
  switch (kind) {
    case TokenKind::kData:
      return "template data / text";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kName:
      return text.empty() ? "name" : std::string(text);
    case TokenKind::kString:
      return "string";
    case TokenKind::kInteger:
      return "integer";
    case TokenKind::kFloat:
      return "float";
    case TokenKind::kOperator:
      return std::string(text);
    default:
      return "end of template";
  }
}
std::string describe(const Token& token) { return describe(token.kind, token.text); }

Token Parser::next() {
  Token token = current();
  if (!failed_ && pos_ + 1 < tokens_.size()) {
    ++pos_;
    check_error_token();
  }
  return token;
}

void Parser::check_error_token() {
  if (tokens_[pos_].kind == TokenKind::kError) fail(tokens_[pos_].text, tokens_[pos_].line);
}

void Parser::fail(std::string reason, int line) {
  if (failed_) return;
  error_ = std::move(reason);
  error_line_ = line > 0 ? line : current().line;
  failed_ = true;
  if (tokens_.back().kind != TokenKind::kEnd) tokens_.emplace_back();
}

bool Parser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}
bool Parser::skip_operator(std::string_view op) {
  if (!at_operator(op)) return false;
  next();
  return true;
}

Token Parser::expect(TokenKind kind, std::string_view text) {
  const Token& token = current();
  if (token.kind == kind && (text.empty() || token.text == text)) return next();
  const std::string wanted = string_repr(describe(kind, text));
  fail(token.kind == TokenKind::kEnd
           ? fmt::format("unexpected end of template, expected {}.", wanted)
           : fmt::format("expected token {}, got {}", wanted, string_repr(describe(token))));
  return Token();
}

// ---- Nodes ----

void Parser::note_depth(int depth) {
  if (depth > kMaxTreeDepth) fail(fmt::format("nested more than {} levels deep", kMaxTreeDepth));
}

ExprPtr Parser::finish(ExprPtr expr) {
  int below = 0;
  for_each_child(*expr, [&](const Expr& child) { below = std::max(below, child.depth); });
  expr->depth = below + 1;
  note_depth(expr->depth);
  return expr;
}

ExprPtr Parser::make_operation(ExprKind kind, int line, Operator op, ExprPtr left, ExprPtr right) {
  ExprPtr expr = make(kind, line);
  expr->operators = {op};
  expr->operands.push_back(std::move(left));
  if (right != nullptr) expr->operands.push_back(std::move(right));
  return finish(std::move(expr));
}

// ---- Operators ----

ExprPtr Parser::parse_expression(bool with_conditional) {
  const ParserDepth depth(*this);
  if (failed_) return make(ExprKind::kConst, 0);
  return with_conditional ? parse_conditional() : parse_or();
}

ExprPtr Parser::parse_conditional() {
  int line = current().line;
  ExprPtr expr = parse_or();
  while (skip_name("if")) {
    ExprPtr conditional = make(ExprKind::kConditional, line);
    conditional->operands.push_back(std::move(expr));
    conditional->operands.push_back(parse_or());
    conditional->operands.push_back(skip_name("else") ? parse_expression() : nullptr);
    expr = finish(std::move(conditional));
    line = current().line;
  }
  return expr;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (at_name("or")) {
    const int line = next().line;
    left = make_operation(ExprKind::kOr, line, Operator::kNot, std::move(left), parse_and());
  }
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (at_name("and")) {
    const int line = next().line;
    left = make_operation(ExprKind::kAnd, line, Operator::kNot, std::move(left), parse_not());
  }
  return left;
}

ExprPtr Parser::parse_not() {
  const ParserDepth depth(*this);
  if (failed_) return make(ExprKind::kConst, 0);
  if (!at_name("not")) return parse_compare();
  const int line = next().line;
  return make_operation(ExprKind::kUnary, line, Operator::kNot, parse_not());
}

ExprPtr Parser::parse_compare() {
  constexpr std::pair<std::string_view, Operator> kComparisons[] = {
      {"==", Operator::kEq}, {"!=", Operator::kNe}, {"<", Operator::kLt},
      {"<=", Operator::kLe}, {">", Operator::kGt},  {">=", Operator::kGe}};
  ExprPtr first = parse_sum();
  ExprPtr compare = make(ExprKind::kCompare, current().line);
  compare->operands.push_back(std::move(first));
  while (!failed_) {
    const auto* comparison = std::find_if(std::begin(kComparisons), std::end(kComparisons),
                                          [&](const auto& entry) { return at_operator(entry.first); });
    if (comparison != std::end(kComparisons)) {
      next();
      compare->operators.push_back(comparison->second);
    } else if (skip_name("in")) {
      compare->operators.push_back(Operator::kIn);
    } else if (at_name("not") && look().is_name("in")) {
      next(), next();
      compare->operators.push_back(Operator::kNotIn);
    } else {
      break;
    }
    compare->operands.push_back(parse_sum());
  }
  if (compare->operators.empty()) return std::move(compare->operands[0]);
  return finish(std::move(compare));
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_operator("+") || at_operator("-")) {
    const Token op = next();
    left = make_operation(ExprKind::kBinary, op.line, op.text == "+" ? Operator::kAdd : Operator::kSub,
                          std::move(left), parse_concat());
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  ExprPtr first = parse_product();
  if (!at_operator("~")) return first;
  ExprPtr concat = make(ExprKind::kConcat, current().line);
  concat->operands.push_back(std::move(first));
  while (skip_operator("~")) concat->operands.push_back(parse_product());
  return finish(std::move(concat));
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  while (at_operator("*") || at_operator("/") || at_operator("//") || at_operator("%")) {
    const Token op = next();
    const Operator which = op.text == "*"   ? Operator::kMul
                           : op.text == "/" ? Operator::kDiv
                           : op.text == "%" ? Operator::kMod
                                            : Operator::kFloorDiv;
    left = make_operation(ExprKind::kBinary, op.line, which, std::move(left), parse_power());
  }
  return left;
}

ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (at_operator("**")) {
    const int line = next().line;
    left = make_operation(ExprKind::kBinary, line, Operator::kPow, std::move(left), parse_unary(true));
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filter) {
  const ParserDepth depth(*this);
  if (failed_) return make(ExprKind::kConst, 0);
  ExprPtr expr;
  if (at_operator("-") || at_operator("+")) {
    const Token sign = next();
    expr = make_operation(ExprKind::kUnary, sign.line, sign.text == "-" ? Operator::kNeg : Operator::kPos,
                          parse_unary(false));
  } else {
    expr = parse_primary(false);
  }
  expr = parse_postfix(std::move(expr));
  return with_filter ? parse_filters_and_tests(std::move(expr)) : std::move(expr);
}

// ---- Primaries ----

ExprPtr Parser::parse_primary(bool with_namespace) {
  const Token& token = current();
  const int line = token.line;
  if (failed_) return make(ExprKind::kConst, line);
  if (token.kind == TokenKind::kName) return parse_name(with_namespace);
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
    ExprPtr expr = make(ExprKind::kConst, line);
    expr->value = next().value;
    return expr;
  }
  if (token.kind == TokenKind::kString) {
    ExprPtr expr = make(ExprKind::kConst, line);
    std::string text;
    while (at(TokenKind::kString)) text += next().value.as_string();
    expr->value = constant_string(std::move(text));
    return expr;
  }
  if (token.is_operator("(")) {
    next();
    ExprPtr expr = parse_tuple(true, true);
    expect_operator(")");
    return expr;
  }
  if (token.is_operator("[")) return parse_list();
  if (token.is_operator("{")) return parse_dict();
  fail(fmt::format("unexpected {}", string_repr(describe(token))), line);
  return make(ExprKind::kConst, line);
}

ExprPtr Parser::parse_name(bool with_namespace) {
  const Token token = next();
  const std::string& name = token.text;
  if (name == "true" || name == "false" || name == "True" || name == "False" || name == "none" ||
      name == "None") {
    ExprPtr expr = make(ExprKind::kConst, token.line);
    const bool is_none = name == "none" || name == "None";
    expr->value = is_none ? Value::none() : Value::boolean(name == "true" || name == "True");
    return expr;
  }
  ExprPtr expr = make(ExprKind::kName, token.line);
  expr->value = constant_string(name);
  if (with_namespace && skip_operator(".")) {
    expr->kind = ExprKind::kAttributeTarget;
    expr->attribute = constant_string(expect(TokenKind::kName).text);
  }
  return expr;
}

ExprPtr Parser::parse_tuple(bool with_conditional, bool in_parentheses, bool only_primary,
                            bool with_namespace) {
  const ParserDepth depth(*this);
  ExprPtr tuple = make(ExprKind::kTuple, current().line);
  bool is_tuple = false;
  while (!failed_) {
    if (!tuple->operands.empty()) expect_operator(",");
    if (at(TokenKind::kVariableEnd) || at(TokenKind::kBlockEnd) || at_operator(")")) break;
    tuple->operands.push_back(only_primary ? parse_primary(with_namespace)
                                           : parse_expression(with_conditional));
    if (!at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !tuple->operands.empty()) return std::move(tuple->operands[0]);
  if (!is_tuple && !in_parentheses) {
    fail(fmt::format("Expected an expression, got {}", string_repr(describe(current()))));
  }
  return finish(std::move(tuple));
}

ExprPtr Parser::parse_list() {
  ExprPtr list = make(ExprKind::kList, expect_operator("[").line);
  while (!failed_ && !at_operator("]")) {
    if (!list->operands.empty()) expect_operator(",");
    if (at_operator("]")) break;
    list->operands.push_back(parse_expression());
  }
  expect_operator("]");
  return finish(std::move(list));
}

ExprPtr Parser::parse_dict() {
  ExprPtr dict = make(ExprKind::kDict, expect_operator("{").line);
  while (!failed_ && !at_operator("}")) {
    if (!dict->operands.empty()) expect_operator(",");
    if (at_operator("}")) break;
    dict->operands.push_back(parse_expression());
    expect_operator(":");
    dict->operands.push_back(parse_expression());
  }
  expect_operator("}");
  return finish(std::move(dict));
}

// ---- Postfix ----

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  while (!failed_) {
    if (at_operator(".") || at_operator("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (at_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      break;
    }
  }
  return expr;
}

ExprPtr Parser::parse_filters_and_tests(ExprPtr expr) {
  while (!failed_) {
    if (at_operator("|")) {
      expr = parse_filter(std::move(expr), false);
    } else if (at_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (at_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      break;
    }
  }
  return expr;
}

ExprPtr Parser::parse_subscript(ExprPtr expr) {
  const Token token = next();
  ExprPtr item = make(ExprKind::kItem, token.line);
  item->operands.push_back(std::move(expr));
  if (token.text == ".") {
    const Token name = next();
    if (name.kind == TokenKind::kName) {
      item->kind = ExprKind::kAttribute;
      item->value = constant_string(name.text);
    } else if (name.kind == TokenKind::kInteger) {
      item->operands.push_back(make(ExprKind::kConst, name.line));
      item->operands[1]->value = name.value;
    } else {
      fail("expected name or number", name.line);
    }
    return finish(std::move(item));
  }
  ExprPtr key = make(ExprKind::kTuple, token.line);
  while (!failed_ && !at_operator("]")) {
    if (!key->operands.empty()) expect_operator(",");
    key->operands.push_back(parse_slice_or_item());
  }
  expect_operator("]");
  const bool has_slice = std::any_of(key->operands.begin(), key->operands.end(),
                                     [](const ExprPtr& part) { return part->kind == ExprKind::kSlice; });
  if (has_slice && key->operands.size() > 1) fail("a slice cannot be part of a tuple", token.line);
  key = key->operands.size() == 1 ? std::move(key->operands[0]) : finish(std::move(key));
  item->operands.push_back(std::move(key));
  return finish(std::move(item));
}

ExprPtr Parser::parse_slice_or_item() {
  const int line = current().line;
  ExprPtr start;
  if (!at_operator(":")) {
    start = parse_expression();
    if (!at_operator(":")) return start;
  }
  next();
  ExprPtr slice = make(ExprKind::kSlice, line);
  const auto parse_part = [&]() -> ExprPtr {
    return at_operator(":") || at_operator("]") || at_operator(",") ? nullptr : parse_expression();
  };
  slice->operands.push_back(std::move(start));
  slice->operands.push_back(parse_part());
  slice->operands.push_back(skip_operator(":") ? parse_part() : nullptr);
  return finish(std::move(slice));
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  ExprPtr call = make(ExprKind::kCall, current().line);
  call->operands.push_back(std::move(callee));
  parse_arguments(*call);
  return finish(std::move(call));
}

void Parser::parse_arguments(Expr& call) {
  const int line = expect_operator("(").line;
  bool needs_comma = false;
  while (!failed_ && !at_operator(")")) {
    if (needs_comma) {
      expect_operator(",");
      if (at_operator(")")) break;
    }
    parse_argument(call, line);
    needs_comma = true;
  }
  expect_operator(")");
}

void Parser::parse_argument(Expr& call, int line) {
  const auto ensure = [&](bool holds) {
    if (!holds) fail("invalid syntax for function call expression", line);
  };
  const bool is_keyword = at(TokenKind::kName) && look().is_operator("=");
  ensure(call.star_kwargs == nullptr);
  if (skip_operator("*")) {
    ensure(call.star_args == nullptr);
    call.star_args = parse_expression();
  } else if (skip_operator("**")) {
    call.star_kwargs = parse_expression();
  } else if (is_keyword) {
    std::string name = next().text;
    next();
    for (const Keyword& keyword : call.keywords) {
      if (keyword.name == name) fail(fmt::format("keyword argument repeated: {}", name), line);
    }
    call.keywords.push_back({std::move(name), parse_expression()});
  } else {
    ensure(call.star_args == nullptr && call.keywords.empty());
    call.operands.push_back(parse_expression());
  }
}

std::string Parser::parse_dotted_name() {
  std::string name = expect(TokenKind::kName).text;
  while (skip_operator(".")) (name += '.') += expect(TokenKind::kName).text;
  return name;
}

ExprPtr Parser::parse_filter(ExprPtr input, bool is_inline) {
  ExprPtr expr = std::move(input);
  while (!failed_ && (is_inline || at_operator("|"))) {
    if (!is_inline) next();
    is_inline = false;
    ExprPtr filter = make(ExprKind::kFilter, current().line);
    filter->value = constant_string(parse_dotted_name());
    filter->operands.push_back(std::move(expr));
    if (at_operator("(")) parse_arguments(*filter);
    expr = finish(std::move(filter));
  }
  return expr;
}

ExprPtr Parser::parse_test(ExprPtr subject) {
  const int line = next().line;
  const bool is_negated = skip_name("not");
  ExprPtr test = make(ExprKind::kTest, line);
  test->value = constant_string(parse_dotted_name());
  test->operands.push_back(std::move(subject));
  const bool starts_argument = at(TokenKind::kName) || at(TokenKind::kString) || at(TokenKind::kInteger) ||
                               at(TokenKind::kFloat) || at_operator("[") || at_operator("{");
  if (at_operator("(")) {
    parse_arguments(*test);
  } else if (starts_argument && !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) fail("You cannot chain multiple tests with is");
    test->operands.push_back(parse_postfix(parse_primary(false)));
  }
  test = finish(std::move(test));
  return is_negated ? make_operation(ExprKind::kUnary, line, Operator::kNot, std::move(test))
                    : std::move(test);
}

// ---- Entry ----

Result<Template> parse(std::string_view source) {
  Parser parser(tokenize(source));
  Template result;
  result.body = parser.parse_template();
  if (parser.failed()) return invalid_argument("line {}: {}", parser.error_line(), parser.error());
  TF_RETURN_IF_ERROR(resolve_scopes(result));
  return result;
}

}  // namespace tensorfold::jinja
