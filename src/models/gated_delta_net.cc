// See gated_delta_net.h.
#include "models/gated_delta_net.h"

namespace tensorfold {

RecurrentShape GatedDeltaShape::state() const {
  return {.conv_channels = conv_channels(),
          .conv_taps = conv_taps,
          .num_heads = num_value_heads,
          .key_dim = key_head_dim,
          .value_dim = value_head_dim,
          .num_gates = 2 * num_value_heads};
}

GatedDeltaScratch::GatedDeltaScratch(Arena& arena, const GatedDeltaShape& shape, DType activation_dtype,
                                     int64_t num_rows)
    : qkv(arena.array(DType::kF32, {num_rows, shape.conv_channels()})),
      mixed(arena.array(DType::kF32, {num_rows, shape.conv_channels()})),
      z(arena.array(DType::kF32, {num_rows, shape.value_size()})),
      b(arena.array(DType::kF32, {num_rows, shape.num_value_heads})),
      a(arena.array(DType::kF32, {num_rows, shape.num_value_heads})),
      read(arena.array(DType::kF32, {num_rows, shape.value_size()})),
      normed(arena.array(activation_dtype, {num_rows, shape.value_size()})) {}

void GatedDeltaNet::forward(const BlockPass& pass, const Lease& weights, const RecurrentStates& states,
                            const GatedDeltaScratch& s) const {
  const int64_t key_size = shape.key_size(), value_size = shape.value_size();
  const LinearCall in[] = {{.out = s.qkv.columns(0, key_size), .weight = weights[q_proj]},
                           {.out = s.qkv.columns(key_size, key_size), .weight = weights[k_proj]},
                           {.out = s.qkv.columns(2 * key_size, value_size), .weight = weights[v_proj]},
                           {.out = s.z, .weight = weights[z_proj]},
                           {.out = s.b, .weight = weights[b_proj]},
                           {.out = s.a, .weight = weights[a_proj]}};
  pass.ops.linear(pass.x, in);
  keep_drafted(pass, states, 0, s.qkv);
  keep_drafted(pass, states, shape.conv_channels(), s.a);
  keep_drafted(pass, states, shape.conv_channels() + shape.num_value_heads, s.b);
  advance(pass.ops, pass.rows, {.qkv = s.qkv, .a = s.a, .b = s.b}, weights, states, s);
  pass.ops.gated_rms_norm({.out = s.normed,
                           .x = s.read,
                           .gate = s.z,
                           .weight = weights[norm],
                           .group_size = shape.value_head_dim,
                           .eps = norm_eps,
                           .order = GatedRmsNormCall::Order::kNormThenGate});
  const LinearCall out[] = {{.out = pass.h, .weight = weights[out_proj], .accumulate = true}};
  pass.ops.linear(s.normed, out);
}

void GatedDeltaNet::commit(const CommitPass& pass, const Lease& weights, const RecurrentStates& states,
                           const GatedDeltaScratch& s) const {
  const int64_t channels = shape.conv_channels(), heads = shape.num_value_heads;
  const View kept = states.drafted.rows(0, pass.accepted.num_rows());
  advance(pass.ops, pass.accepted,
          {.qkv = kept.columns(0, channels),
           .a = kept.columns(channels, heads),
           .b = kept.columns(channels + heads, heads)},
          weights, states, s);
}

void GatedDeltaNet::advance(Ops& ops, const RowBatch& rows, const Inputs& inputs, const Lease& weights,
                            const RecurrentStates& states, const GatedDeltaScratch& s) const {
  const int64_t key_size = shape.key_size(), value_size = shape.value_size();
  ops.causal_conv({.out = s.mixed,
                   .x = inputs.qkv,
                   .weight = weights[conv],
                   .bias = {},
                   .states = &states,
                   .rows = rows});
  ops.gated_delta({.out = s.read,
                   .q = s.mixed.columns(0, key_size),
                   .k = s.mixed.columns(key_size, key_size),
                   .v = s.mixed.columns(2 * key_size, value_size),
                   .a = inputs.a,
                   .b = inputs.b,
                   .a_log = weights[a_log],
                   .dt_bias = weights[dt_bias],
                   .states = &states,
                   .rows = rows});
}

namespace {

/// q, k and v one after the other in one matrix; z, b and a on their own: Qwen3.5.
void declare_separate(GatedDeltaNet& net, WeightTable& table, int layer, const GatedDeltaDeclaration& d) {
  const int64_t E = d.hidden_size, key_size = d.shape.key_size(), value_size = d.shape.value_size();
  const LinearDeclaration qkv = {d.module + ".in_proj_qkv", d.shape.conv_channels(), E};
  net.q_proj = table.linear_rows(layer, qkv, {.num_pieces = 1, .piece_rows = key_size});
  net.k_proj =
      table.linear_rows(layer, qkv, {.first_row = key_size, .num_pieces = 1, .piece_rows = key_size});
  net.v_proj =
      table.linear_rows(layer, qkv, {.first_row = 2 * key_size, .num_pieces = 1, .piece_rows = value_size});
  net.z_proj = table.linear(layer, {d.module + ".in_proj_z", value_size, E});
  net.b_proj = table.linear(layer, {d.module + ".in_proj_b", d.shape.num_value_heads, E});
  net.a_proj = table.linear(layer, {d.module + ".in_proj_a", d.shape.num_value_heads, E});
}

/// For each key head its rows of q, k, v and z, and of b and a: Qwen3-Next. The value heads of a key head are
/// consecutive, so taking the pieces in order gives the order of declare_separate().
void declare_fused(GatedDeltaNet& net, WeightTable& table, int layer, const GatedDeltaDeclaration& d) {
  const int64_t Dk = d.shape.key_head_dim, key_heads = d.shape.num_key_heads;
  const int64_t values = d.shape.num_value_heads / key_heads, value_rows = values * d.shape.value_head_dim;
  const LinearDeclaration qkvz = {d.module + ".in_proj_qkvz", d.shape.conv_channels() + d.shape.value_size(),
                                  d.hidden_size};
  const LinearDeclaration ba = {d.module + ".in_proj_ba", 2 * d.shape.num_value_heads, d.hidden_size};
  const auto of_heads = [&](const LinearDeclaration& whole, int64_t first_row, int64_t piece_rows) {
    return table.linear_rows(layer, whole,
                             {.first_row = first_row,
                              .num_pieces = key_heads,
                              .piece_rows = piece_rows,
                              .stride_rows = whole.out / key_heads});
  };
  net.q_proj = of_heads(qkvz, 0, Dk);
  net.k_proj = of_heads(qkvz, Dk, Dk);
  net.v_proj = of_heads(qkvz, 2 * Dk, value_rows);
  net.z_proj = of_heads(qkvz, 2 * Dk + value_rows, value_rows);
  net.b_proj = of_heads(ba, 0, values);
  net.a_proj = of_heads(ba, values, values);
}

}  // namespace

GatedDeltaNet declare_gated_delta_net(WeightTable& table, int layer, const GatedDeltaDeclaration& d) {
  const GatedDeltaShape& shape = d.shape;
  GatedDeltaNet net;
  d.is_fused ? declare_fused(net, table, layer, d) : declare_separate(net, table, layer, d);
  net.conv = table.convolution(layer, d.module + ".conv1d.weight", shape.conv_channels(), shape.conv_taps);
  net.a_log = table.vector(layer, d.module + ".A_log", shape.num_value_heads);
  net.dt_bias = table.vector(layer, d.module + ".dt_bias", shape.num_value_heads);
  net.norm = table.vector(layer, d.module + ".norm.weight", shape.value_head_dim);
  net.out_proj = table.linear(layer, {d.module + ".out_proj", d.hidden_size, shape.value_size()});
  net.shape = shape;
  net.norm_eps = d.norm_eps;
  return net;
}

}  // namespace tensorfold
