// Every operation of arithmetic.md, declared once with its contract. A backend (reference, cpu, cuda) implements this
// class; models call it; nothing else is a kernel. Which bits each op gives is decided by arithmetic.md.
//
// Conventions: letters for shapes as in style.md (T rows of the pass, H heads, K KV heads, D head_dim, E hidden_size,
// I intermediate_size, V vocab, X experts). Views are row-major. The *activation dtype* is bf16, or f32 when a model
// computes in f32; an op that writes one takes it from its output view. Outputs must not overlap inputs except where
// an op says so. Shapes and dtypes are the caller's duty (TF_DCHECK). Ops of one Ops object run in the order called;
// none of them waits for the device except where it says so. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/view.h"
#include "device/device.h"
#include "memory/weight.h"

namespace tensorfold {

/// Positions of one KV page. Attention takes keys in tiles of this size (arithmetic.md, "Attention").
inline constexpr int64_t kPageTokens = 64;

/// The rows of one sequence in a pass: consecutive positions [first_pos, first_pos + num_rows), in order, at rows
/// [first_row, first_row + num_rows) of the pass.
struct SequenceRows {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_pos = 0;
  /// Page of position p is page_table[p / kPageTokens]; covers at least first_pos + num_rows positions. Host memory.
  const int32_t* page_table = nullptr;
};

/// How the rows of a pass fall into sequences. Host memory, valid and unchanged for the whole pass.
struct RowBatch {
  std::span<const int32_t> positions;         ///< [T] absolute position of each row.
  std::span<const SequenceRows> sequences;    ///< In ascending first_row, together covering all T rows.
  int64_t num_rows() const { return static_cast<int64_t>(positions.size()); }
};

/// The shape of one attention layer's cache.
struct KvShape {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kBF16;  ///< bf16, or f32 when the model computes in f32.
  friend bool operator==(const KvShape&, const KvShape&) = default;
};

/// One attention layer's pages. Page i of the keys is kv_page_bytes(shape) bytes at k + i * page_stride_bytes, of the
/// values likewise; the layout inside a page is the backend's. The stride is larger than a page because the engine
/// keeps all layers of one page together: memory then grows page by page, and a page is copied or saved in one piece.
/// A page that was never written must be zero (0 * NaN is NaN).
struct KvPages {
  KvShape shape;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t page_stride_bytes = 0;  ///< At least kv_page_bytes(shape), a multiple of 64.
  int64_t num_pages = 0;

  std::byte* key_page(int64_t page) const { return k + page * page_stride_bytes; }
  std::byte* value_page(int64_t page) const { return v + page * page_stride_bytes; }
};

/// One matrix product of linear(): out = W x + b, or out += W x + b.
struct LinearCall {
  View out;  ///< [T, W.out] f32 or the activation dtype; columns of a wider matrix are allowed.
  LinearWeight weight;
  bool accumulate = false;  ///< Adds to `out`, which must be f32: the residual stream.
};

struct RmsNormOptions {
  float eps = 1e-6f;
};

/// qk_norm_rope(): see there.
struct QkNormRopeCall {
  View q_out;   ///< [T, H*D] activation dtype.
  View k_out;   ///< [T, K*D] activation dtype.
  View q;       ///< [T, H*D] f32, row stride free.
  View k;       ///< [T, K*D] f32, row stride free.
  View q_norm;  ///< [D] f32, or data == nullptr for none.
  View k_norm;  ///< [D] f32, or data == nullptr for none.
  float norm_eps = 1e-6f;
  View cos;  ///< [T, R/2] f32 from rope_table(); R = 2 * cos.dim(1) <= D is the rotary width.
  View sin;  ///< [T, R/2] f32.
  int64_t head_dim = 0;
};

/// attention(): see there.
struct AttentionCall {
  View out;  ///< [T, H*D] activation dtype.
  View q;    ///< [T, H*D] activation dtype, after norm and rope, not scaled.
  const KvPages* pages = nullptr;
  RowBatch rows;
  int64_t num_heads = 0;
  float scale = 1.0f;               ///< Multiplies q.k; usually 1/sqrt(D).
  int64_t window = 0;               ///< 0: all keys up to the row's own; else the last `window` of them.
  const float* sinks = nullptr;     ///< [H] f32 on the device, or null.
};

/// route(): see there.
struct RouteCall {
  View expert_ids;      ///< [T, k] i32, out.
  View expert_weights;  ///< [T, k] f32, out.
  View router_logits;   ///< [T, X] f32.
  bool normalize = false;  ///< Divide the k weights by their sum (`norm_topk_prob`).
};

/// experts(): see there.
struct ExpertsCall {
  View out;  ///< [T, E] f32; the result is added.
  View x;    ///< [T, E] activation dtype.
  View expert_ids;      ///< [T, k] i32.
  View expert_weights;  ///< [T, k] f32.
  ExpertsWeight weights;
};

/// How one row's token is drawn (arithmetic.md, "Sampling"). Neutral values: top_k 0, top_p 1, min_p 0.
struct SampleRow {
  float temperature = 1.0f;  ///< 0: argmax.
  int32_t top_k = 0;         ///< 0: all.
  float top_p = 1.0f;        ///< In (0, 1].
  float min_p = 0.0f;        ///< In [0, 1].
  uint64_t seed = 0;
  int64_t pos = 0;  ///< Absolute position of the token being drawn: the row's position + 1.
};

/// What a backend is, for doctor, logs, snapshots and the exactness matrix.
struct BackendInfo {
  std::string name;            ///< "cpu", "reference", "cuda".
  std::string arithmetic_id;   ///< "cpu/1": raised by any change that alters a bit.
  std::string isa;             ///< "avx512-bf16", "avx512", "avx2", "neon", "sm_90".
  int num_threads = 1;
};

class Ops : public WeightPacker {
 public:
  virtual const BackendInfo& info() const = 0;
  virtual Device& device() const = 0;

