// See output_parser_tags.h.
#include "text/output_parser_tags.h"

#include <algorithm>
#include <utility>

#include "text/output_parser_calls.h"

namespace tensorfold {
namespace {

constexpr std::string_view kThinkOpen = "<think>", kThinkClose = "</think>";
constexpr std::string_view kCallOpen = "<tool_call>", kCallClose = "</tool_call>";
constexpr std::string_view kSpace = " \t\n\r";
constexpr size_t kNotFound = std::string_view::npos;

/// Bytes at the end of `text` that begin `tag` without completing it.
size_t begun_tag_bytes(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size)
    if (tag.starts_with(text.substr(text.size() - size))) return size;
  return 0;
}

/// `text` up to its trailing characters of `set`.
size_t end_without(std::string_view text, std::string_view set) {
  const size_t last = text.find_last_not_of(set);
  return last == kNotFound ? 0 : last + 1;
}

}  // namespace

TagParser::TagParser(std::shared_ptr<const OutputFormat> format)
    : format_(std::move(format)),
      has_calls_(format_->syntax.tools != ToolSyntax::kNone && !format_->tools.is_empty()),
      state_(State::kContent) {
  if (format_->syntax.reasoning != ReasoningSyntax::kThink) return;
  switch (format_->start) {
    case OutputFormat::Start::kReasoning:
      state_ = State::kReasoning;
      break;
    case OutputFormat::Start::kReasoningTag:
      state_ = State::kReasoningStart;
      break;
    default:
      state_ = State::kStart;
  }
}

void TagParser::push(std::string_view text, std::vector<OutputPiece>& out) {
  if (is_done_) return;
  buffer_ += text;
  while (!is_done_ && step(out)) {
  }
  buffer_.erase(0, std::exchange(begin_, 0));
}

/// Goes from one state to the next; false where that takes more text.
bool TagParser::step(std::vector<OutputPiece>& out) {
  switch (state_) {
    case State::kStart:
      return step_start();
    case State::kReasoningStart:
      return skip_line_breaks(1, State::kReasoning);
    case State::kReasoning:
      return step_reasoning(out);
    case State::kReasoningEnd:
      return skip_line_breaks(kNotFound, State::kContent);
    case State::kContent:
      return step_content(out);
    case State::kCall:
      return step_call(out);
  }
  return false;
}

bool TagParser::step_start() {
  const std::string_view text = rest();
  const size_t space_bytes = std::min(text.find_first_not_of(kSpace), text.size());
  const std::string_view word = text.substr(space_bytes);
  if (space_bytes <= kMaxHeldSpace && word.starts_with(kThinkOpen)) {
    take(space_bytes + kThinkOpen.size());
    state_ = State::kReasoningStart;
    return true;
  }
  if (space_bytes <= kMaxHeldSpace && kThinkOpen.starts_with(word)) return false;
  state_ = State::kContent;
  return true;
}

/// Drops line breaks, `most` of them; the next state begins where there are no more.
bool TagParser::skip_line_breaks(size_t most, State next) {
  const std::string_view text = rest();
  const size_t num_breaks = std::min({text.find_first_not_of('\n'), text.size(), most});
  if (num_breaks == text.size() && num_breaks < most) {
    take(num_breaks);
    return false;
  }
  take(num_breaks);
  state_ = next;
  return true;
}

bool TagParser::step_reasoning(std::vector<OutputPiece>& out) {
  const std::string_view text = rest();
  const size_t end = text.find(kThinkClose);
  if (end == kNotFound) {
    const size_t decided = text.size() - begun_tag_bytes(text, kThinkClose);
    add_reasoning(text.substr(0, decided), out);
    take(decided);
    return false;
  }
  add_reasoning(text.substr(0, end), out);
  held_.clear();
  take(end + kThinkClose.size());
  state_ = State::kReasoningEnd;
  return true;
}

