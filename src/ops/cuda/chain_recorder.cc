// See chain_recorder.h.
#include "ops/cuda/chain_recorder.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

namespace tensorfold::cuda {
namespace {

std::mutex permits_mutex;
std::set<int>& permits() {  // Guarded by permits_mutex; lives as long as the process.
  static auto& devices = *new std::set<int>;
  return devices;
}

/// The bytes from the first to the last of some rows.
struct Extent {
  uintptr_t begin, end;
  Extent(const void* data, int64_t row_bytes, int64_t stride_bytes, int64_t num_rows)
      : begin(reinterpret_cast<uintptr_t>(data)),
        end(begin + static_cast<uintptr_t>((num_rows - 1) * stride_bytes + row_bytes)) {}
};
bool may_overlap(const Extent& a, const Extent& b) { return a.begin < b.end && b.begin < a.end; }

Extent extent_of(const LinearDeviceCall& call, int num_rows) {
  const int64_t bytes = call.out_is_bf16 ? 2 : 4;
  return {call.out, call.out_size * bytes, call.out_stride * bytes, num_rows};
}
/// What the blocks of a step read as they stage x.
Extent source_of(const ChainStep& step, int num_rows) {
  if (step.norm.x != nullptr) return {step.norm.x, int64_t{step.in} * 4, step.norm.x_stride * 4, num_rows};
  return {step.x, int64_t{step.in} * 2, step.x_stride * 2, num_rows};
}

/// Whether what a step writes is apart from what its blocks read, and the results of its norm and its
/// activation from everything else that it writes (its outputs are apart as those of every linear() are):
/// nothing orders these before the next barrier.
bool is_free_of_hazards(const ChainStep& step, const LinearDeviceCall* calls, int num_rows) {
  const Extent source = source_of(step, num_rows);
  std::vector<Extent> written;  // The outputs last.
  if (step.norm.x != nullptr)
    written.emplace_back(step.norm.out, int64_t{step.in} * 2, step.norm.out_stride * 2, num_rows);
  if (step.activation.out != nullptr)
    written.emplace_back(step.activation.out, int64_t{calls[0].out_size} * 2, step.activation.out_stride * 2,
                         num_rows);
  const size_t num_results = written.size();
  for (int i = 0; i < step.num_calls; ++i) written.push_back(extent_of(calls[i], num_rows));
  for (size_t i = 0; i < written.size(); ++i) {
    if (may_overlap(written[i], source)) return false;
    for (size_t j = 0; j < std::min(i, num_results); ++j) {
      if (may_overlap(written[i], written[j])) return false;
    }
  }
  return true;
}

/// Whether a step may norm its rows itself.
bool is_for_steps(const RmsNormLaunch& norm) {
  return norm.out_is_bf16 && !norm.accumulate && norm.num_rows >= 1 && norm.num_rows <= kMaxChainRows &&
         norm.num_columns <= kMaxChainNormColumns;
}
bool feeds(const RmsNormLaunch& norm, const LinearLaunch& product) {
  return norm.out == static_cast<const void*>(product.x) && norm.num_rows == product.num_rows &&
         norm.num_columns == product.in && (norm.out_stride == product.x_stride || norm.num_rows == 1) &&
         product.chunks * kLinearChunkColumns <= kMaxChainNormColumns;
}
bool is_for_chains(const LinearLaunch& product) {
  return product.kernel == LinearKernel::kDecode && has_chain_kernel(product.layout, product.num_rows);
}

ChainStep step_of(const LinearLaunch& product, const RmsNormLaunch* norm, int first_call) {
  ChainStep step{.x = product.x,
                 .x_stride = product.x_stride,
                 .norm = {},
                 .activation = {},
                 .first_call = first_call,
                 .num_calls = product.num_calls,
                 .num_tiles = product.num_tiles,
                 .deal = 1,
                 .in = product.in,
                 .chunks = product.chunks,
                 .chunks_per_segment = product.chunks_per_segment};
  if (norm != nullptr) {
    step.norm = {.x = norm->x,
                 .weight = norm->weight,
                 .out = static_cast<uint16_t*>(norm->out),
                 .x_stride = norm->x_stride,
                 .out_stride = norm->out_stride,
                 .reciprocal = norm->reciprocal,
                 .eps = norm->eps};
  }
  return step;
}

}  // namespace

std::optional<ChainPermit> ChainPermit::take(int device) {
  const std::lock_guard lock(permits_mutex);
  if (!permits().insert(device).second) return std::nullopt;
  return ChainPermit(device);
}
ChainPermit::~ChainPermit() {
  if (device_ < 0) return;
  const std::lock_guard lock(permits_mutex);
  permits().erase(device_);
}
ChainPermit::ChainPermit(ChainPermit&& other) noexcept : device_(std::exchange(other.device_, -1)) {}
ChainPermit& ChainPermit::operator=(ChainPermit&& other) noexcept {
  std::swap(device_, other.device_);
  return *this;
}

void ChainRecorder::record(const Original& original) {
  if (const auto* norm = std::get_if<RmsNormLaunch>(&original)) launches_.add<launch_rms_norm>(*norm);
  if (const auto* product = std::get_if<LinearLaunch>(&original)) launches_.add<launch_linear>(*product);
  if (const auto* activation = std::get_if<MlpActivationLaunch>(&original))
    launches_.add<launch_mlp_activation>(*activation);
}

void ChainRecorder::clear() {
  chain_ = {};
  originals_.clear();
  norm_.reset();
}

void ChainRecorder::flush_steps() {
  if (chain_.num_steps > 1) {
    launches_.add<launch_linear_chain>(chain_);
  } else {
    for (const Original& original : originals_) record(original);
  }
  chain_ = {};
  originals_.clear();
}

void ChainRecorder::flush() {
  flush_steps();
  if (norm_) record(*norm_);
  norm_.reset();
}

bool ChainRecorder::append(const LinearLaunch& product, const RmsNormLaunch* norm) {
  if (chain_.num_steps == kMaxChainSteps) return false;
  LinearChain longer = chain_;
  int first_call = 0;
  if (chain_.num_steps > 0) {
    if (!(chain_.layout == product.layout) || chain_.num_rows != product.num_rows) return false;
    const ChainStep& last = chain_.steps[chain_.num_steps - 1];
    first_call = last.first_call + last.num_calls;
  }
  if (first_call + product.num_calls > kMaxChainCalls) return false;
  longer.barrier = barrier_;
  longer.num_rows = product.num_rows;
  longer.layout = product.layout;
  longer.tuning = tuning_;
  std::copy_n(product.calls, product.num_calls, longer.calls + first_call);
  const ChainStep step = step_of(product, norm, first_call);
  longer.steps[longer.num_steps++] = step;
  if (!is_free_of_hazards(step, longer.calls + first_call, product.num_rows)) return false;
  if (plan_linear_chain(longer).block.stages == 0) return false;
  chain_ = longer;
  if (norm != nullptr) originals_.emplace_back(*norm);
  originals_.emplace_back(product);
  return true;
}

bool ChainRecorder::attach(const MlpActivationLaunch& a) {
  if (norm_ || chain_.num_steps == 0) return false;
  ChainStep step = chain_.steps[chain_.num_steps - 1];
  const bool has_gate = a.gate != nullptr;
  if (step.activation.out != nullptr || step.num_calls != (has_gate ? 2 : 1)) return false;
  LinearDeviceCall calls[2] = {chain_.calls[step.first_call], {}};
  if (has_gate) calls[1] = chain_.calls[step.first_call + 1];
  if (has_gate && calls[0].out == static_cast<const void*>(a.up)) std::swap(calls[0], calls[1]);
  const auto is_output = [&](const LinearDeviceCall& call, const float* data, int64_t stride) {
    return call.out == static_cast<const void*>(data) &&
           (call.out_stride == stride || chain_.num_rows == 1) && call.out_size == a.shape.num_columns &&
           !call.out_is_bf16 && !call.accumulate;
  };
  if (a.shape.num_rows != chain_.num_rows) return false;
  if (has_gate && !is_output(calls[0], a.gate, a.gate_stride)) return false;
  if (!is_output(calls[has_gate ? 1 : 0], a.up, a.up_stride)) return false;
  step.activation = {
      .out = a.out, .out_stride = a.out_stride, .kind = a.kind, .alpha = a.alpha, .limit = a.limit};
  step.deal = has_gate ? 2 : 1;
  if (!is_free_of_hazards(step, calls, chain_.num_rows)) return false;
  chain_.steps[chain_.num_steps - 1] = step;
  std::copy_n(calls, step.num_calls, chain_.calls + step.first_call);
  originals_.emplace_back(a);
  return true;
}

void ChainRecorder::rms_norm(const RmsNormLaunch& launch) {
  if (norm_ || !is_for_steps(launch)) flush();
  if (is_for_steps(launch)) {
    norm_ = launch;
  } else {
    record(launch);
  }
}

void ChainRecorder::linear(std::span<const LinearLaunch> products) {
  if (products.size() != 1 || !is_for_chains(products[0])) {
    flush();
    for (const LinearLaunch& product : products) record(product);
    return;
  }
  const LinearLaunch& product = products[0];
  if (norm_ && !feeds(*norm_, product)) flush();
  const std::optional<RmsNormLaunch> norm = std::exchange(norm_, std::nullopt);
  const RmsNormLaunch* pointer = norm ? &*norm : nullptr;
  if (append(product, pointer)) return;
  flush_steps();
  if (append(product, pointer)) return;
  if (norm) record(*norm);
  record(product);
}

void ChainRecorder::mlp_activation(const MlpActivationLaunch& launch) {
  if (attach(launch)) return;
  flush();
  record(launch);
}

}  // namespace tensorfold::cuda
