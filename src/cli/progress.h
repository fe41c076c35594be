// How far a load or another long piece of work has come: a bar on a terminal, a few plain lines elsewhere,
// nothing where it is over in a moment.
#pragma once

#include <string>

#include "engine/loaded_model.h"

namespace tensorfold {

/// A callback that writes to standard error: "loading NAME ...". Its last call removes the bar.
LoadProgress show_progress(const std::string& name, const std::string& verb = "loading");

/// Whether standard error, standard output or standard input is a terminal.
bool is_stderr_terminal();
bool is_stdout_terminal();
bool is_stdin_terminal();

}  // namespace tensorfold
