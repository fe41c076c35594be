// Calls of Llama 3: a reply whose answer is nothing but {"name": N, "parameters": {...}}, with or without
// <|python_tag|> before it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"
#include "text/output_parser_tags.h"

namespace tensorfold {

/// Reasoning is found as by TagParser. An answer that begins like a call is held back until the end: only
/// then is it known to be nothing else. Several calls are separated by white space or ';'. What is no call,
/// is cut off or has text around it is content.
class LlamaParser final : public OutputParser {
 public:
  explicit LlamaParser(std::shared_ptr<const OutputFormat> format);

  void push(std::string_view text, std::vector<OutputPiece>& out) override;
  /// <|python_tag|> has no text.
  void push_marker(std::string_view marker, std::vector<OutputPiece>& out) override {
    if (marker != "<|python_tag|>") push(marker, out);
  }
  void finish(bool is_complete, std::vector<OutputPiece>& out) override;
  bool is_done() const override { return false; }

 private:
  void sort(const std::vector<OutputPiece>& pieces, std::vector<OutputPiece>& out);

  const std::shared_ptr<const OutputFormat> format_;
  TagParser reasoning_;  ///< Its content is looked at here.
  bool may_be_calls_;    ///< All content so far is in held_.
  std::string held_;
};

}  // namespace tensorfold
