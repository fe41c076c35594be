// Chat templates: from the messages of a request to the text of a prompt, as transformers'
// apply_chat_template does. The template language is in jinja_*; here are a model's templates, their
// variables, and what is done to messages before a template sees them. The template is applied in this one
// place.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "text/jinja_limits.h"

namespace tensorfold {

/// One compiled template. Immutable; any number of threads may render it at the same time.
class ChatTemplate {
 public:
  /// Compiles `source`. An error is kInvalidArgument: "chat template 'NAME' line 12: reason".
  static Result<std::shared_ptr<const ChatTemplate>> parse(std::string source, std::string name);

  /// What a template is given. Nothing else is visible to it, except the time when `now` is not set.
  struct Input {
    Json messages;   ///< Array of objects; content strings and part lists go through as they are.
    Json tools;      ///< Array of objects, or null: templates then see none.
    Json documents;  ///< Array of objects, or null.
    bool add_generation_prompt = false;  ///< End with the opening of an assistant turn.
    /// End inside the last message, as its content does, for the model to go on. Excludes
    /// add_generation_prompt.
    bool continue_final_message = false;
    Json::Object kwargs;  ///< chat_template_kwargs (enable_thinking, ...). They win over special tokens.
    Json::Object special_tokens;  ///< bos_token, eos_token, ...; only those that the model has (ModelChat).
    /// The time that strftime_now prints, a civil time without zone: the one outside input of a prompt. Fix
    /// it to make a prompt reproducible; unset, it is the host's local time.
    std::optional<std::chrono::local_seconds> now;
  };

  /// The text of the prompt. Errors are kInvalidArgument, "chat template 'NAME' line 12: reason"; the reason
  /// of one that the template itself raises begins with "raise_exception: ". The limits bound time, memory
  /// and stack.
  Result<std::string> render(const Input& input, const jinja::Limits& limits = {}) const;

  const std::string& name() const { return name_; }
  const std::string& source() const { return source_; }
  /// True when the template looks at the type of a message's content or loops over it, so that it can be a
  /// list of parts. Others print what they get, and need a string.
  bool accepts_content_parts() const { return accepts_content_parts_; }

  ~ChatTemplate();

 private:
  struct Compiled;
  ChatTemplate() = default;
  Result<std::string> render_messages(const Input& input, const Json& messages,
                                      const jinja::Limits& limits) const;
  Status error(std::string_view reason) const;

  std::string name_;
  std::string source_;
  bool accepts_content_parts_ = false;
  std::unique_ptr<const Compiled> compiled_;
};

/// What a model's folder says about chat.
struct ModelChat {
  std::shared_ptr<const ChatTemplate> default_template;  ///< Never null.
  std::shared_ptr<const ChatTemplate>
      tool_use;  ///< For requests with tools; null when the model has one template.
  Json::Object
      special_tokens;  ///< bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token.

  const ChatTemplate& pick(bool has_tools) const {
    return has_tools && tool_use != nullptr ? *tool_use : *default_template;
  }
};

/// Reads a model's templates, the first of: chat_template.jinja (with
/// additional_chat_templates/tool_use.jinja), chat_template.json, and "chat_template" in
/// tokenizer_config.json (a string, or a list of {name, template} with "default" and "tool_use"). kNotFound
/// when there is none: the model then cannot chat, and there is no fallback.
Result<ModelChat> load_model_chat(const std::filesystem::path& model_folder);

/// The messages of an OpenAI request as templates expect them:
///  - members that are null are dropped, as transformers 5 does (`"content": null` beside tool calls);
///  - tool_calls[].function.arguments, JSON text in requests, becomes the mapping that it spells; text that
///  is no JSON
///    object stays as it is;
///  - reasoning under any of reasoning_content, thinking and reasoning is offered as reasoning_content and,
///  unless the
///    message has its own, as thinking (transformers 5);
///  - the role `developer` becomes `system` for templates that do not know it;
///  - content in parts becomes one string, text parts joined by a line break, for templates that cannot take
///  parts
///    (accepts_content_parts); other than text parts are then kUnsupported.
/// Anything but an array of objects is kInvalidArgument.
Result<Json> prepare_messages(const Json& messages, const ChatTemplate& chat_template);

/// A fixed date for ChatTemplate::Input::now: "2025-06-30" (midnight) or "2025-06-30T17:05:00".
Result<std::chrono::local_seconds> parse_chat_date(std::string_view text);

}  // namespace tensorfold
