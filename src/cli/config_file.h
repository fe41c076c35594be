// The TOML file with values for flags, at its top for all commands or in a section for one.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tensorfold {

/// A command and the names of its flags.
struct CommandFlags {
  std::string command;
  std::vector<std::string> flags;
};

/// "serve.port" or "port" -> text.
using FileValues = std::map<std::string, std::string>;

/// Reads the file. kInvalidArgument: it cannot be read, is no TOML, or names a flag or command that is none.
Result<FileValues> read_config_file(const std::string& path, std::span<const CommandFlags> commands);

}  // namespace tensorfold
