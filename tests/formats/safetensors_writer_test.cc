// formats/safetensors_writer.h: what is written reads back, and a failed writer leaves nothing behind.
#include "formats/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/safetensors.h"
#include "tests/support/memory_file_system.h"

namespace tensorfold {
namespace {

const std::vector<TensorDeclaration> kTensors{{"z", DType::kU8, {3}},
                                              {"empty", DType::kF32, {0, 4}},
                                              {"a\"b", DType::kF16, {2, 1}},
                                              {"f4", DType::kF4, {4}},
                                              {"last", DType::kI64, {0}}};

std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

Status write_all(MemoryFileSystem& files) {
  TF_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::create("m/f", kTensors, {{"format", "mlx"}}, files));
  TF_RETURN_IF_ERROR(writer.append("z", as_bytes("Z")));
  TF_RETURN_IF_ERROR(writer.append("z", as_bytes("YX")));
  TF_RETURN_IF_ERROR(writer.append("a\"b", as_bytes("abcd")));
  TF_RETURN_IF_ERROR(writer.append("f4", as_bytes("45")));
  return writer.finish();
}

TEST(SafetensorsWriterTest, WhatIsWrittenIsReadBack) {
  MemoryFileSystem files;
  const Status status = write_all(files);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto checkpoint = Checkpoint::open_file("m/f", files);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->metadata().at("format"), "mlx");
  std::string found;
  for (const TensorDeclaration& tensor : kTensors) {
    const TensorInfo* info = checkpoint->find(tensor.name);
    ASSERT_NE(info, nullptr) << tensor.name;
    EXPECT_EQ(info->dtype, tensor.dtype);
    EXPECT_EQ(info->shape, tensor.shape);
    std::string content(info->bytes, '?');
    ASSERT_TRUE(checkpoint->read(tensor.name, std::as_writable_bytes(std::span(content))).ok());
    found += content + "|";
  }
  EXPECT_EQ(found, "ZYX||abcd|45||");
}

TEST(SafetensorsWriterTest, DataBeginAtAMultipleOfEightWhateverTheNames) {
  for (size_t length = 1; length <= 8; ++length) {
    MemoryFileSystem files;
    auto writer = SafetensorsWriter::create("f", {{std::string(length, 'n'), DType::kU8, {0}}}, {}, files);
    ASSERT_TRUE(writer.ok() && writer->finish().ok());
    EXPECT_EQ(files.content("f").size() % 8, 0u) << length;
    EXPECT_TRUE(Checkpoint::open_file("f", files).ok());
  }
}

TEST(SafetensorsWriterTest, AFailureAtAnyStepLeavesNoFile) {
  MemoryFileSystem whole;
  ASSERT_TRUE(write_all(whole).ok());
  std::vector<FileFaults> faults{{.fail_sync = true}, {.fail_rename = true}};
  for (int i = 1; i <= whole.num_appends; ++i) faults.push_back({.fail_append_at = i});
  ASSERT_EQ(faults.size(), 7u);
  for (const FileFaults& fault : faults) {
    MemoryFileSystem files;
    files.faults = fault;
    EXPECT_EQ(write_all(files).code(), StatusCode::kIo);
    EXPECT_FALSE(files.has("m/f"));
    EXPECT_FALSE(files.has("m/f.partial"));
  }
}

TEST(SafetensorsWriterTest, AnOldFileStaysUntilTheNewOneIsWhole) {
  MemoryFileSystem files;
  files.put("m/f", "old");
  {
    auto writer = SafetensorsWriter::create("m/f", kTensors, {}, files);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append("z", as_bytes("ZYX")).ok());
    SafetensorsWriter moved = std::move(*writer);
    EXPECT_EQ(files.content("m/f"), "old");
    EXPECT_TRUE(files.has("m/f.partial"));
  }
  EXPECT_EQ(files.content("m/f"), "old");
  EXPECT_FALSE(files.has("m/f.partial"));
}

TEST(SafetensorsWriterTest, DeclarationsThatNoFileCouldHoldAreRefused) {
  MemoryFileSystem files;
  const std::vector<std::vector<TensorDeclaration>> kBad{
      {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}},
      {{"__metadata__", DType::kU8, {1}}},
      {{"a", DType::kU8, {-1}}},
      {{"a", DType::kF4, {3}}},
      {{"a", DType::kF64, {int64_t{1} << 32, int64_t{1} << 32}}},
  };
  for (const auto& tensors : kBad) {
    EXPECT_EQ(SafetensorsWriter::create("m/f", tensors, {}, files).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(files.has("m/f.partial"));
}

TEST(SafetensorsWriterDeathTest, AppendingOutOfOrderOrTooMuchIsABug) {
  MemoryFileSystem files;
  auto writer = SafetensorsWriter::create("m/f", kTensors, {}, files);
  ASSERT_TRUE(writer.ok());
  EXPECT_DEATH((void)writer->append("f4", as_bytes("45")), "check failed");
  EXPECT_DEATH((void)writer->append("z", as_bytes("ZYXW")), "check failed");
  EXPECT_DEATH((void)writer->finish(), "check failed");
}

}  // namespace
}  // namespace tensorfold
