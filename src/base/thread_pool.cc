// Team of threads with a spinning barrier (see base/thread_pool.h).
#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/fp_env.h"

namespace tensorfold {
namespace {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

/// How long a worker spins for the next step before it sleeps: longer than the serial parts between two steps of a
/// pass (tens of microseconds), short enough that an idle server uses no CPU.
constexpr auto kSpinTime = std::chrono::microseconds(200);

/// Spins until done() holds or kSpinTime is over; true when done() held.
template <class Done>
bool spin_until(const Done& done) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < 256; ++i) {
      if (done()) return true;
      cpu_relax();
    }
    if (std::chrono::steady_clock::now() - start > kSpinTime) return false;
  }
}

}  // namespace

struct ThreadPool::Impl {
  // The step being run. Written by run() before `generation` is raised, read by workers after they saw it raised.
  Function function = nullptr;
  const void* context = nullptr;
  int64_t num_tasks = 0;

  alignas(64) std::atomic<uint32_t> generation{0};
  alignas(64) std::atomic<int64_t> next_task{0};
  alignas(64) std::atomic<int32_t> workers_left{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;

  void take_tasks(int thread) {
    for (int64_t i; (i = next_task.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) function(context, i, thread);
  }

  void worker_loop(int thread) {
    ScopedFlushDenormals flush;
    uint32_t seen = 0;
    for (;;) {
      const auto raised = [&] { return generation.load(std::memory_order_acquire) != seen; };
      while (!spin_until(raised)) generation.wait(seen, std::memory_order_acquire);
      seen = generation.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      take_tasks(thread);
      if (workers_left.fetch_sub(1, std::memory_order_acq_rel) == 1) workers_left.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  TF_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) impl_->workers.emplace_back([this, i] { impl_->worker_loop(i); });
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_relaxed);
  impl_->generation.fetch_add(1, std::memory_order_release);
  impl_->generation.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::run_erased(int64_t num_tasks, Function function, const void* context) {
  if (num_tasks <= 0) return;
  ScopedFlushDenormals flush;
  Impl& team = *impl_;
  if (num_tasks == 1 || team.workers.empty()) {
    for (int64_t i = 0; i < num_tasks; ++i) function(context, i, 0);
    return;
  }
  team.function = function;
  team.context = context;
  team.num_tasks = num_tasks;
  team.next_task.store(0, std::memory_order_relaxed);
  team.workers_left.store(static_cast<int32_t>(team.workers.size()), std::memory_order_relaxed);
  team.generation.fetch_add(1, std::memory_order_release);
  team.generation.notify_all();
  team.take_tasks(0);
  const auto finished = [&] { return team.workers_left.load(std::memory_order_acquire) == 0; };
  while (!spin_until(finished)) {
    const int32_t left = team.workers_left.load(std::memory_order_acquire);
    if (left != 0) team.workers_left.wait(left, std::memory_order_acquire);
  }
}

namespace {

/// CPUs granted by a cgroup v2 quota ("max 100000" or "200000 100000"), or 0 when there is none.
int cgroup_cpus() {
  std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r");
  if (file == nullptr) return 0;
  double quota = 0, period = 0;
  const int fields = std::fscanf(file, "%lf %lf", &quota, &period);
  std::fclose(file);
  return fields == 2 && period > 0 ? std::max(1, static_cast<int>(std::ceil(quota / period))) : 0;
}

}  // namespace

int num_usable_cpus() {
  cpu_set_t mask;
  int cpus = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  if (const int granted = cgroup_cpus(); granted > 0) cpus = std::min(cpus, granted);
  return std::max(1, cpus);
}

}  // namespace tensorfold
