// experts(): every instruction set equals the reference to the bit, however rows fall to experts; and the
// reference is the formula.
#include <gtest/gtest.h>

#include <functional>

#include "base/fp_env.h"
#include "ops/contract_math.h"
#include "tests/ops/random_linear.h"

namespace tensorfold {
namespace {

struct Sizes {
  int64_t num_experts, hidden_size, intermediate_size;
};

constexpr MlpActivation kActivations[] = {
    {MlpActivation::Kind::kSilu},
    {MlpActivation::Kind::kGeluTanh},
    {MlpActivation::Kind::kClampedSilu, 1.702f, 7.0f},
    {MlpActivation::Kind::kRelu2},
};

/// A MoE layer with random weights.
class RandomExperts {
 public:
  using MakeSpec = std::function<LinearSpec(int64_t out, int64_t in)>;

  RandomExperts(const Sizes& sizes, int bits, const WeightPacker& packer)
      : RandomExperts(sizes, packer, /*with_bias=*/false, [bits](int64_t out, int64_t in) {
          return bits == 16 ? float_spec(out, in, DType::kBF16)
                            : affine_spec(out, in, bits, 32, DType::kBF16);
        }) {}

  RandomExperts(const Sizes& sizes, const WeightPacker& packer, bool with_bias, const MakeSpec& spec)
      : sizes_(sizes), with_bias_(with_bias) {
    for (int64_t e = 0; e < sizes.num_experts; ++e) {
      const auto seed = static_cast<uint64_t>(e);
      add(gate_, spec(sizes.intermediate_size, sizes.hidden_size), 3 * seed, packer);
      add(up_, spec(sizes.intermediate_size, sizes.hidden_size), 3 * seed + 1, packer);
      add(down_, spec(sizes.hidden_size, sizes.intermediate_size), 3 * seed + 2, packer);
    }
  }

  ExpertsWeight weights() const { return {sizes_.num_experts, gate_, up_, down_}; }

 private:
  void add(std::vector<LinearWeight>& list, const LinearSpec& spec, uint64_t seed,
           const WeightPacker& packer) {
    matrices_.push_back(std::make_unique<RandomLinear>(spec, seed, packer));
    list.push_back(matrices_.back()->weight(with_bias_));
  }

  Sizes sizes_;
  bool with_bias_;
  std::vector<std::unique_ptr<RandomLinear>> matrices_;
  std::vector<LinearWeight> gate_, up_, down_;
};

/// The inputs of one call: k different experts for each row.
struct Rows {
  Rows(int64_t rows, int64_t k, const Sizes& sizes, DType activation)
      : x(activation, rows, sizes.hidden_size),
        ids(static_cast<size_t>(rows * k)),
        router_weights(DType::kF32, rows, k, k) {
    fill_random(x.view(), 21);
    fill_random(router_weights.view(), 22);
    std::mt19937_64 random(23);
    for (int64_t t = 0; t < rows; ++t) {
      const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(sizes.num_experts));
      for (int64_t j = 0; j < k; ++j) {
        ids[static_cast<size_t>(t * k + j)] = static_cast<int32_t>((first + j * 3) % sizes.num_experts);
      }
    }
  }

  ExpertsCall call(const View& out, const RandomExperts& experts, const MlpActivation& mlp = {}) {
    const int64_t k = router_weights.view().dim(1);
    ExpertsWeight weights = experts.weights();
    if (!mlp.has_gate()) weights.gate_proj = {};
    return {.out = out,
            .x = x.view(),
            .expert_ids = View(ids.data(), DType::kI32, {x.view().num_rows(), k}),
            .expert_weights = router_weights.view(),
            .weights = weights,
            .activation = mlp};
  }

