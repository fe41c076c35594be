// A reply in any format: however it is cut, the parser makes the same of it, loses nothing that is no markup,
// and calls have JSON objects for arguments. The first four bytes choose the format and the cuts; the rest is
// the reply.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "text/output_parser.h"

namespace {

using tensorfold::OutputFormat;
using tensorfold::OutputMarker;
using tensorfold::OutputPiece;
using tensorfold::ReasoningSyntax;
using tensorfold::ToolSyntax;

const tensorfold::ToolSchemas& some_tools() {
  static const tensorfold::ToolSchemas tools(*tensorfold::parse_json(R"([{"type": "function", "function": {
    "name": "f", "parameters": {"type": "object", "properties": {"s": {"type": "string"}, "i": {"type": "integer"},
    "n": {"type": "number"}, "b": {"type": "boolean"}, "a": {"type": "array"}, "o": {"$ref": "#/$defs/o"}, "x": {},
    "u": {"anyOf": [{"type": "integer"}, {"enum": ["p", true]}]}}, "$defs": {"o": {"type": "object"}}}}}])"));
  return tools;
}

std::shared_ptr<const OutputFormat> format_of(uint8_t syntax, uint8_t rest) {
  auto format = std::make_shared<OutputFormat>();
  constexpr ToolSyntax kTools[] = {ToolSyntax::kNone, ToolSyntax::kHermes, ToolSyntax::kXml, ToolSyntax::kGlm,
                                   ToolSyntax::kLlama};
  if (syntax % 6 == 5) {
    format->syntax = {syntax & 64 ? ReasoningSyntax::kHarmony : ReasoningSyntax::kNone, ToolSyntax::kHarmony};
  } else {
    format->syntax = {syntax & 64 ? ReasoningSyntax::kThink : ReasoningSyntax::kNone, kTools[syntax % 6]};
  }
  if (syntax < 128) format->tools = some_tools();
  format->start = static_cast<OutputFormat::Start>(rest % 4);
  if (rest & 8) format->max_calls = 1 + (rest >> 4) % 3;
  return format;
}

/// Calls as they are; of the rest, what each field adds up to.
struct Reply {
  std::string reasoning, content;
  std::vector<OutputPiece> calls;
  bool is_done = false;
  friend bool operator==(const Reply&, const Reply&) = default;
};

/// Feeds `text`, cut where bits of a number drawn from `cuts` say; 0: not cut. Harmony's markers are tokens.
Reply parse(const std::shared_ptr<const OutputFormat>& format, std::string_view text, uint32_t cuts,
            bool is_complete) {
  const auto parser = tensorfold::make_output_parser(format);
  std::vector<OutputPiece> pieces;
  const auto push = [&](std::string_view part) {
    while (!part.empty()) {
      size_t size = 1;
      if (cuts == 0) size = part.size();
      for (; size < part.size(); ++size) {
        cuts = cuts * 1664525 + 1013904223;
        if ((cuts >> 28) < 5) break;
      }
      parser->push(part.substr(0, size), pieces);
      part.remove_prefix(size);
    }
  };
  while (!text.empty()) {
    size_t next = text.size();
    const OutputMarker* found = nullptr;
    if (format->syntax.is_harmony())
      for (const OutputMarker& marker : tensorfold::output_markers(format->syntax))
        if (const size_t at = text.find(marker.text); at < next) next = at, found = &marker;
    push(text.substr(0, next));
    if (found == nullptr || found->ends_reply) break;
    parser->push_marker(found->text, pieces);
    text.remove_prefix(next + found->text.size());
  }
  parser->finish(is_complete, pieces);
  Reply reply{.is_done = parser->is_done()};
  for (OutputPiece& piece : pieces) {
    if (piece.kind == OutputPiece::Kind::kToolCall)
      reply.calls.push_back(std::move(piece));
    else
      (piece.kind == OutputPiece::Kind::kReasoning ? reply.reasoning : reply.content) += piece.text;
  }
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const auto format = format_of(data[0], data[1]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 4, size - 4);
  const bool is_complete = data[2] & 1;
  const Reply whole = parse(format, text, 0, is_complete);
  TF_CHECK(parse(format, text, 1 + data[3] + (uint32_t{data[2]} << 8), is_complete) == whole);
  for (const OutputPiece& call : whole.calls) {
    TF_CHECK(!call.name.empty());
    const auto arguments = tensorfold::parse_json(call.text, 200);
    TF_CHECK(arguments.ok() && arguments->is_object());
  }
  TF_CHECK(format->max_calls < 0 || static_cast<int64_t>(whole.calls.size()) <= format->max_calls);
  if (format->syntax.tools != ToolSyntax::kLlama)
    TF_CHECK(whole.is_done == (static_cast<int64_t>(whole.calls.size()) == format->max_calls));
  const bool takes_nothing_away =
      format->syntax.reasoning == ReasoningSyntax::kNone && !format->syntax.is_harmony();
  if (takes_nothing_away && whole.calls.empty()) TF_CHECK(whole.content == text);
  return 0;
}
