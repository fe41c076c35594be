// Printing of views (see base/view.h).
#include "base/view.h"

namespace tensorfold {

std::string to_string(const View& view) {
  std::string out(dtype_name(view.dtype));
  out += " [";
  for (int i = 0; i < view.rank; ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(view.dims[i]);
  }
  return out + "]";
}

}  // namespace tensorfold
