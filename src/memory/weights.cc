// Loading: where every weight goes, then a few threads that read slices and pack them there.
#include "memory/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "formats/safetensors.h"

namespace tensorfold {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Elements of a checkpoint dtype as f32, exactly.
void convert_to_f32(DType dtype, const std::byte* from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&to[i], from + 4 * i, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, from + 2 * i, 2);
      to[i] = dtype == DType::kF16 ? to_float(f16{bits}) : to_float(bf16{bits});
    }
  }
}

/// A matrix stored [columns, num_rows] as [num_rows, columns].
std::vector<float> transposed(const std::vector<float>& values, int64_t num_rows) {
  const int64_t num_columns = std::ssize(values) / num_rows;
  std::vector<float> result(values.size());
  for (int64_t c = 0; c < num_columns; ++c)
    for (int64_t r = 0; r < num_rows; ++r) result[r * num_columns + c] = values[c * num_rows + r];
  return result;
}

/// Lets threads hold checkpoint bytes up to a limit; one request beyond the limit waits until it is alone.
class ByteGate {
 public:
  explicit ByteGate(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  void acquire(int64_t bytes) {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return held_bytes_ == 0 || held_bytes_ + bytes <= limit_bytes_; });
    held_bytes_ += bytes;
  }
  void release(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    held_bytes_ -= bytes;
    freed_.notify_all();
  }

 private:
  const int64_t limit_bytes_;
  std::mutex mutex_;
  std::condition_variable freed_;
  int64_t held_bytes_ = 0;  // under mutex_
};

VectorBinding bias_vector(const LinearBinding& linear) {
  VectorBinding vector;
  vector.values = linear.bias;
  vector.size = linear.spec.out;
  return vector;
}

/// Of a float matrix without gaps.
int64_t matrix_bytes(const LinearSpec& spec) { return spec.out * spec.in * dtype_bytes(spec.dtype); }

/// One step of loading: the bytes of a matrix or of a vector, to one place on the device.
struct Job {
  const LinearBinding* linear = nullptr;  ///< Matrix with its bias, or
  const VectorBinding* vector = nullptr;  ///< vector.
  std::byte* to = nullptr;                ///< packed_bytes(spec), or size * 4 bytes.
  std::byte* bias_to = nullptr;           ///< out * 4 bytes, where the matrix has a bias.

  int64_t checkpoint_bytes() const {
    if (vector != nullptr) return vector->values.bytes;
    return linear->weight.bytes + linear->scales.bytes + linear->biases.bytes + linear->bias.bytes;
  }
  /// Bytes that loading holds at most: those, the spans that pieces are cut out of, and a matrix being
  /// turned.
  int64_t host_bytes() const {
    if (vector != nullptr) return vector->values.bytes;
    int64_t bytes = checkpoint_bytes();
    for (const TensorSlice* slice : {&linear->weight, &linear->scales, &linear->biases})
      if (slice->piece_bytes > 0) bytes += slice->span_bytes();
    return linear->transposed_step > 0 ? bytes + matrix_bytes(linear->spec) : bytes;
  }
  const TensorSlice& first_slice() const { return vector != nullptr ? vector->values : linear->weight; }
  const std::string& name() const { return vector != nullptr ? vector->name : linear->name; }
};

