// A folder that appears complete or not at all: it is filled under another name beside its own and renamed at
// the end. What goes into it is its user's business.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace tensorfold {

/// Owned by whoever fills it; one thread.
class PartialFolder {
 public:
  /// Makes FOLDER.partial-PID and the folders above it that are missing. kInvalidArgument where FOLDER is
  /// there and not empty, kIo where the system refuses.
  static Result<PartialFolder> create(const std::string& folder);

  PartialFolder(PartialFolder&& other) noexcept;
  PartialFolder& operator=(PartialFolder&&) = delete;
  /// Without finish(), removes everything that create() and its user made.
  ~PartialFolder();

  /// Where to write.
  const std::string& path() const { return path_; }

  /// Renames it to FOLDER in one step. Its files must be synced.
  Status finish();

 private:
  PartialFolder() = default;

  std::string folder_;
  std::string path_;                ///< "" once it is finished or moved from.
  std::vector<std::string> above_;  ///< Folders that were missing, innermost first.
};

}  // namespace tensorfold