  /// Bytes of one page's keys (the values take as many).
  virtual int64_t kv_page_bytes(const KvShape& shape) const = 0;

  /// Opens and closes a pass; every op below runs between the two. end_pass() waits for the device and returns the
  /// first fault since begin_pass().
  virtual void begin_pass(const RowBatch& rows) = 0;
  virtual Status end_pass() = 0;

  /// out[t] = row tokens[t] of the table, each element in fp32: float weights converted, affine ones
  /// fma(scale, q, bias), then rounded if out is bf16.
  ///   out [T, E] f32 or activation dtype; table [V, E] any format (the packed layout of linear(), so that a tied
  ///   head shares it); tokens host, each in [0, V).
  virtual void embed(View out, const LinearWeight& table, std::span<const int32_t> tokens) = 0;

  /// Scales each row of x to unit root mean square, then by weight:
  ///   out[t,e] = (x[t,e] * (1 / sqrt(mean_e(x[t,e]^2) + eps))) * weight[e]
  /// x [T, E] f32; out [T, E] f32 (may be x) or activation dtype; weight [E] f32. Sum of squares in the order of
  /// arithmetic.md, "The rest"; the mean is the sum times the fp32 reciprocal of E.
  /// Source: Zhang & Sennrich 2019 (arXiv:1910.07467).
  virtual void rms_norm(View out, View x, View weight, const RmsNormOptions& options) = 0;

  /// out = W x + b for each call, all of the same x [T, in] (activation dtype). Several calls share one dispatch
  /// (q, k and v; gate and up); their bits are those of separate calls. arithmetic.md, "Linear".
  virtual void linear(View x, std::span<const LinearCall> calls) = 0;

  /// Cosine and sine of the angles positions[t] * inv_freq[j], times `multiplier`:
  ///   cos, sin [T, R/2] f32; inv_freq host, f64 [R/2]. Angle, cosine and sine are computed in f64 and the product
  /// with the multiplier rounded once.
  virtual void rope_table(View cos, View sin, std::span<const int32_t> positions, std::span<const double> inv_freq,
                          double multiplier) = 0;

  /// For each head: RMS norm over D as rms_norm() if a norm weight is given (plain weight), then rotation of the first R
  /// elements in half-split pairs (j, j + R/2), the rest passing through:
  ///   y[j] = fma(x[j], cos_j, -(x[j+R/2] * sin_j)),  y[j+R/2] = fma(x[j+R/2], cos_j, x[j] * sin_j)
  /// then rounding to the output dtype. Source: Su et al. 2021 (arXiv:2104.09864), `rotate_half` of transformers.
  virtual void qk_norm_rope(const QkNormRopeCall& call) = 0;

