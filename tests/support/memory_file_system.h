// A file system in memory that can be broken on purpose: short reads, a read or write that fails at the n-th
// call, files cut short while open. Behind the interface of formats/file.h. Several threads may read;
// everything else is for one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/file.h"

namespace tensorfold {

/// Faults of a MemoryFileSystem; 0 means never. Calls are counted over all of its files, from 1.
struct FileFaults {
  int64_t max_read_bytes = 0;  ///< One read attempt returns at most so many.
  int fail_read_at = 0;        ///< This read attempt is an I/O error.
  int fail_append_at = 0;      ///< This append writes half of its bytes, then finds no space.
  bool fail_sync = false;
  bool fail_rename = false;
};

class MemoryFileSystem : public FileSystem {
 public:
  /// Adds or replaces a file. Folders exist where files are.
  void put(const std::string& path, std::string content) {
    contents_[path] = std::make_shared<std::string>(std::move(content));
  }
  bool has(const std::string& path) const { return contents_.contains(path); }
  const std::string& content(const std::string& path) const { return *contents_.at(path); }
  /// Shortens a file also for those who have it open.
  void truncate(const std::string& path, size_t size) { contents_.at(path)->resize(size); }

  mutable FileFaults faults;
  mutable std::atomic<int> num_reads = 0;
  mutable int num_appends = 0;

  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) const override {
    const auto it = contents_.find(path);
    if (it == contents_.end()) return not_found("{}: cannot open: no such file", path);
    return std::unique_ptr<ReadableFile>(std::make_unique<Readable>(*this, path, it->second));
  }
  Result<std::unique_ptr<WritableFile>> create(const std::string& path) const override {
    auto content = std::make_shared<std::string>();
    contents_[path] = content;
    return std::unique_ptr<WritableFile>(std::make_unique<Writable>(*this, path, std::move(content)));
  }
  Status rename(const std::string& from, const std::string& to) const override {
    if (faults.fail_rename) return make_error(StatusCode::kIo, "{}: cannot rename: injected", from);
    contents_[to] = contents_.at(from);
    contents_.erase(from);
    return {};
  }
  Status remove(const std::string& path) const override {
    contents_.erase(path);
    return {};
  }
  Result<std::vector<std::string>> list(const std::string& folder) const override {
    std::set<std::string> names;
    const std::string prefix = folder + "/";
    for (const auto& [path, content] : contents_) {
      if (path.starts_with(prefix))
        names.insert(path.substr(prefix.size(), path.find('/', prefix.size()) - prefix.size()));
    }
    if (names.empty()) return not_found("{}: cannot list: no such folder", folder);
    return std::vector<std::string>(names.begin(), names.end());
  }
  bool is_folder(const std::string& path) const override { return list(path).ok(); }
  bool is_file(const std::string& path) const override { return has(path); }

 private:
  using Content = std::shared_ptr<std::string>;

  class Readable : public ReadableFile {
   public:
    Readable(const MemoryFileSystem& owner, std::string path, Content content)
        : owner_(owner),
          path_(std::move(path)),
          content_(std::move(content)),
          size_bytes_(content_->size()) {}
    const std::string& path() const override { return path_; }
    int64_t size_bytes() const override { return size_bytes_; }

   protected:
    Result<int64_t> read_some(int64_t offset, std::span<std::byte> out) const override {
      if (++owner_.num_reads == owner_.faults.fail_read_at) {
        return make_error(StatusCode::kIo, "{}: cannot read at byte {}: injected", path_, offset);
      }
      if (offset >= static_cast<int64_t>(content_->size())) return int64_t{0};
      int64_t count = std::min<int64_t>(out.size(), content_->size() - offset);
      if (owner_.faults.max_read_bytes > 0) count = std::min(count, owner_.faults.max_read_bytes);
      std::memcpy(out.data(), content_->data() + offset, count);
      return count;
    }

   private:
    const MemoryFileSystem& owner_;
    std::string path_;
    Content content_;
    int64_t size_bytes_;
  };

  class Writable : public WritableFile {
   public:
    Writable(const MemoryFileSystem& owner, std::string path, Content content)
        : owner_(owner), path_(std::move(path)), content_(std::move(content)) {}
    Status append(std::span<const std::byte> bytes) override {
      const bool fails = ++owner_.num_appends == owner_.faults.fail_append_at;
      content_->append(reinterpret_cast<const char*>(bytes.data()), fails ? bytes.size() / 2 : bytes.size());
      return fails ? make_error(StatusCode::kIo, "{}: cannot write: injected", path_) : Status();
    }
    Status sync() override {
      return owner_.faults.fail_sync ? make_error(StatusCode::kIo, "{}: cannot sync: injected", path_)
                                     : Status();
    }

   private:
    const MemoryFileSystem& owner_;
    std::string path_;
    Content content_;
  };

  mutable std::map<std::string, Content> contents_;
};

}  // namespace tensorfold
