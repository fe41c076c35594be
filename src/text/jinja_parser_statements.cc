// Statements.
#include <algorithm>

#include "text/jinja_parser_internal.h"
#include "text/jinja_text.h"

namespace tensorfold::jinja {

Body Parser::parse_template() { return parse_body({}); }

Body Parser::parse_body(const EndTags& end_tags) {
  const ParserDepth depth(*this);
  Body body;
  if (!end_tags.empty()) awaited_.push_back(end_tags);
  StmtPtr output;
  const auto flush = [&] {
    if (output != nullptr) body.push_back(std::move(output));
    output = nullptr;
  };
  const auto add_output = [&](ExprPtr expr) {
    if (output == nullptr) output = std::make_unique<Stmt>(StmtKind::kOutput, expr->line);
    output->exprs.push_back(std::move(expr));
  };
  while (!failed_ && !at(TokenKind::kEnd)) {
    if (at(TokenKind::kData)) {
      const Token data = next();
      ExprPtr expr = make(ExprKind::kConst, data.line);
      expr->value = data.value;
      add_output(std::move(expr));
    } else if (at(TokenKind::kVariableBegin)) {
      next();
      add_output(parse_tuple(true, false));
      expect(TokenKind::kVariableEnd);
    } else {
      flush();
      expect(TokenKind::kBlockBegin);
      const bool is_end =
          std::any_of(end_tags.begin(), end_tags.end(), [&](std::string_view t) { return at_name(t); });
      if (is_end) break;
      body.push_back(parse_statement());
      expect(TokenKind::kBlockEnd);
    }
  }
  flush();
  if (!end_tags.empty()) awaited_.pop_back();
  return body;
}

/// From the end of an opening tag to one of `end_tags`, which stays the current token unless dropped.
Body Parser::parse_block(const EndTags& end_tags, bool drop_end) {
  skip_operator(":");
  expect(TokenKind::kBlockEnd);
  Body body = parse_body(end_tags);
  if (at(TokenKind::kEnd)) {
    awaited_.push_back(end_tags);
    fail_unclosed(nullptr, current().line);
    awaited_.pop_back();
  }
  if (drop_end) next();
  return body;
}

void Parser::fail_unclosed(const std::string* unknown_tag, int line) {
  std::string message = unknown_tag != nullptr
                            ? fmt::format("Encountered unknown tag {}.", string_repr(*unknown_tag))
                            : "Unexpected end of template.";
  if (!awaited_.empty()) {
    std::string looking;
    for (std::string_view tag : awaited_.back())
      looking += (looking.empty() ? "" : " or ") + string_repr(tag);
    const bool is_expected =
        unknown_tag != nullptr && std::any_of(awaited_.begin(), awaited_.end(), [&](const EndTags& tags) {
          return std::find(tags.begin(), tags.end(), *unknown_tag) != tags.end();
        });
    message += is_expected ? " You probably made a nesting mistake. Jinja is expecting this tag, but "
                             "currently looking for " +
                                 looking + "."
                           : " Jinja was looking for the following tags: " + looking + ".";
  }
  if (!open_tags_.empty()) {
    message +=
        fmt::format(" The innermost block that needs to be closed is {}.", string_repr(open_tags_.back()));
  }
  fail(std::move(message), line);
}

StmtPtr Parser::parse_statement() {
  const Token token = current();
  const auto nothing = [&] { return std::make_unique<Stmt>(StmtKind::kOutput, token.line); };
  if (token.kind != TokenKind::kName) {
    fail("tag name expected", token.line);
    return nothing();
  }
  using Parse = StmtPtr (Parser::*)();
  constexpr std::pair<std::string_view, Parse> kStatements[] = {{"if", &Parser::parse_if},
                                                                {"for", &Parser::parse_for},
                                                                {"set", &Parser::parse_set},
                                                                {"with", &Parser::parse_with},
                                                                {"macro", &Parser::parse_macro},
                                                                {"call", &Parser::parse_call_block},
                                                                {"print", &Parser::parse_print},
                                                                {"filter", &Parser::parse_filter_block},
                                                                {"break", &Parser::parse_loop_control},
                                                                {"continue", &Parser::parse_loop_control},
                                                                {"generation", &Parser::parse_generation}};
  for (const auto& [name, parse] : kStatements) {
    if (token.text != name) continue;
    open_tags_.push_back(token.text);
    StmtPtr stmt = (this->*parse)();
    open_tags_.pop_back();
    return stmt;
  }
  constexpr std::string_view kRefused[] = {"block", "extends", "include", "import", "from", "autoescape"};
  if (std::find(std::begin(kRefused), std::end(kRefused), token.text) != std::end(kRefused)) {
    fail(fmt::format("'{}' is not supported in chat templates", token.text), token.line);
  } else {
    fail_unclosed(&token.text, token.line);
  }
  return nothing();
}

StmtPtr Parser::parse_if() {
  auto result = std::make_unique<Stmt>(StmtKind::kIf, next().line);
  Stmt* branch = result.get();
  while (!failed_) {
    branch->condition = parse_tuple(false, false);
    branch->body = parse_block({"elif", "else", "endif"}, false);
    const Token tag = next();
    if (tag.is_name("elif")) {
      result->elifs.push_back(std::make_unique<Stmt>(StmtKind::kIf, tag.line));
      branch = result->elifs.back().get();
      continue;
    }
    if (tag.is_name("else")) result->otherwise = parse_block({"endif"}, true);
    break;
  }
  return result;
}

StmtPtr Parser::parse_for() {
  auto stmt = std::make_unique<Stmt>(StmtKind::kFor, next().line);
  stmt->target = parse_target(false);
  expect(TokenKind::kName, "in");
  stmt->value = parse_tuple(false, false);
  if (skip_name("if")) stmt->condition = parse_expression();
  stmt->is_recursive = skip_name("recursive");
  stmt->body = parse_block({"endfor", "else"}, false);
  if (next().is_name("else")) stmt->otherwise = parse_block({"endfor"}, true);
  return stmt;
}

StmtPtr Parser::parse_set() {
  auto stmt = std::make_unique<Stmt>(StmtKind::kAssign, next().line);
  stmt->target = parse_target(true);
  if (skip_operator("=")) {
    stmt->value = parse_tuple(true, false);
    return stmt;
  }
  stmt->kind = StmtKind::kAssignBlock;
  stmt->value = parse_filter(nullptr, false);
  stmt->body = parse_block({"endset"}, true);
  return stmt;
}

StmtPtr Parser::parse_with() {
  auto stmt = std::make_unique<Stmt>(StmtKind::kWith, next().line);
  while (!failed_ && !at(TokenKind::kBlockEnd)) {
    if (!stmt->exprs.empty()) expect_operator(",");
    stmt->exprs.push_back(parse_target(false));
    expect_operator("=");
    stmt->exprs.push_back(parse_expression());
  }
  stmt->body = parse_block({"endwith"}, true);
  return stmt;
}

void Parser::parse_signature(Stmt& stmt) {
  expect_operator("(");
  while (!failed_ && !at_operator(")")) {
    if (!stmt.parameters.empty()) expect_operator(",");
    Parameter parameter;
    const Token name = expect(TokenKind::kName);
    parameter.name = name.text;
    if (skip_operator("=")) {
      parameter.default_value = parse_expression();
    } else if (!stmt.parameters.empty() && stmt.parameters.back().default_value != nullptr) {
      fail("non-default argument follows default argument");
    }
    for (const Parameter& other : stmt.parameters) {
      if (other.name == parameter.name) fail(fmt::format("duplicate argument '{}'", other.name), name.line);
    }
    stmt.parameters.push_back(std::move(parameter));
  }
  expect_operator(")");
}

StmtPtr Parser::parse_macro() {
  auto stmt = std::make_unique<Stmt>(StmtKind::kMacro, next().line);
  stmt->name = expect(TokenKind::kName).text;
  parse_signature(*stmt);
  stmt->body = parse_block({"endmacro"}, true);
  return stmt;
}

StmtPtr Parser::parse_call_block() {
  auto stmt = std::make_unique<Stmt>(StmtKind::kCallBlock, next().line);
  if (at_operator("(")) parse_signature(*stmt);
  stmt->value = parse_expression();
  if (stmt->value->kind != ExprKind::kCall) fail("expected call", stmt->line);
  stmt->body = parse_block({"endcall"}, true);
  return stmt;
}

StmtPtr Parser::parse_filter_block() {
  auto stmt = std::make_unique<Stmt>(StmtKind::kFilterBlock, next().line);
  stmt->value = parse_filter(nullptr, true);
  stmt->body = parse_block({"endfilter"}, true);
  return stmt;
}

StmtPtr Parser::parse_generation() {
  auto stmt = std::make_unique<Stmt>(StmtKind::kCallBlock, next().line);
  stmt->body = parse_block({"endgeneration"}, true);
  return stmt;
}

StmtPtr Parser::parse_print() {
  auto stmt = std::make_unique<Stmt>(StmtKind::kOutput, next().line);
  while (!failed_ && !at(TokenKind::kBlockEnd)) {
    if (!stmt->exprs.empty()) expect_operator(",");
    stmt->exprs.push_back(parse_expression());
  }
  return stmt;
}

StmtPtr Parser::parse_loop_control() {
  const Token token = next();
  return std::make_unique<Stmt>(token.text == "break" ? StmtKind::kBreak : StmtKind::kContinue, token.line);
}

ExprPtr Parser::parse_target(bool with_namespace) {
  const int line = current().line;
  ExprPtr target = parse_tuple(true, false, true, with_namespace);
  if (!failed_ && !check_target(*target)) {
    constexpr std::pair<ExprKind, std::string_view> kNames[] = {{ExprKind::kConst, "const"},
                                                                {ExprKind::kList, "list"},
                                                                {ExprKind::kDict, "dict"},
                                                                {ExprKind::kTuple, "tuple"}};
    std::string_view kind = "expression";
    for (const auto& [expr_kind, name] : kNames) kind = target->kind == expr_kind ? name : kind;
    fail(fmt::format("can't assign to '{}'", kind), line);
  }
  return target;
}

bool Parser::check_target(const Expr& target) {
  if (target.kind == ExprKind::kName || target.kind == ExprKind::kAttributeTarget) return true;
  return target.kind == ExprKind::kTuple && std::all_of(target.operands.begin(), target.operands.end(),
                                                        [&](const ExprPtr& t) { return check_target(*t); });
}

}  // namespace tensorfold::jinja
