// The texts of --help.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace tensorfold {

/// All commands with their summaries.
std::string program_help(std::span<const CommandInfo> commands);

/// One command: usage, arguments, options with their defaults.
std::string command_help(const CommandInfo& command, std::span<const Flag> flags);

}  // namespace tensorfold