  /// Stores row t's keys and values at its position's slot of its sequence's pages.
  ///   k, v [T, K*D] activation dtype of `pages` or f32 (rounded to it).
  virtual void append_kv(const KvPages& pages, View k, View v, const RowBatch& rows) = 0;

  /// Causal attention of each row to the keys at positions 0..p of its own sequence, grouped queries (query head i
  /// reads KV head i*K/H), sliding window and sinks optional. arithmetic.md, "Attention", with these forms where that
  /// page leaves a choice (c = scale*log2(e) and sink*log2(e) are computed in f64 and rounded once):
  ///   in a span, from m = -inf, l = 0, o = 0, per tile of 64 keys:
  ///     s = c * (q.k);  m' = max(m, max s);  a = 2^(m - m');  p = 2^(s - m')
  ///     l = fma(l, a, sum p), sum p a short sum over the 64 fp32 values by slot;  o = a * o
  ///     keys in pairs ascending: o = fma(p[2i+1], v[2i+1], o), o = fma(p[2i], v[2i], o), p rounded to the pages' dtype
  ///   a key out of sight, whatever its slot holds, has p = +0 and v = +0
  ///   spans merge into the first one the row sees, ascending: m' = max(m, m_i);  a = 2^(m - m');  b = 2^(m_i - m')
  ///     l = fma(l_i, b, l * a);  o = fma(o_i, b, o * a)
  ///   a sink is one more span, the last: m = sink*log2(e), l = 1, o = 0;  out = o / l
  /// Span borders: ops/attention_order.h.
  virtual void attention(const AttentionCall& call) = 0;

  /// out[t,i] = silu(gate[t,i]) * up[t,i], silu(x) = x * sigmoid(x) in fp32; out [T, I] activation dtype, gate and up
  /// [T, I] f32, row strides free.
  virtual void silu_mul(View out, View gate, View up) = 0;

  /// Softmax over all X experts in fp32, then the k best by (probability descending, index ascending), their weights
  /// optionally renormalized. k = expert_ids.dim(1).
  ///   p = e^(x - max x) / sum e^(x - max x);  weight_j = p_j, or p_j / sum of the k;  both sums short sums, the second
  ///   in the order of the result. A row with a NaN has NaN weights and the experts 0..k-1.
  virtual void route(const RouteCall& call) = 0;

  /// out[t] += sum over j ascending of expert_weights[t,j] * down_e(silu(gate_e x) * up_e x), e = expert_ids[t,j]:
  /// y from +0 by y = fma(weight, down, y), then out + y. Rows are grouped by expert; the grouping changes no bit.
  virtual void experts(const ExpertsCall& call) = 0;

  /// out[i] = x[rows[i]]; out [R, n] and x [T, n] of one dtype; rows host.
  virtual void gather_rows(View out, View x, std::span<const int32_t> rows) = 0;

  /// Draws one token per row of logits [R, V] f32 by arithmetic.md, "Sampling"; every number of it is spelled out in
  /// ops/sampling_math.h. Waits for the device. tokens[i] = -1 where a logit of the row is NaN or none is above -inf;
  /// a logit of -inf is never drawn.
  virtual void sample(std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows) = 0;
};

/// The definition: arithmetic.md in scalar fma, one thread, in the layouts of the cpu backend.
std::unique_ptr<Ops> make_reference_ops();

/// Instruction sets the cpu backend can be held to.
enum class CpuIsa { kBest, kAvx2, kAvx512, kAvx512Bf16, kNeon };

/// "avx2", ... and back; kBest is "best".
std::string_view cpu_isa_name(CpuIsa isa);
Result<CpuIsa> parse_cpu_isa(std::string_view name);

/// The sets this CPU can run, best first (never kBest). Empty: the CPU is below AVX2 with FMA.
std::vector<CpuIsa> supported_cpu_isas();

/// The cpu backend. num_threads 0: all usable CPUs. kUnsupported, naming the CPU's lack, where `isa` cannot run here.
Result<std::unique_ptr<Ops>> make_cpu_ops(int num_threads, CpuIsa isa = CpuIsa::kBest);

}  // namespace tensorfold
