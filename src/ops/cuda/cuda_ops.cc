// See cuda_ops.h.
#include "ops/cuda/cuda_ops.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "base/check.h"
#include "device/cuda_device.h"
#include "ops/cuda/dynamic_conv.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/embed.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/norms.h"
#include "ops/cuda/rope.h"
#include "ops/cuda/route.h"
#include "ops/cuda/sample.h"
#include "ops/cuda/top_tokens.h"
#include "ops/cuda/trace.h"

namespace tensorfold::cuda {
namespace {

/// Passes of more rows are run launch by launch: a launch is then short beside what it starts, and such
/// shapes seldom come twice.
constexpr int64_t kMaxGraphRows = 128;
/// Counters of a pass: more than any known model has launches of linear() and experts(). Those that get none
/// do without.
constexpr int kMaxCounters = 1024;

/// The next of a few sizes, at most a quarter larger: launches that depend on a length are the same for a
/// while.
int64_t bucket(int64_t n, int64_t least) {
  if (n <= least) return least;
  const int64_t step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n))) / 4;
  return (n + step - 1) / step * step;
}

ExpertsKernel experts_kernel(CudaOptions::Kernels kernels) {
  switch (kernels) {
    case CudaOptions::Kernels::kByRows:
      return ExpertsKernel::kAuto;
    case CudaOptions::Kernels::kFewRows:
      return ExpertsKernel::kFewRows;
    case CudaOptions::Kernels::kManyRows:
      return ExpertsKernel::kManyRows;
  }
  return ExpertsKernel::kAuto;
}

Status to_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  return make_error(StatusCode::kInternal, "{}: {}", what, cudaGetErrorString(error));
}

}  // namespace

Result<std::unique_ptr<CudaOps>> CudaOps::create(const CudaOptions& options) {
  std::unique_ptr<CudaOps> ops(new CudaOps(options));
  TF_ASSIGN_OR_RETURN(ops->device_,
                      make_cuda_device({.ordinal = options.device, .memory_bytes = options.memory_bytes}));
  TF_RETURN_IF_ERROR(start_trace());
  TF_ASSIGN_OR_RETURN(const CudaDeviceInfo device, describe_cuda_device(options.device));
  ops->info_.name = "cuda";
  ops->info_.arithmetic_id = fmt::format("cuda-sm{}{}/1", device.major, device.minor);
  ops->info_.isa = fmt::format("sm_{}{}", device.major, device.minor);
  // A blocking stream: what the device's copies and zero() put on the default stream comes first.
  TF_RETURN_IF_ERROR(to_status(cudaStreamCreate(&ops->stream_), "a stream for passes"));
  return ops;
}

CudaOps::~CudaOps() {
  if (stream_ == nullptr) return;
  cudaSetDevice(options_.device);
  cudaStreamSynchronize(stream_);
  write_trace();
  cudaStreamDestroy(stream_);
  cudaFreeHost(drawn_);
}

Status CudaOps::check_linear(const LinearSpec& spec) const { return cuda::check_linear(spec); }

Status CudaOps::check_experts(const ExpertsSpec& spec) const {
  TF_RETURN_IF_ERROR(check_route(spec.num_experts, spec.num_experts_per_tok, spec.num_groups));
  return cuda::check_experts(spec);
}

int64_t CudaOps::packed_bytes(const LinearSpec& spec) const { return cuda::packed_bytes(spec); }

void CudaOps::pack(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed) const {
  pack_linear(spec, source, packed);
}

Status CudaOps::check_layers(std::span<const KvShape> kv_layers,
                             std::span<const RecurrentShape> recurrent_layers) const {
  for (const KvShape& shape : kv_layers) TF_RETURN_IF_ERROR(check_kv_shape(shape));
  for (const RecurrentShape& shape : recurrent_layers) TF_RETURN_IF_ERROR(check_recurrent_shape(shape));
  return {};
}

int64_t CudaOps::kv_page_bytes(const KvShape& shape) const { return cuda_kv_page_bytes(shape); }

void CudaOps::fail(Status status) {
  if (fault_.ok()) fault_ = std::move(status);
}

