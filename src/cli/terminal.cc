// See terminal.h. poll(2) and read(2) rather than std::cin, because a wait must end when a signal comes, also
// one that came just before the wait began: the handler leaves a byte in a pipe, which ends the poll.
#include "cli/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace tensorfold {
namespace {

/// The handler may run on any thread.
std::atomic<bool> interrupt_seen{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only use lock-free atomics");
struct sigaction saved_action;
/// Read and write end; -1 without an InterruptGuard, which poll() passes over.
int wake_pipe[2] = {-1, -1};

void on_interrupt(int) {
  const int saved_errno = errno;
  interrupt_seen = true;
  // A full pipe wakes as well as one byte more.
  [[maybe_unused]] const ssize_t ignored = write(wake_pipe[1], "", 1);
  errno = saved_errno;
}

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP};
struct sigaction saved_stop_actions[std::size(kStopSignals)];
std::atomic<bool> stop_seen{false};

void on_stop(int) { stop_seen = true; }

/// Waits for input. False: for an interrupt.
bool wait_for_input() {
  while (!interrupt_seen) {
    pollfd waits[] = {{STDIN_FILENO, POLLIN, 0}, {wake_pipe[0], POLLIN, 0}};
    if (poll(waits, 2, -1) <= 0) continue;
    // A byte may outlive the interrupt it came with. The flag is set before its byte is written, so one that
    // is new is seen by the loop.
    char bytes[64];
    if (waits[1].revents == 0) return true;
    [[maybe_unused]] const ssize_t ignored = read(wake_pipe[0], bytes, sizeof(bytes));
  }
  return false;
}

/// Bytes that were read beyond the last line.
std::string& pending_input() {
  static std::string pending;
  return pending;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  TF_CHECK(pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe for Ctrl-C");
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, &saved_action);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &saved_action, nullptr);
  for (int& end : wake_pipe) close(std::exchange(end, -1));
}

bool InterruptGuard::take_interrupt() { return interrupt_seen.exchange(false); }

StopGuard::StopGuard() {
  stop_seen = false;
  struct sigaction action = {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;  // whoever writes is not to see a short write for it
  for (size_t i = 0; i < std::size(kStopSignals); ++i) {
    sigaction(kStopSignals[i], nullptr, &saved_stop_actions[i]);
    if (saved_stop_actions[i].sa_handler != SIG_IGN) sigaction(kStopSignals[i], &action, nullptr);
  }
}

StopGuard::~StopGuard() {
  for (size_t i = 0; i < std::size(kStopSignals); ++i)
    sigaction(kStopSignals[i], &saved_stop_actions[i], nullptr);
}

Status StopGuard::status() const {
  return stop_seen ? Status(StatusCode::kCancelled, "stopped by a signal") : Status();
}

LineEvent read_line(std::string& line) {
  std::string& pending = pending_input();
  for (;;) {
    if (const size_t end = pending.find('\n'); end != std::string::npos) {
      line = pending.substr(0, end);
      pending.erase(0, end + 1);
      return LineEvent::kLine;
    }
    if (!wait_for_input()) return LineEvent::kInterrupt;
    char buffer[4096];
    const ssize_t size = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (size > 0) {
      pending.append(buffer, static_cast<size_t>(size));
      continue;
    }
    if (size < 0 && errno == EINTR) continue;
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
