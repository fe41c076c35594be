// Residual streams between the layers (Outputs::taps), of every family: the last one normed is the hidden
// state, none is another's, and reading them changes no logit.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "models/layers.h"
#include "tests/models/golden_fixture.h"

namespace tensorfold {
namespace {

std::vector<float> to_host(Ops& ops, View view) {
  std::vector<float> values(view.num_elements());
  EXPECT_TRUE(
      ops.device()
          .copy_to_host(reinterpret_cast<std::byte*>(values.data()), view.data, std::ssize(values) * 4)
          .ok());
  return values;
}

/// Of the angle between two rows: 1 where one is a multiple of the other.
double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

class TapsOfFamily : public GoldenFixture {};

TEST_P(TapsOfFamily, AreTheResidualStreamAfterEachLayer) {
  auto loaded = load_test_model(folder_, make_reference_ops(), {.compute_f32 = true});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const TestModel& model = **loaded;
  const ModelSpec& spec = model.model->spec();
  const int64_t E = spec.hidden_size, T = 9, L = spec.num_layers;
  std::vector<int32_t> layers(L);
  std::iota(layers.rbegin(), layers.rend(), 0);  // The order of the columns is free.
  const std::span<const int32_t> prompt = std::span(expected_.input_ids).first(T);
  const std::vector<int32_t> last_row = {static_cast<int32_t>(T) - 1};

  auto plain = SequenceRunner::create(model.runnable(), {T, T}).value();
  const auto expected = plain->append(prompt, last_row).value();
  auto runner =
      SequenceRunner::create(model.runnable(),
                             {.max_tokens = T, .max_rows = T, .with_hidden = true, .tap_layers = layers})
          .value();
  const auto logits = runner->append(prompt, last_row).value();
  EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size_bytes()), 0);

  const std::vector<float> taps = to_host(*model.ops, runner->taps());
  const std::vector<float> hidden = to_host(*model.ops, runner->hidden());
  const auto tap = [&](int64_t t, int64_t layer) {
    return std::span(taps).subspan((t * L + (L - 1 - layer)) * E, E);
  };
  ASSERT_NE(model.model->token_ends(), nullptr);
  const View norm = model.weights->outside_layers()[model.model->token_ends()->final_norm];
  for (int64_t t = 0; t < T; ++t) {
    std::vector<float> normed(tap(t, L - 1).begin(), tap(t, L - 1).end());
    for (int64_t e = 0; e < E; ++e) normed[e] *= norm.row<const float>(0)[e];
    EXPECT_GT(cosine(normed, std::span(hidden).subspan(t * E, E)), 1 - 1e-6) << "row " << t;
    for (int64_t l = 1; l < L; ++l) EXPECT_LT(cosine(tap(t, l), tap(t, l - 1)), 0.9999) << "layer " << l;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TapsOfFamily,
                         testing::Values("gemma3/windowed", "glm4_moe/mtp", "gpt_oss/all_experts_f32",
                                         "llama/tied", "nemotron_h/mtp", "qwen2/sliding", "qwen3/tied",
                                         "qwen3_5/wrapper_mtp", "qwen3_moe/normalized", "qwen3_next/mixed"),
                         GoldenFixture::kName);

}  // namespace
}  // namespace tensorfold
