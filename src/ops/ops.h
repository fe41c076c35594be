// Every operation of arithmetic.md, declared once with its contract. A backend (reference, cpu, cuda)
// implements this class; models call it; nothing else is a kernel. Which bits each op gives is decided by
// arithmetic.md.
//
// Conventions: letters for shapes as in style.md (T rows of the pass, H heads, K KV heads, D head_dim, E
// hidden_size, I intermediate_size, V vocab, X experts, C channels of a convolution). Views are row-major.
// The *activation dtype* is bf16, or f32 when a model computes in f32; an op that writes one takes it from
// its output view. Outputs must not overlap inputs except where an op says so. Shapes and dtypes are the
// caller's duty (TF_DCHECK). Ops of one Ops object run in the order called; none of them waits for the device
// except where it says so. One thread at a time.
#pragma once

#include <cstdint>
#include <limits>
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

/// Most drafted rows of one sequence in a pass.
inline constexpr int64_t kMaxDraftedRows = 64;

/// Most tokens of one row that top_tokens() finds.
inline constexpr int64_t kMaxTopTokens = 64;

/// The rows of one sequence in a pass: consecutive positions [first_pos, first_pos + num_rows), in order, at
/// rows [first_row, first_row + num_rows) of the pass. A sequence has several such entries where branches of
/// a draft are verified: with the same first_pos and state_slot and page tables that share only pages before
/// first_pos. All their rows are drafted ones.
struct SequenceRows {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_pos = 0;
  /// Page of position p is page_table[p / kPageTokens]; covers at least first_pos + num_rows positions. Host
  /// memory.
  const int32_t* page_table = nullptr;
  /// The sequence's slot in every RecurrentStates; not read in models without recurrent layers.
  int32_t state_slot = -1;
  /// The last num_drafted rows are guesses (at most kMaxDraftedRows): they are computed as the others are,
  /// but the slot keeps the state before them. Their keys and values are written, for a later pass to write
  /// over.
  int64_t num_drafted = 0;

  int64_t num_stored() const { return num_rows - num_drafted; }
};

/// How the rows of a pass fall into sequences. Host memory, valid and unchanged for the whole pass.
struct RowBatch {
  std::span<const int32_t> positions;  ///< [T] absolute position of each row.
  /// In ascending first_row, together covering all T rows; to causal_conv, gated_delta and mamba2 also with
  /// rows between them that are nobody's, whose outputs mean nothing.
  std::span<const SequenceRows> sequences;
  int64_t num_rows() const { return static_cast<int64_t>(positions.size()); }
};

/// The shape of one attention layer's cache.
struct KvShape {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kBF16;  ///< bf16, or f32 when the model computes in f32.
  friend bool operator==(const KvShape&, const KvShape&) = default;
};

/// One attention layer's pages. Page i of the keys is kv_page_bytes(shape) bytes at k + i *
/// page_stride_bytes, of the values likewise; the layout inside a page is the backend's. The stride is larger
/// than a page because the engine keeps all layers of one page together: memory then grows page by page, and
/// a page is copied or saved in one piece. A page that was never written must be zero (0 * NaN is NaN).
struct KvPages {
  KvShape shape;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t page_stride_bytes = 0;  ///< At least kv_page_bytes(shape), a multiple of 64.
  int64_t num_pages = 0;

  std::byte* key_page(int64_t page) const { return k + page * page_stride_bytes; }
  std::byte* value_page(int64_t page) const { return v + page * page_stride_bytes; }
};

/// What a recurrent layer keeps of one sequence, all f32: the last rows that its convolution read, and one
/// matrix a head.
struct RecurrentShape {
  int64_t conv_channels = 0;  ///< C.
  int64_t conv_taps = 0;      ///< Of the convolution; it keeps one row less.
  int64_t num_heads = 0;
  int64_t key_dim = 0;    ///< Rows of a head's matrix: Dk of the delta rule, the state size N of Mamba-2.
  int64_t value_dim = 0;  ///< Columns: Dv, or Mamba-2's head size P.
  int64_t num_gates = 0;  ///< Numbers that a row's update takes beside the convolution's row.

