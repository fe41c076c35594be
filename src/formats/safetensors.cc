// The header and index of safetensors files: everything that can be checked before a tensor is read.
#include "formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/json.h"

namespace tensorfold {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoint data are used as they lie in the file");

/// An item of a shape or of data_offsets, or -1 when it is no integer from 0 to 2^63-1.
int64_t non_negative(const Json& value) {
  return value.is_int() ? std::max<int64_t>(value.as_int(), -1) : -1;
}

/// Bytes of a dense array, or -1 when they overflow or are no whole number.
int64_t array_bytes(const std::vector<int64_t>& shape, DType dtype) {
  int64_t elements = 1;
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(elements, dim, &elements)) return -1;
  }
  int64_t bits = 0;
  if (__builtin_mul_overflow(elements, dtype_bits(dtype), &bits) || bits % 8 != 0) return -1;
  return bits / 8;
}

Status read_shape(const Json* shape, TensorInfo& tensor) {
  if (shape == nullptr || !shape->is_array()) return corrupt("{}: has no array `shape`", tensor.name);
  for (const Json& dim : shape->as_array()) {
    if (non_negative(dim) < 0) {
      return corrupt("{}: shape: expected sizes from 0, found {}", tensor.name, dump_json(dim).substr(0, 40));
    }
    tensor.shape.push_back(dim.as_int());
  }
  return {};
}

Status read_offsets(const Json* offsets, int64_t data_bytes, TensorInfo& tensor) {
  if (offsets == nullptr || !offsets->is_array() || offsets->as_array().size() != 2) {
    return corrupt("{}: has no pair `data_offsets`", tensor.name);
  }
  const int64_t begin = non_negative(offsets->as_array()[0]);
  const int64_t end = non_negative(offsets->as_array()[1]);
  if (begin < 0 || end < begin || end > data_bytes) {
    return corrupt("{}: data_offsets {} do not lie in the file's {} bytes of data", tensor.name,
                   dump_json(*offsets).substr(0, 60), data_bytes);
  }
  tensor.offset = begin;
  tensor.bytes = end - begin;
  return {};
}

Result<TensorInfo> parse_tensor(const std::string& name, const Json& entry, int64_t data_bytes) {
  TensorInfo tensor;
  tensor.name = name;
  const Json* dtype = entry.find("dtype");
  if (dtype == nullptr || !dtype->is_string()) return corrupt("{}: has no string `dtype`", name);
  const std::optional<DType> known = dtype_from_name(dtype->as_string());
  if (!known) return unsupported("{}: dtype {} is not known", name, dump_json(*dtype).substr(0, 40));
  tensor.dtype = *known;
  TF_RETURN_IF_ERROR(read_shape(entry.find("shape"), tensor));
  TF_RETURN_IF_ERROR(read_offsets(entry.find("data_offsets"), data_bytes, tensor));
  const int64_t expected = array_bytes(tensor.shape, tensor.dtype);
  if (expected < 0)
    return corrupt("{}: {} is no whole number of bytes, or too large", name, to_string(tensor));
  if (expected != tensor.bytes) {
    return corrupt("{}: {} takes {} bytes, but data_offsets give it {}", name, to_string(tensor), expected,
                   tensor.bytes);
  }
  return tensor;
}

Status read_metadata(const Json& metadata, SafetensorsHeader& header) {
  if (!metadata.is_object())
    return corrupt("__metadata__: expected an object, found {}", metadata.kind_name());
  for (const auto& [key, value] : metadata.as_object()) {
    if (!value.is_string())
      return corrupt("__metadata__.{}: expected a string, found {}", key, value.kind_name());
    header.metadata[key] = value.as_string();
  }
  return {};
}

