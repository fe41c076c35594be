// The threads that compute passes: a fixed team that splits index ranges, with spinning hand-off because a decode
// pass has hundreds of short parallel steps.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace tensorfold {

/// A team of `num_threads` (the caller included). One run() at a time; run() itself may be called from any thread,
/// but not from inside a task. Every task runs with denormals flushed (base/fp_env.h).
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  /// Calls task(i) for every i in [0, num_tasks), each exactly once, and returns when all are done. Tasks are taken
  /// one by one from a shared counter, so uneven ones balance; the caller takes part. Results must not depend on
  /// which thread runs a task. A task may also take the thread's index in [0, num_threads()), for scratch memory:
  /// task(i, thread).
  template <class Task>
  void run(int64_t num_tasks, const Task& task) {
    run_erased(
        num_tasks,
        [](const void* context, int64_t i, int thread) {
          if constexpr (std::is_invocable_v<const Task&, int64_t, int>) {
            (*static_cast<const Task*>(context))(i, thread);
          } else {
            static_cast<void>(thread);
            (*static_cast<const Task*>(context))(i);
          }
        },
        &task);
  }

 private:
  using Function = void (*)(const void* context, int64_t index, int thread);
  void run_erased(int64_t num_tasks, Function function, const void* context);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Logical CPUs this process may use (its affinity mask and cgroup quota), at least 1.
int num_usable_cpus();

}  // namespace tensorfold
