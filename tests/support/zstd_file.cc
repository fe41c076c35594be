// tests/support/zstd_file.h over libzstd's streaming decompressor: published files do not always carry their
// size.
#include "tests/support/zstd_file.h"

#include <zstd.h>

#include <fstream>
#include <memory>
#include <sstream>

namespace tensorfold {

Result<std::string> read_zstd_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("{}: cannot be opened", path);
  std::ostringstream stream;
  stream << file.rdbuf();
  const std::string compressed = std::move(stream).str();

  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> decompressor(ZSTD_createDStream(),
                                                                              ZSTD_freeDStream);
  ZSTD_inBuffer input{compressed.data(), compressed.size(), 0};
  std::string content;
  std::string chunk(ZSTD_DStreamOutSize(), '\0');
  size_t expects_more = 1;
  while (input.pos < input.size) {
    ZSTD_outBuffer output{chunk.data(), chunk.size(), 0};
    expects_more = ZSTD_decompressStream(decompressor.get(), &output, &input);
    if (ZSTD_isError(expects_more)) return corrupt("{}: {}", path, ZSTD_getErrorName(expects_more));
    content.append(chunk.data(), output.pos);
  }
  if (expects_more != 0) return corrupt("{}: ends inside a frame", path);
  return content;
}

}  // namespace tensorfold
