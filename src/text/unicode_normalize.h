// Normal forms C, D, KC and KD as Hugging Face's tokenizers compute them: with the data of Unicode 9, so that
// characters assigned later pass through unchanged and nothing is reordered or composed across them.
#pragma once

#include <string>
#include <string_view>

namespace tensorfold {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// Puts the normal form of `text` (valid UTF-8) into `out` and returns true, or returns false, leaving `out`
/// in an unspecified state, where text is already normal.
bool normalize_unicode(std::string_view text, NormalForm form, std::string& out);

}  // namespace tensorfold
