// Regular expressions in Oniguruma's Ruby syntax, which tokenizer.json is written in, respelled for PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace tensorfold {

/// A PCRE2 pattern (options UTF and UCP, newline LF) that matches what Oniguruma 6.9.10 matches with
/// `pattern`. Character properties are those of Unicode 16: PCRE2's own tables are older and get the
/// difference spelled out. Groups do not capture. Constructs whose meaning differs and that cannot be
/// respelled (back-references, \K, \R, \X, inline options other than at the start, extended mode,
/// multi-character case folding) are kUnsupported or, for the last, not done; a malformed pattern is
/// kCorrupt. Messages begin with "pattern ".
Result<std::string> oniguruma_to_pcre2(std::string_view pattern);

}  // namespace tensorfold
