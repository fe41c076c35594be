// The one way this program touches checkpoint files: a small file system interface with a POSIX
// implementation. Tests put an in-memory and a faulty one (tests/support/memory_file_system.h) behind the
// same interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tensorfold {

/// An open file, read at any offset. Thread-safe: reads share no position.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;

  /// The path it was opened by, for messages.
  virtual const std::string& path() const = 0;

  /// Bytes the file had when it was opened.
  virtual int64_t size_bytes() const = 0;

  /// Fills `out` with the bytes from `offset` on, however many system calls that takes. kCorrupt when the
  /// file ends before (cut short while open), kIo when the system refuses; both name the file and the bytes.
  Status read(int64_t offset, std::span<std::byte> out) const;

 protected:
  /// One attempt, as pread(2): at least one byte, possibly fewer than asked; 0 only at the end of the file.
  virtual Result<int64_t> read_some(int64_t offset, std::span<std::byte> out) const = 0;
};

/// A file being written from its start. One thread. Destroying it closes it, whatever was written.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  /// Adds all bytes, or fails (kIo: no space, device error) having added some.
  virtual Status append(std::span<const std::byte> bytes) = 0;

  /// Returns when everything appended is on the device (fsync).
  virtual Status sync() = 0;
};

/// What checkpoint code needs of a file system. Thread-safe. Errors name the path: kNotFound where there is
/// no such file or folder, kIo otherwise.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Opens a regular file for reading.
  virtual Result<std::unique_ptr<ReadableFile>> open(const std::string& path) const = 0;

  /// Creates or empties a file.
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) const = 0;

  /// Renames a file over `to` in one step that survives a power cut (the folder is synced).
  virtual Status rename(const std::string& from, const std::string& to) const = 0;

  /// Removes a file. A file that is not there is no error.
  virtual Status remove(const std::string& path) const = 0;

  /// Names (not paths) of everything in a folder, sorted.
  virtual Result<std::vector<std::string>> list(const std::string& folder) const = 0;

  virtual bool is_folder(const std::string& path) const = 0;
  virtual bool is_file(const std::string& path) const = 0;
};

/// The machine's file system. Lives for ever.
const FileSystem& posix_file_system();

/// A whole file as text. kCorrupt when it has more than max_bytes: configs are small, and a wrong path is not
/// read into memory.
Result<std::string> read_text_file(const FileSystem& files, const std::string& path, int64_t max_bytes);

/// `folder` + '/' + `name`.
std::string join_path(std::string_view folder, std::string_view name);

/// What follows the last '/'.
std::string_view file_name(std::string_view path);

}  // namespace tensorfold
