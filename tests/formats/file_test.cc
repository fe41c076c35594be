// formats/file.h: reads are whole or errors that say where, on the real file system and on a faulty one.
#include "formats/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/memory_file_system.h"

namespace tensorfold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string read_string(const ReadableFile& file, int64_t offset, size_t size, Status& status) {
  std::string text(size, '?');
  status = file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(ReadableFileTest, ShortReadsAreContinued) {
  MemoryFileSystem files;
  files.put("f", "0123456789");
  files.faults.max_read_bytes = 3;
  const auto file = files.open("f");
  Status status;
  EXPECT_EQ(read_string(**file, 1, 8, status), "12345678");
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(files.num_reads, 3);
}

TEST(ReadableFileTest, AFileCutShortWhileOpenIsCorruptAndNamed) {
  MemoryFileSystem files;
  files.put("a/f", "0123456789");
  const auto file = files.open("a/f");
  files.truncate("a/f", 6);
  Status status;
  EXPECT_EQ(read_string(**file, 2, 4, status), "2345");
  EXPECT_TRUE(status.ok());
  read_string(**file, 2, 5, status);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "a/f: ends at byte 6, expected at least 7 (it had 10 when it was opened)");
}

TEST(ReadableFileTest, AnErrorInTheMiddleOfAReadIsReturned) {
  MemoryFileSystem files;
  files.put("f", "0123456789");
  files.faults = {.max_read_bytes = 4, .fail_read_at = 2};
  const auto file = files.open("f");
  Status status;
  read_string(**file, 0, 10, status);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr("f: cannot read at byte 4"));
}

class PosixFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "tensorfold_file_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
  const FileSystem& files_ = posix_file_system();
};

TEST_F(PosixFileTest, WhatIsWrittenIsReadAtAnyOffset) {
  const std::string path = join_path(folder_, "f");
  auto writable = files_.create(path);
  ASSERT_TRUE(writable.ok()) << writable.status().message();
  for (std::string_view piece : {"abc", "", "defg"}) {
    ASSERT_TRUE((*writable)->append(std::as_bytes(std::span(piece))).ok());
  }
  ASSERT_TRUE((*writable)->sync().ok());
  ASSERT_TRUE(files_.rename(path, join_path(folder_, "g")).ok());
  EXPECT_FALSE(files_.is_file(path));
  const auto file = files_.open(join_path(folder_, "g"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->size_bytes(), 7);
  Status status;
  EXPECT_EQ(read_string(**file, 2, 4, status), "cdef");
  EXPECT_TRUE(status.ok());
  read_string(**file, 4, 4, status);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(*read_text_file(files_, join_path(folder_, "g"), 7), "abcdefg");
  EXPECT_EQ(read_text_file(files_, join_path(folder_, "g"), 6).status().code(), StatusCode::kCorrupt);
}

TEST_F(PosixFileTest, FoldersAreListedInOrderAndMissingOnesAreNamed) {
  for (const char* name : {"b", "a", "c"}) std::ofstream(join_path(folder_, name)) << name;
  EXPECT_THAT(*files_.list(folder_), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(files_.is_folder(folder_));
  EXPECT_FALSE(files_.is_file(folder_));
  const Status status = files_.list(folder_ + "/none").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(folder_ + "/none: cannot list"));
}

TEST_F(PosixFileTest, OnlyRegularFilesAreOpened) {
  EXPECT_EQ(files_.open(folder_).status().code(), StatusCode::kIo);
  EXPECT_EQ(files_.open(folder_ + "/none").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(files_.remove(folder_ + "/none").ok());
}

}  // namespace
}  // namespace tensorfold
