// See pass_graphs.h.
#include "ops/cuda/pass_graphs.h"

#include <cuda_runtime.h>

namespace tensorfold::cuda {
namespace {

Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return make_error(StatusCode::kInternal, "{}: {}", what, cudaGetErrorString(error));
}

Result<cudaGraphExec_t> capture(Stream stream, const LaunchList& launches) {
  TF_RETURN_IF_ERROR(to_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                               "starting to capture a pass"));
  launches.run(stream);
  cudaGraph_t graph = nullptr;
  TF_RETURN_IF_ERROR(to_status(cudaStreamEndCapture(stream, &graph), "capturing a pass"));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  TF_RETURN_IF_ERROR(to_status(error, "making a graph of a pass"));
  return executable;
}

}  // namespace

PassGraphs::~PassGraphs() {
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
}

PassGraphs::Entries::iterator PassGraphs::find_or_add(const LaunchList& launches) {
  // Decoding repeats the last pass most of the time, whose parts are the ones used last. Others differ early.
  constexpr int kParts = 4;  // Of 32 + 128 + 512 + 2,048 launches.
  int tried = 0;
  for (auto it = entries_.begin(); it != entries_.end() && tried < kParts; ++it, ++tried) {
    if (!(it->launches == launches)) continue;
    entries_.splice(entries_.begin(), entries_, it);
    return entries_.begin();
  }
  const uint64_t hash = launches.hash();
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (!(it->second->launches == launches)) continue;
    entries_.splice(entries_.begin(), entries_, it->second);
    return entries_.begin();
  }
  if (entries_.size() == kMaxGraphs) {
    const Entry& oldest = entries_.back();
    if (oldest.graph != nullptr) cudaGraphExecDestroy(oldest.graph);
    const auto [begin, end] = by_hash_.equal_range(oldest.hash);
    for (auto it = begin; it != end; ++it) {
      if (&*it->second != &oldest) continue;
      by_hash_.erase(it);
      break;
    }
    entries_.pop_back();
  }
  entries_.push_front({.hash = hash, .launches = launches, .graph = nullptr});
  by_hash_.emplace(hash, entries_.begin());
  return entries_.end();
}

Status PassGraphs::run(Stream stream, const LaunchList& launches) {
  const auto entry = find_or_add(launches);
  if (entry == entries_.end()) {
    launches.run(stream);
    return to_status(cudaGetLastError(), "launching a pass");
  }
  if (entry->graph == nullptr) {
    TF_ASSIGN_OR_RETURN(entry->graph, capture(stream, launches));
  } else {
    ++num_replays_;
  }
  return to_status(cudaGraphLaunch(entry->graph, stream), "launching the graph of a pass");
}

}  // namespace tensorfold::cuda
