// See output_parser_llama.h.
#include "text/output_parser_llama.h"

#include <utility>

#include "text/output_parser_calls.h"
#include "text/output_parser_values.h"

namespace tensorfold {
namespace {

std::shared_ptr<const OutputFormat> without_tools(const OutputFormat& format) {
  auto copy = std::make_shared<OutputFormat>(format);
  copy->syntax.tools = ToolSyntax::kNone;
  return copy;
}

/// The calls that `text` consists of; none where it does not.
std::vector<ToolCall> parse_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    const std::string_view object = text.substr(0, json_object_bytes(text));
    std::optional<ToolCall> call = parse_call(ToolSyntax::kLlama, object, {});
    if (!call) return {};
    calls.push_back(*std::move(call));
    text = trimmed(text.substr(object.size()));
    if (text.starts_with(';')) text.remove_prefix(1);
  }
  return calls;
}

}  // namespace

LlamaParser::LlamaParser(std::shared_ptr<const OutputFormat> format)
    : format_(std::move(format)),
      reasoning_(without_tools(*format_)),
      may_be_calls_(!format_->tools.is_empty()) {}

void LlamaParser::push(std::string_view text, std::vector<OutputPiece>& out) {
  std::vector<OutputPiece> pieces;
  reasoning_.push(text, pieces);
  sort(pieces, out);
}

void LlamaParser::sort(const std::vector<OutputPiece>& pieces, std::vector<OutputPiece>& out) {
  for (const OutputPiece& piece : pieces) {
    if (piece.kind != OutputPiece::Kind::kContent || !may_be_calls_) {
      append_output(out, piece.kind, piece.text);
      continue;
    }
    held_ += piece.text;
    may_be_calls_ = may_begin_call(ToolSyntax::kLlama, held_);
    if (!may_be_calls_) append_output(out, OutputPiece::Kind::kContent, std::exchange(held_, {}));
  }
}

void LlamaParser::finish(bool is_complete, std::vector<OutputPiece>& out) {
  std::vector<OutputPiece> pieces;
  reasoning_.finish(is_complete, pieces);
  sort(pieces, out);
  if (!may_be_calls_) return;
  std::vector<ToolCall> calls;
  if (is_complete) calls = parse_calls(held_);
  if (calls.empty()) append_output(out, OutputPiece::Kind::kContent, held_);
  if (format_->max_calls >= 0 && static_cast<int64_t>(calls.size()) > format_->max_calls)
    calls.resize(static_cast<size_t>(format_->max_calls));
  for (ToolCall& call : calls)
    out.push_back({OutputPiece::Kind::kToolCall, std::move(call.arguments), std::move(call.name)});
}

}  // namespace tensorfold
