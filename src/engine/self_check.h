// What `doctor` runs on a machine before anything is trusted to it: every instruction set gives the
// definition's bits, and how fast memory is read, which is the limit of decoding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/ops.h"

namespace tensorfold {

/// One instruction set against the reference ops.
struct IsaCheck {
  std::string isa;            ///< "avx2", ...
  std::string arithmetic_id;  ///< "cpu/1".
  int64_t num_outputs = 0;    ///< Values compared.
  int64_t num_different = 0;  ///< Values whose bits differ: anything but 0 is a defect.
  Status status;              ///< Why the set could not run; then nothing was compared.
};

/// Linear layers of several formats, for one row and for many, and attention over several pages, on random
/// inputs, under each set that this CPU supports. Takes a second. Empty where no set is supported.
std::vector<IsaCheck> check_cpu_bits();

/// Rows computed in passes of different sizes.
struct RowCheck {
  int64_t num_outputs = 0;    ///< Values compared.
  int64_t num_different = 0;  ///< Values whose bits differ: with anything but 0 the backend must not be used.
  std::string differing;      ///< What they are of: "linear affine 4-bit g64 bf16 [80, 576]: 512 of 38960, ...".
};

/// Whether a row's bits depend on how many rows a pass has, through linear layers of several formats and attention: what
/// drafts, batches and caches rest on. Milliseconds on a GPU, where tensor cores that nobody has tried may break it.
Result<RowCheck> check_rows(Ops& ops);

/// One CUDA device.
struct CudaCheck {
  std::string name;                ///< "NVIDIA H200".
  std::string compute_capability;  ///< "9.0".
  std::string arithmetic_id;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  RowCheck rows;
  Status status;  ///< Why it cannot be used; then nothing was compared.
};

/// Every device that the driver offers; none in builds without CUDA.
std::vector<CudaCheck> check_cuda_devices();

struct MachineInfo {
  std::string cpu;   ///< "Intel(R) Xeon(R) ...", from /proc/cpuinfo; "unknown" where that does not say.
  int num_cpus = 1;  ///< Usable by this process.
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

MachineInfo describe_machine();

}  // namespace tensorfold
