// Where a trace (trace_params.h) is kept while it grows, and written in the end, in builds with
// TENSORFOLD_CUDA_TRACE; others have none.
#pragma once

#include "base/status.h"

namespace tensorfold::cuda {

#ifdef TENSORFOLD_CUDA_TRACE
/// Memory for the trace on the current device, before its first kernel. There is one in the process, which
/// stays: kernels write there until it ends. Kernels of another device must not run.
Status start_trace();

/// In the working folder.
inline constexpr const char* kTraceFile = "cuda-trace.bin";

/// Writes the trace to kTraceFile, or says on the log why not. The device must be idle.
void write_trace();
#else
inline Status start_trace() { return {}; }
inline void write_trace() {}
#endif

}  // namespace tensorfold::cuda
