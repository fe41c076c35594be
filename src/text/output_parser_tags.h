// Replies with tags: <think>...</think>, and calls between <tool_call> and </tool_call>. The tags may be
// tokens or spelled by several: they are found in the text. What stands in a call is output_parser_calls.h's.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"

namespace tensorfold {

/// For every syntax but harmony. Of reasoning one line break after the opening tag and all around the closing
/// one are dropped. White space between a call and anything else is dropped, up to kMaxHeldSpace bytes before
/// it. A call's tag whose text cannot begin a call is content at once; a call that does not end, or that is
/// malformed, is content as a whole. Reasoning is opened at the start of a reply only; a reply that does not
/// close it is all reasoning.
class TagParser final : public OutputParser {
 public:
  /// Longest white space that is held back for what may follow. A reply that is white space without end must
  /// reach the stop strings.
  static constexpr size_t kMaxHeldSpace = 64;

  explicit TagParser(std::shared_ptr<const OutputFormat> format);

  void push(std::string_view text, std::vector<OutputPiece>& out) override;
  void push_marker(std::string_view marker, std::vector<OutputPiece>& out) override { push(marker, out); }
  void finish(bool is_complete, std::vector<OutputPiece>& out) override;
  bool is_done() const override { return is_done_; }

 private:
  enum class State {
    kStart,           ///< Nothing but white space so far; <think> may follow.
    kReasoningStart,  ///< Right after <think>.
    kReasoning,
    kReasoningEnd,  ///< After </think>, before anything else.
    kContent,
    kCall,  ///< After <tool_call>.
  };

  std::string_view rest() const { return std::string_view(buffer_).substr(begin_); }
  void take(size_t num_bytes) { begin_ += num_bytes; }
  bool step(std::vector<OutputPiece>& out);
  bool step_start();
  bool skip_line_breaks(size_t most, State next);
  bool step_reasoning(std::vector<OutputPiece>& out);
  bool step_content(std::vector<OutputPiece>& out);
  bool step_call(std::vector<OutputPiece>& out);
  size_t find_call_end();
  void end_call(size_t body_bytes, std::vector<OutputPiece>& out);
  void add_reasoning(std::string_view text, std::vector<OutputPiece>& out);
  void add_content(std::string_view text, std::vector<OutputPiece>& out);

  const std::shared_ptr<const OutputFormat> format_;
  const bool has_calls_;
  State state_;
  std::string buffer_;  ///< From begin_ on: text that is not yet decided.
  size_t begin_ = 0;
  std::string held_;            ///< Of the current kind: white space at the end of what was decided.
  bool is_long_space_ = false;  ///< The white space at the end of the content is longer than what is held.
  bool is_after_call_ = false;  ///< Nothing but white space since a call.
  size_t scanned_ = 0;          ///< kCall: bytes of rest() in which the end was looked for.
  bool in_string_ = false;      ///< kCall, JSON: whether that place is inside a string, ...
  bool is_escaped_ = false;     ///< ... right after a backslash.
  int64_t num_calls_ = 0;
  bool is_done_ = false;
};

}  // namespace tensorfold
