// See terminal.h. read(2) rather than std::cin, because it returns when a signal comes.
#include "cli/terminal.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tensorfold {
namespace {

volatile sig_atomic_t interrupt_seen = 0;
struct sigaction saved_action;

void on_interrupt(int) { interrupt_seen = 1; }

/// Bytes that were read beyond the last line.
std::string& pending_input() {
  static std::string pending;
  return pending;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a waiting read() returns
  sigaction(SIGINT, &action, &saved_action);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &saved_action, nullptr); }

bool InterruptGuard::take_interrupt() {
  const bool seen = interrupt_seen != 0;
  interrupt_seen = 0;
  return seen;
}

LineEvent read_line(std::string& line) {
  std::string& pending = pending_input();
  for (;;) {
    if (const size_t end = pending.find('\n'); end != std::string::npos) {
      line = pending.substr(0, end);
      pending.erase(0, end + 1);
      return LineEvent::kLine;
    }
    char buffer[4096];
    const ssize_t size = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (size > 0) {
      pending.append(buffer, static_cast<size_t>(size));
      continue;
    }
    if (size < 0 && errno == EINTR) return LineEvent::kInterrupt;
    line = std::exchange(pending, {});
    return line.empty() ? LineEvent::kEnd : LineEvent::kLine;
  }
}

std::string read_all_input() {
  std::string text = std::exchange(pending_input(), {});
  char buffer[65536];
  for (;;) {
    const ssize_t size = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
    text.append(buffer, static_cast<size_t>(size));
  }
}

}  // namespace tensorfold