  /// What must be kept of a drafted row to take it in later.
  int64_t input_floats() const { return conv_channels + num_gates; }
  int64_t conv_floats() const { return (conv_taps - 1) * conv_channels; }
  int64_t matrix_floats() const { return num_heads * key_dim * value_dim; }
  friend bool operator==(const RecurrentShape&, const RecurrentShape&) = default;
};

/// One recurrent layer's states, a slot for every sequence: the convolution's rows [taps - 1, C], oldest
/// first, and the matrices [heads, key_dim, value_dim]; a backend may order what is inside either otherwise.
/// An op starts from zeros where a sequence's rows begin at position 0, whatever its slot holds, and leaves
/// the state after the last row that is not drafted; where all are drafted, the slot as it was, so that
/// entries of one slot may be computed at once.
struct RecurrentStates {
  RecurrentShape shape;
  std::byte* conv = nullptr;    ///< Of slot 0, aligned to 64.
  std::byte* matrix = nullptr;  ///< Of slot 0, aligned to 64.
  int64_t slot_stride_bytes = 0;
  int64_t num_slots = 0;
  /// [most drafted rows of a pass, input_floats()] f32: inputs of the last pass's drafted rows, from which
  /// Model::commit takes the accepted ones in. data == nullptr where nothing is drafted.
  View drafted = {};

  float* conv_rows(int32_t slot) const { return reinterpret_cast<float*>(conv + slot * slot_stride_bytes); }
  float* matrices(int32_t slot) const { return reinterpret_cast<float*>(matrix + slot * slot_stride_bytes); }
};

/// One matrix product of linear(): out = W x + b, or out += W x + b.
struct LinearCall {
  View out;  ///< [T, W.out] f32 or the activation dtype; columns of a wider matrix are allowed.
  LinearWeight weight;
  bool accumulate = false;  ///< Adds to `out`, which must be f32: the residual stream.
};

struct RmsNormOptions {
  float eps = 1e-6f;
  /// Adds to `out`, which must be f32: a norm between a block and the residual stream.
  bool accumulate = false;
};

/// gated_rms_norm(): see there.
struct GatedRmsNormCall {
  enum class Order : uint8_t { kNormThenGate, kGateThenNorm };
  View out;                ///< [T, n] activation dtype.
  View x;                  ///< [T, n] f32.
  View gate;               ///< [T, n] f32, row stride free.
  View weight;             ///< [n] f32, or [group_size]: one for every group.
  int64_t group_size = 0;  ///< Divides n.
  float eps = 1e-6f;
  Order order = Order::kNormThenGate;
};

/// qk_norm_rope(): see there.
struct QkNormRopeCall {
  View q_out;   ///< [T, H*D] activation dtype.
  View k_out;   ///< [T, K*D] activation dtype.
  View q;       ///< [T, H*D] f32 (or wider, see q_head_stride), row stride free.
  View k;       ///< [T, K*D] f32, row stride free.
  View q_norm;  ///< [D] f32, or data == nullptr for none.
  View k_norm;  ///< [D] f32, or data == nullptr for none.
  float norm_eps = 1e-6f;
  View cos;  ///< [T, R/2] f32 from rope_table(); R = 2 * cos.dim(1) <= D is the rotary width.
  View sin;  ///< [T, R/2] f32.
  int64_t head_dim = 0;
  /// Elements between the heads of `q`; 0: head_dim. Larger where a gate follows each head's queries.
  int64_t q_head_stride = 0;
};

