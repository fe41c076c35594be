// The page pool: accounting, clearing, sharing, and the default limit.
#include "engine/kv_pages.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>

#include "tests/support/fake_model.h"

namespace tensorfold {
namespace {

class KvPagesTest : public testing::Test {
 protected:
  std::unique_ptr<KvPagePool> make_pool(int64_t num_pages) {
    return KvPagePool::create(*ops_, std::vector<KvShape>(2), num_pages).value();
  }
  FakeModelControl control_;
  std::unique_ptr<Ops> ops_ = make_fake_ops(control_);
};

TEST_F(KvPagesTest, TokensRoundUpToPages) {
  EXPECT_EQ(pages_for_tokens(0), 0);
  EXPECT_EQ(pages_for_tokens(1), 1);
  EXPECT_EQ(pages_for_tokens(64), 1);
  EXPECT_EQ(pages_for_tokens(65), 2);
}

TEST_F(KvPagesTest, PagesOfAllLayersAreDisjointAndInsideTheBuffer) {
  const auto pool = make_pool(3);
  EXPECT_EQ(pool->page_bytes(), 2 * 2 * 512);
  std::set<const std::byte*> starts;
  for (const KvPages& layer : pool->layers()) {
    for (int64_t page = 0; page < 3; ++page) {
      starts.insert(layer.key_page(page));
      starts.insert(layer.value_page(page));
    }
  }
  ASSERT_EQ(starts.size(), 12u);
  const std::byte* previous = nullptr;
  for (const std::byte* start : starts) {
    if (previous != nullptr) {
      EXPECT_EQ(start - previous, 512);
    }
    previous = start;
  }
}

TEST_F(KvPagesTest, AReusedPageIsCleared) {
  const auto pool = make_pool(1);
  const KvPages& layer = pool->layers()[1];
  const int32_t page = pool->allocate().value();
  std::memset(layer.value_page(page), 0xff, 512);
  pool->release(page);
  ASSERT_EQ(pool->allocate().value(), page);
  EXPECT_TRUE(std::all_of(layer.value_page(page), layer.value_page(page) + 512,
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(KvPagesTest, ASharedPageIsFreeOnlyAfterItsLastHolder) {
  const auto pool = make_pool(2);
  const int32_t page = pool->allocate().value();
  pool->retain(page);
  pool->release(page);
  EXPECT_EQ(pool->num_free(), 1);
  EXPECT_NE(pool->allocate().value(), page);
  pool->release(page);
  EXPECT_EQ(pool->num_free(), 1);
}

TEST_F(KvPagesTest, UsedPagesComeBeforeFreshOnes) {
  const auto pool = make_pool(100);
  const int32_t first = pool->allocate().value(), second = pool->allocate().value();
  pool->release(first);
  EXPECT_EQ(pool->allocate().value(), first);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(pool->allocate().value(), 2);
}

TEST_F(KvPagesTest, AFailedClearTakesNoPage) {
  const auto pool = make_pool(1);
  control_.device.fail_zero = true;
  EXPECT_EQ(pool->allocate().status().code(), StatusCode::kInternal);
  control_.device.fail_zero = false;
  EXPECT_EQ(pool->num_free(), 1);
  EXPECT_TRUE(pool->allocate().ok());
}

TEST_F(KvPagesTest, ACopyHasThePagesBytesOfAllLayersAndIsAPageOfItsOwn) {
  const auto pool = make_pool(3);
  const int32_t page = pool->allocate().value();
  for (size_t i = 0; i < 2; ++i) {
    std::memset(pool->layers()[i].key_page(page), static_cast<int>(2 * i + 1), 512);
    std::memset(pool->layers()[i].value_page(page), static_cast<int>(2 * i + 2), 512);
  }
  const int32_t copy = pool->copy(page).value();
  ASSERT_NE(copy, page);
  EXPECT_EQ(pool->num_used(), 2);
  for (const KvPages& layer : pool->layers()) {
    EXPECT_EQ(std::memcmp(layer.key_page(copy), layer.key_page(page), 512), 0);
    EXPECT_EQ(std::memcmp(layer.value_page(copy), layer.value_page(page), 512), 0);
  }
  pool->release(page);
  EXPECT_EQ(pool->copy(copy).value(), page) << "a page that was given back comes first";
  control_.device.fail_copy_at = control_.device.num_copies + 1;
  EXPECT_EQ(pool->copy(copy).status().code(), StatusCode::kInternal);
  EXPECT_EQ(pool->num_free(), 1) << "a failed copy took a page";
}

TEST_F(KvPagesTest, AForkSharesFullPagesAndCopiesTheOneItEndsIn) {
  for (const int64_t num_tokens : {0, 1, 63, 64, 65, 127, 128}) {
    const auto pool = make_pool(6);
    PageTable table(*pool), fork(*pool);
    ASSERT_TRUE(table.grow_to(140).ok());
    ASSERT_TRUE(fork.fork(table, num_tokens).ok());
    ASSERT_EQ(fork.num_pages(), pages_for_tokens(num_tokens));
    for (int64_t i = 0; i < fork.num_pages(); ++i)
      EXPECT_EQ(fork.data()[i] == table.data()[i], (i + 1) * kPageTokens <= num_tokens);
    EXPECT_EQ(pool->num_used(), 3 + (num_tokens % kPageTokens == 0 ? 0 : 1));
    const std::vector<int32_t> pages(fork.data(), fork.data() + fork.num_pages());
    table.swap(fork);
    EXPECT_EQ(std::vector<int32_t>(table.data(), table.data() + table.num_pages()), pages);
    fork.clear();
    EXPECT_EQ(pool->num_used(), table.num_pages()) << "shared pages belong to the table that is left";
    table.clear();
    EXPECT_EQ(pool->num_used(), 0);
  }
}

TEST_F(KvPagesTest, ATableGrowsAsNeededAndGivesEverythingBack) {
  const auto pool = make_pool(4);
  {
    PageTable table(*pool);
    EXPECT_EQ(table.num_missing(0), 0);
    EXPECT_EQ(table.num_missing(65), 2);
    ASSERT_TRUE(table.grow_to(65).ok());
    EXPECT_EQ(pool->num_used(), 2);
    ASSERT_TRUE(table.grow_to(128).ok());
    EXPECT_EQ(pool->num_used(), 2);
    EXPECT_EQ(table.num_missing(129), 1);
    EXPECT_EQ(table.num_pages(), 2);
    EXPECT_NE(table.data()[0], table.data()[1]);
  }
  EXPECT_EQ(pool->num_used(), 0);
}

TEST_F(KvPagesTest, ATableGivesBackThePagesBeyondItsPositions) {
  const auto pool = KvPagePool::create(*ops_, std::vector<KvShape>(2), 5).value();
  PageTable table(*pool);
  ASSERT_TRUE(table.grow_to(4 * kPageTokens).ok());
  const std::vector<int32_t> pages(table.data(), table.data() + 4);
  table.shrink_to(2 * kPageTokens + 1);
  EXPECT_EQ(std::vector<int32_t>(table.data(), table.data() + table.num_pages()),
            std::vector<int32_t>(pages.begin(), pages.begin() + 3));
  EXPECT_EQ(pool->num_free(), 2);
  table.shrink_to(2 * kPageTokens);
  EXPECT_EQ(table.num_pages(), 2);
  table.shrink_to(5 * kPageTokens);  // does not grow
  EXPECT_EQ(table.num_pages(), 2);
  table.shrink_to(0);
  EXPECT_EQ(pool->num_free(), 5);
}

TEST_F(KvPagesTest, TheLimitIsTheUsersOrHalfOfFreeMemoryButNeverMoreThanIsUseful) {
  const StateLimit limit{
      .page_bytes = 1000, .memory_bytes = 0, .free_bytes = 30'000, .context_tokens = 640, .max_sequences = 4};
  EXPECT_EQ(divide_state_memory(limit).value().num_pages, 15);
  StateLimit given = limit;
  given.memory_bytes = 8'999;
  EXPECT_EQ(divide_state_memory(given).value().num_pages, 8);
  StateLimit plenty = limit;
  plenty.free_bytes = int64_t{1} << 40;
  EXPECT_EQ(divide_state_memory(plenty).value().num_pages, 40);
  EXPECT_EQ(divide_state_memory(plenty).value().max_sequences, 4);
}

TEST_F(KvPagesTest, StateSlotsTakeAtMostHalfAndPagesTheRest) {
  StateLimit limit{.page_bytes = 1000,
                   .slot_bytes = 3000,
                   .memory_bytes = 20'000,
                   .context_tokens = 6400,
                   .max_sequences = 8};
  const StateMemory some = divide_state_memory(limit).value();
  EXPECT_EQ(some.max_sequences, 3);
  EXPECT_EQ(some.num_pages, 11);
  limit.memory_bytes = 60'000;
  EXPECT_EQ(divide_state_memory(limit).value().max_sequences, 8);
  EXPECT_EQ(divide_state_memory(limit).value().num_pages, 36);
  limit.memory_bytes = 4'000;  // one slot, though it is more than half, and one page
  EXPECT_EQ(divide_state_memory(limit).value().max_sequences, 1);
  EXPECT_EQ(divide_state_memory(limit).value().num_pages, 1);
  limit.memory_bytes = 3'999;
  EXPECT_EQ(divide_state_memory(limit).status().code(), StatusCode::kOutOfMemory);
}

TEST_F(KvPagesTest, ALimitBelowOnePageIsRefusedWithBothSizes) {
  const Result<StateMemory> memory = divide_state_memory({.page_bytes = 1000,
                                                          .memory_bytes = 999,
                                                          .free_bytes = 1 << 30,
                                                          .context_tokens = 64,
                                                          .max_sequences = 1});
  EXPECT_EQ(memory.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(
      memory.status().message(),
      "KV memory of 999 bytes is too little: a sequence takes 0 bytes of state and 1000 a page of 64 tokens");
}

/// Bytes of this process in memory.
int64_t resident_bytes() {
  long long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%lld %lld", &total, &resident) != 2) ADD_FAILURE() << "no statm";
  if (file != nullptr) std::fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

TEST_F(KvPagesTest, ResidentMemoryGrowsWithUseNotWithTheLimit) {
  const auto ops = make_reference_ops();
  const std::vector<KvShape> layers(4, {.num_kv_heads = 8, .head_dim = 128, .dtype = DType::kBF16});
  constexpr int64_t kMegabyte = int64_t{1} << 20;
  const int64_t before = resident_bytes();
  const auto pool = KvPagePool::create(*ops, layers, 1024).value();
  ASSERT_EQ(pool->page_bytes(), kMegabyte);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(pool->allocate().ok());
  EXPECT_LT(resident_bytes() - before, 256 * kMegabyte) << "8 of 1024 MB are in use";
  for (int i = 0; i < 500; ++i) EXPECT_TRUE(pool->allocate().ok());
  EXPECT_GT(resident_bytes() - before, 500 * kMegabyte) << "this test would not see memory";
}

TEST_F(KvPagesTest, ARefusedAllocationIsReported) {
  control_.device.refuse_allocation_at = 1;
  EXPECT_EQ(KvPagePool::create(*ops_, std::vector<KvShape>(2), 3).status().code(), StatusCode::kOutOfMemory);
}

}  // namespace
}  // namespace tensorfold
