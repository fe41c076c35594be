// Writes one safetensors file as a stream: the header first, from declared tensors, then their data in that
// order. Used by `demo create`, `pack` and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "formats/file.h"

namespace tensorfold {

/// A tensor to be written.
struct TensorDeclaration {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// A file in the making. Data go to `path` + ".partial"; finish() makes it `path` in one step, so `path` is
/// complete or absent, and destroying an unfinished writer removes what it wrote. One thread.
class SafetensorsWriter {
 public:
  /// Writes the header. Declarations with equal or reserved names, negative dimensions or a size that is no
  /// whole number of bytes are kInvalidArgument. `files` must outlive the writer.
  static Result<SafetensorsWriter> create(const std::string& path,
                                          const std::vector<TensorDeclaration>& tensors,
                                          const std::map<std::string, std::string>& metadata,
                                          const FileSystem& files = posix_file_system());
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  /// Adds the next bytes of a tensor. Tensors come in the order of their declaration, each in as many pieces
  /// as the caller likes; another name, or more bytes than declared, is a caller bug (TF_CHECK).
  Status append(std::string_view name, std::span<const std::byte> bytes);

  /// Syncs and renames. Every declared byte must have been appended (TF_CHECK).
  Status finish();

 private:
  struct Pending {
    std::string name;
    int64_t bytes = 0;  ///< Still to come.
  };
  SafetensorsWriter() = default;
  void skip_complete();

  const FileSystem* files_ = nullptr;
  std::string path_;
  std::unique_ptr<WritableFile> file_;  ///< Null once finished, or moved from.
  std::vector<Pending> pending_;
  size_t next_ = 0;  ///< First tensor with bytes to come.
};

}  // namespace tensorfold