/// attention(): see there.
struct AttentionCall {
  View out;  ///< [T, H*D] activation dtype.
  View q;    ///< [T, H*D] activation dtype, after norm and rope, not scaled.
  const KvPages* pages = nullptr;
  RowBatch rows;
  int64_t num_heads = 0;
  float scale = 1.0f;            ///< Multiplies q.k; usually 1/sqrt(D).
  int64_t window = 0;            ///< 0: all keys up to the row's own; else the last `window` of them.
  const float* sinks = nullptr;  ///< [H] f32 on the device, or null.
  /// A row also sees the keys of the rows after it, to the last of its sequence's rows in the call: a block
  /// that is drafted at once. `window` then counts back from the row all the same, and is at least the most
  /// rows of a sequence.
  bool sees_later_rows = false;
};

/// causal_conv(): see there.
struct CausalConvCall {
  View out;     ///< [T, C] f32.
  View x;       ///< [T, C] f32, row stride free.
  View weight;  ///< [taps, C] f32; the last tap multiplies the row itself.
  View bias;    ///< [C] f32, or data == nullptr for none.
  const RecurrentStates* states = nullptr;
  RowBatch rows;
};

/// dynamic_conv(): see there. G groups of C/G neighbouring channels.
struct DynamicConvCall {
  View out;      ///< [T, C] activation dtype, or f32.
  View x;        ///< [T, C] f32, row stride free.
  View base;     ///< [taps, C] f32; the first tap multiplies the row itself.
  View dynamic;  ///< [T, taps*G] f32, row stride free: each row's own addition to `base`, tap by tap.
  RowBatch rows;
  bool accumulate = false;  ///< Adds to `out`, which must be f32: the residual stream.
};

/// gated_delta(): see there. Hv value heads, Hk key heads, Hk divides Hv; row strides are free.
struct GatedDeltaCall {
  View out;      ///< [T, Hv*Dv] f32.
  View q;        ///< [T, Hk*Dk] f32, after the convolution.
  View k;        ///< [T, Hk*Dk] f32, after the convolution.
  View v;        ///< [T, Hv*Dv] f32, after the convolution.
  View a;        ///< [T, Hv] f32: the decay as projected.
  View b;        ///< [T, Hv] f32: the strength of writing as projected.
  View a_log;    ///< [Hv] f32.
  View dt_bias;  ///< [Hv] f32.
  const RecurrentStates* states = nullptr;
  RowBatch rows;
};

/// mamba2(): see there. Hm heads in G groups, G divides Hm; row strides are free.
struct Mamba2Call {
  View out;             ///< [T, Hm*P] f32.
  View x;               ///< [T, Hm*P] f32, after the convolution.
  View b;               ///< [T, G*N] f32, after the convolution.
  View c;               ///< [T, G*N] f32, after the convolution.
  View dt;              ///< [T, Hm] f32: the step as projected.
  View a_log;           ///< [Hm] f32.
  View d;               ///< [Hm] f32: the skip.
  View dt_bias;         ///< [Hm] f32.
  float dt_min = 0.0f;  ///< The step is held to [dt_min, dt_max] (`time_step_limit`).
  float dt_max = std::numeric_limits<float>::infinity();
  const RecurrentStates* states = nullptr;
  RowBatch rows;
};

/// What a router makes of its logits.
enum class RouterScoring : uint8_t {
  kSoftmax,          ///< Probabilities over all experts.
  kSoftmaxOfChosen,  ///< The k largest logits, and probabilities over those.
  kSigmoid,          ///< Each expert's own, chosen by it plus a correction, in groups.
};

/// route(): see there.
struct RouteCall {
  View expert_ids;      ///< [T, k] i32, out.
  View expert_weights;  ///< [T, k] f32, out.
  View router_logits;   ///< [T, X] f32.
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool normalize = false;     ///< Divide the k weights by their sum (`norm_topk_prob`).
  float scale = 1.0f;         ///< Multiplies the k weights, last (`routed_scaling_factor`).
  View correction_bias = {};  ///< [X] f32 (`e_score_correction_bias`), or data == nullptr. kSigmoid only.
  int64_t num_groups = 1;     ///< Of X / num_groups consecutive experts (`n_group`). kSigmoid only.
  int64_t groups_kept = 1;    ///< `topk_group`; k experts must fit in them.
};

