// Help for people: two columns, wrapped at 100 characters, defaults at the end of a text.
#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorfold {
namespace {

constexpr size_t kWidth = 100;

/// Appends `text` word by word, lines after the first starting at `indent`, which is also where the first one
/// starts.
void append_wrapped(std::string& out, std::string_view text, size_t indent) {
  size_t column = indent;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const std::string_view word = text.substr(start, end - start);
    if (column > indent && column + 1 + word.size() > kWidth) {
      out += '\n';
      out.append(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    start = end + 1;
  }
  out += '\n';
}

/// One row of two columns; a left side that is too wide gets a line of its own.
void append_row(std::string& out, std::string_view left, std::string_view right, size_t indent) {
  out += fmt::format("  {}", left);
  if (left.size() + 4 > indent) {
    out += '\n';
    out.append(indent, ' ');
  } else {
    out.append(indent - left.size() - 2, ' ');
  }
  append_wrapped(out, right, indent);
}

std::string left_side(const Flag& flag) {
  if (flag.is_argument) return flag.name;
  return fmt::format("--{}{}{}", flag.name, flag.value_name.empty() ? "" : " ", flag.value_name);
}

std::string right_side(const Flag& flag) {
  if (flag.default_text.empty()) return flag.help;
  return fmt::format("{} Default {}.", flag.help, flag.default_text);
}

void append_flags(std::string& out, std::string_view title, std::span<const Flag> flags, bool arguments) {
  constexpr size_t kIndent = 24;
  const auto belongs = [arguments](const Flag& flag) { return flag.is_argument == arguments; };
  if (std::none_of(flags.begin(), flags.end(), belongs)) return;
  out += fmt::format("\n{}\n", title);
  for (const Flag& flag : flags)
    if (belongs(flag)) append_row(out, left_side(flag), right_side(flag), kIndent);
}

}  // namespace

std::string program_help(std::span<const CommandInfo> commands) {
  std::string out =
      "TensorFold serves a large language model from a folder of checkpoint files.\n\n"
      "Usage: tensorfold COMMAND [ARGUMENTS] [OPTIONS]\n\nCommands\n";
  for (const CommandInfo& command : commands) append_row(out, command.name, command.summary, 20);
  out +=
      "\n'tensorfold COMMAND --help' explains one. To begin:\n"
      "  tensorfold run demo             chat with the demo model\n"
      "  tensorfold serve MODEL          OpenAI endpoint at http://127.0.0.1:8080/v1\n\n"
      "MODEL is a folder, a Hugging Face repo id that is in the cache, a name in ~/.cache/tensorfold, or "
      "'demo'.\n"
      "Every option can also be set as TENSORFOLD_NAME in the environment or in a TOML file (--config).\n"
      "Exit codes: 0 done, 1 failed, 2 usage, 3 model not found or not supported, 4 not enough memory,\n"
      "5 address in use.\n";
  return out;
}

std::string command_help(const CommandInfo& command, std::span<const Flag> flags) {
  std::string out = fmt::format("Usage: tensorfold {}", command.name);
  for (const Flag& flag : flags)
    if (flag.is_argument) out += flag.is_required ? " " + flag.name : " [" + flag.name + "]";
  out += " [OPTIONS]\n\n";
  out += command.summary + "\n";
  if (!command.details.empty()) out += "\n" + command.details + "\n";
  append_flags(out, "Arguments", flags, true);
  append_flags(out, "Options", flags, false);
  return out;
}

}  // namespace tensorfold
