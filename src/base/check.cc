// The one place where a broken invariant ends the program.
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tensorfold {

void check_failed(const char* file, int line, const char* expression, std::string_view detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s", file, line, expression);
  if (!detail.empty()) std::fprintf(stderr, " (%.*s)", static_cast<int>(detail.size()), detail.data());
  std::fputc('\n', stderr);
  std::abort();
}

}  // namespace tensorfold
