// From the words of the command line to a command that runs: the only file that includes CLI11. CLI11 splits
// the words; the order of sources (flag, environment, file), the messages and the help are ours.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "base/nearest_name.h"
#include "cli/command.h"
#include "cli/environment.h"
#include "cli/help.h"

namespace tensorfold {
namespace {

/// A flag and what the command line said of it.
struct ParsedFlag {
  Flag flag;
  std::string text;
  bool is_given = false;
};

/// A command with its flags, the common ones included.
struct Entry {
  std::unique_ptr<Command> command;
  CommandInfo info;
  std::vector<ParsedFlag> flags;
  CLI::App* app = nullptr;
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

/// "demo create" is the command `create` of the command `demo`, which exists or is made.
CLI::App* add_app(CLI::App& root, const std::string& name) {
  CLI::App* app = &root;
  for (const std::string& word : CLI::detail::split(name, ' ')) {
    const auto children =
        app->get_subcommands([&word](const CLI::App* child) { return child->get_name() == word; });
    app = children.empty() ? app->add_subcommand(word) : children.front();
  }
  app->set_help_flag();
  app->allow_extras();
  // Once a command is chosen its words are its own: `run demo` does not begin the command `demo`.
  app->require_subcommand(0, 1);
  return app;
}

void add_option(CLI::App& app, ParsedFlag& parsed) {
  parsed.text.clear();
  const auto keep = [&parsed](const CLI::results_t& words) {
    parsed.text = words.back();
    parsed.is_given = true;
    return true;
  };
  const Flag& flag = parsed.flag;
  if (!flag.is_argument && flag.value_name.empty())
    app.add_flag(flag.name == "help" ? "--help,-h" : "--" + flag.name)
        ->each([&parsed](const std::string& text) {
          parsed.text = text;
          parsed.is_given = true;
        });
  else
    app.add_option(flag.is_argument ? flag.name : "--" + flag.name, keep)->expected(1);
}

// The three sources.

std::string variable_name(const std::string& flag) {
  std::string name = "TENSORFOLD_" + flag;
  for (char& c : name) c = c == '-' ? '_' : (c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c);
  return name;
}

/// Values of the TOML file: "serve.port" or "port" -> text.
using FileValues = std::map<std::string, std::string>;

bool knows_flag(const Entries& entries, const std::string& command, const std::string& name) {
  for (const auto& entry : entries)
    for (const ParsedFlag& parsed : entry->flags)
      if (!parsed.flag.is_argument && parsed.flag.name == name &&
          (command.empty() || entry->info.name == command))
        return true;
  return false;
}

Result<FileValues> read_config_file(const Entries& entries, const std::string& path) {
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_file(path);
  } catch (const CLI::Error& error) {
    return invalid_argument("{}: {}", path, error.what());
  }
  FileValues values;
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of a section's ends
    const std::string command = fmt::format("{}", fmt::join(item.parents, " "));
    if (!knows_flag(entries, command, item.name))
      return invalid_argument("{}: '{}' is no flag of {}", path, item.name,
                              command.empty() ? "any command" : "'tensorfold " + command + "'");
    if (item.inputs.size() != 1) return invalid_argument("{}: '{}' must have one value", path, item.name);
    values[command.empty() ? item.name : command + "." + item.name] = item.inputs[0];
  }
  return values;
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

/// The file that --config or TENSORFOLD_CONFIG names must exist; the default one may.
Result<FileValues> find_config_file(const Entries& entries, const Entry& entry) {
  std::optional<std::string> path = environment_variable("TENSORFOLD_CONFIG");
  for (const ParsedFlag& parsed : entry.flags)
    if (parsed.flag.name == "config" && parsed.is_given) path = parsed.text;
  if (path) return read_config_file(entries, *path);
  std::error_code ignored;
  const std::string standard = default_config_file();
  if (standard.empty() || !std::filesystem::exists(standard, ignored)) return FileValues{};
  return read_config_file(entries, standard);
}

// Usage errors.

std::string did_you_mean(const std::string& nearest, std::string_view prefix) {
  return nearest.empty() ? "" : fmt::format("; did you mean {}{}?", prefix, nearest);
}

Status unknown_command(const Entries& entries, const std::string& word) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry->info.name.substr(0, entry->info.name.find(' ')));
  return invalid_argument("unknown command '{}'{}; 'tensorfold --help' lists all", word,
                          did_you_mean(nearest_name(word, names), ""));
}

