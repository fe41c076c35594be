// See test_model.h.
#include "tests/support/test_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace tensorfold {

Result<std::unique_ptr<TestModel>> load_test_model(const std::string& folder, std::unique_ptr<Ops> ops,
                                                   const ModelOptions& options, const FileSystem& files) {
  auto result = std::make_unique<TestModel>();
  TF_ASSIGN_OR_RETURN(result->config, read_hf_config(folder, files));
  TF_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder, files));
  if (options.with_draft_head) TF_RETURN_IF_ERROR(checkpoint.add_draft_head(folder, files));
  WeightTable table(result->config.model_type, checkpoint, result->config.quantization);
  TF_ASSIGN_OR_RETURN(result->model, make_model({result->config, table, options}));
  result->ops = std::move(ops);
  TF_ASSIGN_OR_RETURN(result->weights, Weights::load(checkpoint, table.manifest(), *result->ops,
                                                     result->ops->device(), {.num_threads = 2}));
  return result;
}

Result<std::vector<float>> prompt_logits(SequenceRunner& runner, std::span<const int32_t> tokens,
                                         int64_t rows_per_pass) {
  std::vector<float> all;
  for (size_t first = 0; first < tokens.size(); first += rows_per_pass) {
    const auto part = tokens.subspan(first, std::min<size_t>(rows_per_pass, tokens.size() - first));
    std::vector<int32_t> rows(part.size());
    std::iota(rows.begin(), rows.end(), 0);
    TF_ASSIGN_OR_RETURN(const auto logits, runner.append(part, rows));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

int32_t argmax(std::span<const float> values) {
  return static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

Result<std::vector<int32_t>> greedy_tokens(SequenceRunner& runner, std::span<const int32_t> prompt,
                                           int64_t num_tokens) {
  std::vector<int32_t> tokens;
  TF_RETURN_IF_ERROR(runner.reset());
  std::vector<int32_t> next(prompt.begin(), prompt.end());
  while (static_cast<int64_t>(tokens.size()) < num_tokens) {
    const int32_t last_row = static_cast<int32_t>(next.size()) - 1;
    TF_ASSIGN_OR_RETURN(const auto logits, runner.append(next, {&last_row, 1}));
    next = {argmax(logits)};
    tokens.push_back(next[0]);
  }
  return tokens;
}

namespace {

template <class T>
std::vector<T> read_words(const Checkpoint& file, std::string_view name, DType dtype) {
  const TensorInfo* tensor = file.find(name);
  EXPECT_TRUE(tensor != nullptr && tensor->dtype == dtype) << name;
  if (tensor == nullptr || tensor->dtype != dtype) return {};
  std::vector<T> values(tensor->num_elements());
  const Status status = file.read(name, std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

}  // namespace

std::vector<float> read_f32(const Checkpoint& file, std::string_view name) {
  return read_words<float>(file, name, DType::kF32);
}
std::vector<int32_t> read_i32(const Checkpoint& file, std::string_view name) {
  return read_words<int32_t>(file, name, DType::kI32);
}

}  // namespace tensorfold
