// Reads the zstd-compressed data of ../shared/data.
#pragma once

#include <string>

#include "base/status.h"

namespace tensorfold {

/// The decompressed content of a file. kNotFound where it cannot be opened, kCorrupt where it is no zstd.
Result<std::string> read_zstd_file(const std::string& path);

}  // namespace tensorfold