/// The function between the matrices of an MLP.
struct MlpActivation {
  enum class Kind : uint8_t {
    kSilu,         ///< silu(gate) * up
    kGeluTanh,     ///< gelu(gate) * up, the tanh form
    kClampedSilu,  ///< (up + 1) * (gate * sigmoid(alpha * gate)), gate <= limit, |up| <= limit: GPT-OSS
    kRelu2,        ///< max(up, 0)^2, without a gate
  };
  Kind kind = Kind::kSilu;
  float alpha = 0.0f;
  float limit = 0.0f;
  bool has_gate() const { return kind != Kind::kRelu2; }
  friend bool operator==(const MlpActivation&, const MlpActivation&) = default;
};

/// An expert that every row has beside those chosen for it.
struct SharedExpert {
  LinearWeight gate_proj, up_proj;  ///< [I, E]; gate_proj.data null where the activation has no gate.
  LinearWeight down_proj;           ///< [E, I]
  View gate;                        ///< [T, 1] f32: the output is scaled by the sigmoid of this; or empty.
};

/// experts(): see there.
struct ExpertsCall {
  View out;               ///< [T, E] f32, or the activation dtype where it does not accumulate; a latent
                          ///< size for E is allowed.
  View x;                 ///< [T, E] activation dtype.
  View expert_ids;        ///< [T, k] i32.
  View expert_weights;    ///< [T, k] f32.
  ExpertsWeight weights;  ///< gate_proj is empty where the activation has no gate.
  MlpActivation activation = {};
  bool accumulate = true;    ///< Adds to `out`: the residual stream.
  SharedExpert shared = {};  ///< None (up_proj.data null), or one that takes_shared_expert().
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
  std::string name;           ///< "cpu", "reference", "cuda".
  std::string arithmetic_id;  ///< "cpu/1": raised by any change that alters a bit.
  std::string isa;            ///< "avx512-bf16", "avx512", "avx2", "neon", "sm_90".
  int num_threads = 1;
};

class Ops : public WeightPacker {
 public:
  virtual const BackendInfo& info() const = 0;
  virtual Device& device() const = 0;

  /// Whether the ops take layers of these shapes; otherwise kUnsupported, naming the shape.
  virtual Status check_layers(std::span<const KvShape> kv_layers,
                              std::span<const RecurrentShape> recurrent_layers) const {
    (void)kv_layers, (void)recurrent_layers;
    return {};
  }

  /// Bytes of one page's keys (the values take as many).
  virtual int64_t kv_page_bytes(const KvShape& shape) const = 0;

  /// Opens and closes a pass; every op below runs between the two. end_pass() waits for the device and
  /// returns the first fault since begin_pass().
  virtual void begin_pass(const RowBatch& rows) = 0;
  virtual Status end_pass() = 0;

  /// out[t] = row tokens[t] of the table times `scale`, each element in fp32: float weights converted, affine
  /// ones fma(scale, q, bias), MXFP4 ones 2^e * q; rounded if out is bf16.
  ///   out [T, E] f32 or activation dtype; table [V, E] any format (the packed layout of linear(), so that a
  ///   tied head shares it); tokens host, each in [0, V).
  virtual void embed(View out, const LinearWeight& table, std::span<const int32_t> tokens, float scale) = 0;

  /// Scales each row of x to unit root mean square, then by weight:
  ///   out[t,e] = (x[t,e] * (1 / sqrt(mean_e(x[t,e]^2) + eps))) * weight[e]
  /// or, accumulating, out[t,e] plus that.
  /// x [T, E] f32; out [T, E] f32 (may be x) or activation dtype; weight [E] f32. Sum of squares in the order
  /// of arithmetic.md, "The rest"; the mean is the sum times the fp32 reciprocal of E.
  /// Source: Zhang & Sennrich 2019 (arXiv:1910.07467).
  virtual void rms_norm(View out, View x, View weight, const RmsNormOptions& options) = 0;