Status check_extra_words(const Entry& entry) {
  const std::vector<std::string> words = entry.app->remaining();
  for (const std::string& word : words) {
    if (!word.starts_with("-") || word == "--") continue;
    std::vector<std::string> names;
    for (const ParsedFlag& parsed : entry.flags)
      if (!parsed.flag.is_argument) names.push_back(parsed.flag.name);
    const std::string name = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    return invalid_argument("unknown option {}{}", word.substr(0, word.find('=')),
                            did_you_mean(nearest_name(name.substr(0, name.find('=')), names), "--"));
  }
  if (!words.empty())
    return invalid_argument("unexpected argument '{}'; 'tensorfold {} --help' shows what is expected",
                            words[0], entry.info.name);
  return {};
}

Status check_arguments(const Entry& entry) {
  for (const ParsedFlag& parsed : entry.flags)
    if (parsed.flag.is_argument && parsed.flag.is_required && !parsed.is_given)
      return invalid_argument("'tensorfold {0}' needs {1}; 'tensorfold {0} --help' explains it",
                              entry.info.name, parsed.flag.name);
  return {};
}

/// The commands below `prefix`, where the words ended at a group such as `bench`.
Status missing_subcommand(const Entries& entries, const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : entries)
    if (entry->info.name.starts_with(prefix + " "))
      names.push_back(entry->info.name.substr(prefix.size() + 1));
  return invalid_argument("'tensorfold {}' needs one of: {}", prefix, fmt::join(names, ", "));
}

// Running.

std::vector<CommandInfo> infos_of(const Entries& entries) {
  std::vector<CommandInfo> infos;
  for (const auto& entry : entries) infos.push_back(entry->info);
  return infos;
}

std::string help_of(const Entry& entry) {
  std::vector<Flag> flags;
  for (const ParsedFlag& parsed : entry.flags) flags.push_back(parsed.flag);
  return command_help(entry.info, flags);
}

Status run_entry(const Entries& entries, Entry& entry) {
  const bool is_help = std::any_of(entry.flags.begin(), entry.flags.end(), [](const ParsedFlag& parsed) {
    return parsed.flag.name == "help" && parsed.is_given;
  });
  if (is_help) return fmt::print("{}", help_of(entry)), Status();
  TF_RETURN_IF_ERROR(check_extra_words(entry));
  TF_RETURN_IF_ERROR(check_arguments(entry));
  TF_ASSIGN_OR_RETURN(const FileValues file, find_config_file(entries, entry));
  TF_RETURN_IF_ERROR(apply_flags(entry, file));
  for (const auto& [name, level] : kLogLevels)
    if (entry.log_level == name) set_log_level(level);
  return entry.command->run();
}

/// The innermost command that the words chose; null at the root or at a group.
Entry* chosen_entry(const Entries& entries, CLI::App& root, std::string& path) {
  CLI::App* app = &root;
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    path += (path.empty() ? "" : " ") + app->get_name();
  }
  for (const auto& entry : entries)
    if (entry->app == app) return entry.get();
  return nullptr;
}

Status parse_and_run(int argc, const char* const* argv) {
  Entries entries;
  for (auto& command : make_commands()) entries.push_back(make_entry(std::move(command)));
  CLI::App root;
  root.set_help_flag();
  root.allow_extras();
  root.require_subcommand(0, 1);
  bool wants_help = false, wants_version = false;
  root.add_flag("--help,-h", wants_help);
  root.add_flag("--version", wants_version);
  for (const auto& entry : entries) entry->app = add_app(root, entry->info.name);
  for (const auto& entry : entries)
    for (ParsedFlag& parsed : entry->flags) add_option(*entry->app, parsed);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return invalid_argument("{}", error.what());
  }
  std::string path;
  Entry* entry = chosen_entry(entries, root, path);
  // Words before the command: it was another that was meant.
  if (const std::vector<std::string> before = root.remaining(); !path.empty() && !before.empty()) {
    if (before[0].starts_with("-"))
      return invalid_argument("unknown option {} before '{}'; 'tensorfold --help' explains the use",
                              before[0], path);
    return unknown_command(entries, before[0]);
  }
  if (entry != nullptr) return run_entry(entries, *entry);
  if (wants_version) return fmt::print("tensorfold {}\n", TENSORFOLD_VERSION), Status();
  if (!path.empty()) return missing_subcommand(entries, path);
  const std::vector<std::string> words = root.remaining();
  if (wants_help || (words.empty() && argc <= 1))
    return fmt::print("{}", program_help(infos_of(entries))), Status();
  if (words[0].starts_with("-"))
    return invalid_argument("unknown option {}; 'tensorfold --help' explains the use", words[0]);
  return unknown_command(entries, words[0]);
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
    status = parse_and_run(argc, argv);
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
