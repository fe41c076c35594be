// The bytes of toy checkpoints: random, made as fast as a disk takes them, from a counter, so that a value
// depends on the seed and its place alone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/bf16.h"
#include "base/hash.h"
#include "cli/partial_folder.h"
#include "cli/toy_checkpoint.h"
#include "formats/file.h"
#include "formats/safetensors_writer.h"

namespace tensorfold {
namespace {

constexpr int64_t kGroupSize = 64, kMxfp4GroupSize = 32;
/// Larger checkpoints are split into files of about this size, as published ones are.
constexpr int64_t kMaxFileBytes = 4'000'000'000;
constexpr int64_t kChunkBytes = 4 << 20;
/// Standard deviation of an integer drawn evenly from 0 to 15.
constexpr double kNibbleDeviation = 4.6097722286;
/// The same of an E2M1 value: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
constexpr double kE2m1Deviation = 2.9261749776;

/// A stream of random words. Each tensor part has its own key.
class RandomWords {
 public:
  explicit RandomWords(uint64_t key) : state_(mix64(key)) {}
  uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ull); }

 private:
  uint64_t state_;
};

/// One tensor of a file: its declaration and who fills it.
struct Part {
  enum class Kind { kUniform, kNibbles, kScales, kBiases, kExponents };
  TensorDeclaration declaration;
  Kind kind = Kind::kUniform;
  double mean = 0;
  double stddev = 0;
  uint64_t key = 0;
  int64_t bytes = 0;
};

int64_t num_elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Part make_part(std::string name, DType dtype, std::vector<int64_t> shape, Part::Kind kind,
               const ToyTensor& tensor, uint64_t key) {
  Part part{.declaration = {std::move(name), dtype, std::move(shape)},
            .kind = kind,
            .mean = tensor.mean,
            .stddev = tensor.stddev,
            .key = key};
  part.bytes = num_elements(part.declaration.shape) * dtype_bytes(dtype);
  return part;
}

/// The parts of one tensor: one, or those of an MLX module. `key` makes its values its own.
void add_parts(std::vector<Part>& parts, const ToyTensor& tensor, uint64_t key) {
  using Kind = Part::Kind;
  if (tensor.form == ToyTensor::Form::kFloats)
    return parts.push_back(make_part(tensor.name, DType::kBF16, tensor.shape, Kind::kUniform, tensor, key));
  const bool is_mxfp4 = tensor.form == ToyTensor::Form::kMxfp4;
  std::vector<int64_t> packed = tensor.shape, groups = tensor.shape;
  packed.back() /= 8;
  groups.back() /= is_mxfp4 ? kMxfp4GroupSize : kGroupSize;
  parts.push_back(make_part(tensor.name + ".weight", DType::kU32, packed, Kind::kNibbles, tensor, key));
  if (is_mxfp4)
    return parts.push_back(
        make_part(tensor.name + ".scales", DType::kU8, groups, Kind::kExponents, tensor, key + 1));
  parts.push_back(make_part(tensor.name + ".scales", DType::kBF16, groups, Kind::kScales, tensor, key + 1));
  parts.push_back(make_part(tensor.name + ".biases", DType::kBF16, groups, Kind::kBiases, tensor, key + 1));
}

/// The E8M0 scale that gives random E2M1 values about the tensor's spread.
uint8_t exponent_value(double stddev) {
  return static_cast<uint8_t>(127 + std::lround(std::log2(stddev / kE2m1Deviation)));
}

/// Scale of a group from 16 random bits: 0.75 to 1.25 of what gives the tensor its spread.
float scale_value(uint16_t bits, double stddev) {
  return to_float(to_bf16(static_cast<float>(stddev / kNibbleDeviation * (0.75 + bits / 131072.0))));
}

/// The bf16 that 16 random bits stand for.
bf16 element(const Part& part, uint16_t bits) {
  switch (part.kind) {
    case Part::Kind::kScales:
      return to_bf16(scale_value(bits, part.stddev));
    // -7.5 centres the group: 0 to 15 become -7.5 to 7.5 times the scale.
    case Part::Kind::kBiases:
      return to_bf16(-7.5f * scale_value(bits, part.stddev));
    default:
      return to_bf16(static_cast<float>(part.mean +
                                        std::sqrt(3.0) * part.stddev * (bits / 32768.0 - 1.0 + 1.0 / 65536)));
  }
}

/// All 65,536 of them: looking one up is faster than computing it.
std::vector<bf16> element_table(const Part& part) {
  std::vector<bf16> table(65536);
  for (size_t bits = 0; bits < table.size(); ++bits) table[bits] = element(part, static_cast<uint16_t>(bits));
  return table;
}

