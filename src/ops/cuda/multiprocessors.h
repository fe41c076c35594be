// How many multiprocessors launches are dealt to. No bit of a result depends on it.
#pragma once

namespace tensorfold::cuda {

/// Those of the device that was current at the first call: a process computes on one. Where there is no
/// device, as in tests of what a launch is told, those of an H200. Thread-safe.
int num_multiprocessors();

}  // namespace tensorfold::cuda
