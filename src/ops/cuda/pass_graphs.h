// CUDA graphs of the parts of passes seen so far, found again by what they launch.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

#include "base/status.h"
#include "ops/cuda/launch_list.h"

struct CUgraphExec_st;

namespace tensorfold::cuda {

/// A pass, or a part of one, is run launch by launch the first time and captured the second: shapes that
/// never come again cost no capture. Keeps the kMaxGraphs used last. One thread at a time; the device must be
/// idle when it is destroyed.
class PassGraphs {
 public:
  static constexpr size_t kMaxGraphs =
      192;  ///< 64 passes of three parts, a quarter of a megabyte of launches each.

  PassGraphs() = default;
  ~PassGraphs();
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;

  /// Launches what `launches` says on `stream`, as a graph where there is one.
  Status run(Stream stream, const LaunchList& launches);

  int64_t num_replays() const { return num_replays_; }

 private:
  struct Entry {
    uint64_t hash = 0;
    LaunchList launches;
    CUgraphExec_st* graph = nullptr;  ///< Null: seen once.
  };
  using Entries = std::list<Entry>;
  Entries::iterator find_or_add(const LaunchList& launches);

  Entries entries_;  ///< The last used first.
  std::unordered_multimap<uint64_t, Entries::iterator> by_hash_;
  int64_t num_replays_ = 0;
};

}  // namespace tensorfold::cuda