  /// The norm of rms_norm() over each group of a row, with a gate before or after it:
  ///   kNormThenGate: out = ((x * inverse) * weight) * silu(gate)          gated DeltaNet, a group is a head
  ///   kGateThenNorm: v = x * silu(gate);  out = (v * inverse) * weight    Mamba-2
  /// Sources: Yang et al. 2024 (arXiv:2412.06464), Dao & Gu 2024 (arXiv:2405.21060).
  virtual void gated_rms_norm(const GatedRmsNormCall& call) = 0;

  /// out = W x + b for each call, all of the same x [T, in] (activation dtype). Several calls share one
  /// dispatch (q, k and v; gate and up); their bits are those of separate calls. arithmetic.md, "Linear".
  virtual void linear(View x, std::span<const LinearCall> calls) = 0;

  /// Cosine and sine of the angles positions[t] * inv_freq[j], times `multiplier`:
  ///   cos, sin [T, R/2] f32; inv_freq host, f64 [R/2]
  /// Angle, cosine and sine are computed in f64 and the product with the multiplier rounded once.
  virtual void rope_table(View cos, View sin, std::span<const int32_t> positions,
                          std::span<const double> inv_freq, double multiplier) = 0;

  /// For each head: RMS norm over D as rms_norm() if a norm weight is given (plain weight), then rotation of
  /// the first R elements in half-split pairs (j, j + R/2), the rest passing through:
  ///   y[j] = fma(x[j], cos_j, -(x[j+R/2] * sin_j)),  y[j+R/2] = fma(x[j+R/2], cos_j, x[j] * sin_j)
  /// then rounding to the output dtype; R may be 0, and q without heads. Source: Su et al. 2021
  /// (arXiv:2104.09864), `rotate_half` of transformers.
  virtual void qk_norm_rope(const QkNormRopeCall& call) = 0;

  /// Stores row t's keys and values at its position's slot of its sequence's pages.
  ///   k, v [T, K*D] activation dtype of `pages` or f32 (rounded to it).
  virtual void append_kv(const KvPages& pages, View k, View v, const RowBatch& rows) = 0;

  /// Causal attention of each row to the keys at positions 0..p of its own sequence (further ones for
  /// sees_later_rows, which only moves the end of what a row sees), grouped queries (query head i reads KV
  /// head i*K/H), sliding window and sinks optional. arithmetic.md, "Attention", with these forms where that
  /// page leaves a choice (c = scale*log2(e) and sink*log2(e) are computed in f64 and rounded once):
  ///   in a span, from m = -inf, l = 0, o = 0, per tile of 64 keys:
  ///     s = c * (q.k);  m' = max(m, max s);  a = 2^(m - m');  p = 2^(s - m')
  ///     l = fma(l, a, sum p), sum p a short sum over the 64 fp32 values by slot;  o = a * o
  ///     keys in pairs ascending: o = fma(p[2i+1], v[2i+1], o), o = fma(p[2i], v[2i], o);
  ///     p is rounded to the pages' dtype
  ///   a key out of sight, whatever its slot holds, has p = +0 and v = +0
  ///   spans merge into the first one the row sees, ascending:
  ///     m' = max(m, m_i);  a = 2^(m - m');  b = 2^(m_i - m')
  ///     l = fma(l_i, b, l * a);  o = fma(o_i, b, o * a)
  ///   a sink is one more span, the last: m = sink*log2(e), l = 1, o = 0;  out = o / l
  /// Span borders: ops/attention_order.h.
  virtual void attention(const AttentionCall& call) = 0;

  /// Causal depthwise convolution over the rows of each sequence, then SiLU:
  ///   y from bias[c] (or +0), taps ascending: y = fma(weight[j,c], x[p - taps + 1 + j, c], y)
  ///   out = silu(y)
  /// Rows before position 0 are +0; rows of earlier passes come from `states`, which keeps the last taps - 1.
  virtual void causal_conv(const CausalConvCall& call) = 0;

