// The search of hub/model_path.h.
#include "hub/model_path.h"

#include <vector>

namespace tensorfold {
namespace {

constexpr std::string_view kConfigName = "config.json";

/// One or two parts of [A-Za-z0-9._-], neither beginning with a dot: nothing that could leave a cache folder.
bool is_plain_name(std::string_view model) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  const size_t slash = model.find('/');
  for (std::string_view part :
       {model.substr(0, slash), slash == std::string_view::npos ? "x" : model.substr(slash + 1)}) {
    if (part.empty() || part.front() == '.' || part.find_first_not_of(kAllowed) != std::string_view::npos)
      return false;
  }
  return true;
}

/// Paths that were looked at, each with what was wrong.
class Search {
 public:
  explicit Search(const FileSystem& files) : files_(files) {}

  bool is_model_folder(const std::string& folder) {
    if (files_.is_file(join_path(folder, kConfigName))) return true;
    note(folder, files_.is_folder(folder) ? "has no config.json" : "no such folder");
    return false;
  }
  void note(std::string_view place, std::string_view problem) {
    tried_ += fmt::format("\n  {}: {}", place, problem);
  }
  const std::string& tried() const { return tried_; }
  const FileSystem& files() const { return files_; }

 private:
  const FileSystem& files_;
  std::string tried_;
};

/// CACHE/models--ORG--NAME/snapshots/COMMIT, the commit being what refs/main says; empty when there is none.
std::string find_snapshot(std::string_view cache, std::string_view repo, Search& search) {
  std::string name = "models--";
  for (char c : repo) name += c == '/' ? std::string("--") : std::string(1, c);
  const std::string repo_folder = join_path(cache, name);
  if (!search.files().is_folder(repo_folder)) {
    search.note(repo_folder, "no such folder");
    return {};
  }
  const std::string ref_path = join_path(repo_folder, "refs/main");
  constexpr int64_t kMaxRefBytes = 200;
  const Result<std::string> ref = read_text_file(search.files(), ref_path, kMaxRefBytes);
  if (!ref.ok()) {
    search.note(ref_path, "cannot be read, so which snapshot to take is not known");
    return {};
  }
  const std::string commit = ref->substr(0, ref->find_last_not_of(" \r\n") + 1);
  if (!is_plain_name(commit) || commit.find('/') != std::string::npos) {
    search.note(ref_path, "does not hold a commit");
    return {};
  }
  const std::string folder = join_path(join_path(repo_folder, "snapshots"), commit);
  return search.is_model_folder(folder) ? folder : std::string();
}

/// The last component, whatever slashes follow it.
std::string folder_name(std::string_view folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.remove_suffix(1);
  return std::string(file_name(folder));
}

}  // namespace

Result<ModelPath> resolve_model(std::string_view model, const ModelSearch& search, const FileSystem& files) {
  if (model.empty())
    return invalid_argument("MODEL is empty: expected a folder, a name in the cache or a repo id");
  Search places(files);
  const std::string folder(model);
  if (places.is_model_folder(folder)) return ModelPath{folder, folder_name(folder)};
  if (is_plain_name(model)) {
    if (!search.tensorfold_cache.empty()) {
      const std::string cached = join_path(search.tensorfold_cache, model);
      if (places.is_model_folder(cached)) return ModelPath{cached, folder};
    }
    if (!search.hugging_face_cache.empty() && model.find('/') != std::string_view::npos) {
      const std::string snapshot = find_snapshot(search.hugging_face_cache, model, places);
      if (!snapshot.empty()) return ModelPath{snapshot, folder};
    }
  }
  return not_found("model {} was not found. Looked at:{}", model, places.tried());
}

}  // namespace tensorfold
