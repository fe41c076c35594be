// base/thread_pool.h: every index once, denormals flushed in every thread, reuse after sleeping.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace tensorfold {
namespace {

TEST(ThreadPoolTest, RunsEveryIndexOnceAcrossManySteps) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 3, 17, 1000}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        pool.run(n, [&](int64_t i) { seen[static_cast<size_t>(i)]++; });
        for (const auto& count : seen) ASSERT_EQ(count, 1);
      }
    }
  }
}

TEST(ThreadPoolTest, GivesTasksThatRunAtTheSameTimeDifferentThreadIndices) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  std::vector<std::atomic<int>> running(kThreads);
  std::atomic<int> shared{0}, outside{0};
  for (int repeat = 0; repeat < 20; ++repeat) {
    pool.run(50, [&](int64_t, int thread) {
      if (thread < 0 || thread >= kThreads) {
        outside++;
        return;
      }
      if (running[static_cast<size_t>(thread)]++ != 0) shared++;
      std::this_thread::yield();
      running[static_cast<size_t>(thread)]--;
    });
  }
  EXPECT_EQ(outside, 0);
  EXPECT_EQ(shared, 0);
}

TEST(ThreadPoolTest, WakesWorkersThatWentToSleep) {
  ThreadPool pool(3);
  std::atomic<int> sum{0};
  for (int i = 0; i < 3; ++i) {
    pool.run(10, [&](int64_t) { sum++; });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(sum, 30);
}

TEST(ThreadPoolTest, FlushesDenormalsInTasksAndRestoresTheCaller) {
  ThreadPool pool(2);
  volatile float small = 1e-38f;
  std::atomic<int> kept{0};
  pool.run(64, [&](int64_t) {
    if (small * 0.01f != 0.0f) kept++;
  });
  EXPECT_EQ(kept, 0);
  EXPECT_NE(small * 0.01f, 0.0f);
}

}  // namespace
}  // namespace tensorfold
