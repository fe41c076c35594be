// The parser's class, shared by its two files: expressions and statements.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace tensorfold::jinja {

/// Recursive descent over the tokens. The first error sticks and moves to the end of the input, so that every
/// loop ends; nodes made after it are never looked at.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) { check_error_token(); }

  Body parse_template();
  bool failed() const { return failed_; }
  const std::string& error() const { return error_; }
  int error_line() const { return error_line_; }

 private:
  using EndTags = std::vector<std::string_view>;

  // Tokens (jinja_parser.cc)
  const Token& current() const { return tokens_[failed_ ? tokens_.size() - 1 : pos_]; }
  const Token& look() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  /// The current token, which must be of this kind (and text); moves past it.
  Token expect(TokenKind kind, std::string_view text = {});
  Token expect_operator(std::string_view op) { return expect(TokenKind::kOperator, op); }
  bool at(TokenKind kind) const { return !failed_ && current().kind == kind; }
  bool at_name(std::string_view name) const { return !failed_ && current().is_name(name); }
  bool at_operator(std::string_view op) const { return !failed_ && current().is_operator(op); }
  void fail(std::string reason, int line = 0);
  void check_error_token();

  // Statements (jinja_parser_statements.cc)
  Body parse_body(const EndTags& end_tags);
  Body parse_block(const EndTags& end_tags, bool drop_end);
  StmtPtr parse_statement();
  StmtPtr parse_if();
  StmtPtr parse_for();
  StmtPtr parse_set();
  StmtPtr parse_with();
  StmtPtr parse_macro();
  StmtPtr parse_call_block();
  StmtPtr parse_filter_block();
  StmtPtr parse_generation();
  StmtPtr parse_print();
  StmtPtr parse_loop_control();
  void parse_signature(Stmt& stmt);
  ExprPtr parse_target(bool with_namespace);
  bool check_target(const Expr& target);
  void fail_unclosed(const std::string* unknown_tag, int line);
  void note_depth(int depth);

  // Expressions (jinja_parser.cc)
  ExprPtr parse_expression(bool with_conditional = true);
  ExprPtr parse_conditional();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary(bool with_namespace);
  ExprPtr parse_name(bool with_namespace);
  ExprPtr parse_tuple(bool with_conditional, bool in_parentheses, bool only_primary = false,
                      bool with_namespace = false);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filters_and_tests(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  ExprPtr parse_slice_or_item();
  ExprPtr parse_call(ExprPtr callee);
  void parse_arguments(Expr& call);
  void parse_argument(Expr& call, int line);
  /// `name(args) | name2 ...` applied to `input`, which is null in block statements.
  ExprPtr parse_filter(ExprPtr input, bool is_inline);
  ExprPtr parse_test(ExprPtr subject);
  std::string parse_dotted_name();

  ExprPtr make(ExprKind kind, int line) { return std::make_unique<Expr>(kind, line); }
  ExprPtr make_operation(ExprKind kind, int line, Operator op, ExprPtr left, ExprPtr right = nullptr);
  /// Records the depth of a finished node; too deep is an error.
  ExprPtr finish(ExprPtr expr);

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  bool failed_ = false;
  std::string error_;
  int error_line_ = 0;
  int depth_ = 0;  ///< Of the parser's own recursion.
  std::vector<std::string> open_tags_;
  std::vector<EndTags> awaited_;

  friend class ParserDepth;
};

/// One level of the parser's recursion, for the lifetime of the object.
class ParserDepth {
 public:
  explicit ParserDepth(Parser& parser) : parser_(parser) {
    // An expression in brackets takes up to four levels of the parser for one of the tree.
    parser_.note_depth(++parser_.depth_ / 4);
  }
  ~ParserDepth() { --parser_.depth_; }

 private:
  Parser& parser_;
};

/// How error messages call a token: its name, operator, or what kind of delimiter it is.
std::string describe(const Token& token);
std::string describe(TokenKind kind, std::string_view text);

}  // namespace tensorfold::jinja