  /// Depthwise causal convolution with weights of each row's own, over the rows of each sequence in the call:
  ///   y from +0, taps o ascending: y = fma(base[o,c] + dynamic[t, o*G + c/(C/G)], x[t - o, c], y)
  ///   out = y, or out + y
  /// A tap that reaches before the sequence's first row of the call is left out: nothing is kept from call to
  /// call. Source: z-lab's DFlash2 drafters (specs/drafters.md §4.2).
  virtual void dynamic_conv(const DynamicConvCall& call) = 0;

  /// The gated delta rule, one row after the other, in fp32. For value head h with the key head h / (Hv/Hk):
  ///   q' = (q * rsqrt(sum q^2 + 1e-6)) * Dk^-1/2;  k' = k * rsqrt(sum k^2 + 1e-6)      short sums
  ///   beta = sigmoid(b);  g = e^-(e^a_log * softplus(a + dt_bias))
  ///   u = beta * fma(-g, k'.S, v);  out = fma(q'.k', u, g * (q'.S));  S = fma(k', u, g * S)
  /// with S [Dk, Dv] before the row. The products sum over i < Dk in eight partials, i to partial i mod 8,
  /// ascending, by fma(left[i], right[i], partial), then halving. Source: Yang et al. 2024
  /// (arXiv:2412.06464).
  virtual void gated_delta(const GatedDeltaCall& call) = 0;

  /// The state-space recurrence of Mamba-2, one row after the other, in fp32. For head h with the group h /
  /// (Hm/G):
  ///   step = min(max(softplus(dt + dt_bias), dt_min), dt_max);  g = e^-(e^a_log * step)
  ///   S[n,p] = fma(b[n], step * x[p], g * S[n,p]);  out[p] = fma(d, x[p], sum over n of S[n,p] * c[n])
  /// the sum as in gated_delta(): fma(c[n], S[n,p], partial). Source: Dao & Gu 2024 (arXiv:2405.21060).
  virtual void mamba2(const Mamba2Call& call) = 0;

  /// out = the activation of gate and up, in fp32; out [T, I] activation dtype, gate and up [T, I] f32, row
  /// strides free, gate data == nullptr where the activation has none.
  ///   kSilu: silu(gate) * up, silu(x) = x * sigmoid(x)
  ///   kGeluTanh: (0.5 * gate) * (1 + tanh(c0 * fma(c1 * gate, gate * gate, gate))) * up, c0 = sqrt(2/pi),
  ///     c1 = 0.044715, multiplied from left to right
  ///   kClampedSilu: (u + 1) * (g * sigmoid(alpha * g)),
  ///     g = min(gate, limit), u = min(max(up, -limit), limit)
  ///   kRelu2: r * r, r = max(up, 0)
  virtual void mlp_activation(View out, View gate, View up, const MlpActivation& activation) = 0;

  /// out[t,i] = x[t,i] * sigmoid(gate of head i / head_dim, element i % head_dim); out and x [T, H*D]
  /// activation dtype (may be one), gate f32, its heads gate_head_stride elements apart, from gate.row(t) on.
  virtual void sigmoid_mul(View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride) = 0;

  /// out[t,e] = fma(sigmoid(gate[t]), x[t,e], out[t,e]); out and x [T, E] f32, gate [T, 1] f32: a shared
  /// expert.
  virtual void add_gated(View out, View x, View gate) = 0;

  /// x = limit * tanh(x / limit), in place; x f32, limit > 0: the cap of some families on their logits.
  virtual void softcap(View x, float limit) = 0;

