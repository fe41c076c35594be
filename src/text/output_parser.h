// Takes a reply apart while it is generated: reasoning, content and calls of tools. The formats are those
// that models write; which one a model writes is told by its chat template and tokenizer
// (detect_output_syntax), the rest by the prompt it answers (OutputFormat).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

class Tokenizer;

/// Part of a reply. Pieces of one kind joined are that field of the reply.
struct OutputPiece {
  enum class Kind { kReasoning, kContent, kToolCall };
  Kind kind = Kind::kContent;
  std::string text;  ///< The text; of a call its arguments, the text of a JSON object.
  std::string name;  ///< kToolCall: of the function.

  friend bool operator==(const OutputPiece&, const OutputPiece&) = default;
};

/// How a model marks its reasoning.
enum class ReasoningSyntax {
  kNone,     ///< It does not, or it is to stay content.
  kThink,    ///< <think>...</think> before the answer; the opening tag may be the prompt's.
  kHarmony,  ///< Messages on the channel `analysis` (GPT-OSS).
};

/// How a model writes a call.
enum class ToolSyntax {
  kNone,     ///< Not at all, or calls are to stay content.
  kHermes,   ///< <tool_call>{"name": N, "arguments": {...}}</tool_call> (Hermes, Qwen2.5, Qwen3)
  kXml,      ///< <tool_call><function=N><parameter=K>V</parameter></function></tool_call> (Qwen3.5, Nemotron)
  kGlm,      ///< <tool_call>N<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>
  kHarmony,  ///< A message to the recipient functions.N (GPT-OSS).
  kLlama,    ///< {"name": N, "parameters": {...}} and nothing else (Llama 3).
};

/// One is kHarmony only where the other is kHarmony or kNone.
struct OutputSyntax {
  ReasoningSyntax reasoning = ReasoningSyntax::kNone;
  ToolSyntax tools = ToolSyntax::kNone;

  bool is_harmony() const { return reasoning == ReasoningSyntax::kHarmony || tools == ToolSyntax::kHarmony; }
  friend bool operator==(const OutputSyntax&, const OutputSyntax&) = default;
};

/// Names for flags: "auto" and those of the enumerators.
inline constexpr std::string_view kReasoningParserNames[] = {"auto", "none", "think", "harmony"};
inline constexpr std::string_view kToolParserNames[] = {"auto", "none",    "hermes", "xml",
                                                        "glm",  "harmony", "llama"};

/// The name among them.
std::string_view parser_name(ReasoningSyntax syntax);
std::string_view parser_name(ToolSyntax syntax);

/// What the template and the tokenizer's tokens tell.
OutputSyntax detect_output_syntax(std::string_view template_source, const Tokenizer& tokenizer);

/// The same with two names, of which "auto" stands for what is detected. kInvalidArgument: an unknown name,
/// names that exclude each other, or harmony without its tokens.
Result<OutputSyntax> choose_output_syntax(std::string_view reasoning_parser, std::string_view tool_parser,
                                          std::string_view template_source, const Tokenizer& tokenizer);

/// Parameters of the functions that a request offers, for the types of arguments that are written without.
class ToolSchemas {
 public:
  ToolSchemas() = default;
  /// `tools` as in a request: {"type": "function", "function": {...}}, or the function alone; or null.
  explicit ToolSchemas(const Json& tools);

  bool is_empty() const { return functions_.empty(); }
  bool has(std::string_view function) const { return parameters_of(function) != nullptr; }
  /// The schema of an argument, a local $ref followed; null where there is none. Valid as long as this.
  const Json* argument(std::string_view function, std::string_view name) const;

 private:
  const Json* parameters_of(std::string_view function) const;
  std::vector<std::pair<std::string, Json>> functions_;  ///< Name and JSON schema of its parameters.
};

/// How the reply to one prompt is to be read. Immutable once made.
struct OutputFormat {
  OutputSyntax syntax;
  ToolSchemas tools;  ///< Without any, calls stay content.
  /// Where the prompt leaves the model (read_prompt_tail).
  enum class Start {
    kReply,          ///< Before everything.
    kReasoning,      ///< After <think> and a line break.
    kReasoningTag,   ///< Right after <think>.
    kHarmonyHeader,  ///< After <|start|>assistant.
  };
  Start start = Start::kReply;
  int64_t max_calls = -1;  ///< The reply ends with this many calls; -1: no limit.
};

/// Sees where a rendered prompt leaves the model.
OutputFormat::Start read_prompt_tail(std::string_view prompt, const OutputSyntax& syntax);

/// A token that is markup: text though its tokenizer calls it special.
struct OutputMarker {
  std::string_view text;
  bool ends_reply = false;
};

/// Markers of a syntax. A token that is spelled so, and only such a token, is one.
std::span<const OutputMarker> output_markers(const OutputSyntax& syntax);

/// Reads one reply. What the pieces join to depends on the text alone, not on how it is cut; text is held
/// back only while it may still be markup, or white space that a call makes part of its own. A call is one
/// piece, when it is complete: until then it may still turn out to be text. What is no call after all stays
/// content, to the byte. Owned by who reads the reply; one thread.
class OutputParser {
 public:
  virtual ~OutputParser() = default;
  /// Appends to `out`. `text` is UTF-8 and may end between two characters' bytes.
  virtual void push(std::string_view text, std::vector<OutputPiece>& out) = 0;
  /// One of output_markers(); one that ends replies only where this one goes on past its end (ignore_eos).
  virtual void push_marker(std::string_view marker, std::vector<OutputPiece>& out) = 0;
  /// Nothing more comes. `is_complete`: the model ended the reply, it was not cut off. Once.
  virtual void finish(bool is_complete, std::vector<OutputPiece>& out) = 0;
  /// max_calls is reached: what follows is no part of the reply.
  virtual bool is_done() const = 0;
};

std::unique_ptr<OutputParser> make_output_parser(std::shared_ptr<const OutputFormat> format);

/// Appends to the last piece where it is of the same kind. Empty text adds nothing.
void append_output(std::vector<OutputPiece>& out, OutputPiece::Kind kind, std::string_view text);

}  // namespace tensorfold
