// See progress.h.
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "cli/flags.h"

namespace tensorfold {
namespace {

using Clock = std::chrono::steady_clock;

/// Shared by the copies of one callback; the loading thread only.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)), is_terminal_(is_stderr_terminal()) {}

  void update(int64_t done_bytes, int64_t total_bytes) {
    const bool is_end = done_bytes >= total_bytes;
    const Clock::time_point now = Clock::now();
    // Small models would only flicker.
    if (!shown_ && (is_end || now - start_ < std::chrono::milliseconds(300))) return;
    if (!is_end && now - last_ < interval()) return;
    shown_ = true;
    last_ = now;
    is_terminal_ ? draw_bar(done_bytes, total_bytes, is_end) : print_line(done_bytes, total_bytes);
  }

 private:
  Clock::duration interval() const {
    return is_terminal_ ? Clock::duration(std::chrono::milliseconds(100))
                        : Clock::duration(std::chrono::seconds(5));
  }

  void draw_bar(int64_t done_bytes, int64_t total_bytes, bool is_end) const {
    constexpr int kCells = 30;
    const int cells = static_cast<int>(kCells * done_bytes / std::max<int64_t>(1, total_bytes));
    fmt::print(stderr, "\r{} [{:<{}}] {} of {} ", what_, std::string(static_cast<size_t>(cells), '#'), kCells,
               shown_bytes(done_bytes), shown_bytes(total_bytes));
    if (is_end) fmt::print(stderr, "\r\x1b[K");  // the bar has served; the line is for what comes
    std::fflush(stderr);
  }

  void print_line(int64_t done_bytes, int64_t total_bytes) const {
    fmt::print(stderr, "{}: {} of {}\n", what_, shown_bytes(done_bytes), shown_bytes(total_bytes));
  }

  std::string what_;
  bool is_terminal_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace

LoadProgress show_progress(const std::string& name, const std::string& verb) {
  auto progress = std::make_shared<Progress>(verb + " " + name);
  return [progress](int64_t done_bytes, int64_t total_bytes) { progress->update(done_bytes, total_bytes); };
}

bool is_stderr_terminal() { return isatty(STDERR_FILENO) == 1; }
bool is_stdout_terminal() { return isatty(STDOUT_FILENO) == 1; }
bool is_stdin_terminal() { return isatty(STDIN_FILENO) == 1; }

}  // namespace tensorfold
