// See sequence_runner.h.
#include "models/sequence_runner.h"

#include <algorithm>
#include <numeric>

namespace tensorfold {

Result<std::unique_ptr<SequenceRunner>> SequenceRunner::create(const RunnableModel& runnable,
                                                               const Limits& limits) {
  TF_CHECK(limits.max_tokens > 0 && limits.max_rows > 0);
  std::unique_ptr<SequenceRunner> runner(new SequenceRunner(runnable, limits));
  TF_RETURN_IF_ERROR(runner->allocate());
  return runner;
}

Status SequenceRunner::allocate() {
  Device& device = runnable_.ops.device();
  const ModelSpec& spec = runnable_.model.spec();
  const int64_t num_pages = (limits_.max_tokens + kPageTokens - 1) / kPageTokens;
  int64_t kv_bytes = 0;
  for (const KvShape& shape : spec.kv_layers) kv_bytes += 2 * num_pages * runnable_.ops.kv_page_bytes(shape);
  TF_ASSIGN_OR_RETURN(kv_, device.allocate(kv_bytes, "KV pages"));
  TF_ASSIGN_OR_RETURN(scratch_,
                      device.allocate(runnable_.model.scratch_bytes(limits_.max_rows), "scratch of a pass"));
  TF_ASSIGN_OR_RETURN(logits_, device.allocate(limits_.max_rows * spec.vocab_size * 4, "logits"));
  if (limits_.with_hidden) {
    TF_ASSIGN_OR_RETURN(hidden_rows_,
                        device.allocate(limits_.max_rows * spec.hidden_size * 4, "hidden states"));
  }
  const int64_t tap_bytes =
      std::ssize(limits_.tap_layers) * spec.hidden_size * dtype_bytes(spec.activation_dtype);
  TF_ASSIGN_OR_RETURN(tap_rows_, device.allocate(limits_.max_rows * tap_bytes, "residual streams"));

  std::byte* next = kv_.data();
  for (const KvShape& shape : spec.kv_layers) {
    const int64_t page_bytes = runnable_.ops.kv_page_bytes(shape);
    kv_layers_.push_back({shape, next, next + num_pages * page_bytes, page_bytes, num_pages});
    next += 2 * num_pages * page_bytes;
  }
  TF_RETURN_IF_ERROR(allocate_states());
  page_table_.resize(num_pages);
  std::iota(page_table_.begin(), page_table_.end(), 0);
  return reset();
}

Status SequenceRunner::allocate_states() {
  const auto aligned_bytes = [](int64_t floats) { return (floats * 4 + 63) / 64 * 64; };
  int64_t bytes = 0;
  for (const RecurrentShape& shape : runnable_.model.spec().recurrent_layers)
    bytes += aligned_bytes(shape.conv_floats()) + aligned_bytes(shape.matrix_floats());
  TF_ASSIGN_OR_RETURN(states_, runnable_.ops.device().allocate(bytes, "recurrent states"));
  std::byte* next = states_.data();
  for (const RecurrentShape& shape : runnable_.model.spec().recurrent_layers) {
    std::byte* matrix = next + aligned_bytes(shape.conv_floats());
    recurrent_layers_.push_back({.shape = shape, .conv = next, .matrix = matrix, .num_slots = 1});
    next = matrix + aligned_bytes(shape.matrix_floats());
  }
  return {};
}

Status SequenceRunner::reset() {
  num_tokens_ = 0;
  return runnable_.ops.device().zero(kv_.data(), kv_.size_bytes());
}

Result<std::span<const float>> SequenceRunner::append(std::span<const int32_t> tokens,
                                                      std::span<const int32_t> logit_rows) {
  const auto num_rows = static_cast<int64_t>(tokens.size());
  const int64_t vocab_size = runnable_.model.spec().vocab_size;
  if (num_rows > limits_.max_rows || num_tokens_ + num_rows > limits_.max_tokens)
    return invalid_argument("{} tokens after {}: the limits are {} a pass and {} in all", num_rows,
                            num_tokens_, limits_.max_rows, limits_.max_tokens);
  for (int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      return invalid_argument("token {} is outside the vocabulary of {}", token, vocab_size);
  if (num_rows == 0) return std::span<const float>();

  std::vector<int32_t> positions(num_rows);
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(num_tokens_));
  const SequenceRows sequence = {0, num_rows, num_tokens_, page_table_.data(), /*state_slot=*/0};
  const Pass pass = {.tokens = tokens, .rows = {positions, {&sequence, 1}}, .logit_rows = logit_rows};
  const auto num_logits = static_cast<int64_t>(logit_rows.size());
  Arena scratch(scratch_.data(), scratch_.size_bytes());
  if (limits_.with_hidden)
    hidden_ = View(hidden_rows_.data(), DType::kF32, {num_rows, runnable_.model.spec().hidden_size});

  std::vector<int32_t> all_rows(num_rows);
  std::iota(all_rows.begin(), all_rows.end(), 0);
  const ModelSpec& spec = runnable_.model.spec();
  taps_ = View(tap_rows_.data(), spec.activation_dtype,
               {num_rows, std::ssize(limits_.tap_layers) * spec.hidden_size});

  Ops& ops = runnable_.ops;
  ops.begin_pass(pass.rows);
  runnable_.model.forward(pass, ops, runnable_.weights, {kv_layers_, recurrent_layers_}, scratch,
                          {.logits = View(logits_.data(), DType::kF32, {num_logits, vocab_size}),
                           .hidden = hidden_,
                           .taps = {.layers = limits_.tap_layers, .rows = all_rows, .out = taps_}});
  TF_RETURN_IF_ERROR(ops.end_pass());
  num_tokens_ += num_rows;

  host_logits_.resize(num_logits * vocab_size);
  TF_RETURN_IF_ERROR(ops.device().copy_to_host(reinterpret_cast<std::byte*>(host_logits_.data()),
                                               logits_.data(), num_logits * vocab_size * 4));
  return std::span<const float>(host_logits_);
}

}  // namespace tensorfold