bool TagParser::step_content(std::vector<OutputPiece>& out) {
  const std::string_view text = rest();
  const size_t end = has_calls_ ? text.find(kCallOpen) : kNotFound;
  if (end == kNotFound) {
    const size_t decided = text.size() - (has_calls_ ? begun_tag_bytes(text, kCallOpen) : 0);
    add_content(text.substr(0, decided), out);
    take(decided);
    return false;
  }
  add_content(text.substr(0, end), out);
  take(end + kCallOpen.size());
  state_ = State::kCall;
  scanned_ = 0;
  in_string_ = is_escaped_ = false;
  return true;
}

bool TagParser::step_call(std::vector<OutputPiece>& out) {
  if (!may_begin_call(format_->syntax.tools, rest())) {
    add_content(kCallOpen, out);
    state_ = State::kContent;
    return true;
  }
  const size_t end = find_call_end();
  if (end == kNotFound) return false;
  end_call(end, out);
  return true;
}

/// Where </tool_call> stands in rest(); in JSON, one that is in a string does not count.
size_t TagParser::find_call_end() {
  const std::string_view text = rest();
  const bool is_json = format_->syntax.tools == ToolSyntax::kHermes;
  for (; scanned_ < text.size(); ++scanned_) {
    const char c = text[scanned_];
    if (in_string_) {
      if (is_escaped_)
        is_escaped_ = false;
      else if (c == '\\')
        is_escaped_ = true;
      else if (c == '"')
        in_string_ = false;
    } else if (c == '"') {
      in_string_ = is_json;
    } else if (c == '<') {
      const std::string_view tag = text.substr(scanned_, kCallClose.size());
      if (tag == kCallClose) return scanned_;
      if (kCallClose.starts_with(tag)) return kNotFound;
    }
  }
  return kNotFound;
}

void TagParser::end_call(size_t body_bytes, std::vector<OutputPiece>& out) {
  const std::string_view body = rest().substr(0, body_bytes);
  state_ = State::kContent;
  if (std::optional<ToolCall> call = parse_call(format_->syntax.tools, body, format_->tools)) {
    held_.clear();
    is_long_space_ = false;
    is_after_call_ = true;
    out.push_back({OutputPiece::Kind::kToolCall, std::move(call->arguments), std::move(call->name)});
    is_done_ = ++num_calls_ == format_->max_calls;
  } else {
    add_content(kCallOpen, out);
    add_content(body, out);
    add_content(kCallClose, out);
  }
  take(body_bytes + kCallClose.size());
}

void TagParser::add_reasoning(std::string_view text, std::vector<OutputPiece>& out) {
  const size_t end = end_without(text, "\n");
  if (end > 0) {
    append_output(out, OutputPiece::Kind::kReasoning, std::exchange(held_, {}));
    append_output(out, OutputPiece::Kind::kReasoning, text.substr(0, end));
  }
  held_ += text.substr(end);
}

void TagParser::add_content(std::string_view text, std::vector<OutputPiece>& out) {
  if (!has_calls_) return append_output(out, OutputPiece::Kind::kContent, text);
  if (is_after_call_) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (text.empty()) return;
    is_after_call_ = false;
  }
  const size_t end = end_without(text, kSpace);
  if (end > 0) {
    append_output(out, OutputPiece::Kind::kContent, std::exchange(held_, {}));
    append_output(out, OutputPiece::Kind::kContent, text.substr(0, end));
    is_long_space_ = false;
  }
  held_ += text.substr(end);
  is_long_space_ = is_long_space_ || held_.size() > kMaxHeldSpace;
  if (is_long_space_) append_output(out, OutputPiece::Kind::kContent, std::exchange(held_, {}));
}

void TagParser::finish(bool, std::vector<OutputPiece>& out) {
  if (is_done_) return;
  const std::string undecided = std::exchange(buffer_, {});
  if (state_ == State::kCall) {
    add_content(kCallOpen, out);
    add_content(undecided, out);
  } else if (state_ == State::kReasoning) {
    add_reasoning(undecided, out);
  } else {
    add_content(undecided, out);
  }
  const auto kind = state_ == State::kReasoning ? OutputPiece::Kind::kReasoning : OutputPiece::Kind::kContent;
  append_output(out, kind, std::exchange(held_, {}));
}

}  // namespace tensorfold
