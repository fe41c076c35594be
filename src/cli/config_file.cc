// See config_file.h. The only file that includes CLI11, which reads TOML as far as flags need it.
#include "cli/config_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <algorithm>
#include <fstream>

#include "cli/words.h"

namespace tensorfold {
namespace {

/// `command` "" stands for the top of the file, where any command's flags may be.
Status check_name(const std::string& path, const std::string& command, const std::string& flag,
                  std::span<const CommandFlags> commands) {
  std::vector<std::string> flags, names;
  for (const CommandFlags& known : commands) {
    names.push_back(known.command);
    if (command.empty() || command == known.command)
      flags.insert(flags.end(), known.flags.begin(), known.flags.end());
  }
  if (flags.empty())
    return invalid_argument("{}: [{}] is no command{}", path, command, did_you_mean(command, names, ""));
  if (std::find(flags.begin(), flags.end(), flag) != flags.end()) return {};
  return invalid_argument("{}: '{}' is no flag of {}{}", path, flag,
                          command.empty() ? "any command" : "'tensorfold " + command + "'",
                          did_you_mean(flag, flags, ""));
}

}  // namespace

Result<FileValues> read_config_file(const std::string& path, std::span<const CommandFlags> commands) {
  std::ifstream file(path);
  if (!file.good()) return invalid_argument("the config file {} cannot be read", path);
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(file);
  } catch (const CLI::Error&) {
    return invalid_argument("{} is no TOML file", path);
  }
  FileValues values;
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of a section's ends
    const std::string command = fmt::format("{}", fmt::join(item.parents, " "));
    TF_RETURN_IF_ERROR(check_name(path, command, item.name, commands));
    if (item.inputs.size() != 1) return invalid_argument("{}: '{}' must have one value", path, item.name);
    values[command.empty() ? item.name : command + "." + item.name] = item.inputs[0];
  }
  return values;
}

}  // namespace tensorfold
