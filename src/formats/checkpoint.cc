// Class Checkpoint (formats/safetensors.h): from the files of a folder to one sorted table of tensors.
#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "formats/quantization_config.h"
#include "formats/safetensors.h"

namespace tensorfold {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 200'000'000;

/// "a, b, c and 5 more".
std::string list_some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

/// `model-00002-of-00005.safetensors` -> {2, 5}; nothing for other names.
struct ShardNumber {
  int index = 0;
  int count = 0;
};
std::optional<ShardNumber> parse_shard_name(std::string_view name) {
  constexpr std::string_view kPrefix = "model-", kOf = "-of-", kSuffix = ".safetensors";
  const size_t of = name.find(kOf);
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || of == std::string_view::npos)
    return std::nullopt;
  if (of < kPrefix.size() || of + kOf.size() + kSuffix.size() > name.size()) return std::nullopt;
  const std::string_view index = name.substr(kPrefix.size(), of - kPrefix.size());
  const std::string_view count = name.substr(of + kOf.size(), name.size() - kSuffix.size() - of - kOf.size());
  const auto read = [](std::string_view digits, int& number) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return error == std::errc() && end == digits.data() + digits.size() && number >= 0;
  };
  ShardNumber shard;
  if (!read(index, shard.index) || !read(count, shard.count)) return std::nullopt;
  return shard;
}

/// Without an index only the file names tell whether shards are missing. Most writers number from 1;
/// gpt-oss's files run from 0 up to and including the number after `-of-`.
Status check_shard_numbers(const std::string& folder, const std::vector<std::string>& names) {
  std::set<int> found;
  int count = 0;
  for (const std::string& name : names) {
    const std::optional<ShardNumber> shard = parse_shard_name(name);
    if (!shard) continue;
    if (!found.empty() && shard->count != count) {
      return corrupt("{}: {} is one of {} files, others are of {}", folder, name, shard->count, count);
    }
    count = shard->count;
    found.insert(shard->index);
  }
  if (found.empty()) return {};
  const int first = *found.begin() == 0 ? 0 : 1;
  const int last = std::max(*found.rbegin(), first == 0 ? count - 1 : count);
  for (int i = first; i <= last; ++i) {
    if (!found.contains(i)) {
      return not_found("{}: model-{:05}-of-{:05}.safetensors is missing (and there is no {})", folder, i,
                       count, kIndexName);
    }
  }
  return {};
}

/// Why a folder has no checkpoint, in the words that help: which other weights it has.
Status no_tensors(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.ends_with(".gguf") || name.ends_with(".bin") || name.ends_with(".pt") ||
        name.ends_with(".pth")) {
      return not_found("{}: has no model*.safetensors, only {}, a format that is not read", folder, name);
    }
  }
  return not_found("{}: has no model*.safetensors", folder);
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder, const FileSystem& files) {
  TF_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_main(folder, files));
  checkpoint.num_main_files_ = checkpoint.num_files();
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_main(const std::string& folder, const FileSystem& files) {
  const std::string index_path = join_path(folder, kIndexName);
  if (!files.is_file(index_path)) return open_unindexed(folder, files);
  TF_ASSIGN_OR_RETURN(const std::string text, read_text_file(files, index_path, kMaxIndexBytes));
  Result<Index> index = parse_safetensors_index(text);
  if (!index.ok()) return index.status().with_context(index_path);
  return open_sharded(folder, *index, files);
}