/// Runs jobs on threads; the first error stops the others before their next job.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const WeightPacker& packer, Device& device, std::vector<Job> jobs)
      : checkpoint_(checkpoint), packer_(packer), device_(device), jobs_(std::move(jobs)) {
    // In file order, so that the disk reads forward.
    std::ranges::stable_sort(jobs_, [](const Job& a, const Job& b) {
      const TensorSlice &x = a.first_slice(), &y = b.first_slice();
      return std::pair(x.tensor->file_index, x.tensor->offset + x.first_byte) <
             std::pair(y.tensor->file_index, y.tensor->offset + y.first_byte);
    });
    for (const Job& job : jobs_) total_bytes_ += job.checkpoint_bytes();
  }

  Status run(const WeightLoadOptions& options) {
    const int wanted = options.num_threads > 0 ? options.num_threads : num_usable_cpus();
    const int num_threads = std::min(wanted, static_cast<int>(jobs_.size()));
    std::vector<std::jthread> threads;
    running_ = num_threads;
    for (int i = 0; i < num_threads; ++i) threads.emplace_back([this] { work(); });
    report(options.progress);
    threads.clear();  // joins
    return status_;
  }

 private:
  struct FreeAligned {
    void operator()(std::byte* block) const { ::operator delete[](block, std::align_val_t(kAlignment)); }
  };
  using HostBlock = std::unique_ptr<std::byte[], FreeAligned>;

  void work() {
    for (;;) {
      const size_t index = next_job_.fetch_add(1);
      if (index >= jobs_.size() || failed_) break;
      Status status = load(jobs_[index]);
      const std::lock_guard lock(mutex_);
      if (status.ok()) {
        done_bytes_ += jobs_[index].checkpoint_bytes();
      } else if (!failed_.exchange(true)) {
        status_ = status.with_context(jobs_[index].name());
      }
      changed_.notify_one();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_one();
  }

  /// Calls `progress` whenever bytes have arrived, until all threads are done.
  void report(const LoadProgress& progress) {
    int64_t reported = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return running_ == 0 || done_bytes_ != reported; });
      if (done_bytes_ == reported) return;
      reported = done_bytes_;
      lock.unlock();
      if (progress) progress(reported, total_bytes_);
      lock.lock();
    }
  }

  Status load(const Job& job) {
    const int64_t bytes = job.host_bytes();
    gate_.acquire(bytes);
    Status status =
        job.vector != nullptr ? load_vector(*job.vector, job.to) : load_linear(*job.linear, job.to);
    if (status.ok() && job.bias_to != nullptr) status = load_vector(bias_vector(*job.linear), job.bias_to);
    gate_.release(bytes);
    return status;
  }

  Status load_vector(const VectorBinding& vector, std::byte* to) {
    const TensorSlice& values = vector.values;
    std::vector<std::byte> stored(values.bytes);
    std::vector<float> floats(vector.size);
    TF_RETURN_IF_ERROR(read_slice(values, stored));
    convert_to_f32(values.tensor->dtype, stored.data(), floats);
    for (float& value : floats) value += vector.added;
    if (vector.num_rows > 0) floats = transposed(floats, vector.num_rows);
    return device_.copy_to_device(to, reinterpret_cast<const std::byte*>(floats.data()), vector.size * 4);
  }

  /// The pieces of a slice, one after the other.
  Status read_slice(const TensorSlice& slice, std::span<std::byte> to) {
    if (slice.piece_bytes == 0) return checkpoint_.read(*slice.tensor, slice.first_byte, to);
    const int64_t span_bytes = slice.span_bytes(), num_pieces = slice.bytes / slice.piece_bytes;
    TF_ASSIGN_OR_RETURN(const HostBlock span, allocate_host(span_bytes));
    TF_RETURN_IF_ERROR(
        checkpoint_.read(*slice.tensor, slice.first_byte, {span.get(), static_cast<size_t>(span_bytes)}));
    for (int64_t i = 0; i < num_pieces; ++i)
      std::memcpy(to.data() + i * slice.piece_bytes, span.get() + i * slice.stride_bytes, slice.piece_bytes);
    return {};
  }

  /// A float matrix stored input by input, as [out, in] (LinearBinding::transposed_step).
  Status read_transposed(const LinearBinding& linear, std::span<std::byte> to) {
    const TensorSlice& slice = linear.weight;
    TF_ASSIGN_OR_RETURN(const HostBlock pieces, allocate_host(slice.bytes));
    TF_RETURN_IF_ERROR(read_slice(slice, {pieces.get(), static_cast<size_t>(slice.bytes)}));
    const int64_t element = dtype_bytes(linear.spec.dtype), in = linear.spec.in;
    for (int64_t k = 0; k < in; ++k) {
      const std::byte* piece = pieces.get() + k * slice.piece_bytes;
      for (int64_t j = 0; j < linear.spec.out; ++j)
        std::memcpy(to.data() + (j * in + k) * element, piece + j * linear.transposed_step * element,
                    element);
    }
    return {};
  }

  Status load_linear(const LinearBinding& linear, std::byte* to) {
    const TensorSlice* slices[] = {&linear.weight, &linear.scales, &linear.biases};
    std::span<std::byte> parts[3];
    const bool is_transposed = linear.transposed_step > 0;
    int64_t sizes[3] = {linear.weight.bytes, linear.scales.bytes, linear.biases.bytes};
    if (is_transposed) sizes[0] = matrix_bytes(linear.spec);
    int64_t bytes = 0;
    for (const int64_t size : sizes) bytes += aligned(size);
    TF_ASSIGN_OR_RETURN(const HostBlock stored, allocate_host(bytes));
    std::byte* next = stored.get();
    for (int i = 0; i < 3; ++i) {
      parts[i] = {next, static_cast<size_t>(sizes[i])};
      next += aligned(sizes[i]);
      if (slices[i]->tensor == nullptr) continue;
      TF_RETURN_IF_ERROR(i == 0 && is_transposed ? read_transposed(linear, parts[i])
                                                 : read_slice(*slices[i], parts[i]));
    }
    return pack(linear.spec, {parts[0], parts[1], parts[2]}, to);
  }

  /// Packs in place where the device's memory is the host's, else beside it and copies.
  Status pack(const LinearSpec& spec, const LinearSource& source, std::byte* to) {
    const int64_t bytes = packer_.packed_bytes(spec);
    if (device_.is_host_memory()) {
      packer_.pack(spec, source, {to, static_cast<size_t>(bytes)});
      return {};
    }
    TF_ASSIGN_OR_RETURN(const HostBlock packed, allocate_host(bytes));
    packer_.pack(spec, source, {packed.get(), static_cast<size_t>(bytes)});
    return device_.copy_to_device(to, packed.get(), bytes);
  }

  static Result<HostBlock> allocate_host(int64_t bytes) {
    void* block = ::operator new[](bytes, std::align_val_t(kAlignment), std::nothrow);
    if (block == nullptr)
      return make_error(StatusCode::kOutOfMemory, "no memory for {} bytes while loading", bytes);
    return HostBlock(static_cast<std::byte*>(block));
  }

  const Checkpoint& checkpoint_;
  const WeightPacker& packer_;
  Device& device_;
  std::vector<Job> jobs_;
  int64_t total_bytes_ = 0;
  ByteGate gate_{Weights::kMaxInFlightBytes};
  std::atomic<size_t> next_job_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;  // one waiter: report()
  int running_ = 0;                  // under mutex_, as the following
  int64_t done_bytes_ = 0;
  Status status_;
};

}  // namespace

