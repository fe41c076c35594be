// Hashes of each op's bits, kept per arithmetic id (arithmetic.md, "Arithmetic ids"): whoever changes a bit
// on any machine finds out here, and raises the id together with the hash. The reference computes them; the
// other tests tie every instruction set to the reference.
#include <fmt/format.h>

#include <map>

#include "ops/kv_layout.h"
#include "tests/ops/recurrent_test_support.h"

namespace tensorfold::test {
namespace {

/// Hash of the elements, row by row.
uint64_t hash_of(const Array& array) {
  uint64_t hash = 0;
  for (int64_t i = 0; i < array.rows(); ++i) {
    const View row = array.view().rows(i, 1);
    hash = hash_bytes({row.data, static_cast<size_t>(row.row_size() * dtype_bytes(row.dtype))}, hash);
  }
  return hash;
}

Array filled(DType dtype, int64_t rows, int64_t columns, uint64_t seed, float scale = 1.0f) {
  Random random(seed);
  Array array(dtype, rows, columns);
  array.fill(random, scale);
  return array;
}

uint64_t rms_norm_hash(Ops& ops) {
  const Array x = filled(DType::kF32, 5, 577, 1, 3.0f), weight = filled(DType::kF32, 1, 577, 2);
  Array out(DType::kF32, 5, 577);
  ops.rms_norm(out.view(), x.view(), weight.view(), {.eps = 1e-5f});
  return hash_of(out);
}

uint64_t silu_hash(Ops& ops) {
  const Array gate = filled(DType::kF32, 7, 333, 3, 12.0f), up = filled(DType::kF32, 7, 333, 4);
  Array out(DType::kF32, 7, 333);
  ops.mlp_activation(out.view(), gate.view(), up.view(), {});
  return hash_of(out);
}

uint64_t activation_hash(Ops& ops, const MlpActivation& activation) {
  const Array gate = filled(DType::kF32, 7, 333, 13, 5.0f), up = filled(DType::kF32, 7, 333, 14, 5.0f);
  Array out(DType::kF32, 7, 333);
  ops.mlp_activation(out.view(), gate.view(), up.view(), activation);
  return hash_of(out);
}

/// sigmoid_mul and, on top of it, add_gated.
uint64_t gate_hash(Ops& ops) {
  const Array x = filled(DType::kF32, 7, 120, 15), gate = filled(DType::kF32, 7, 300, 16, 4.0f);
  Array out(DType::kF32, 7, 120);
  ops.sigmoid_mul(out.view(), x.view(), gate.view(), 40, 100);
  ops.add_gated(out.view(), x.view(), gate.view().columns(50, 1));
  return hash_of(out);
}

uint64_t softcap_hash(Ops& ops) {
  Array x = filled(DType::kF32, 7, 333, 23, 20.0f);
  ops.softcap(x.view(), 9.0f);
  return hash_of(x);
}

uint64_t gated_rms_norm_hash(Ops& ops, GatedRmsNormCall::Order order) {
  const Array x = filled(DType::kF32, 5, 300, 17, 3.0f), gate = filled(DType::kF32, 5, 300, 18, 3.0f);
  const Array weight = filled(DType::kF32, 1, 300, 19);
  Array out(DType::kF32, 5, 300);
  ops.gated_rms_norm({.out = out.view(),
                      .x = x.view(),
                      .gate = gate.view(),
                      .weight = View(weight.view().data, DType::kF32, {300}),
                      .group_size = 100,
                      .eps = 1e-5f,
                      .order = order});
  return hash_of(out);
}

/// Outputs and the states that are left, of a sequence that goes on and one that starts.
template <class Run>
uint64_t recurrent_hash(const RecurrentShape& shape, int64_t out_columns, const Run& run) {
  Random random(20);
  Slots slots = Slots(shape, 2).fill(random);
  const Batch batch({{17, 3, 1}, {23, 0, 0}});
  Array out(DType::kF32, 40, out_columns);
  const RecurrentStates states = slots.states();
  run(out.view(), states, batch.rows());
  return hash_of(out) + 3 * hash_of(slots.memory());
}

uint64_t causal_conv_hash(Ops& ops) {
  const Array x = filled(DType::kF32, 40, 75, 21), weight = filled(DType::kF32, 4, 75, 22);
  const Array bias = filled(DType::kF32, 1, 75, 23);
  const RecurrentShape shape{.conv_channels = 75, .conv_taps = 4};
  return recurrent_hash(shape, 75, [&](View out, const RecurrentStates& states, const RowBatch& rows) {
    ops.causal_conv({.out = out,
                     .x = x.view(),
                     .weight = weight.view(),
                     .bias = bias.view(),
                     .states = &states,
                     .rows = rows});
  });
}

uint64_t gated_delta_hash(Ops& ops) {
  const Array q = filled(DType::kF32, 40, 2 * 43, 24), k = filled(DType::kF32, 40, 2 * 43, 25);
  const Array v = filled(DType::kF32, 40, 4 * 21, 26), a = filled(DType::kF32, 40, 4, 27);
  const Array b = filled(DType::kF32, 40, 4, 28), a_log = filled(DType::kF32, 1, 4, 29);
  const Array dt_bias = filled(DType::kF32, 1, 4, 30);
  const RecurrentShape shape{.conv_taps = 1, .num_heads = 4, .key_dim = 43, .value_dim = 21};
  return recurrent_hash(shape, 4 * 21, [&](View out, const RecurrentStates& states, const RowBatch& rows) {
    ops.gated_delta({.out = out,
                     .q = q.view(),
                     .k = k.view(),
                     .v = v.view(),
                     .a = a.view(),
                     .b = b.view(),
                     .a_log = a_log.view(),
                     .dt_bias = dt_bias.view(),
                     .states = &states,
                     .rows = rows});
  });
}

uint64_t mamba2_hash(Ops& ops) {
  const Array x = filled(DType::kF32, 40, 4 * 21, 31), b = filled(DType::kF32, 40, 2 * 43, 32);
  const Array c = filled(DType::kF32, 40, 2 * 43, 33), dt = filled(DType::kF32, 40, 4, 34);
  const Array a_log = filled(DType::kF32, 1, 4, 35), d = filled(DType::kF32, 1, 4, 36);
  const Array dt_bias = filled(DType::kF32, 1, 4, 37);
  const RecurrentShape shape{.conv_taps = 1, .num_heads = 4, .key_dim = 43, .value_dim = 21};
  return recurrent_hash(shape, 4 * 21, [&](View out, const RecurrentStates& states, const RowBatch& rows) {
    ops.mamba2({.out = out,
                .x = x.view(),
                .b = b.view(),
                .c = c.view(),
                .dt = dt.view(),
                .a_log = a_log.view(),
                .d = d.view(),
                .dt_bias = dt_bias.view(),
                .dt_min = 0.1f,
                .dt_max = 2.0f,
                .states = &states,
                .rows = rows});
  });
}

uint64_t rope_hash(Ops& ops) {
  std::vector<double> inv_freq;
  for (int j = 0; j < 32; ++j) inv_freq.push_back(pow_f64(500000.0, -j / 32.0));
  std::vector<int32_t> positions;
  for (int32_t p = 0; p < 1000000; p = p * 2 + 1) positions.push_back(p);
  const int64_t rows = static_cast<int64_t>(positions.size());
  Array cos(DType::kF32, rows, 32), sin(DType::kF32, rows, 32), q_out(DType::kBF16, rows, 160);
  Array k_out(DType::kBF16, rows, 80);
  ops.rope_table(cos.view(), sin.view(), positions, inv_freq, 1.25);
  const Array q = filled(DType::kF32, rows, 160, 5), k = filled(DType::kF32, rows, 80, 6);
  const Array norm = filled(DType::kF32, 1, 80, 7);
  ops.qk_norm_rope({.q_out = q_out.view(),
                    .k_out = k_out.view(),
                    .q = q.view(),
                    .k = k.view(),
                    .q_norm = norm.view(),
                    .k_norm = norm.view(),
                    .cos = cos.view(),
                    .sin = sin.view(),
                    .head_dim = 80});
  return hash_of(cos) + 3 * hash_of(sin) + 5 * hash_of(q_out) + 7 * hash_of(k_out);
}

uint64_t attention_hash(Ops& ops, DType dtype, int64_t window) {
  constexpr int64_t kTokens = 400, kHeads = 4, kKvHeads = 2, kHeadDim = 24;
  const KvShape shape{kKvHeads, kHeadDim, dtype};
  const int64_t page_bytes = ops.kv_page_bytes(shape), num_pages = kTokens / kPageTokens + 1;
  std::vector<std::byte> memory(2 * page_bytes * num_pages);
  const KvPages pages{.shape = shape,
                      .k = memory.data(),
                      .v = memory.data() + page_bytes,
                      .page_stride_bytes = 2 * page_bytes,
                      .num_pages = num_pages};
  std::vector<int32_t> page_table(num_pages), positions(kTokens);
  for (int64_t i = 0; i < num_pages; ++i) page_table[i] = static_cast<int32_t>(num_pages - 1 - i);
  const SequenceRows sequence{0, kTokens, 0, page_table.data()};
  const RowBatch rows{positions, {&sequence, 1}};
  const Array k = filled(DType::kF32, kTokens, kKvHeads * kHeadDim, 8);
  const Array v = filled(DType::kF32, kTokens, kKvHeads * kHeadDim, 9);
  ops.append_kv(pages, k.view(), v.view(), rows);
  const Array q = filled(dtype, kTokens, kHeads * kHeadDim, 10, 2.0f);
  Array out(dtype, kTokens, kHeads * kHeadDim);
  const float sinks[] = {-1.0f, 0.5f, 2.0f, -30.0f};
  ops.attention({.out = out.view(),
                 .q = q.view(),
                 .pages = &pages,
                 .rows = rows,
                 .num_heads = kHeads,
                 .scale = 0.2f,
                 .window = window,
                 .sinks = window > 0 ? sinks : nullptr});
  return hash_of(out);
}

uint64_t route_hash(Ops& ops) {
  const Array logits = filled(DType::kF32, 20, 60, 11, 2.0f);
  Array ids(DType::kI32, 20, 6), weights(DType::kF32, 20, 6);
  ops.route({.expert_ids = ids.view(),
             .expert_weights = weights.view(),
             .router_logits = logits.view(),
             .normalize = true});
  return hash_of(ids) + 3 * hash_of(weights);
}

uint64_t routing_hash(Ops& ops, RouterScoring scoring) {
  const Array logits = filled(DType::kF32, 20, 60, 38, 2.0f), correction = filled(DType::kF32, 1, 60, 39);
  Array ids(DType::kI32, 20, 6), weights(DType::kF32, 20, 6);
  RouteCall call{.expert_ids = ids.view(),
                 .expert_weights = weights.view(),
                 .router_logits = logits.view(),
                 .scoring = scoring,
                 .normalize = true,
                 .scale = 2.5f};
  if (scoring == RouterScoring::kSigmoid) {
    call.correction_bias = View(correction.view().data, DType::kF32, {60});
    call.num_groups = 4;
    call.groups_kept = 2;
  }
  ops.route(call);
  return hash_of(ids) + 3 * hash_of(weights);
}

uint64_t sample_hash(Ops& ops) {
  const Array logits = filled(DType::kF32, 600, 3000, 12, 2.0f);
  std::vector<SampleRow> rows;
  for (int64_t i = 0; i < 600; ++i) {
    rows.push_back({.temperature = 0.25f * static_cast<float>(i % 7),
                    .top_k = static_cast<int32_t>(i % 5 * 40),
                    .top_p = i % 3 == 0 ? 1.0f : 0.9f,
                    .min_p = i % 4 == 0 ? 0.02f : 0.0f,
                    .seed = 99,
                    .pos = i});
  }
  std::vector<int32_t> tokens(600);
  ops.sample(tokens, logits.view(), rows);
  return hash_bytes(std::as_bytes(std::span(tokens)));
}

TEST(ArithmeticId, BitsOfTheCpuBackendsAreTheirIds) {
  const std::map<std::string, uint64_t> expected = {
      {"cpu/1 rms_norm", 0x82eb320d64f7ee49ull},
      {"cpu/1 mlp_activation silu", 0x948bb4c4d1771fe1ull},
      {"cpu/1 rope_table, qk_norm_rope", 0x45e7a658de1f1e02ull},
      {"cpu/1 attention bf16", 0x6dbd7d038466afabull},
      {"cpu/1 attention f32", 0xd910abeb61478708ull},
      {"cpu/1 attention window, sinks", 0x53edf4b76ea2b95full},
      {"cpu/1 route", 0xea0d6681d00122f6ull},
      {"cpu/1 mlp_activation gelu_tanh", 0x73474f9daf3220bcull},
      {"cpu/1 mlp_activation clamped silu", 0x6f6db9f3be8dae45ull},
      {"cpu/1 mlp_activation relu2", 0x2092eded3fc79083ull},
      {"cpu/1 sigmoid_mul, add_gated", 0xb7108988da1a757dull},
      {"cpu/1 softcap", 0xad849cf23ad158dbull},
      {"cpu/1 gated_rms_norm norm first", 0x01ee80e2785e153eull},
      {"cpu/1 gated_rms_norm gate first", 0xd5979f22b97cfca1ull},
      {"cpu/1 causal_conv", 0x32953a349cc76b35ull},
      {"cpu/1 gated_delta", 0xb2d715c2a9f2db2aull},
      {"cpu/1 mamba2", 0xde6c28d76731d736ull},
      {"cpu/1 route softmax of chosen", 0xbff4c27033b0baf5ull},
      {"cpu/1 route sigmoid, groups", 0x0c708dca9a43508bull},
      {"cpu/1 sample", 0xae0cfa5fb8447862ull},
  };
  const std::unique_ptr<Ops> ops = make_reference_ops();
  const std::string id = ops->info().arithmetic_id;
  const std::map<std::string, uint64_t> actual = {
      {id + " rms_norm", rms_norm_hash(*ops)},
      {id + " mlp_activation silu", silu_hash(*ops)},
      {id + " rope_table, qk_norm_rope", rope_hash(*ops)},
      {id + " attention bf16", attention_hash(*ops, DType::kBF16, 0)},
      {id + " attention f32", attention_hash(*ops, DType::kF32, 0)},
      {id + " attention window, sinks", attention_hash(*ops, DType::kBF16, 150)},
      {id + " route", route_hash(*ops)},
      {id + " mlp_activation gelu_tanh", activation_hash(*ops, {MlpActivation::Kind::kGeluTanh})},
      {id + " mlp_activation clamped silu",
       activation_hash(*ops, {MlpActivation::Kind::kClampedSilu, 1.702f, 7.0f})},
      {id + " mlp_activation relu2", activation_hash(*ops, {MlpActivation::Kind::kRelu2})},
      {id + " sigmoid_mul, add_gated", gate_hash(*ops)},
      {id + " softcap", softcap_hash(*ops)},
      {id + " gated_rms_norm norm first", gated_rms_norm_hash(*ops, GatedRmsNormCall::Order::kNormThenGate)},
      {id + " gated_rms_norm gate first", gated_rms_norm_hash(*ops, GatedRmsNormCall::Order::kGateThenNorm)},
      {id + " causal_conv", causal_conv_hash(*ops)},
      {id + " gated_delta", gated_delta_hash(*ops)},
      {id + " mamba2", mamba2_hash(*ops)},
      {id + " route softmax of chosen", routing_hash(*ops, RouterScoring::kSoftmaxOfChosen)},
      {id + " route sigmoid, groups", routing_hash(*ops, RouterScoring::kSigmoid)},
      {id + " sample", sample_hash(*ops)},
  };
  for (const auto& [name, hash] : actual) {
    const auto known = expected.find(name);
    ASSERT_NE(known, expected.end()) << name << ": no hash is kept under this id";
    EXPECT_EQ(known->second, hash) << fmt::format("{}: {:#018x}", name, hash);
  }
}

}  // namespace
}  // namespace tensorfold::test
