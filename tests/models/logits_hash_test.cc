// The bits of an arithmetic id do not change unnoticed: hashes of tiny models' logits, per id (arithmetic.md,
// "Arithmetic ids"). They are those of every backend with that id: the reference and each CPU instruction
// set.
//
// A failure means that some bit of some reply has changed. If that is intended, the id is raised and the new
// hashes are written to tests/golden/models/logits_hashes.txt; the test prints the lines.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/hash.h"
#include "tests/support/test_model.h"
#include "tests/support/test_paths.h"

namespace tensorfold {
namespace {

const std::string kGolden = std::string(kSourceDir) + "/tests/golden/models/";

/// One model of each kind of arithmetic: bf16, f16 and f32 weights, biases, windows, experts, recurrent
/// layers, and each packed width.
constexpr const char* kModels[] = {"gemma3/untied_softcap_f32",
                                   "gemma3/windowed",
                                   "gemma3/mlx_4bit",
                                   "glm4_moe/grouped_qk_norm",
                                   "glm4_moe/tied_stacked_f32",
                                   "glm4_moe/mlx_8bit",
                                   "llama/tied",
                                   "llama/llama3_biases",
                                   "llama/yarn_f16_sharded",
                                   "llama/linear_f32",
                                   "qwen2/sliding",
                                   "qwen3/yarn_mixed_window",
                                   "qwen3_moe/normalized",
                                   "llama/mlx_4bit",
                                   "qwen3/mlx_8bit_f16",
                                   "qwen3_moe/mlx_mixed",
                                   "qwen3_5/tied",
                                   "qwen3_5/yarn_f32",
                                   "qwen3_5/mlx_4bit",
                                   "qwen3_5_moe/wrapper_mtp",
                                   "qwen3_next/mixed",
                                   "qwen3_next/mlx_8bit",
                                   "gpt_oss/windowed",
                                   "gpt_oss/all_experts_f32",
                                   "gpt_oss/mxfp4",
                                   "gpt_oss/mlx_mxfp4_4bit",
                                   "nemotron_h/all_kinds",
                                   "nemotron_h/latent_clamped_f32",
                                   "nemotron_h/mlx_4bit"};

/// "id model" -> hash.
std::map<std::string, std::string> read_golden() {
  std::map<std::string, std::string> hashes;
  std::ifstream file(kGolden + "logits_hashes.txt");
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string id, model, hash;
    words >> id >> model >> hash;
    hashes[id + " " + model] = hash;
  }
  return hashes;
}

/// Hash of the logits of every position of the fixture's prompt, the second half in passes of 7 rows.
std::string logits_hash(const std::string& model, std::unique_ptr<Ops> ops) {
  const auto loaded = load_test_model(kGolden + model, std::move(ops), {}).value();
  const std::vector<int32_t> ids =
      read_i32(Checkpoint::open_file(kGolden + model + "/expected.safetensors").value(), "input_ids");
  const auto size = static_cast<int64_t>(ids.size());
  const auto runner = SequenceRunner::create(loaded->runnable(), {size, size}).value();
  const std::span<const int32_t> all = ids;
  std::vector<float> logits = prompt_logits(*runner, all.first(size / 2), size).value();
  const std::vector<float> rest = prompt_logits(*runner, all.subspan(size / 2), 7).value();
  logits.insert(logits.end(), rest.begin(), rest.end());
  return fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(logits))));
}

class LogitsHash : public testing::TestWithParam<const char*> {
 protected:
  void expect_golden_hash(std::unique_ptr<Ops> ops) {
    const BackendInfo info = ops->info();
    const std::string key = info.arithmetic_id + " " + GetParam();
    const std::string hash = logits_hash(GetParam(), std::move(ops));
    const auto golden = read_golden();
    const auto it = golden.find(key);
    EXPECT_EQ(hash, it == golden.end() ? "none" : it->second)
        << info.name << " " << info.isa << "; the line would be: " << key << " " << hash;
  }
};

TEST_P(LogitsHash, TheReferenceHasTheIdsBits) { expect_golden_hash(make_reference_ops()); }

TEST_P(LogitsHash, EveryCpuInstructionSetHasTheIdsBits) {
  const std::vector<CpuIsa> isas = supported_cpu_isas();
  if (isas.empty()) GTEST_SKIP() << "this CPU is below every instruction set of the cpu backend";
  for (CpuIsa isa : isas) {
    auto ops = make_cpu_ops(2, isa);
    ASSERT_TRUE(ops.ok()) << ops.status().message();
    ASSERT_EQ((*ops)->info().isa, cpu_isa_name(isa));
    expect_golden_hash(std::move(*ops));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, LogitsHash, testing::ValuesIn(kModels), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

TEST(LogitsHashFile, HasEachModelOnceForEachId) {
  std::map<std::string, std::set<std::string>> hashes;
  for (const auto& [key, hash] : read_golden()) hashes[key.substr(0, key.find(' '))].insert(hash);
  EXPECT_TRUE(hashes.contains(make_reference_ops()->info().arithmetic_id));
  for (const auto& [id, of_models] : hashes) EXPECT_EQ(of_models.size(), std::size(kModels)) << id;
}

}  // namespace
}  // namespace tensorfold
