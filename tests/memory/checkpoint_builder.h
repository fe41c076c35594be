// Builds a checkpoint in memory for the tests of binding and loading: tensors by name, with bytes that tell
// where they are from.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
#include "tests/support/memory_file_system.h"

namespace tensorfold {

class CheckpointBuilder {
 public:
  /// Bytes count up from a start that depends on the name, so no two tensors are alike.
  CheckpointBuilder& add(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    int64_t bytes = dtype_bits(dtype) / 8;
    for (int64_t dim : shape) bytes *= dim;
    std::string content;
    for (int64_t i = 0; i < bytes; ++i)
      content.push_back(static_cast<char>(std::hash<std::string>()(name) % 251 + 7 * i));
    return add(name, dtype, std::move(shape), std::move(content));
  }
  CheckpointBuilder& add(const std::string& name, DType dtype, std::vector<int64_t> shape,
                         std::string content) {
    tensors_[name] = {{name, dtype, std::move(shape)}, std::move(content)};
    return *this;
  }
  CheckpointBuilder& add_floats(const std::string& name, const std::vector<float>& values) {
    std::string content(values.size() * 4, '\0');
    std::memcpy(content.data(), values.data(), content.size());
    return add(name, DType::kF32, {static_cast<int64_t>(values.size())}, content);
  }
  /// An affine module of 4 bits in groups of 32: weight, scales and biases.
  CheckpointBuilder& add_packed(const std::string& module, std::vector<int64_t> leading, int64_t in) {
    std::vector<int64_t> weight = leading, scales = leading;
    weight.push_back(in / 8);
    scales.push_back(in / 32);
    return add(module + ".weight", DType::kU32, weight)
        .add(module + ".scales", DType::kBF16, scales)
        .add(module + ".biases", DType::kBF16, scales);
  }

  const std::string& content(const std::string& name) const { return tensors_.at(name).content; }

  /// Writes "m/model.safetensors" into files().
  Checkpoint open() {
    write("m/model.safetensors", "", true);
    return Checkpoint::open("m", *files_).value();
  }

  /// The same, but for tensors whose names begin with `prefix`, which go to m/`side_file`.
  void write_split(const std::string& prefix, const std::string& side_file) {
    write("m/model.safetensors", prefix, false);
    write("m/" + side_file, prefix, true);
  }

  MemoryFileSystem& files() { return *files_; }

 private:
  struct Tensor {
    TensorDeclaration declaration;
    std::string content;
  };

  /// The tensors whose names do (or do not) begin with `prefix`.
  void write(const std::string& path, const std::string& prefix, bool with_prefix) {
    std::vector<TensorDeclaration> declarations;
    for (const auto& [name, tensor] : tensors_)
      if (name.starts_with(prefix) == with_prefix) declarations.push_back(tensor.declaration);
    SafetensorsWriter writer = SafetensorsWriter::create(path, declarations, {}, *files_).value();
    for (const auto& [name, tensor] : tensors_)
      if (name.starts_with(prefix) == with_prefix)
        TF_CHECK(writer.append(name, std::as_bytes(std::span(tensor.content))).ok());
    TF_CHECK(writer.finish().ok());
  }
  std::map<std::string, Tensor> tensors_;
  std::shared_ptr<MemoryFileSystem> files_ = std::make_shared<MemoryFileSystem>();  ///< Shared by copies.
};

}  // namespace tensorfold
