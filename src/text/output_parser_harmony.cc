// See output_parser_harmony.h.
#include "text/output_parser_harmony.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/output_parser_calls.h"
#include "text/output_parser_values.h"

namespace tensorfold {
namespace {

constexpr std::string_view kSpace = " \t\n\r";
constexpr std::string_view kChannel = "<|channel|>", kConstrain = "<|constrain|>";
constexpr std::string_view kFunctions = "functions.";

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    const size_t end = std::min(text.find_first_of(kSpace), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

bool is_role(std::string_view word) {
  for (const std::string_view role : {"assistant", "system", "developer", "user", "tool"})
    if (word == role) return true;
  return false;
}

}  // namespace

HarmonyParser::HarmonyParser(std::shared_ptr<const OutputFormat> format) : format_(std::move(format)) {
  begin_header(format_->start == OutputFormat::Start::kHarmonyHeader);
}

void HarmonyParser::begin_header(bool is_role_known) {
  in_message_ = false;
  is_role_known_ = is_role_known;
  header_.clear();
  header_words_.clear();
}

void HarmonyParser::push(std::string_view text, std::vector<OutputPiece>& out) {
  if (is_done_) return;
  if (!in_message_) {
    header_ += text;
    header_words_ += text;
  } else if (target_ == Target::kCall) {
    arguments_ += text;
  } else {
    add_text(target_, text, out);
  }
}

void HarmonyParser::push_marker(std::string_view marker, std::vector<OutputPiece>& out) {
  if (is_done_) return;
  if (marker == "<|message|>") {
    if (!in_message_) begin_message();
  } else if (marker == kConstrain) {
    if (in_message_) return;
    header_.append(1, ' ').append(kConstrain);
    header_words_ += ' ';
  } else if (marker == kChannel) {
    if (in_message_) {
      end_message(true, out);
      begin_header(true);
    }
    header_ += kChannel;
    header_words_ += ' ';
  } else {  // <|start|>, <|end|>
    in_message_ ? end_message(true, out) : end_header(out);
    begin_header(false);
  }
}

/// The parts of the header as the format's own parser finds them.
HarmonyParser::Header HarmonyParser::read_header() const {
  Header header;
  std::string text = header_;
  if (const size_t at = text.find(kChannel); at != std::string::npos) {
    const size_t begin = at + kChannel.size();
    const size_t end = std::min(text.find_first_of(" \t\n\r<", begin), text.size());
    header.channel = text.substr(begin, end - begin);
    text.erase(at, end - at);
    text.insert(at, 1, ' ');
  }
  std::vector<std::string> words = words_of(text);
  // Before <|start|> it was the prompt that named the author. Authors other than the assistant are not
  // believed.
  if (!words.empty() && (is_role(words[0]) || (!is_role_known_ && !words[0].starts_with("to="))))
    words.erase(words.begin());
  const auto recipient = std::find_if(words.begin(), words.end(), [this](const std::string& word) {
    return word.starts_with("to=") || word.starts_with(kFunctions) || format_->tools.has(word);
  });
  if (recipient != words.end()) {
    header.recipient = recipient->substr(recipient->starts_with("to=") ? 3 : 0);
    words.erase(recipient);
    // `to=functions.f<|constrain|>json` has no blank where the marker is no token.
    header.recipient.resize(std::min(header.recipient.find('<'), header.recipient.size()));
  }
  for (const std::string& word : words) header.rest.append(header.rest.empty() ? "" : " ").append(word);
  return header;
}

std::string HarmonyParser::function_name(const std::string& recipient) const {
  if (recipient.starts_with(kFunctions)) return recipient.substr(kFunctions.size());
  const bool is_function = format_->tools.has(recipient) || recipient.find('.') != std::string::npos;
  return is_function ? recipient : "";
}

void HarmonyParser::begin_message() {
  in_message_ = true;
  const Header header = read_header();
  function_ = function_name(header.recipient);
  arguments_.clear();
  const bool has_reasoning = format_->syntax.reasoning == ReasoningSyntax::kHarmony;
  target_ = !function_.empty()                              ? Target::kCall
            : header.channel == "analysis" && has_reasoning ? Target::kReasoning
                                                            : Target::kContent;
}

void HarmonyParser::end_message(bool is_complete, std::vector<OutputPiece>& out) {
  if (target_ == Target::kCall) end_call(is_complete, out);
  for (size_t i = 0; i < 2; ++i) needs_separator_[i] = has_text_[i];
  in_message_ = false;
}

void HarmonyParser::end_call(bool is_complete, std::vector<OutputPiece>& out) {
  const bool has_calls = format_->syntax.tools == ToolSyntax::kHarmony && !format_->tools.is_empty();
  const std::string_view arguments = trimmed(arguments_);
  if (has_calls && is_complete && (arguments.empty() || is_json_object(arguments))) {
    out.push_back(
        {OutputPiece::Kind::kToolCall, arguments.empty() ? "{}" : std::string(arguments), function_});
    is_done_ = ++num_calls_ == format_->max_calls;
  } else {
    add_text(Target::kContent, fmt::format("{} {}", trimmed(header_words_), arguments_), out);
  }
}

/// A header that no message follows: text of a model that does not keep to the format, or the beginning of a
/// message.
void HarmonyParser::end_header(std::vector<OutputPiece>& out) {
  const Header header = read_header();
  if (header_.find(kChannel) == std::string::npos && header.recipient.empty()) {
    const std::vector<std::string> words = words_of(header_);
    if (words.empty() || (words.size() == 1 && is_role(words[0]))) return;
    add_text(Target::kContent, header_words_, out);
  } else if (!header.rest.empty()) {
    const bool is_reasoning =
        header.channel == "analysis" && format_->syntax.reasoning == ReasoningSyntax::kHarmony;
    add_text(is_reasoning ? Target::kReasoning : Target::kContent, header.rest, out);
  }
  for (size_t i = 0; i < 2; ++i) needs_separator_[i] = has_text_[i];
}

void HarmonyParser::add_text(Target target, std::string_view text, std::vector<OutputPiece>& out) {
  if (text.empty()) return;
  const auto kind =
      target == Target::kReasoning ? OutputPiece::Kind::kReasoning : OutputPiece::Kind::kContent;
  const auto field = static_cast<size_t>(target);
  if (std::exchange(needs_separator_[field], false)) append_output(out, kind, "\n\n");
  append_output(out, kind, text);
  has_text_[field] = true;
}

void HarmonyParser::finish(bool is_complete, std::vector<OutputPiece>& out) {
  if (is_done_) return;
  if (in_message_)
    end_message(is_complete, out);
  else if (is_complete || header_.find(kChannel) == std::string::npos)
    end_header(out);
}

}  // namespace tensorfold
