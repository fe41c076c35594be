// The layouts in which checkpoints of the Qwen hybrids come (specs/qwen.md §3 and §4.2, specs/drafters.md
// §1.4) are the same model to the bit: norms around zero or shifted, convolutions turned, experts fused,
// stacked or one by one, and a draft head that came by a way of its own.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "tests/memory/checkpoint_builder.h"
#include "tests/models/golden_fixture.h"
#include "tests/models/head_runner.h"
#include "tests/support/shared_data.h"

namespace tensorfold {
namespace {

/// One tensor of a fixture, to be renamed, reshaped or rewritten.
struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;

  bool has(std::string_view part) const { return name.find(part) != std::string::npos; }
};

bool is_head(const Tensor& tensor) { return tensor.name.starts_with("mtp."); }

/// Those that are stored around zero: all but the gated norm of the delta net.
bool is_shifted_norm(const Tensor& tensor) { return tensor.has("norm") && !tensor.has("linear_attn.norm"); }

/// 1 + w in f32, as the fixture's reader computes it.
void shift(Tensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    bf16 stored;
    std::memcpy(&stored, tensor.bytes.data() + 2 * i, 2);
    values[i] = 1.0f + to_float(stored);
  }
  tensor.dtype = DType::kF32;
  tensor.bytes.assign(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

/// MLX's names and convolutions; norms as they are.
void turn_to_mlx(Tensor& tensor) {
  constexpr std::string_view kBody = "model.language_model.";
  if (tensor.name.starts_with(kBody)) {
    tensor.name = "language_model.model." + tensor.name.substr(kBody.size());
  } else {
    tensor.name = "language_model." + tensor.name;
  }
  if (tensor.has("conv1d")) std::swap(tensor.shape[1], tensor.shape[2]);
}

/// gate_up_proj [X, 2I, E] and down_proj [X, E, I] as `name`(projection, expert).
std::vector<Tensor> one_by_one(const Tensor& fused) {
  std::vector<Tensor> experts;
  const int64_t num_experts = fused.shape[0], expert_bytes = std::ssize(fused.bytes) / num_experts;
  const bool is_down = fused.has("down_proj");
  const std::string module = fused.name.substr(0, fused.name.rfind('.') + 1);
  const int64_t num_parts = is_down ? 1 : 2, part_bytes = expert_bytes / num_parts;
  for (int64_t e = 0; e < num_experts; ++e) {
    for (int64_t part = 0; part < num_parts; ++part) {
      const char* projection = is_down ? "down_proj" : part == 0 ? "gate_proj" : "up_proj";
      experts.push_back({module + std::to_string(e) + "." + projection + ".weight",
                         fused.dtype,
                         {fused.shape[1] / num_parts, fused.shape[2]},
                         fused.bytes.substr(e * expert_bytes + part * part_bytes, part_bytes)});
    }
  }
  return experts;
}

class QwenLayouts : public GoldenFixture {
 protected:
  /// Bytes of the prompt's logits and of the head's, from the fixture after `rewrite` of each tensor. With a
  /// side_file those whose names begin with head_prefix are in that.
  std::vector<float> outputs(const std::function<std::vector<Tensor>(Tensor)>& rewrite,
                             const std::string& head_prefix = "", const std::string& side_file = "") {
    CheckpointBuilder builder;
    const Checkpoint stored = Checkpoint::open(folder_).value();
    for (const auto& [name, info] : stored.tensors()) {
      Tensor tensor = {name, info.dtype, info.shape, std::string(info.bytes, '\0')};
      EXPECT_TRUE(stored.read(info, 0, std::as_writable_bytes(std::span(tensor.bytes))).ok());
      for (Tensor& result : rewrite(std::move(tensor)))
        builder.add(result.name, result.dtype, result.shape, result.bytes);
    }
    if (side_file.empty()) {
      builder.open();
    } else {
      builder.write_split(head_prefix, side_file);
    }
    builder.files().put("m/config.json",
                        read_text_file(posix_file_system(), folder_ + "/config.json", 1 << 20).value());
    return run(load_test_model("m", make_reference_ops(), {}, builder.files()));
  }

 private:
  std::vector<float> run(const Result<std::unique_ptr<TestModel>>& model) {
    EXPECT_TRUE(model.ok()) << model.status().message();
    if (!model.ok()) return {};
    EXPECT_NE((*model)->model->draft_head(), nullptr);
    const std::span<const int32_t> ids = std::span(expected_.input_ids).first(40);
    auto runner =
        SequenceRunner::create((*model)->runnable(), {.max_tokens = 40, .max_rows = 40, .with_hidden = true})
            .value();
    std::vector<float> all = prompt_logits(*runner, ids, 40).value();
    const HeadRunner::Rows drafts =
        HeadRunner(**model, 40).append(ids.subspan(1), runner->hidden().rows(0, 39));
    all.insert(all.end(), drafts.logits.begin(), drafts.logits.end());
    return all;
  }
};

std::vector<Tensor> as_it_is(Tensor tensor) { return {std::move(tensor)}; }

TEST_P(QwenLayouts, AnMlxFolderWithAHeadShiftedOrNotHasTheSameBits) {
  const std::vector<float> expected = outputs(as_it_is);
  ASSERT_FALSE(expected.empty());
  for (const bool head_is_shifted : {true, false}) {
    const std::vector<float> mlx = outputs([&](Tensor tensor) {
      if (is_shifted_norm(tensor) && (!is_head(tensor) || head_is_shifted)) shift(tensor);
      turn_to_mlx(tensor);
      return as_it_is(std::move(tensor));
    });
    EXPECT_EQ(mlx, expected) << "head shifted: " << head_is_shifted;
  }
  const std::vector<float> unshifted = outputs([](Tensor tensor) {
    turn_to_mlx(tensor);
    return as_it_is(std::move(tensor));
  });
  EXPECT_NE(unshifted, expected) << "turned convolutions say that norms are shifted";
}

TEST_P(QwenLayouts, AHeadInAFileBesideTheModelHasTheSameBits) {
  const std::vector<float> expected = outputs(as_it_is);
  EXPECT_EQ(outputs(as_it_is, "mtp.", "mtp.safetensors"), expected);
  const std::vector<float> mlx = outputs(
      [&](Tensor tensor) {
        if (is_shifted_norm(tensor)) shift(tensor);
        turn_to_mlx(tensor);
        return as_it_is(std::move(tensor));
      },
      "language_model.mtp.", "mtp-4bit.safetensors");
  EXPECT_EQ(mlx, expected);
}

/// Those with experts.
class QwenMoeLayouts : public QwenLayouts {};

TEST_P(QwenMoeLayouts, ExpertsOneByOneHaveTheSameBits) {
  const std::vector<float> expected = outputs(as_it_is);
  const std::vector<float> separate = outputs([](Tensor tensor) {
    return tensor.has(".experts.") ? one_by_one(tensor) : as_it_is(std::move(tensor));
  });
  EXPECT_EQ(separate, expected);
}

TEST(QwenNames, ThePublished27BHoldsExactlyTheTensorsThatItsConfigDeclares) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const std::string folder = std::string(kSharedData) + "/checkpoints/qwen3.8-27b";
  const HfConfig config = read_hf_config(folder).value();
  WeightTable table(config.model_type);
  const auto model = make_model({config, table, {}});
  ASSERT_TRUE(model.ok()) << model.status().message();
  std::set<std::string> declared, published;
  for (const DeclaredWeight& weight : table.declared())
    declared.insert(weight.kind == DeclaredWeight::Kind::kLinear ? weight.name + ".weight" : weight.name);
  const std::string index =
      read_text_file(posix_file_system(), folder + "/model.safetensors.index.json", 1 << 24).value();
  const std::map<std::string, std::string> files = parse_safetensors_index(index).value();
  for (const auto& [name, file] : files) {
    const std::string_view canonical = canonical_module_name(name);
    if (!canonical.starts_with("mtp.") && !canonical.starts_with("visual.")) published.emplace(canonical);
  }
  EXPECT_EQ(declared, published);
  EXPECT_EQ(published.size(), 851u);

  const ModelSpec& spec = (*model)->spec();
  EXPECT_EQ(spec.kv_layers, std::vector<KvShape>(16, {4, 256, DType::kBF16}));
  EXPECT_EQ(spec.recurrent_layers, std::vector<RecurrentShape>(48, {10240, 4, 48, 128, 128, 96}));
}

INSTANTIATE_TEST_SUITE_P(Golden, QwenLayouts,
                         testing::Values("qwen3_5/wrapper_mtp", "qwen3_5_moe/wrapper_mtp"),
                         GoldenFixture::kName);

INSTANTIATE_TEST_SUITE_P(Golden, QwenMoeLayouts, testing::Values("qwen3_5_moe/wrapper_mtp"),
                         GoldenFixture::kName);

}  // namespace
}  // namespace tensorfold
