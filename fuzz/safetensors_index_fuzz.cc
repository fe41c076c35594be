// Any bytes as model.safetensors.index.json: an error, or plain file names.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = tensorfold::parse_safetensors_index({reinterpret_cast<const char*>(data), size});
  if (!index.ok()) return 0;
  for (const auto& [name, file] : *index) TF_CHECK(file.find('/') == std::string::npos);
  return 0;
}