/// Tensors in order of offset must follow each other without a gap, from the first byte of data to the last.
Status check_cover(const std::vector<TensorInfo>& tensors, int64_t data_bytes) {
  int64_t end = 0;
  const TensorInfo* before = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset < end) return corrupt("{} and {} overlap", before->name, tensor.name);
    if (tensor.offset > end) return corrupt("data bytes {} to {} belong to no tensor", end, tensor.offset);
    end = tensor.offset + tensor.bytes;
    before = &tensor;
  }
  if (end != data_bytes) return corrupt("data bytes {} to {} belong to no tensor", end, data_bytes);
  return {};
}

Status corrupt_json(const Status& status) { return Status(StatusCode::kCorrupt, status.message()); }

}  // namespace

int64_t TensorInfo::num_elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string to_string(const TensorInfo& tensor) {
  std::string text(dtype_name(tensor.dtype));
  text += " [";
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  }
  return text + "]";
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, int64_t data_bytes) {
  // The format asks for '{' as the first byte; white space may only follow the object.
  if (!json.starts_with('{')) return corrupt("header does not begin with '{{'");
  Result<Json> parsed = parse_json(json, {.max_depth = 8, .unique_keys = true});
  if (!parsed.ok()) return corrupt_json(parsed.status()).with_context("header");
  SafetensorsHeader header;
  for (const auto& [name, entry] : parsed->as_object()) {
    if (name == "__metadata__") {
      TF_RETURN_IF_ERROR(read_metadata(entry, header));
    } else {
      TF_ASSIGN_OR_RETURN(TensorInfo tensor, parse_tensor(name, entry, data_bytes));
      header.tensors.push_back(std::move(tensor));
    }
  }
  // Empty tensors share an offset with their successor; stable order puts them first only if size breaks the
  // tie.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  TF_RETURN_IF_ERROR(check_cover(header.tensors, data_bytes));
  return header;
}

Result<SafetensorsHeader> read_safetensors_header(const ReadableFile& file) {
  constexpr int64_t kLengthBytes = 8;
  const std::string_view name = file_name(file.path());
  uint64_t length = 0;
  if (file.size_bytes() < kLengthBytes) {
    return corrupt("{}: has {} bytes, too few for a safetensors file", name, file.size_bytes());
  }
  TF_RETURN_IF_ERROR(file.read(0, std::as_writable_bytes(std::span(&length, 1))));
  const int64_t rest = file.size_bytes() - kLengthBytes;
  if (length > static_cast<uint64_t>(std::min(rest, kMaxSafetensorsHeaderBytes))) {
    return corrupt("{}: header length {}, but {} bytes follow (and {} is the format's limit)", name, length,
                   rest, kMaxSafetensorsHeaderBytes);
  }
  std::string json(length, '\0');
  TF_RETURN_IF_ERROR(file.read(kLengthBytes, std::as_writable_bytes(std::span(json))));
  const int64_t data_start = kLengthBytes + static_cast<int64_t>(length);
  Result<SafetensorsHeader> header = parse_safetensors_header(json, file.size_bytes() - data_start);
  if (!header.ok()) return header.status().with_context(name);
  for (TensorInfo& tensor : header->tensors) tensor.offset += data_start;
  return header;
}

Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view json) {
  Result<Json> parsed = parse_json(json, {.unique_keys = true});
  if (!parsed.ok()) return corrupt_json(parsed.status());
  const Json* weight_map = parsed->find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) return corrupt("has no object `weight_map`");
  std::map<std::string, std::string> index;
  for (const auto& [name, file] : weight_map->as_object()) {
    // A name with a folder could lead out of the model's own; no published index has one.
    const bool is_plain = file.is_string() && file.as_string().ends_with(".safetensors") &&
                          file.as_string().find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!is_plain) {
      return corrupt("weight_map: {}: expected a plain file name ending in .safetensors, found {}", name,
                     dump_json(file).substr(0, 80));
    }
    index.emplace(name, file.as_string());
  }
  if (index.empty()) return corrupt("weight_map is empty");
  return index;
}

}  // namespace tensorfold