void CudaOps::begin_pass(const RowBatch& rows) {
  cudaSetDevice(options_.device);
  fault_ = Status();
  launches_.clear();
  outgrown_.clear();
  num_rows_ = rows.num_rows();
  parts_.begin();
  fusion_.begin_pass(num_rows_);
  sequences_.clear();
  page_tables_.clear();
  recurrent_sequences_.clear();
  attention_rows_ = make_attention_rows(rows, sequences_, page_tables_);
  attention_rows_.max_end = bucket(attention_rows_.max_end, 256);
  recurrent_rows_ = make_recurrent_rows(rows, recurrent_sequences_);

  // Beside the sequences, every row may bring a token, a position, a row to gather and a SampleRow; and where
  // it is drafted, its best tokens to look up in two tables.
  constexpr int64_t kRowBytes = (3 + 2 * (kMaxTopTokens + 1)) * sizeof(int32_t) + sizeof(DeviceSampleRow);
  constexpr int64_t kSlack = (int64_t{64} << 10) + kMaxCounters * 4;
  const int64_t num_table_entries = bucket(std::ssize(page_tables_), 64);
  const int64_t sequence_bytes =
      static_cast<int64_t>((sizeof(AttentionSequence) + sizeof(RecurrentSequence)) * sequences_.size());
  if (Status status =
          inputs_.begin(*device_, num_table_entries * 4 + sequence_bytes + num_rows_ * kRowBytes + kSlack);
      !status.ok()) {
    return fail(std::move(status));
  }
  static constexpr std::array<int32_t, kMaxCounters> kZeros{};
  counters_ = {const_cast<int32_t*>(inputs_.add(std::span<const int32_t>(kZeros))), kZeros.size()};
  positions_ = rows.positions;
  device_positions_ = inputs_.add(rows.positions);
  attention_rows_.sequences = inputs_.add<AttentionSequence>(sequences_);
  recurrent_rows_.sequences = inputs_.add<RecurrentSequence>(recurrent_sequences_);
  attention_rows_.page_tables = inputs_.add<int32_t>(page_tables_, static_cast<size_t>(num_table_entries));
}

bool CudaOps::uses_graphs() const { return options_.use_graphs && num_rows_ <= kMaxGraphRows; }

void CudaOps::launch_part() {
  launch_recorded();
  parts_.next();
}

void CudaOps::launch_recorded() {
  fusion_.flush();
  if (!fault_.ok() || launches_.empty()) return;
  fault_ = inputs_.upload(stream_);
  if (!fault_.ok()) return;
  if (uses_graphs()) {
    fault_ = graphs_.run(stream_, launches_);
  } else {
    launches_.run(stream_);
    fault_ = to_status(cudaGetLastError(), "launching a pass");
  }
  launches_.clear();
}

Status CudaOps::wait() { return to_status(cudaStreamSynchronize(stream_), "a pass on the device"); }

Status CudaOps::end_pass() {
  launch_recorded();
  const Status waited = wait();
  outgrown_.clear();
  return fault_.ok() ? waited : std::exchange(fault_, Status());
}

std::byte* CudaOps::scratch(int64_t bytes) {
  if (bytes <= scratch_.size_bytes()) return scratch_.data();
  Result<Buffer> larger = device_->allocate(bucket(bytes, int64_t{1} << 20), "scratch of an operation");
  if (!larger.ok()) {
    fail(larger.status());
    return nullptr;
  }
  outgrown_.push_back(std::exchange(scratch_, std::move(*larger)));
  return scratch_.data();
}

void CudaOps::embed(View out, const LinearWeight& table, std::span<const int32_t> tokens, float scale) {
  if (!fault_.ok() || tokens.empty()) return;
  record<launch_embed>(embed_launch(out, table, inputs_.add(tokens), scale));
}

void CudaOps::rms_norm(View out, View x, View weight, const RmsNormOptions& options) {
  if (!fault_.ok() || x.num_rows() == 0) return;
  record<launch_rms_norm>(rms_norm_launch(out, x, weight, options));
}

void CudaOps::gated_rms_norm(const GatedRmsNormCall& call) {
  if (fault_.ok() && call.x.num_rows() > 0) fusion_.gated_rms_norm(gated_rms_norm_launch(call));
}

int32_t* CudaOps::take_counter() {
  if (counters_.empty()) return nullptr;
  int32_t* counter = counters_.data();
  counters_ = counters_.subspan(1);
  return counter;
}