struct Weights::Impl {
  std::vector<LinearWeight> linears;   ///< By LinearId::index.
  std::vector<View> vectors;           ///< By VectorId::index.
  std::vector<ExpertsWeight> experts;  ///< By ExpertsId::index; spans into `linears`.
  std::vector<int> linear_layers;      ///< Layer of each, to hold leases to their own.
  std::vector<int> vector_layers;
  std::vector<int> expert_layers;
  std::vector<Buffer> blocks;  ///< One per layer, what lies outside the layers first.
  int64_t resident_bytes = 0;

  Status place(const Manifest& manifest, const WeightPacker& packer, Device& device, std::vector<Job>& jobs);
  void gather_experts(const Manifest& manifest);
};

namespace {

/// Bytes that a binding takes in its layer's block: the packed matrix, then its bias.
int64_t block_bytes(const LinearBinding& linear, const WeightPacker& packer) {
  const int64_t bias_bytes = linear.bias.tensor != nullptr ? aligned(linear.spec.out * 4) : 0;
  return aligned(packer.packed_bytes(linear.spec)) + bias_bytes;
}

View view_of(const VectorBinding& vector, std::byte* data) {
  if (vector.num_rows == 0) return View(data, DType::kF32, {vector.size});
  return View(data, DType::kF32, {vector.num_rows, vector.size / vector.num_rows});
}

/// The first expert speaks for all: a layer's have one format.
ExpertsSpec spec_of(const Manifest& manifest, const ExpertsBinding& experts) {
  const auto spec_at = [&](int32_t index) {
    return index < 0 ? LinearSpec() : manifest.linears[static_cast<size_t>(index)].spec;
  };
  return {.num_experts = experts.num_experts,
          .num_experts_per_tok = experts.num_experts_per_tok,
          .num_groups = experts.num_groups,
          .gate_proj = spec_at(experts.first_gate_proj),
          .up_proj = spec_at(experts.first_up_proj),
          .down_proj = spec_at(experts.first_down_proj)};
}

Status check_specs(const Manifest& manifest, const WeightPacker& packer) {
  for (const LinearBinding& linear : manifest.linears) {
    const Status status = packer.check_linear(linear.spec);
    if (!status.ok()) return status.with_context(linear.name);
  }
  for (const ExpertsBinding& experts : manifest.experts) {
    const Status status = packer.check_experts(spec_of(manifest, experts));
    if (!status.ok()) return status.with_context(experts.name);
  }
  return {};
}

}  // namespace