void fill_chunk(const Part& part, const std::vector<bf16>& table, RandomWords& random,
                std::span<std::byte> chunk) {
  if (part.kind == Part::Kind::kExponents) {
    std::ranges::fill(chunk, std::byte{exponent_value(part.stddev)});
    return;
  }
  for (size_t i = 0; i < chunk.size(); i += 8) {
    const uint64_t word = random.next();
    std::array<uint16_t, 4> values;
    std::memcpy(values.data(), &word, 8);
    if (part.kind != Part::Kind::kNibbles)
      for (uint16_t& value : values) value = table[value].bits;
    std::memcpy(chunk.data() + i, values.data(), std::min<size_t>(8, chunk.size() - i));
  }
}

/// Progress over all files.
struct Reporter {
  const ToyProgress& callback;
  int64_t total = 0;
  int64_t done = 0;
  Status add(int64_t bytes) {
    done += bytes;
    return callback ? callback(done, total) : Status();
  }
};

Status write_part(SafetensorsWriter& writer, const Part& part, std::vector<std::byte>& buffer,
                  Reporter& reporter) {
  const bool is_looked_up = part.kind != Part::Kind::kNibbles && part.kind != Part::Kind::kExponents;
  const std::vector<bf16> table = is_looked_up ? element_table(part) : std::vector<bf16>();
  RandomWords random(part.key);
  for (int64_t start = 0; start < part.bytes; start += kChunkBytes) {
    const std::span chunk(buffer.data(), static_cast<size_t>(std::min(kChunkBytes, part.bytes - start)));
    fill_chunk(part, table, random, chunk);
    TF_RETURN_IF_ERROR(writer.append(part.declaration.name, chunk));
    TF_RETURN_IF_ERROR(reporter.add(static_cast<int64_t>(chunk.size())));
  }
  return {};
}

Status write_file(const std::string& path, std::span<const Part> parts, Reporter& reporter) {
  std::vector<TensorDeclaration> declarations;
  for (const Part& part : parts) declarations.push_back(part.declaration);
  TF_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::create(path, declarations, {{"format", "pt"}}));
  std::vector<std::byte> buffer(static_cast<size_t>(kChunkBytes));
  for (const Part& part : parts) TF_RETURN_IF_ERROR(write_part(writer, part, buffer, reporter));
  return writer.finish();
}

/// Ends of the files, as indices into the parts.
std::vector<size_t> file_ends(std::span<const Part> parts) {
  std::vector<size_t> ends;
  int64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (bytes > 0 && bytes + parts[i].bytes > kMaxFileBytes) {
      ends.push_back(i);
      bytes = 0;
    }
    bytes += parts[i].bytes;
  }
  ends.push_back(parts.size());
  return ends;
}

Status write_text(const std::string& path, std::string_view text) {
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, posix_file_system().create(path));
  TF_RETURN_IF_ERROR(file->append(std::as_bytes(std::span(text))));
  return file->sync();
}

Status write_weights(const std::string& folder, std::span<const Part> parts, Reporter& reporter) {
  const std::vector<size_t> ends = file_ends(parts);
  Json weight_map = Json::object();
  size_t start = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const std::string name = ends.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, ends.size());
    const std::span file_parts = parts.subspan(start, ends[i] - start);
    for (const Part& part : file_parts)
      weight_map.as_object().emplace_back(part.declaration.name, Json(name));
    TF_RETURN_IF_ERROR(write_file(join_path(folder, name), file_parts, reporter));
    start = ends[i];
  }
  if (ends.size() == 1) return {};
  Json metadata = Json::object();
  metadata.set("total_size", reporter.total);
  Json index = Json::object();
  index.set("metadata", std::move(metadata));
  index.set("weight_map", std::move(weight_map));
  return write_text(join_path(folder, "model.safetensors.index.json"),
                    dump_json(index, {.indent = 2}) + "\n");
}

Status check_space(const std::string& folder, int64_t needed_bytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || space.available >= static_cast<uintmax_t>(needed_bytes)) return {};
  return make_error(StatusCode::kIo, "the checkpoint would take {:.1f} GB, and there are {:.1f} GB free",
                    static_cast<double>(needed_bytes) / 1e9, static_cast<double>(space.available) / 1e9);
}

}  // namespace

Status write_toy_checkpoint(const std::string& folder, const ToyModel& model, uint64_t seed,
                            const ToyProgress& progress) {
  std::vector<Part> parts;
  uint64_t key = mix64(seed + 1);
  for (const ToyTensor& tensor : model.tensors) add_parts(parts, tensor, key += 2);
  Reporter reporter{.callback = progress};
  for (const Part& part : parts) reporter.total += part.bytes;

  TF_ASSIGN_OR_RETURN(PartialFolder partial, PartialFolder::create(folder));
  TF_RETURN_IF_ERROR(check_space(partial.path(), reporter.total));
  TF_RETURN_IF_ERROR(write_weights(partial.path(), parts, reporter));
  for (const auto& [name, text] : toy_text_files(model))
    TF_RETURN_IF_ERROR(write_text(join_path(partial.path(), name), text));
  return partial.finish();
}

}  // namespace tensorfold