Result<Checkpoint> Checkpoint::open_sharded(const std::string& folder, const Index& index,
                                            const FileSystem& files) {
  std::set<std::string> shards;
  for (const auto& [name, shard] : index) shards.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& shard : shards) {
    if (!files.is_file(join_path(folder, shard))) missing.push_back(shard);
  }
  if (!missing.empty()) {
    return not_found("{}: {} of {} files of {} are missing: {}", folder, missing.size(), shards.size(),
                     kIndexName, list_some(missing));
  }
  Checkpoint checkpoint;
  for (const std::string& shard : shards) {
    TF_RETURN_IF_ERROR(checkpoint.add_file(join_path(folder, shard), index, files));
  }
  TF_RETURN_IF_ERROR(checkpoint.check_index(index).with_context(folder));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_unindexed(const std::string& folder, const FileSystem& files) {
  TF_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  std::vector<std::string> shards;
  for (const std::string& name : names) {
    if (name.starts_with("model") && name.ends_with(".safetensors")) shards.push_back(name);
  }
  if (shards.empty()) return no_tensors(folder, names);
  TF_RETURN_IF_ERROR(check_shard_numbers(folder, shards));
  Checkpoint checkpoint;
  for (const std::string& shard : shards) {
    TF_RETURN_IF_ERROR(checkpoint.add_file(join_path(folder, shard), files));
  }
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_file(const std::string& path, const FileSystem& files) {
  Checkpoint checkpoint;
  TF_RETURN_IF_ERROR(checkpoint.add_file(path, files));
  checkpoint.num_main_files_ = checkpoint.num_files();
  return checkpoint;
}

Status Checkpoint::add_draft_head(const std::string& folder, const FileSystem& files) {
  constexpr std::string_view kHead = "mtp";
  const auto is_head = [](const auto& entry) {
    return canonical_module_name(entry.first).starts_with("mtp.");
  };
  if (std::ranges::any_of(tensors_, is_head)) return {};
  TF_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  for (const std::string& name : names)
    if (name.starts_with(kHead) && name.ends_with(".safetensors"))
      TF_RETURN_IF_ERROR(add_file(join_path(folder, name), files));
  return {};
}

Status Checkpoint::add_file(const std::string& path, const FileSystem& files) {
  return add_file(path, {}, files);
}

Status Checkpoint::add_file(const std::string& path, const Index& index, const FileSystem& files) {
  TF_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.open(path));
  TF_ASSIGN_OR_RETURN(SafetensorsHeader header, read_safetensors_header(*file));
  std::vector<TensorInfo*> kept;
  for (TensorInfo& tensor : header.tensors) {
    tensor.file_index = static_cast<int32_t>(files_.size());
    // A tensor that the index puts into another file counts only there; check_index sees to it that it is
    // there.
    const auto entry = index.find(tensor.name);
    if (entry != index.end() && entry->second != file_name(path)) continue;
    if (const TensorInfo* present = find(tensor.name)) {
      return corrupt("{}: is in {} and in {}", tensor.name, file_name_of(*present), file_name(path));
    }
    kept.push_back(&tensor);
  }
  for (TensorInfo* tensor : kept) tensors_.emplace(tensor->name, std::move(*tensor));
  metadata_.merge(header.metadata);
  files_.push_back(std::move(file));
  return {};
}

Status Checkpoint::check_index(const Index& index) const {
  std::vector<std::string> missing;
  for (const auto& [name, shard] : index) {
    if (find(name) == nullptr) missing.push_back(fmt::format("{} ({})", name, shard));
  }
  if (missing.empty()) return {};
  return corrupt("{} tensors are not in the file that {} says: {}", missing.size(), kIndexName,
                 list_some(missing));
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<std::string_view> Checkpoint::names() const {
  std::vector<std::string_view> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

Status Checkpoint::read(std::string_view name, std::span<std::byte> out) const {
  const TensorInfo* tensor = find(name);
  TF_CHECK(tensor != nullptr, name);
  TF_CHECK(static_cast<int64_t>(out.size()) == tensor->bytes, name);
  return read(*tensor, 0, out);
}

Status Checkpoint::read(const TensorInfo& tensor, int64_t first_byte, std::span<std::byte> out) const {
  TF_CHECK(first_byte >= 0 && static_cast<int64_t>(out.size()) <= tensor.bytes - first_byte, tensor.name);
  return files_[tensor.file_index]->read(tensor.offset + first_byte, out).with_context(tensor.name);
}

std::string_view Checkpoint::file_name_of(const TensorInfo& tensor) const {
  return file_name(files_[tensor.file_index]->path());
}

int64_t Checkpoint::total_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor.bytes;
  return bytes;
}

}  // namespace tensorfold
