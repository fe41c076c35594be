// See words.h.
#include "cli/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/nearest_name.h"

namespace tensorfold {
namespace {

constexpr std::string_view kEndOfFlags = "--";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// A flag as it is written: its name and, after '=', its value.
struct WrittenFlag {
  std::string_view word;  ///< With its dashes, without the value.
  std::string_view name;
  std::optional<std::string_view> value;
};

/// Nothing where the word is no flag, not even a misspelt one.
std::optional<WrittenFlag> written_flag(std::string_view text) {
  const size_t start = text.find_first_not_of('-');
  if (start == 0 || start == std::string_view::npos || !is_letter(text[start])) return std::nullopt;
  const size_t end = std::min(text.find('='), text.size());
  WrittenFlag written{.word = text.substr(0, end), .name = text.substr(start, end - start), .value = {}};
  if (written.word.find_first_of(" \t\r\n") != std::string_view::npos) return std::nullopt;
  if (end < text.size()) written.value = text.substr(end + 1);
  return written;
}

std::string shown_name(const Flag& flag) { return flag.is_argument ? flag.name : "--" + flag.name; }

/// Of `names`, what follows "group ".
std::vector<std::string> subcommands(std::string_view group, std::span<const std::string> names) {
  std::vector<std::string> found;
  for (const std::string& name : names)
    if (name.starts_with(group) && name.size() > group.size() && name[group.size()] == ' ')
      found.push_back(name.substr(group.size() + 1));
  return found;
}

/// Reads the words of one command, one by one.
class WordReader {
 public:
  WordReader(const ChosenCommand& command, std::span<const std::string> names, std::vector<ParsedFlag>& flags)
      : command_(command), names_(names), flags_(flags) {}

  Status read() {
    bool only_arguments = false;
    while (next_ < command_.rest.size()) {
      const std::string& word = command_.rest[next_++];
      const std::optional<WrittenFlag> written = only_arguments ? std::nullopt : written_flag(word);
      if (!only_arguments && word == kEndOfFlags)
        only_arguments = true;
      else if (written)
        TF_RETURN_IF_ERROR(read_flag(*written));
      else
        TF_RETURN_IF_ERROR(read_argument(word));
    }
    for (const ParsedFlag& parsed : flags_)
      if (parsed.flag.is_required && !parsed.is_given)
        return invalid_argument("'tensorfold {0}' needs {1}; 'tensorfold {0} --help' explains it",
                                command_.name, parsed.flag.name);
    return {};
  }

 private:
  ParsedFlag* find(const WrittenFlag& written) {
    if (!written.word.starts_with("--")) return nullptr;
    for (ParsedFlag& parsed : flags_)
      if (!parsed.flag.is_argument && "--" + parsed.flag.name == written.word) return &parsed;
    return nullptr;
  }

  Status give(ParsedFlag& parsed, std::string_view text) {
    if (parsed.is_given) return invalid_argument("{} is given twice", shown_name(parsed.flag));
    parsed.text = text;
    parsed.is_given = true;
    return {};
  }

  Status read_flag(const WrittenFlag& written) {
    ParsedFlag* parsed = find(written);
    if (parsed == nullptr) return unknown(written);
    if (written.value) return give(*parsed, *written.value);
    if (parsed->flag.value_name.empty()) return give(*parsed, "true");
    if (next_ == command_.rest.size())
      return invalid_argument("{} needs a value: {}", written.word, parsed->flag.value_name);
    const std::string& value = command_.rest[next_++];
    const std::optional<WrittenFlag> other = written_flag(value);
    if (other && find(*other) != nullptr)
      return invalid_argument(
          "{0} needs a value: {1}, but the flag {2} follows; {0}={2} if that is the value", written.word,
          parsed->flag.value_name, value);
    return give(*parsed, value);
  }

  Status unknown(const WrittenFlag& written) const {
    std::vector<std::string> known;
    bool has_argument = false;
    for (const ParsedFlag& parsed : flags_) {
      if (!parsed.flag.is_argument) known.push_back(parsed.flag.name);
      has_argument |= parsed.flag.is_argument && !parsed.is_given;
    }
    std::string hint = did_you_mean(written.name, known, "--");
    // Two dashes are meant as a flag; one may begin a text.
    if (hint.empty() && has_argument && !written.word.starts_with("--"))
      hint = "; write -- before it if it is an argument";
    return invalid_argument("unknown option {}{}", written.word, hint);
  }

  Status read_argument(const std::string& word) {
    for (ParsedFlag& parsed : flags_)
      if (parsed.flag.is_argument && !parsed.is_given) return give(parsed, word);
    const std::vector<std::string> below = subcommands(command_.name, names_);
    const std::string hint = did_you_mean(command_.rest[0], below, "tensorfold " + command_.name + " ");
    if (!hint.empty()) return invalid_argument("unexpected argument '{}'{}", word, hint);
    return invalid_argument("unexpected argument '{}'; 'tensorfold {} --help' shows what is expected", word,
                            command_.name);
  }

  const ChosenCommand& command_;
  std::span<const std::string> names_;
  std::vector<ParsedFlag>& flags_;
  size_t next_ = 0;  ///< Index of the word to read.
};

}  // namespace

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates,
                         std::string_view prefix) {
  std::string nearest = nearest_name(word, candidates);
  for (const std::string& candidate : candidates)
    if (nearest.empty() && word.size() >= 3 && candidate.starts_with(word)) nearest = candidate;
  return nearest.empty() ? "" : fmt::format("; did you mean {}{}?", prefix, nearest);
}

Result<ChosenCommand> choose_command(std::span<const std::string> words, std::span<const std::string> names) {
  const auto is_command = [names](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::string& first = words[0];
  if (written_flag(first)) {
    const auto command = std::find_if(words.begin(), words.end(), is_command);
    if (command == words.end())
      return invalid_argument("unknown option {}; 'tensorfold --help' explains the use", first);
    return invalid_argument("unknown option {} before '{}'; 'tensorfold --help' explains the use", first,
                            *command);
  }
  if (words.size() > 1 && is_command(first + " " + words[1]))
    return ChosenCommand{.name = first + " " + words[1], .rest = words.subspan(2)};
  if (is_command(first)) return ChosenCommand{.name = first, .rest = words.subspan(1)};
  const std::vector<std::string> below = subcommands(first, names);
  if (!below.empty()) {
    const std::string hint = words.size() > 1 ? did_you_mean(words[1], below, "") : "";
    return invalid_argument("'tensorfold {}' needs one of: {}{}", first, fmt::join(below, ", "), hint);
  }
  std::vector<std::string> starts = {"help"};
  for (const std::string& name : names) starts.push_back(name.substr(0, name.find(' ')));
  return invalid_argument("unknown command '{}'{}; 'tensorfold --help' lists all", first,
                          did_you_mean(first, starts, ""));
}

bool wants_help(std::span<const std::string> words) {
  for (const std::string& word : words) {
    if (word == kEndOfFlags) return false;
    if (word == "--help" || word == "-h") return true;
  }
  return false;
}

Status parse_words(const ChosenCommand& command, std::span<const std::string> names,
                   std::vector<ParsedFlag>& flags) {
  return WordReader(command, names, flags).read();
}

}  // namespace tensorfold