void CudaOps::linear(View x, std::span<const LinearCall> calls) {
  if (!fault_.ok() || x.num_rows() == 0) return;
  LinearKernel kernel = LinearKernel::kAuto;
  if (options_.kernels == CudaOptions::Kernels::kFewRows) kernel = LinearKernel::kDecode;
  if (options_.kernels == CudaOptions::Kernels::kManyRows) kernel = LinearKernel::kWide;
  for (LinearLaunch& launch : linear_launches(x, calls, kernel)) {
    if (launch.kernel == LinearKernel::kDecode) launch.drawn_tiles = take_counter();
    record<launch_linear>(launch);
  }
}

void CudaOps::rope_table(View cos, View sin, std::span<const int32_t> positions,
                         std::span<const double> inv_freq, double multiplier) {
  if (!fault_.ok() || positions.empty() || inv_freq.empty()) return;
  const bool are_of_pass = positions.data() == positions_.data() && positions.size() == positions_.size();
  record<launch_rope_table>(rope_table_launch(
      cos, sin, are_of_pass ? device_positions_ : inputs_.add(positions), inputs_.add(inv_freq), multiplier));
}

void CudaOps::qk_norm_rope(const QkNormRopeCall& call) {
  if (fault_.ok() && call.q.num_rows() > 0) record<launch_qk_norm_rope>(qk_norm_rope_launch(call));
}

void CudaOps::append_kv(const KvPages& pages, View k, View v, const RowBatch& rows) {
  TF_DCHECK(rows.num_rows() == num_rows_);
  if (fault_.ok() && rows.num_rows() > 0)
    record<launch_append_kv>(append_kv_launch(pages, k, v, attention_rows_));
}

void CudaOps::attention(const AttentionCall& call) {
  if (!fault_.ok() || num_rows_ == 0) return;
  AttentionKernel kernel = AttentionKernel::kAuto;
  if (options_.kernels == CudaOptions::Kernels::kFewRows) kernel = AttentionKernel::kSplit;
  if (options_.kernels == CudaOptions::Kernels::kManyRows) kernel = AttentionKernel::kWide;
  AttentionLaunch launch = attention_launch(call, attention_rows_, nullptr, kernel);
  if (launch.is_split) {
    std::byte* memory = scratch(attention_scratch_bytes(call, attention_rows_));
    if (memory == nullptr) return;
    launch = attention_launch(call, attention_rows_, memory, kernel);
  }
  record<launch_attention>(launch);
}

void CudaOps::causal_conv(const CausalConvCall& call) {
  if (fault_.ok() && num_rows_ > 0) fusion_.causal_conv(causal_conv_launch(call, recurrent_rows_));
}

void CudaOps::dynamic_conv(const DynamicConvCall& call) {
  if (fault_.ok() && num_rows_ > 0) record<launch_dynamic_conv>(dynamic_conv_launch(call, attention_rows_));
}

void CudaOps::gated_delta(const GatedDeltaCall& call) {
  if (!fault_.ok() || num_rows_ == 0) return;
  const RecurrentShape& shape = call.states->shape;
  const int64_t num_keys = call.k.dim(1) / shape.key_dim;
  fusion_.gated_delta(
      gated_delta_launch(call, recurrent_rows_, recurrence_blocks(shape, num_keys, recurrent_rows_)));
}

void CudaOps::mamba2(const Mamba2Call& call) {
  if (!fault_.ok() || num_rows_ == 0) return;
  const RecurrentShape& shape = call.states->shape;
  const int64_t num_groups = call.b.dim(1) / shape.key_dim;
  record<launch_mamba2>(
      mamba2_launch(call, recurrent_rows_, recurrence_blocks(shape, num_groups, recurrent_rows_)));
}

void CudaOps::mlp_activation(View out, View gate, View up, const MlpActivation& activation) {
  if (!fault_.ok() || up.num_rows() == 0) return;
  record<launch_mlp_activation>(mlp_activation_launch(out, gate, up, activation));
}

void CudaOps::sigmoid_mul(View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride) {
  if (fault_.ok() && x.num_rows() > 0)
    record<launch_sigmoid_mul>(sigmoid_mul_launch(out, x, gate, head_dim, gate_head_stride));
}

void CudaOps::add_gated(View out, View x, View gate) {
  if (fault_.ok() && x.num_rows() > 0) record<launch_add_gated>(add_gated_launch(out, x, gate));
}

void CudaOps::softcap(View x, float limit) {
  if (fault_.ok() && x.num_rows() > 0) record<launch_softcap>(softcap_launch(x, limit));
}

