// The one file that is compiled with these paths: everything else is the same, for ccache too, wherever the
// tree lies.
#include "tests/support/test_paths.h"

namespace tensorfold {

const char kSourceDir[] = TENSORFOLD_SOURCE_DIR;
const char kSharedData[] = TENSORFOLD_SHARED_DATA;

}  // namespace tensorfold
