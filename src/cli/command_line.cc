// From the words of the command line to a command that runs: the order of sources (flag, environment, file),
// help and exit codes. words.h reads the words, config_file.h the file.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cli/command.h"
#include "cli/config_file.h"
#include "cli/environment.h"
#include "cli/help.h"
#include "cli/words.h"

namespace tensorfold {
namespace {

/// A command with its flags, the common ones included.
struct Entry {
  std::unique_ptr<Command> command;
  CommandInfo info;
  std::vector<ParsedFlag> flags;
  // Common flags.
  std::string config_file;
  std::string log_level;
  bool wants_help = false;
};

using Entries = std::vector<std::unique_ptr<Entry>>;

constexpr std::pair<const char*, LogLevel> kLogLevels[] = {{"debug", LogLevel::kDebug},
                                                           {"info", LogLevel::kInfo},
                                                           {"warning", LogLevel::kWarning},
                                                           {"error", LogLevel::kError},
                                                           {"off", LogLevel::kOff}};

std::string log_level_text(LogLevel level) {
  for (const auto& [name, value] : kLogLevels)
    if (value == level) return name;
  return "off";
}

std::unique_ptr<Entry> make_entry(std::unique_ptr<Command> command) {
  auto entry = std::make_unique<Entry>();
  entry->command = std::move(command);
  entry->info = entry->command->info();
  entry->log_level = log_level_text(entry->info.log_level);
  Flags flags;
  entry->command->add_flags(flags);
  std::vector<std::string> levels;
  for (const auto& [name, value] : kLogLevels) levels.push_back(name);
  flags.choice("log-level", "Least severe messages that are printed.", entry->log_level, levels);
  flags.text("config", "FILE",
             "TOML file with values for flags. Default ~/.config/tensorfold/config.toml, if there.",
             entry->config_file);
  flags.toggle("help", "Print this text.", entry->wants_help);
  for (const Flag& flag : flags.all()) entry->flags.push_back({.flag = flag, .text = {}});
  return entry;
}

// The three sources.

std::string variable_name(const std::string& flag) {
  std::string name = "TENSORFOLD_" + flag;
  for (char& c : name) c = c == '-' ? '_' : (c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c);
  return name;
}

Status apply_value(const Flag& flag, const std::string& source, const std::string& text) {
  const Status status = flag.apply(text);
  return status.ok() ? status : invalid_argument("{}: {}", source, status.message());
}

/// Gives every flag its value from the first source that has one.
Status apply_flags(Entry& entry, const FileValues& file) {
  for (ParsedFlag& parsed : entry.flags) {
    const Flag& flag = parsed.flag;
    const std::string shown = flag.is_argument ? flag.name : "--" + flag.name;
    if (parsed.is_given) {
      TF_RETURN_IF_ERROR(apply_value(flag, shown, parsed.text));
      continue;
    }
    if (flag.is_argument) continue;
    const std::string variable = variable_name(flag.name);
    if (const auto text = environment_variable(variable)) {
      TF_RETURN_IF_ERROR(apply_value(flag, variable, *text));
      continue;
    }
    for (const std::string& key : {entry.info.name + "." + flag.name, flag.name}) {
      const auto found = file.find(key);
      if (found == file.end()) continue;
      TF_RETURN_IF_ERROR(apply_value(flag, "config file, " + key, found->second));
      break;
    }
  }
  return {};
}

std::vector<CommandFlags> flags_of(const Entries& entries) {
  std::vector<CommandFlags> commands;
  for (const auto& entry : entries) {
    commands.push_back({.command = entry->info.name, .flags = {}});
    for (const ParsedFlag& parsed : entry->flags)
      if (!parsed.flag.is_argument) commands.back().flags.push_back(parsed.flag.name);
  }
  return commands;
}

/// The file that --config or TENSORFOLD_CONFIG names must exist; the default one may.
Result<FileValues> find_config_file(const Entries& entries, const Entry& entry) {
  std::optional<std::string> path = environment_variable("TENSORFOLD_CONFIG");
  for (const ParsedFlag& parsed : entry.flags)
    if (parsed.flag.name == "config" && parsed.is_given) path = parsed.text;
  if (path) return read_config_file(*path, flags_of(entries));
  std::error_code ignored;
  const std::string standard = default_config_file();
  if (standard.empty() || !std::filesystem::exists(standard, ignored)) return FileValues{};
  return read_config_file(standard, flags_of(entries));
}

// Running.

std::string program_help(const Entries& entries) {
  std::vector<CommandInfo> infos;
  for (const auto& entry : entries) infos.push_back(entry->info);
  return program_help(infos);
}

std::string help_of(const Entry& entry) {
  std::vector<Flag> flags;
  for (const ParsedFlag& parsed : entry.flags) flags.push_back(parsed.flag);
  return command_help(entry.info, flags);
}

/// `name` is one of a command.
Entry* find_entry(const Entries& entries, std::string_view name) {
  return std::find_if(entries.begin(), entries.end(),
                      [name](const auto& entry) { return entry->info.name == name; })
      ->get();
}

Status run_entry(const Entries& entries, Entry& entry) {
  TF_ASSIGN_OR_RETURN(const FileValues file, find_config_file(entries, entry));
  TF_RETURN_IF_ERROR(apply_flags(entry, file));
  for (const auto& [name, level] : kLogLevels)
    if (entry.log_level == name) set_log_level(level);
  return entry.command->run();
}

Status parse_and_run(std::span<const std::string> words) {
  Entries entries;
  for (auto& command : make_commands()) entries.push_back(make_entry(std::move(command)));
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry->info.name);
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || (words[0] == "help" && words.size() == 1))
    return fmt::print("{}", program_help(entries)), Status();
  if (words[0] == "help") {
    TF_ASSIGN_OR_RETURN(const ChosenCommand explained, choose_command(words.subspan(1), names));
    return fmt::print("{}", help_of(*find_entry(entries, explained.name))), Status();
  }
  if (words[0] == "--version") return fmt::print("tensorfold {}\n", TENSORFOLD_VERSION), Status();
  TF_ASSIGN_OR_RETURN(const ChosenCommand chosen, choose_command(words, names));
  Entry& entry = *find_entry(entries, chosen.name);
  if (wants_help(chosen.rest)) return fmt::print("{}", help_of(entry)), Status();
  TF_RETURN_IF_ERROR(parse_words(chosen, names, entry.flags));
  return run_entry(entries, entry);
}

}  // namespace

