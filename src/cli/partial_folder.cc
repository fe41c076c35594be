// See partial_folder.h.
#include "cli/partial_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "formats/file.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

/// Absolute and without a slash at its end, so that a name beside it is its name and more. A link to an empty
/// folder is the folder: a rename would replace the link otherwise.
Result<fs::path> full_path(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::weakly_canonical(fs::absolute(folder, error), error);
  if (error) return make_error(StatusCode::kIo, "{}: {}", folder, error.message());
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  return path;
}

}  // namespace

Result<PartialFolder> PartialFolder::create(const std::string& folder) {
  TF_ASSIGN_OR_RETURN(const fs::path full, full_path(folder));
  std::error_code error;
  if (fs::exists(full, error) && !(fs::is_directory(full, error) && fs::is_empty(full, error)))
    return invalid_argument("{} is there already; choose another folder or remove it", folder);
  PartialFolder partial;
  partial.folder_ = full.string();
  for (fs::path above = full.parent_path(); !fs::exists(above, error); above = above.parent_path())
    partial.above_.push_back(above.string());
  const std::string path = fmt::format("{}.partial-{}", partial.folder_, getpid());
  partial.path_ = path;
  fs::create_directories(full.parent_path(), error);
  if (error || !fs::create_directory(path, error)) {
    partial.path_.clear();  // one that is there is somebody else's
    return make_error(StatusCode::kIo, "cannot create {}: {}", path,
                      error ? error.message() : "it is there already");
  }
  return partial;
}

PartialFolder::PartialFolder(PartialFolder&& other) noexcept
    : folder_(std::move(other.folder_)),
      path_(std::exchange(other.path_, {})),
      above_(std::exchange(other.above_, {})) {}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  for (const std::string& above : above_)
    if (!fs::remove(above, ignored)) break;  // somebody else uses it by now
}

Status PartialFolder::finish() {
  TF_RETURN_IF_ERROR(posix_file_system().rename(path_, folder_));  // also over an empty folder
  path_.clear();
  above_.clear();
  return {};
}

}  // namespace tensorfold
