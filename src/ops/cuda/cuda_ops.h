// The cuda backend: ops become launches of the pass (op_fusion.h, launch_list.h), which run in parts: as soon
// as enough are recorded, when the pass ends, or when a token is asked for; a part that was seen before as a
// CUDA graph. What each op computes: the other files of this folder; whether kernels agree:
// engine/self_check.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ops/cuda/attention.h"
#include "ops/cuda/launch_list.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/op_fusion.h"
#include "ops/cuda/pass_graphs.h"
#include "ops/cuda/pass_inputs.h"
#include "ops/cuda/pass_parts.h"
#include "ops/cuda/recurrences.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// One thread at a time calls the ops; packing is thread-safe. What ops.h calls host memory is read when the
/// op is called.
class CudaOps final : public Ops {
 public:
  static Result<std::unique_ptr<CudaOps>> create(const CudaOptions& options);
  ~CudaOps() override;

  Status check_linear(const LinearSpec& spec) const override;
  Status check_experts(const ExpertsSpec& spec) const override;
  int64_t packed_bytes(const LinearSpec& spec) const override;
  void pack(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed) const override;

  const BackendInfo& info() const override { return info_; }
  Device& device() const override { return *device_; }
  Status check_layers(std::span<const KvShape> kv_layers,
                      std::span<const RecurrentShape> recurrent_layers) const override;
  int64_t kv_page_bytes(const KvShape& shape) const override;
  void begin_pass(const RowBatch& rows) override;
  Status end_pass() override;

  void embed(View out, const LinearWeight& table, std::span<const int32_t> tokens, float scale) override;
  void rms_norm(View out, View x, View weight, const RmsNormOptions& options) override;
  void gated_rms_norm(const GatedRmsNormCall& call) override;
  void linear(View x, std::span<const LinearCall> calls) override;
  void rope_table(View cos, View sin, std::span<const int32_t> positions, std::span<const double> inv_freq,
                  double multiplier) override;
  void qk_norm_rope(const QkNormRopeCall& call) override;
  void append_kv(const KvPages& pages, View k, View v, const RowBatch& rows) override;
  void attention(const AttentionCall& call) override;
  void causal_conv(const CausalConvCall& call) override;
  void dynamic_conv(const DynamicConvCall& call) override;
  void gated_delta(const GatedDeltaCall& call) override;
  void mamba2(const Mamba2Call& call) override;
  void mlp_activation(View out, View gate, View up, const MlpActivation& activation) override;
  void sigmoid_mul(View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride) override;
  void add_gated(View out, View x, View gate) override;
  void softcap(View x, float limit) override;
  void route(const RouteCall& call) override;
  void experts(const ExpertsCall& call) override;
  bool takes_shared_expert(const ExpertsCall& call) const override;
  void gather_rows(View out, View x, std::span<const int32_t> rows) override;
  void sample(std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows,
              std::span<float> probabilities) override;
  void top_tokens(std::span<int32_t> tokens, std::span<float> values, View logits, int64_t k) override;

  /// Parts of passes that were replayed as graphs.
  int64_t num_replays() const { return graphs_.num_replays(); }

 private:
  explicit CudaOps(const CudaOptions& options) : options_(options) {}
  /// `bytes` of device memory that nothing else uses until the next op that asks; null, and a fault, without
  /// memory.
  std::byte* scratch(int64_t bytes);
  /// A counter that is 0 when the pass begins, for one launch; null: there are no more.
  int32_t* take_counter();
  /// Makes room for so many words at drawn_; false, and a fault, without memory.
  bool reserve_drawn(size_t num_words);
  void fail(Status status);
  /// Adds a launch behind everything recorded so far.
  template <auto kLaunch, class Launch>
  void record(const Launch& launch) {
    fusion_.flush();
    launches_.add<kLaunch>(launch);
    if (uses_graphs() && parts_.is_full(launches_.size())) launch_part();
  }
  /// Whether the pass runs as graphs, in parts. Larger ones run launch by launch when they end: their kernels
  /// take longer than the host.
  bool uses_graphs() const;
  /// Runs what was recorded since the last time, while the host goes on recording the pass.
  void launch_part();
  /// Runs what was recorded since the last time; does not wait.
  void launch_recorded();
  Status wait();

  const CudaOptions options_;
  BackendInfo info_;
  std::unique_ptr<Device> device_;
  Stream stream_ = nullptr;
  PassGraphs graphs_;
  LaunchList launches_;
  OpFusion fusion_{launches_};  ///< What is recorded passes through it.
  PassInputs inputs_;

  // Of the pass being recorded.
  Status fault_;
  int64_t num_rows_ = 0;
  PassParts parts_;
  AttentionRows attention_rows_;
  RecurrentRows recurrent_rows_;
  std::span<const int32_t> positions_;  ///< On the host, to know them again.
  const int32_t* device_positions_ = nullptr;
  std::span<int32_t> counters_;  ///< On the device, 0 when the pass begins; those not yet taken.
  std::vector<AttentionSequence> sequences_;
  std::vector<int32_t> page_tables_;
  std::vector<RecurrentSequence> recurrent_sequences_;

  Buffer scratch_;
  std::vector<Buffer> outgrown_;  ///< Scratch that launches of this pass still use.
  int32_t* drawn_ = nullptr;      ///< Pinned host memory, in which the device writes what is drawn.
  size_t drawn_capacity_ = 0;
};

}  // namespace tensorfold::cuda