std::vector<std::unique_ptr<Command>> make_commands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(make_serve_command());
  commands.push_back(make_run_command());
  commands.push_back(make_info_command());
  commands.push_back(make_inspect_command());
  commands.push_back(make_models_command());
  commands.push_back(make_doctor_command());
  commands.push_back(make_demo_command());
  commands.push_back(make_demo_create_command());
  commands.push_back(make_eval_command());
  commands.push_back(make_bench_decode_command());
  commands.push_back(make_bench_prefill_command());
  commands.push_back(make_bench_batch_command());
  commands.push_back(make_bench_drafts_command());
  commands.push_back(make_bench_verify_command());
  return commands;
}

int exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInvalidArgument:
      return 2;
    case StatusCode::kNotFound:
    case StatusCode::kUnsupported:
      return 3;
    case StatusCode::kOutOfMemory:
      return 4;
    case StatusCode::kAddressInUse:
      return 5;
    default:
      return 1;
  }
}

int run_command_line(int argc, const char* const* argv) {
  Status status;
  try {
    status = parse_and_run(std::vector<std::string>(argv + 1, argv + std::max(argc, 1)));
  } catch (const std::system_error& error) {  // fmt::print's, where standard output takes no more
    status = make_error(StatusCode::kIo, "{}", error.what());
  }
  // A script must not take a cut-off output for the whole.
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && status.ok())
    status = make_error(StatusCode::kIo, "standard output: {}", std::strerror(errno));
  if (!status.ok()) fmt::print(stderr, "tensorfold: {}\n", status.message());
  return exit_code(status);
}

}  // namespace tensorfold