void CudaOps::route(const RouteCall& call) {
  if (!fault_.ok() || call.router_logits.num_rows() == 0) return;
  record<launch_route>(route_launch(call));
}

void CudaOps::experts(const ExpertsCall& call) {
  if (!fault_.ok() || call.x.num_rows() == 0) return;
  const ExpertsKernel kernel = experts_kernel(options_.kernels);
  std::byte* memory = scratch(experts_scratch_bytes(call, kernel));
  if (memory == nullptr) return;
  ExpertsLaunch launch = experts_launch(call, memory, kernel);
  fusion_.flush();  // What waits there would be the launch before this one.
  if (launch.kind == ExpertTasks::kOneRow) launch.arrived_blocks = take_counter();
  // route() waits before it lets this one start, and writes no x.
  launch.x_is_early = launches_.ends_with<launch_route, RouteLaunch>();
  record<launch_experts>(launch);
}

bool CudaOps::takes_shared_expert(const ExpertsCall& call) const {
  return cuda::takes_shared_expert(call, experts_kernel(options_.kernels));
}

void CudaOps::gather_rows(View out, View x, std::span<const int32_t> rows) {
  if (fault_.ok() && !rows.empty()) record<launch_gather_rows>(gather_rows_launch(out, x, inputs_.add(rows)));
}

bool CudaOps::reserve_drawn(size_t num_words) {
  if (drawn_capacity_ >= num_words) return true;
  cudaFreeHost(drawn_);
  drawn_ = nullptr, drawn_capacity_ = 0;
  const auto capacity = static_cast<size_t>(bucket(static_cast<int64_t>(num_words), 256));
  void* host = nullptr;
  Status status =
      to_status(cudaMallocHost(&host, capacity * sizeof(int32_t)), "pinned memory for drawn tokens");
  if (!status.ok()) return fail(std::move(status)), false;
  drawn_ = static_cast<int32_t*>(host), drawn_capacity_ = capacity;
  return true;
}

void CudaOps::sample(std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows,
                     std::span<float> probabilities) {
  TF_DCHECK(probabilities.empty() || probabilities.size() == rows.size());
  std::ranges::fill(tokens, -1);
  std::ranges::fill(probabilities, 0.0f);
  // Tokens, and behind them their probabilities.
  static_assert(sizeof(float) == sizeof(int32_t));
  if (!fault_.ok() || rows.empty() || !reserve_drawn(rows.size() + probabilities.size())) return;
  std::vector<DeviceSampleRow> device_rows;
  for (const SampleRow& row : rows) device_rows.push_back(device_sample_row(row));
  record<launch_sample>(sample_launch(drawn_, logits, inputs_.add<DeviceSampleRow>(device_rows)));
  auto* found = reinterpret_cast<float*>(drawn_ + rows.size());
  if (!probabilities.empty())
    record<launch_token_probabilities>(token_probabilities_launch(found, logits, drawn_));
  launch_recorded();
  if (!fault_.ok()) return;
  fault_ = wait();
  if (!fault_.ok()) return;
  std::copy_n(drawn_, rows.size(), tokens.begin());
  std::copy_n(found, probabilities.size(), probabilities.begin());
}

void CudaOps::top_tokens(std::span<int32_t> tokens, std::span<float> values, View logits, int64_t k) {
  std::ranges::fill(tokens, -1);
  std::ranges::fill(values, -std::numeric_limits<float>::infinity());
  if (!fault_.ok() || tokens.empty()) return;
  // Tokens, and behind them the values.
  if (!reserve_drawn(2 * tokens.size())) return;
  auto* found = reinterpret_cast<float*>(drawn_ + tokens.size());
  std::byte* memory = scratch(top_tokens_scratch_bytes(logits, k));
  if (memory == nullptr) return;
  record<launch_top_tokens>(top_tokens_launch(drawn_, found, logits, k, memory));
  launch_recorded();
  if (!fault_.ok()) return;
  fault_ = wait();
  if (!fault_.ok()) return;
  std::copy_n(drawn_, tokens.size(), tokens.begin());
  std::copy_n(found, values.size(), values.begin());
}

}  // namespace tensorfold::cuda

namespace tensorfold {

Result<std::unique_ptr<Ops>> make_cuda_ops(const CudaOptions& options) {
  TF_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaOps> ops, cuda::CudaOps::create(options));
  return std::unique_ptr<Ops>(std::move(ops));
}

}  // namespace tensorfold
