// Any bytes as a safetensors file: an error, or tensors that lie inside the file and can be read. The same
// bytes as a header alone reach the checks behind the length.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "formats/safetensors.h"
#include "tests/support/memory_file_system.h"

namespace tensorfold {
namespace {

void open_and_read(const std::string& bytes) {
  MemoryFileSystem files;
  files.put("f", bytes);
  const Result<Checkpoint> checkpoint = Checkpoint::open_file("f", files);
  if (!checkpoint.ok()) return;
  for (const auto& [name, tensor] : checkpoint->tensors()) {
    TF_CHECK(tensor.offset >= 8 && tensor.bytes <= static_cast<int64_t>(bytes.size()) - tensor.offset);
    std::string out(tensor.bytes, '\0');
    TF_CHECK(checkpoint->read(name, std::as_writable_bytes(std::span(out))).ok());
  }
}

void parse_header(const std::string& json) {
  for (int64_t data_bytes : {0, 16}) {
    const Result<SafetensorsHeader> header = parse_safetensors_header(json, data_bytes);
    if (!header.ok()) continue;
    int64_t end = 0;
    for (const TensorInfo& tensor : header->tensors) {
      TF_CHECK(tensor.offset == end && tensor.bytes * 8 == tensor.num_elements() * dtype_bits(tensor.dtype));
      end += tensor.bytes;
    }
    TF_CHECK(end == data_bytes);
  }
}

}  // namespace
}  // namespace tensorfold

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  tensorfold::open_and_read(bytes);
  tensorfold::parse_header(bytes);
  return 0;
}
