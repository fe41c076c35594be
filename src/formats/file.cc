// POSIX behind formats/file.h.
#include "formats/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace tensorfold {
namespace {

Status system_error(const std::string& path, std::string_view action, int error) {
  const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kIo;
  return make_error(code, "{}: cannot {}: {}", path, action, std::strerror(error));
}

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(std::string path, Descriptor descriptor, int64_t size_bytes)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), size_bytes_(size_bytes) {}

  const std::string& path() const override { return path_; }
  int64_t size_bytes() const override { return size_bytes_; }

 protected:
  Result<int64_t> read_some(int64_t offset, std::span<std::byte> out) const override {
    while (true) {
      const ssize_t count = ::pread(descriptor_.get(), out.data(), out.size(), offset);
      if (count >= 0) return static_cast<int64_t>(count);
      if (errno != EINTR) return system_error(path_, fmt::format("read at byte {}", offset), errno);
    }
  }

 private:
  std::string path_;
  Descriptor descriptor_;
  int64_t size_bytes_;
};

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(std::string path, Descriptor descriptor)
      : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  Status append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t count = ::write(descriptor_.get(), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return system_error(path_, "write", errno);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return {};
  }
  Status sync() override {
    return ::fsync(descriptor_.get()) == 0 ? Status() : system_error(path_, "sync", errno);
  }

 private:
  std::string path_;
  Descriptor descriptor_;
};

class PosixFileSystem : public FileSystem {
 public:
  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) const override {
    Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    if (!descriptor.is_open() || ::fstat(descriptor.get(), &info) != 0)
      return system_error(path, "open", errno);
    if (!S_ISREG(info.st_mode)) return make_error(StatusCode::kIo, "{}: is not a regular file", path);
    return std::unique_ptr<ReadableFile>(
        std::make_unique<PosixReadableFile>(path, std::move(descriptor), static_cast<int64_t>(info.st_size)));
  }

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) const override {
    Descriptor descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!descriptor.is_open()) return system_error(path, "create", errno);
    return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(path, std::move(descriptor)));
  }

  Status rename(const std::string& from, const std::string& to) const override {
    if (::rename(from.c_str(), to.c_str()) != 0) return system_error(from, "rename to " + to, errno);
    const std::string folder = std::filesystem::path(to).parent_path().string();
    Descriptor descriptor(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!descriptor.is_open() || ::fsync(descriptor.get()) != 0) return system_error(folder, "sync", errno);
    return {};
  }

  Status remove(const std::string& path) const override {
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
    return system_error(path, "remove", errno);
  }

  Result<std::vector<std::string>> list(const std::string& folder) const override {
    std::error_code error;
    std::vector<std::string> names;
    std::filesystem::directory_iterator it(folder, error);
    for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return system_error(folder, "list", error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  bool is_folder(const std::string& path) const override {
    std::error_code error;
    return std::filesystem::is_directory(path, error);
  }
  bool is_file(const std::string& path) const override {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error);
  }
};

}  // namespace

Status ReadableFile::read(int64_t offset, std::span<std::byte> out) const {
  TF_CHECK(offset >= 0);
  size_t done = 0;
  while (done < out.size()) {
    const int64_t place = offset + static_cast<int64_t>(done);
    TF_ASSIGN_OR_RETURN(const int64_t count, read_some(place, out.subspan(done)));
    if (count == 0) {
      return corrupt("{}: ends at byte {}, expected at least {} (it had {} when it was opened)", path(),
                     place, offset + static_cast<int64_t>(out.size()), size_bytes());
    }
    done += static_cast<size_t>(count);
  }
  return {};
}

const FileSystem& posix_file_system() {
  static const PosixFileSystem* const file_system = new PosixFileSystem;
  return *file_system;
}

Result<std::string> read_text_file(const FileSystem& files, const std::string& path, int64_t max_bytes) {
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.open(path));
  if (file->size_bytes() > max_bytes) {
    return corrupt("{}: has {} bytes, expected at most {}", path, file->size_bytes(), max_bytes);
  }
  std::string text(static_cast<size_t>(file->size_bytes()), '\0');
  TF_RETURN_IF_ERROR(file->read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

std::string join_path(std::string_view folder, std::string_view name) {
  std::string path(folder);
  if (!path.empty() && path.back() != '/') path += '/';
  return path.append(name);
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace tensorfold
