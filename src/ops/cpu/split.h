// How the small ops of the cpu backend are split over threads: handing work over costs about a microsecond, so a task
// is made of enough rows to be worth it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"

namespace tensorfold::cpu {

/// Calls row(t) for every t in [0, num_rows), in blocks of about 8,192 elements (a few microseconds of work for the
/// element-wise ops). Always with denormals flushed.
template <class Row>
void for_row_blocks(ThreadPool& pool, int64_t num_rows, int64_t elements_per_row, const Row& row) {
  constexpr int64_t kTaskElements = 8192;
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, elements_per_row));
  const int64_t num_tasks = (num_rows + rows_per_task - 1) / rows_per_task;
  pool.run(num_tasks, [&](int64_t task) {
    const int64_t end = std::min(num_rows, (task + 1) * rows_per_task);
    for (int64_t t = task * rows_per_task; t < end; ++t) row(t);
  });
}

}  // namespace tensorfold::cpu
