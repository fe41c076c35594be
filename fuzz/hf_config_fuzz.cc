// Any bytes as config.json and generation_config.json: an error that names its file, or values in their
// ranges.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "formats/hf_config.h"

namespace tensorfold {
namespace {

void check_generation(std::string_view text, const HfConfig& config) {
  const Result<GenerationConfig> generation = parse_generation_config(text, config);
  if (!generation.ok()) {
    TF_CHECK(generation.status().message().starts_with("generation_config.json: "));
    return;
  }
  TF_CHECK(generation->temperature.value_or(1) >= 0 && generation->top_p.value_or(1) > 0);
  for (int64_t id : generation->eos_token_ids) TF_CHECK(id >= 0 && id <= INT32_MAX);
}

void check_config(std::string_view text) {
  const Result<HfConfig> config = parse_hf_config(text);
  check_generation(text, config.ok() ? *config : HfConfig());
  if (!config.ok()) {
    TF_CHECK(config.status().message().starts_with("config.json: "));
    return;
  }
  ConfigReader reader = config->reader();
  TF_CHECK(reader.positive_int("hidden_size") > 0);
  reader.string_list("layer_types");
  ConfigReader rope_reader = config->reader();
  const RopeConfig rope = read_rope_config(rope_reader);
  if (rope_reader.status().ok())
    TF_CHECK(rope.theta > 0 && rope.factor >= 0 && rope.partial_rotary_factor <= 1);
  const auto packing = config->quantization.module("model.layers.0.self_attn.q_proj");
  if (packing) TF_CHECK(packing->bits >= 2 && packing->bits <= 8 && packing->group_size >= 16);
}

}  // namespace
}  // namespace tensorfold

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tensorfold::check_config({reinterpret_cast<const char*>(data), size});
  return 0;
}
