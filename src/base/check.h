// Broken invariants end the program with file, line and expression; never used for outside data.
#pragma once

#include <string_view>

namespace tensorfold {

/// Prints `file:line: check failed: expression (detail)` to standard error and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* expression, std::string_view detail = {});

}  // namespace tensorfold

/// TF_CHECK(condition[, detail]): holds in every build.
#define TF_CHECK(condition, ...)                                                                  \
  do {                                                                                            \
    if (!(condition)) [[unlikely]]                                                                \
      ::tensorfold::check_failed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__);      \
  } while (false)

/// TF_DCHECK: as TF_CHECK in debug builds, nothing (and no evaluation) where NDEBUG is defined.
#ifdef NDEBUG
#define TF_DCHECK(condition, ...) \
  do {                            \
  } while (false && (condition))
#else
#define TF_DCHECK(condition, ...) TF_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