  GuardedMatrix x;
  std::vector<int32_t> ids;
  GuardedMatrix router_weights;
};

class ExpertsTest : public CpuIsaTest {
 protected:
  /// Output added to what is there, or in its place, against the reference's.
  void check(Ops& ops, const RandomExperts& experts, const Sizes& sizes, int64_t rows, int64_t k,
             DType activation, const MlpActivation& mlp = {}, bool accumulate = true) {
    Rows inputs(rows, k, sizes, activation);
    const GuardedMatrix out(DType::kF32, rows, sizes.hidden_size),
        expected(DType::kF32, rows, sizes.hidden_size);
    fill_random(out.view(), 24);
    fill_random(expected.view(), 24);
    ExpertsCall call = inputs.call(out.view(), experts, mlp);
    call.accumulate = accumulate;
    ops.experts(call);
    call.out = expected.view();
    make_reference_ops()->experts(call);
    EXPECT_TRUE(same_bits(out.view(), expected.view())) << rows << " rows, " << k << " experts each";
    out.check_guards();
  }
};
TF_INSTANTIATE_FOR_EVERY_ISA(ExpertsTest);

TEST_P(ExpertsTest, EqualsTheReferenceForAnyRows) {
  constexpr Sizes kSizes = {.num_experts = 7, .hidden_size = 96, .intermediate_size = 160};
  for (int threads : {1, 3}) {
    const std::unique_ptr<Ops> ops = make_ops(threads);
    for (int bits : {4, 8, 16}) {
      const RandomExperts experts(kSizes, bits, *ops);
      for (DType activation : {DType::kBF16, DType::kF32}) {
        for (int64_t k : {1, 2, 5}) {
          for (int64_t rows : {1, 2, 9, 40}) check(*ops, experts, kSizes, rows, k, activation);
        }
      }
    }
  }
}

// GPT-OSS: MXFP4 with biases on all three matrices, and its activation.
TEST_P(ExpertsTest, EqualsTheReferenceInMxfp4WithBiases) {
  constexpr Sizes kSizes = {.num_experts = 7, .hidden_size = 96, .intermediate_size = 160};
  constexpr MlpActivation kClamped = {MlpActivation::Kind::kClampedSilu, 1.702f, 7.0f};
  const std::unique_ptr<Ops> ops = make_ops(3);
  const RandomExperts experts(kSizes, *ops, /*with_bias=*/true, mxfp4_spec);
  for (DType activation : {DType::kBF16, DType::kF32}) {
    for (int64_t rows : {1, 2, 9, 40}) check(*ops, experts, kSizes, rows, 4, activation, kClamped);
  }
}

TEST_P(ExpertsTest, EqualsTheReferenceForEveryActivation) {
  constexpr Sizes kSizes = {.num_experts = 7, .hidden_size = 64, .intermediate_size = 96};
  const std::unique_ptr<Ops> ops = make_ops(3);
  for (const bool with_bias : {false, true}) {
    const RandomExperts experts(kSizes, *ops, with_bias,
                                [](int64_t out, int64_t in) { return float_spec(out, in, DType::kBF16); });
    for (const MlpActivation& mlp : kActivations) {
      for (const bool accumulate : {false, true}) {
        for (int64_t rows : {1, 20}) check(*ops, experts, kSizes, rows, 3, DType::kBF16, mlp, accumulate);
      }
    }
  }
}

// More pairs of row and expert than are computed at a time.
TEST_P(ExpertsTest, EqualsTheReferenceOverSeveralBlocks) {
  constexpr Sizes kSizes = {.num_experts = 5, .hidden_size = 33, .intermediate_size = 17};
  const std::unique_ptr<Ops> ops = make_ops(2);
  const RandomExperts experts(kSizes, 16, *ops);
  check(*ops, experts, kSizes, 1100, 4, DType::kBF16);
}

/// The down projection of one expert for one row, by the ops it is made of.
std::vector<float> expert_row(Ops& ops, View x, const ExpertsCall& call, size_t e) {
  const LinearWeight &up_proj = call.weights.up_proj[e], &down_proj = call.weights.down_proj[e];
  const GuardedMatrix gate(DType::kF32, 1, up_proj.spec.out), up(DType::kF32, 1, up_proj.spec.out);
  const GuardedMatrix product(DType::kBF16, 1, up_proj.spec.out), down(DType::kF32, 1, down_proj.spec.out);
  if (call.activation.has_gate()) {
    const LinearCall gate_call[] = {{.out = gate.view(), .weight = call.weights.gate_proj[e]}};
    ops.linear(x, gate_call);
  }
  const LinearCall up_call[] = {{.out = up.view(), .weight = up_proj}};
  ops.linear(x, up_call);
  ops.mlp_activation(product.view(), gate.view(), up.view(), call.activation);
  const LinearCall down_call[] = {{.out = down.view(), .weight = down_proj}};
  ops.linear(product.view(), down_call);
  return {down.view().row<float>(0), down.view().row<float>(0) + down_proj.spec.out};
}

/// experts() of three rows against fused multiply-adds in the router's order.
void expect_weighted_sum(const RandomExperts& experts, const Sizes& sizes, const MlpActivation& mlp,
                         bool accumulate) {
  const ScopedFlushDenormals flush;
  const std::unique_ptr<Ops> ops = make_reference_ops();
  Rows inputs(3, 3, sizes, DType::kBF16);
  const GuardedMatrix out(DType::kF32, 3, sizes.hidden_size), expected(DType::kF32, 3, sizes.hidden_size);
  fill_random(out.view(), 25);
  fill_random(expected.view(), 25);
  ExpertsCall call = inputs.call(out.view(), experts, mlp);
  call.accumulate = accumulate;
  ops->experts(call);
  for (int64_t t = 0; t < 3; ++t) {
    std::vector<float> sum(static_cast<size_t>(sizes.hidden_size));
    for (int64_t j = 0; j < 3; ++j) {
      const auto e = static_cast<size_t>(inputs.ids[static_cast<size_t>(3 * t + j)]);
      const std::vector<float> down = expert_row(*ops, inputs.x.view().rows(t, 1), call, e);
      const float weight = inputs.router_weights.view().row<float>(t)[j];
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = std::fma(weight, down[i], sum[i]);
    }
    float* row = expected.view().row<float>(t);
    for (size_t i = 0; i < sum.size(); ++i) row[i] = accumulate ? row[i] + sum[i] : sum[i];
  }
  EXPECT_TRUE(same_bits(out.view(), expected.view())) << "activation " << static_cast<int>(mlp.kind);
}

TEST(ExpertsReferenceTest, IsTheWeightedSumOfGatedProductsInTheRoutersOrder) {
  constexpr Sizes kSizes = {.num_experts = 4, .hidden_size = 64, .intermediate_size = 32};
  const std::unique_ptr<Ops> packer = make_reference_ops();
  expect_weighted_sum(RandomExperts(kSizes, 4, *packer), kSizes, {}, true);
  const RandomExperts with_biases(kSizes, *packer, /*with_bias=*/true, [](int64_t out, int64_t in) {
    return affine_spec(out, in, 8, 32, DType::kBF16);
  });
  for (const MlpActivation& mlp : kActivations) {
    for (const bool accumulate : {false, true}) expect_weighted_sum(with_biases, kSizes, mlp, accumulate);
  }
}

}  // namespace
}  // namespace tensorfold
