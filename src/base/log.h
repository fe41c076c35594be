// The program's log: one line per event on standard error, filtered by level. Never called per token.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace tensorfold {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// Lines below this level are dropped. Default kInfo. Thread-safe.
void set_log_level(LogLevel level);
LogLevel log_level();

/// Writes one line; safe from any thread.
void log_line(LogLevel level, std::string_view line);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kDebug) log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kInfo) log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kWarning)
    log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kError) log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tensorfold
