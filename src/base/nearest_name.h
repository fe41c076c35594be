// Which known name somebody probably meant: for "did you mean ...?" in messages about flags, fields and commands.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tensorfold {

/// The candidate with the fewest insertions, deletions, substitutions and swaps of neighbours from `word`, or "" when
/// even that one differs in more than a third of its letters (at least one always may). The first of equals wins.
std::string nearest_name(std::string_view word, std::span<const std::string> candidates);

}  // namespace tensorfold