  /// The k experts of each row and their weights, in the order of choice (score descending, index ascending);
  /// sums are short sums, those over the chosen in their order.
  ///   kSoftmax: p = e^(x - max x) / sum e^(x - max x), the k largest; weight = p
  ///     normalized: p / sum of the k
  ///   kSoftmaxOfChosen: the k largest x; weight = e^(x - max x) / sum of the k
  ///   kSigmoid: p = sigmoid(x), q = p + correction; only groups_kept groups stay, by (sum of their two
  ///     largest q descending, index ascending); the k largest q; weight = p
  ///     normalized: p / (sum of the k + 1e-20)
  /// then weight * scale. k = expert_ids.dim(1). Where any logit of a row (plus correction) is NaN, all its
  /// weights are NaN, and its experts some k different ones, the same on every instruction set.
  virtual void route(const RouteCall& call) = 0;

  /// out[t] += sum over j ascending of expert_weights[t,j] * down_e(activation(gate_e x, up_e x)), e =
  /// expert_ids[t,j]: y from +0 by y = fma(weight, down, y), then out + y (or y alone); then the shared
  /// expert as by add_gated() or linear(). Matrices may have biases. Grouping rows changes no bit.
  virtual void experts(const ExpertsCall& call) = 0;

  /// Whether experts() of this backend takes call.shared with such a call. Where it does not, linear(),
  /// mlp_activation() and add_gated() behind it are the same: the bits are equal.
  virtual bool takes_shared_expert(const ExpertsCall& call) const {
    (void)call;
    return false;
  }

  /// out[i] = x[rows[i]]; out [R, n] and x [T, n] of one dtype, or out bf16 and x f32 (rounded), row strides
  /// free; rows host.
  virtual void gather_rows(View out, View x, std::span<const int32_t> rows) = 0;

  /// Draws one token per row of logits [R, V] f32 by arithmetic.md, "Sampling"; every number of it is spelled
  /// out in ops/sampling_math.h. Waits for the device. tokens[i] = -1 where a logit of the row is NaN or none
  /// is above -inf; a logit of -inf is never drawn.
  /// probabilities [R], or empty where nobody asks: of each drawn token at temperature 1 among all,
  ///   probabilities[i] = e^(x - m) / sum over v of e^(logits[i,v] - m), x the token's logit, m the row's
  ///   largest
  /// and 0 where tokens[i] is -1, NaN where a logit of +inf was drawn. For a drafter's confidence: the last
  /// bits differ between backends, and no reply depends on them.
  virtual void sample(std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows,
                      std::span<float> probabilities = {}) = 0;

  /// The k largest of each row of logits [R, V] f32 in the order (logit descending, token ascending): tokens
  /// and values, host [R, k], k at most kMaxTopTokens; a value is the logit as sampling compares it
  /// (ops/sampling_math.h, canonical()). Waits for the device. Places that a row has no token above -inf for
  /// are token -1 and value -inf; all of a row's where one of its logits is NaN.
  virtual void top_tokens(std::span<int32_t> tokens, std::span<float> values, View logits, int64_t k) = 0;
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

/// The cpu backend. num_threads 0: all usable CPUs. kUnsupported, naming the CPU's lack, where `isa` cannot
/// run here.
Result<std::unique_ptr<Ops>> make_cpu_ops(int num_threads, CpuIsa isa = CpuIsa::kBest);

/// How the cuda backend is made. Replies depend on none of it.
struct CudaOptions {
  int device = 0;            ///< As the CUDA runtime counts them.
  int64_t memory_bytes = 0;  ///< Of the device, at most; 0: what is free, less a reserve for the runtime.

  /// Tests hold linear(), attention() and experts() to the kernels for few or for many rows, whatever the
  /// rows.
  enum class Kernels : uint8_t { kByRows, kFewRows, kManyRows };
  Kernels kernels = Kernels::kByRows;
  bool use_graphs = true;  ///< Passes of few rows are replayed as CUDA graphs.
};

/// The cuda backend. kUnsupported where the build has none or the device is not of compute capability 9.0,
/// kNotFound where it is not there.
Result<std::unique_ptr<Ops>> make_cuda_ops(const CudaOptions& options);

}  // namespace tensorfold
