// The words of the command line: which command they begin with, and which of its flags and arguments they
// give. Values are taken as texts; what they mean is flags.h's business.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/flags.h"

namespace tensorfold {

/// A flag or argument and what the command line said of it.
struct ParsedFlag {
  Flag flag;
  std::string text = {};
  bool is_given = false;
};

/// The command that the first words name, and what follows it.
struct ChosenCommand {
  std::string name;  ///< "demo create".
  std::span<const std::string> rest;
};

/// `names` are all commands: the longest of one or two words that is there counts. kInvalidArgument where the
/// words begin with no command, or end at a group ("bench"); the message names what was meant, or what there
/// is.
Result<ChosenCommand> choose_command(std::span<const std::string> words, std::span<const std::string> names);

/// Whether the words ask for help: --help or -h before a "--".
bool wants_help(std::span<const std::string> words);

/// Reads the words after `command` into `flags`:
///   --name VALUE, --name=VALUE   a flag; the value may begin with a dash, but is no flag of the command
///   --name                       a switch ("true"); --name=off too
///   --                           whatever follows is an argument
///   anything else                an argument, in their order. Also what begins with a dash, but has a space,
///   or
///                                no letter after its dashes: a text or a number and no misspelt flag
/// kInvalidArgument: a flag that is none (with the nearest), is there twice or lacks its value; an argument
/// too many or, of the required, too few. `names` as above, for the message.
Status parse_words(const ChosenCommand& command, std::span<const std::string> names,
                   std::vector<ParsedFlag>& flags);

/// "; did you mean --threads?", or "" where no candidate is near `word` nor begins with it.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates,
                         std::string_view prefix);

}  // namespace tensorfold
