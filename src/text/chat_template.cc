// ChatTemplate: compiling and rendering.
#include "text/chat_template.h"

#include <algorithm>

#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/jinja_unicode.h"

namespace tensorfold {

struct ChatTemplate::Compiled {
  jinja::Template tree;
};

namespace {

/// Marks the end of the message to continue, as transformers spells it.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

/// `x.content`, `x["content"]`, or a variable whose name ends so.
bool names_content(const jinja::Expr& expr) {
  using jinja::ExprKind;
  const auto ends_so = [](const jinja::Value& name) {
    return name.is_string() && std::string_view(name.as_string()).ends_with("content");
  };
  if (expr.kind == ExprKind::kItem)
    return expr.operands[1]->kind == ExprKind::kConst && ends_so(expr.operands[1]->value);
  return (expr.kind == ExprKind::kName || expr.kind == ExprKind::kAttribute) && ends_so(expr.value);
}

bool tests_content_type(const jinja::Expr& expr) {
  constexpr std::string_view kTypeTests[] = {"string", "iterable", "sequence", "mapping"};
  if (expr.kind == jinja::ExprKind::kTest && names_content(*expr.operands[0]) &&
      std::find(std::begin(kTypeTests), std::end(kTypeTests), expr.value.as_string()) !=
          std::end(kTypeTests)) {
    return true;
  }
  bool found = false;
  jinja::for_each_child(expr, [&](const jinja::Expr& child) { found = found || tests_content_type(child); });
  return found;
}

bool handles_parts(const jinja::Body& body) {
  return std::any_of(body.begin(), body.end(), [](const jinja::StmtPtr& stmt) {
    if (stmt->kind == jinja::StmtKind::kFor && names_content(*stmt->value)) return true;
    for (const jinja::ExprPtr* expr : {&stmt->value, &stmt->condition}) {
      if (*expr != nullptr && tests_content_type(**expr)) return true;
    }
    const auto tests = [](const jinja::ExprPtr& expr) { return tests_content_type(*expr); };
    return std::any_of(stmt->exprs.begin(), stmt->exprs.end(), tests) || handles_parts(stmt->body) ||
           handles_parts(stmt->elifs) || handles_parts(stmt->otherwise);
  });
}

/// The text that the model shall continue, or nullptr.
Json* final_text(Json& messages) {
  if (!messages.is_array() || messages.as_array().empty()) return nullptr;
  Json* content = messages.as_array().back().find("content");
  if (content == nullptr) return nullptr;
  if (content->is_string()) return content;
  if (!content->is_array()) return nullptr;
  for (auto part = content->as_array().rbegin(); part != content->as_array().rend(); ++part) {
    if (Json* text = part->find("text"); text != nullptr && text->is_string()) return text;
  }
  return nullptr;
}

std::string_view strip_end(std::string_view text) {
  return text.substr(0, text.size() - jinja::trailing_space(text));
}
std::string_view strip(std::string_view text) { return strip_end(text.substr(jinja::leading_space(text))); }

/// The rendering up to the tag; nullopt when the template dropped the tag or changed the message.
std::optional<std::string> cut_at_tag(const std::string& rendered, std::string_view message) {
  const size_t at = rendered.rfind(strip(kContinueTag));
  if (at == std::string::npos || rendered.find(strip(message)) == std::string::npos) return std::nullopt;
  const std::string_view before = std::string_view(rendered).substr(0, at);
  // Without the tag's final space, the template trims content: then the message's own end goes too.
  const bool is_trimmed = !std::string_view(rendered).substr(at).starts_with(kContinueTag);
  return std::string(is_trimmed ? strip_end(before) : before);
}

}  // namespace

ChatTemplate::~ChatTemplate() = default;

Status ChatTemplate::error(std::string_view reason) const {
  return invalid_argument("chat template '{}' {}", name_, reason);
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::parse(std::string source, std::string name) {
  std::shared_ptr<ChatTemplate> made(new ChatTemplate);
  made->name_ = std::move(name);
  made->source_ = std::move(source);
  if (const size_t bad = jinja::find_invalid_utf8(made->source_); bad != std::string::npos) {
    const auto line =
        1 + std::count(made->source_.begin(), made->source_.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
    return made->error(fmt::format("line {}: the text is not valid UTF-8 (byte {})", line, bad));
  }
  Result<jinja::Template> tree = jinja::parse(made->source_);
  if (!tree.ok()) return made->error(tree.status().message());
  made->compiled_ = std::make_unique<Compiled>(Compiled{std::move(tree).value()});
  made->accepts_content_parts_ = handles_parts(made->compiled_->tree.body);
  return std::shared_ptr<const ChatTemplate>(std::move(made));
}

Result<std::string> ChatTemplate::render(const Input& input, const jinja::Limits& limits) const {
  if (!input.continue_final_message) return render_messages(input, input.messages, limits);
  if (input.add_generation_prompt) {
    return invalid_argument("continue_final_message and add_generation_prompt exclude each other");
  }
  Json messages = input.messages;
  Json* text = final_text(messages);
  if (text == nullptr)
    return invalid_argument("continue_final_message: the last message has no text to continue");
  const std::string message = text->as_string();
  *text = Json(message + std::string(kContinueTag));
  TF_ASSIGN_OR_RETURN(const std::string rendered, render_messages(input, messages, limits));
  std::optional<std::string> prompt = cut_at_tag(rendered, message);
  if (!prompt) {
    return invalid_argument(
        "continue_final_message: chat template '{}' does not print the last message as it is", name_);
  }
  return *std::move(prompt);
}

Result<std::string> ChatTemplate::render_messages(const Input& input, const Json& messages,
                                                  const jinja::Limits& limits) const {
  jinja::Interpreter interpreter(compiled_->tree, limits);
  jinja::Run& run = interpreter.run();
  run.now = input.now;
  for (const auto& [name, value] : input.special_tokens) interpreter.set_variable(name, run.from_json(value));
  for (const auto& [name, value] : input.kwargs) {
    if (name == "messages" || name == "tools" || name == "documents" || name == "add_generation_prompt") {
      return invalid_argument("chat_template_kwargs must not contain '{}'", name);
    }
    interpreter.set_variable(name, run.from_json(value));
  }
  interpreter.set_variable("messages", run.from_json(messages));
  interpreter.set_variable("tools", run.from_json(input.tools));
  interpreter.set_variable("documents", run.from_json(input.documents));
  interpreter.set_variable("add_generation_prompt", jinja::Value::boolean(input.add_generation_prompt));
  std::string out;
  if (!interpreter.render(out)) return error(fmt::format("line {}: {}", run.error_line(), run.error()));
  if (jinja::find_invalid_utf8(out) != std::string::npos) {
    return error("line 1: the rendered text has a lone surrogate and cannot be UTF-8");
  }
  return out;
}

}  // namespace tensorfold
