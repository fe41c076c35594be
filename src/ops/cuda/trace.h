// Where a trace (trace_params.h) is kept while it grows, and written in the end: builds with
// TENSORFOLD_CUDA_TRACE.
#pragma once

#include "base/status.h"

namespace tensorfold::cuda {

/// Memory for the trace on the current device, before its first kernel. There is one in the process, which
/// stays: kernels write there until it ends.
Status start_trace();

/// In the working folder.
inline constexpr const char* kTraceFile = "cuda-trace.bin";

/// Writes the trace to kTraceFile, or says on the log why not. The device must be idle.
void write_trace();

}  // namespace tensorfold::cuda
