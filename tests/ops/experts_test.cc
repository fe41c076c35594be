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
    return {.out = out,
            .x = x.view(),
            .expert_ids = View(ids.data(), DType::kI32, {x.view().num_rows(), k}),
            .expert_weights = router_weights.view(),
            .weights = experts.weights(),
            .activation = mlp};
  }

  GuardedMatrix x;
  std::vector<int32_t> ids;
  GuardedMatrix router_weights;
};

class ExpertsTest : public CpuIsaTest {
 protected:
  /// Output added to what is there, against the reference's.
  void check(Ops& ops, const RandomExperts& experts, const Sizes& sizes, int64_t rows, int64_t k,
             DType activation, const MlpActivation& mlp = {}) {
    Rows inputs(rows, k, sizes, activation);
    const GuardedMatrix out(DType::kF32, rows, sizes.hidden_size),
        expected(DType::kF32, rows, sizes.hidden_size);
    fill_random(out.view(), 24);
    fill_random(expected.view(), 24);
    ops.experts(inputs.call(out.view(), experts, mlp));
    make_reference_ops()->experts(inputs.call(expected.view(), experts, mlp));
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

// More pairs of row and expert than are computed at a time.
TEST_P(ExpertsTest, EqualsTheReferenceOverSeveralBlocks) {
  constexpr Sizes kSizes = {.num_experts = 5, .hidden_size = 33, .intermediate_size = 17};
  const std::unique_ptr<Ops> ops = make_ops(2);
  const RandomExperts experts(kSizes, 16, *ops);
  check(*ops, experts, kSizes, 1100, 4, DType::kBF16);
}

TEST(ExpertsReferenceTest, IsTheWeightedSumOfGatedProductsInTheRoutersOrder) {
  const ScopedFlushDenormals flush;
  constexpr Sizes kSizes = {.num_experts = 4, .hidden_size = 64, .intermediate_size = 32};
  const std::unique_ptr<Ops> ops = make_reference_ops();
  const RandomExperts experts(kSizes, 4, *ops);
  Rows inputs(3, 3, kSizes, DType::kBF16);
  const GuardedMatrix out(DType::kF32, 3, kSizes.hidden_size), expected(DType::kF32, 3, kSizes.hidden_size);
  fill_random(out.view(), 25);
  fill_random(expected.view(), 25);
  ops->experts(inputs.call(out.view(), experts));
  for (int64_t t = 0; t < 3; ++t) {
    std::vector<float> sum(static_cast<size_t>(kSizes.hidden_size));
    for (int64_t j = 0; j < 3; ++j) {
      const auto e = static_cast<size_t>(inputs.ids[static_cast<size_t>(3 * t + j)]);
      const GuardedMatrix gate(DType::kF32, 1, kSizes.intermediate_size),
          up(DType::kF32, 1, kSizes.intermediate_size);
      const GuardedMatrix product(DType::kBF16, 1, kSizes.intermediate_size);
      const GuardedMatrix down(DType::kF32, 1, kSizes.hidden_size);
      const LinearCall first[] = {{.out = gate.view(), .weight = experts.weights().gate_proj[e]},
                                  {.out = up.view(), .weight = experts.weights().up_proj[e]}};
      ops->linear(inputs.x.view().rows(t, 1), first);
      for (int64_t i = 0; i < kSizes.intermediate_size; ++i) {
        const float gated = silu_f32(gate.view().row<float>(0)[i]) * up.view().row<float>(0)[i];
        product.view().row<bf16>(0)[i] = to_bf16(gated);
      }
      const LinearCall second[] = {{.out = down.view(), .weight = experts.weights().down_proj[e]}};
      ops->linear(product.view(), second);
      const float weight = inputs.router_weights.view().row<float>(t)[j];
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = std::fma(weight, down.view().row<float>(0)[i], sum[i]);
    }
    for (size_t i = 0; i < sum.size(); ++i) expected.view().row<float>(t)[i] += sum[i];
  }
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
}

}  // namespace
}  // namespace tensorfold
