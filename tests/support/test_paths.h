// Where the tree lies, for tests that read files of it.
#pragma once

namespace tensorfold {

extern const char kSourceDir[];  ///< The root of the tree.
extern const char
    kSharedData[];  ///< Published tokenizers, templates and configs; tests skip where it does not exist.

}  // namespace tensorfold
