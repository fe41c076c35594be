// Replies of GPT-OSS: messages with a header (channel, recipient, type of content) between special tokens.
// Follows OpenAI's harmony response format; special tokens count where they are tokens, never as text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"

namespace tensorfold {

/// Messages on `analysis` are reasoning; those to `functions.NAME`, to the bare name of a function that is
/// offered, or to any other name with a dot (`browser.search`), are calls; all others are content. Messages
/// of one field are separated by an empty line. Lenient: a message that begins without its header's tokens is
/// content, a missing <|end|> is supplied. A message to a recipient that is no call, is cut off or has no
/// JSON object for arguments is content, with the words of its header. A header that is cut off is dropped.
class HarmonyParser final : public OutputParser {
 public:
  explicit HarmonyParser(std::shared_ptr<const OutputFormat> format);

  void push(std::string_view text, std::vector<OutputPiece>& out) override;
  void push_marker(std::string_view marker, std::vector<OutputPiece>& out) override;
  void finish(bool is_complete, std::vector<OutputPiece>& out) override;
  bool is_done() const override { return is_done_; }

 private:
  enum class Target { kReasoning, kContent, kCall };
  /// What a header says.
  struct Header {
    std::string channel, recipient;
    std::string rest;  ///< What was not understood.
  };

  void begin_header(bool is_role_known);
  Header read_header() const;
  void begin_message();
  void end_message(bool is_complete, std::vector<OutputPiece>& out);
  void end_header(std::vector<OutputPiece>& out);
  void end_call(bool is_complete, std::vector<OutputPiece>& out);
  void add_text(Target target, std::string_view text, std::vector<OutputPiece>& out);
  std::string function_name(const std::string& recipient) const;

  const std::shared_ptr<const OutputFormat> format_;
  bool in_message_ = false;
  bool is_role_known_ = false;  ///< The header's first word is not the author.
  std::string header_;          ///< With its markers spelled.
  std::string header_words_;    ///< Without.
  Target target_ = Target::kContent;
  std::string function_;   ///< kCall.
  std::string arguments_;  ///< kCall.
  /// By target: the field has text, and a message ended since.
  bool needs_separator_[2] = {};
  bool has_text_[2] = {};
  int64_t num_calls_ = 0;
  bool is_done_ = false;
};

}  // namespace tensorfold
