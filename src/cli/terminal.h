// Lines from standard input and the Ctrl-C key, for the chat: an interrupt stops a reply, not the program.
// And stopping for commands that have something to put away first.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"

namespace tensorfold {

/// While alive, SIGINT sets a flag instead of ending the program. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Whether Ctrl-C was pressed since the last call.
  bool take_interrupt();
};

/// While alive, SIGINT, SIGTERM and SIGHUP set a flag instead of ending the program, except those that are
/// ignored (nohup). One at a time, and not with an InterruptGuard.
class StopGuard {
 public:
  StopGuard();
  ~StopGuard();
  StopGuard(const StopGuard&) = delete;
  StopGuard& operator=(const StopGuard&) = delete;

  /// kCancelled once one of the signals came. Thread-safe.
  Status status() const;
};

/// What read_line() met.
enum class LineEvent { kLine, kInterrupt, kEnd };

/// The next line of standard input without its newline. With an InterruptGuard, a Ctrl-C that
/// take_interrupt() has not taken returns kInterrupt.
LineEvent read_line(std::string& line);

/// Everything on standard input up to its end.
std::string read_all_input();

}  // namespace tensorfold
