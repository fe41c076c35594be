// What the op benchmarks share: the best of several timings, and the rate at which the same threads sum a buffer.
// Other work on the machine only ever adds to a time, so the best is the one that says what the code can do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <vector>

#include "base/thread_pool.h"

namespace tensorfold {

/// Seconds on the clock that ignores other programs where it can: a lone thread's own CPU time, else the wall's.
inline double clock_seconds(bool is_one_thread) {
  timespec t;
  clock_gettime(is_one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Seconds of the fastest of the calls that fit into 0.3 s (5 at least) after one to warm up. `body(i)` gets the
/// number of the call, so that it can take other data each time.
template <class Body>
double best_seconds_of(int num_threads, const Body& body) {
  const bool is_one_thread = num_threads == 1;
  body(0);
  double best = 1e30;
  const double start = clock_seconds(is_one_thread);
  for (int64_t i = 1; i <= 5 || clock_seconds(is_one_thread) - start < 0.3; ++i) {
    const double before = clock_seconds(is_one_thread);
    body(i);
    best = std::min(best, clock_seconds(is_one_thread) - before);
  }
  return best;
}

/// Bytes per second at which `pool` sums parts of `part_bytes` of a buffer of `total_bytes`, each part split over the
/// threads: the limit for a kernel that reads as much.
inline double sum_bytes_per_second(ThreadPool& pool, int64_t total_bytes, int64_t part_bytes) {
  const std::vector<uint64_t> buffer(static_cast<size_t>(std::max(total_bytes, part_bytes) / 8), 1);
  const int64_t part = part_bytes / 8, num_parts = static_cast<int64_t>(buffer.size()) / part;
  const int64_t tasks = 4 * pool.num_threads(), slice = part / tasks;
  std::vector<uint64_t> sums(static_cast<size_t>(tasks) * 8);
  const double best = best_seconds_of(pool.num_threads(), [&](int64_t i) {
    const uint64_t* from = buffer.data() + i % num_parts * part;
    pool.run(tasks, [&](int64_t task) {
      uint64_t sum = 0;
      for (int64_t k = task * slice; k < (task + 1) * slice; ++k) sum += from[k];
      sums[task * 8] += sum;
    });
  });
  return static_cast<double>(tasks * slice * 8) / best;
}

}  // namespace tensorfold
