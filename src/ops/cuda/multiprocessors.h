// How many multiprocessors launches are dealt to. No bit of a result depends on it, but a kernel whose blocks
// meet has no more of them (device/experts_stream.cuh).
#pragma once

namespace tensorfold::cuda {

/// Those of the current device. Where there is none, as in tests of what a launch is told, those of an H200.
/// Thread-safe.
int num_multiprocessors();

}  // namespace tensorfold::cuda
