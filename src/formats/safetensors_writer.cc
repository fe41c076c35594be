// The streaming writer of formats/safetensors_writer.h.
#include "formats/safetensors_writer.h"

#include <set>

#include "base/json.h"

namespace tensorfold {
namespace {

constexpr std::string_view kPartialSuffix = ".partial";

/// Bytes of a declared tensor.
Result<int64_t> declared_bytes(const TensorDeclaration& tensor) {
  int64_t bits = dtype_bits(tensor.dtype);
  for (int64_t dim : tensor.shape) {
    if (dim < 0 || __builtin_mul_overflow(bits, dim, &bits)) {
      return invalid_argument("{}: dimension {} is negative or makes it too large", tensor.name, dim);
    }
  }
  if (bits % 8 != 0) return invalid_argument("{}: {} bits are no whole number of bytes", tensor.name, bits);
  return bits / 8;
}

Json shape_json(const std::vector<int64_t>& shape) {
  Json array = Json::array();
  for (int64_t dim : shape) array.push_back(dim);
  return array;
}

/// Header with its length, padded by spaces so that data begin at a multiple of 8.
std::string encode_header(const Json& header) {
  std::string json = dump_json(header);
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return out + json;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    const std::vector<TensorDeclaration>& tensors,
                                                    const std::map<std::string, std::string>& metadata,
                                                    const FileSystem& files) {
  SafetensorsWriter writer;
  Json::Object entries;  // Members are appended: Json::set would search all of them each time.
  if (!metadata.empty()) {
    Json::Object members;
    for (const auto& [key, value] : metadata) members.emplace_back(key, value);
    entries.emplace_back("__metadata__", std::move(members));
  }
  std::set<std::string_view> names{"__metadata__"};
  int64_t offset = 0;
  for (const TensorDeclaration& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      return invalid_argument("{}: this tensor name is taken", tensor.name);
    TF_ASSIGN_OR_RETURN(const int64_t bytes, declared_bytes(tensor));
    Json entry = Json::object();
    entry.set("dtype", dtype_name(tensor.dtype));
    entry.set("shape", shape_json(tensor.shape));
    entry.set("data_offsets", Json::Array{Json(offset), Json(offset + bytes)});
    entries.emplace_back(tensor.name, std::move(entry));
    writer.pending_.push_back({.name = tensor.name, .bytes = bytes});
    offset += bytes;
  }
  writer.path_ = path;
  writer.files_ = &files;
  const std::string header = encode_header(Json(std::move(entries)));
  TF_ASSIGN_OR_RETURN(writer.file_, files.create(path + std::string(kPartialSuffix)));
  TF_RETURN_IF_ERROR(writer.file_->append(std::as_bytes(std::span(header))));
  writer.skip_complete();
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  // Best effort: the caller already has the error that made it give up.
  (void)files_->remove(path_ + std::string(kPartialSuffix));
}

void SafetensorsWriter::skip_complete() {
  while (next_ < pending_.size() && pending_[next_].bytes == 0) ++next_;
}

Status SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  TF_CHECK(file_ != nullptr && next_ < pending_.size() && pending_[next_].name == name, name);
  TF_CHECK(static_cast<int64_t>(bytes.size()) <= pending_[next_].bytes, name);
  TF_RETURN_IF_ERROR(file_->append(bytes));
  pending_[next_].bytes -= static_cast<int64_t>(bytes.size());
  skip_complete();
  return {};
}

Status SafetensorsWriter::finish() {
  TF_CHECK(file_ != nullptr && next_ == pending_.size(), "finish() before all declared bytes were appended");
  TF_RETURN_IF_ERROR(file_->sync());
  TF_RETURN_IF_ERROR(files_->rename(path_ + std::string(kPartialSuffix), path_));
  file_.reset();
  return {};
}

}  // namespace tensorfold
