// A checkpoint folder as model, weights and ops, without tokenizer and engine, and the tensors of a fixture.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/hf_config.h"
#include "formats/safetensors.h"
#include "memory/weights.h"
#include "models/registry.h"
#include "models/sequence_runner.h"
#include "ops/ops.h"

namespace tensorfold {

/// Owns everything that a SequenceRunner refers to.
struct TestModel {
  HfConfig config;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<Weights> weights;

  RunnableModel runnable() const { return {*model, *ops, *weights}; }
};

/// Loads FOLDER's config and weights; `ops` computes.
Result<std::unique_ptr<TestModel>> load_test_model(const std::string& folder, std::unique_ptr<Ops> ops,
                                                   const ModelOptions& options,
                                                   const FileSystem& files = posix_file_system());

/// Logits [T, V] of a prompt, run in passes of at most rows_per_pass rows.
Result<std::vector<float>> prompt_logits(SequenceRunner& runner, std::span<const int32_t> tokens,
                                         int64_t rows_per_pass);

/// The tokens that follow a prompt by argmax (first of equals), decoded one by one; `runner` is reset first.
Result<std::vector<int32_t>> greedy_tokens(SequenceRunner& runner, std::span<const int32_t> prompt,
                                           int64_t num_tokens);

/// Index of the largest, the first of equals.
int32_t argmax(std::span<const float> values);

/// A whole tensor of element type T (4 bytes); the test fails where it is absent or of another dtype.
std::vector<float> read_f32(const Checkpoint& file, std::string_view name);
std::vector<int32_t> read_i32(const Checkpoint& file, std::string_view name);

}  // namespace tensorfold
