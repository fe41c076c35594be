// base/log.h over spdlog, which this file alone knows.
#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

namespace tensorfold {
namespace {

std::atomic<LogLevel> level_now{LogLevel::kInfo};

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = std::make_shared<spdlog::logger>("tensorfold", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
    made->set_level(spdlog::level::debug);
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { level_now.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return level_now.load(std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view line) {
  if (level < log_level() || level == LogLevel::kOff) return;
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err};
  logger().log(kLevels[static_cast<int>(level)], spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace tensorfold
