// Safetensors files: 8 bytes of header length, a JSON header, then raw little-endian data
// (github.com/huggingface/safetensors, "Format"). Reads headers, joins the files of a sharded checkpoint and
// reads tensors; what a tensor means is decided by models, how packed weights are laid out by quant_mlx.
// Writing: safetensors_writer.h.
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

/// One tensor of a file. Invariant once parsed: offset and bytes lie inside the file, and
/// bytes == product(shape) * dtype_bits / 8 without a remainder.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  ///< Row-major; empty for a scalar; may contain zeros.
  int32_t file_index = 0;      ///< Into the files of its Checkpoint.
  int64_t offset = 0;          ///< Bytes from the start of the file (not of the data section).
  int64_t bytes = 0;

  int64_t num_elements() const;
};

/// `F16 [49152, 18]`: for messages.
std::string to_string(const TensorInfo& tensor);

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  ///< By offset; `offset` counts from the start of the data section.
  std::map<std::string, std::string> metadata;  ///< `__metadata__`.
};

/// The longest header that is read: the format's own limit.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Checks and parses the JSON of a header whose data section has data_bytes bytes. The tensors must cover it
/// without holes or overlaps, as the format asks; names are unique; metadata are strings. kCorrupt says which
/// tensor is wrong and how; an unknown dtype is kUnsupported.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, int64_t data_bytes);

/// Reads and parses the header of a file; offsets count from the start of the file. Messages open with its
/// name.
Result<SafetensorsHeader> read_safetensors_header(const ReadableFile& file);

/// `weight_map` of a model.safetensors.index.json: tensor name -> file name, the latter without any folder.
/// Everything else in the file is ignored.
Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view json);

/// The tensors of a model folder, whatever number of files they are in. Movable; owned by whoever opened it.
/// Const members are thread-safe. Nothing but headers is read until read().
class Checkpoint {
 public:
  /// Opens the files named by model.safetensors.index.json, or, without an index, every model*.safetensors
  /// (as MLX writes and reads them). Errors, all naming files and tensors: a shard is missing (numbered names
  /// must be complete without an index too); the index names a tensor that its file lacks; two files hold the
  /// same name and no index decides. Tensors that the index does not list are taken too.
  static Result<Checkpoint> open(const std::string& folder, const FileSystem& files = posix_file_system());

  /// Opens one file.
  static Result<Checkpoint> open_file(const std::string& path, const FileSystem& files = posix_file_system());

  /// Adds the tensors of a side file, such as mtp-4bit.safetensors. A name that is already there is kCorrupt,
  /// and then nothing is added. Not thread-safe.
  Status add_file(const std::string& path, const FileSystem& files = posix_file_system());

  /// Adds the draft head that lies beside the model in a file of its own, mtp*.safetensors, which neither an
  /// index nor MLX's pattern of names takes in; nothing where there is none, or where the model's files have
  /// a head
  /// (`mtp.` tensors) themselves. Errors as add_file().
  Status add_draft_head(const std::string& folder, const FileSystem& files = posix_file_system());

  /// Whether a tensor came by add_file() or add_draft_head(): the config's `quantization` need not speak of
  /// it.
  bool is_from_side_file(const TensorInfo& tensor) const { return tensor.file_index >= num_main_files_; }

  /// By name; stable addresses.
  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return tensors_; }

  /// nullptr when there is no such tensor.
  const TensorInfo* find(std::string_view name) const;

  /// All names, sorted. They live as long as the Checkpoint.
  std::vector<std::string_view> names() const;

  /// Reads a whole tensor. The name must exist and out.size() be its bytes (both checked when it was bound).
  Status read(std::string_view name, std::span<std::byte> out) const;

  /// Reads out.size() bytes of a tensor of this checkpoint, starting first_byte bytes into it: one expert, a
  /// chunk.
  Status read(const TensorInfo& tensor, int64_t first_byte, std::span<std::byte> out) const;

  int num_files() const { return static_cast<int>(files_.size()); }
  const ReadableFile& file(int index) const { return *files_[index]; }

  /// Name of a tensor's file without its folder, for messages.
  std::string_view file_name_of(const TensorInfo& tensor) const;

  /// Sum over all tensors.
  int64_t total_bytes() const;

  /// `__metadata__` of all files; the first file that has a key wins.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  Checkpoint() = default;
  using Index = std::map<std::string, std::string>;
  static Result<Checkpoint> open_sharded(const std::string& folder, const Index& index,
                                         const FileSystem& files);
  static Result<Checkpoint> open_unindexed(const std::string& folder, const FileSystem& files);
  Status add_file(const std::string& path, const Index& index, const FileSystem& files);
  Status check_index(const Index& index) const;
  static Result<Checkpoint> open_main(const std::string& folder, const FileSystem& files);

  std::vector<std::unique_ptr<ReadableFile>> files_;
  int num_main_files_ = 0;  ///< Of files_, those of open() or open_file().
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace tensorfold
