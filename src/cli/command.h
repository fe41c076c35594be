// What a command of the program is; one file each. command_line.cc lists them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "cli/flags.h"

namespace tensorfold {

/// How a command appears in help.
struct CommandInfo {
  std::string name;                         ///< "serve", "demo create".
  std::string summary;                      ///< One line.
  std::string details;                      ///< Some sentences more, with examples; may be empty.
  LogLevel log_level = LogLevel::kWarning;  ///< Unless --log-level says otherwise.
};

/// One command: declares its flags, then runs once.
class Command {
 public:
  virtual ~Command() = default;
  virtual CommandInfo info() const = 0;
  virtual void add_flags(Flags& flags) = 0;
  /// Prints results on standard output. The Status decides the exit code (exit_code()).
  virtual Status run() = 0;
};

std::unique_ptr<Command> make_serve_command();
std::unique_ptr<Command> make_run_command();
std::unique_ptr<Command> make_info_command();
std::unique_ptr<Command> make_inspect_command();
std::unique_ptr<Command> make_models_command();
std::unique_ptr<Command> make_doctor_command();
std::unique_ptr<Command> make_demo_command();
std::unique_ptr<Command> make_demo_create_command();
std::unique_ptr<Command> make_eval_command();
std::unique_ptr<Command> make_bench_decode_command();
std::unique_ptr<Command> make_bench_prefill_command();
std::unique_ptr<Command> make_bench_batch_command();
std::unique_ptr<Command> make_bench_drafts_command();
std::unique_ptr<Command> make_bench_verify_command();

/// All commands, in the order of the help.
std::vector<std::unique_ptr<Command>> make_commands();

/// 0 done, 1 failed, 2 usage, 3 model not found or not supported, 4 not enough memory, 5 address in use.
int exit_code(const Status& status);

/// The program: parses, runs, reports an error as one line on standard error. Returns the exit code.
int run_command_line(int argc, const char* const* argv);

}  // namespace tensorfold