/// Allocates the layers' blocks and gives every binding its address, and a job to fill it.
Status Weights::Impl::place(const Manifest& manifest, const WeightPacker& packer, Device& device,
                            std::vector<Job>& jobs) {
  const int num_blocks = manifest.num_layers() + 1;
  std::vector<int64_t> sizes(num_blocks, 0);
  for (const LinearBinding& linear : manifest.linears) sizes[linear.layer + 1] += block_bytes(linear, packer);
  for (const VectorBinding& vector : manifest.vectors) sizes[vector.layer + 1] += aligned(vector.size * 4);
  const int64_t total = std::reduce(sizes.begin(), sizes.end());
  // Asked beforehand: a system that overcommits would hand out the addresses and kill the process later.
  if (total > device.free_bytes())
    return make_error(StatusCode::kOutOfMemory, "the weights need {} MB of {}, {} MB are free", total >> 20,
                      device.name(), device.free_bytes() >> 20);
  std::vector<std::byte*> next;
  for (int i = 0; i < num_blocks; ++i) {
    const std::string what = i == 0 ? "embedding and head" : fmt::format("weights of layer {}", i - 1);
    TF_ASSIGN_OR_RETURN(Buffer block, device.allocate(sizes[i], what));
    next.push_back(block.data());
    resident_bytes += sizes[i];
    blocks.push_back(std::move(block));
  }
  for (const LinearBinding& linear : manifest.linears) {
    std::byte*& to = next[linear.layer + 1];
    std::byte* bias_to =
        linear.bias.tensor != nullptr ? to + aligned(packer.packed_bytes(linear.spec)) : nullptr;
    jobs.push_back({.linear = &linear, .to = to, .bias_to = bias_to});
    linears.push_back({linear.spec, to, reinterpret_cast<const float*>(bias_to)});
    linear_layers.push_back(linear.layer);
    to += block_bytes(linear, packer);
  }
  for (const VectorBinding& vector : manifest.vectors) {
    std::byte*& to = next[vector.layer + 1];
    jobs.push_back({.vector = &vector, .to = to});
    vectors.push_back(view_of(vector, to));
    vector_layers.push_back(vector.layer);
    to += aligned(vector.size * 4);
  }
  return {};
}

void Weights::Impl::gather_experts(const Manifest& manifest) {
  const std::span<const LinearWeight> all = linears;
  for (const ExpertsBinding& binding : manifest.experts) {
    const auto run = [&](int32_t first) {
      return first < 0 ? std::span<const LinearWeight>() : all.subspan(first, binding.num_experts);
    };
    experts.push_back({binding.num_experts, run(binding.first_gate_proj), run(binding.first_up_proj),
                       run(binding.first_down_proj)});
    expert_layers.push_back(binding.layer);
  }
}

Weights::Weights() : impl_(std::make_unique<Impl>()) {}
Weights::~Weights() = default;

Result<std::unique_ptr<Weights>> Weights::load(const Checkpoint& checkpoint, const Manifest& manifest,
                                               const WeightPacker& packer, Device& device,
                                               const WeightLoadOptions& options) {
  std::unique_ptr<Weights> weights(new Weights());
  std::vector<Job> jobs;
  Status status = check_specs(manifest, packer);
  if (status.ok()) status = weights->impl_->place(manifest, packer, device, jobs);
  if (status.ok()) status = Loader(checkpoint, packer, device, std::move(jobs)).run(options);
  if (!status.ok()) return status.with_context(manifest.family);
  weights->impl_->gather_experts(manifest);
  return weights;
}

std::unique_ptr<Weights> Weights::without_bytes(const Manifest& manifest) {
  std::unique_ptr<Weights> weights(new Weights());
  Impl& impl = *weights->impl_;
  for (const LinearBinding& linear : manifest.linears) {
    impl.linears.push_back({linear.spec, nullptr, nullptr});
    impl.linear_layers.push_back(linear.layer);
  }
  for (const VectorBinding& vector : manifest.vectors) {
    impl.vectors.push_back(view_of(vector, nullptr));
    impl.vector_layers.push_back(vector.layer);
  }
  impl.gather_experts(manifest);
  return weights;
}

int64_t Weights::resident_bytes() const { return impl_->resident_bytes; }

const LinearWeight& Lease::operator[](LinearId id) const {
  TF_DCHECK(weights_->impl_->linear_layers[id.index] == layer_, "a lease holds its own layer's weights");
  return weights_->impl_->linears[id.index];
}

View Lease::operator[](VectorId id) const {
  TF_DCHECK(weights_->impl_->vector_layers[id.index] == layer_, "a lease holds its own layer's weights");
  return weights_->impl_->vectors[id.index];
}

const ExpertsWeight& Lease::operator[](ExpertsId id) const {
  TF_DCHECK(weights_->impl_->expert_layers[id.index] == layer_, "a lease holds its own layer's weights");
  return weights_->impl_->experts[id.index];
}

}  // namespace tensorfold
