// formats/safetensors.h: what a header must fulfil, and how the files of a folder become one table of
// tensors.
#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/support/memory_file_system.h"
#include "tests/support/shared_data.h"

namespace tensorfold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A file of the format: length, header, data.
std::string make_file(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + data;
}

/// A file with one U8 vector per (name, content).
std::string make_vectors(const std::vector<std::pair<std::string, std::string>>& vectors) {
  std::string header = "{", data;
  for (const auto& [name, content] : vectors) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})",
                          header == "{" ? "" : ",", name, content.size(), data.size(),
                          data.size() + content.size());
    data += content;
  }
  return make_file(header + "}", data);
}

std::string read_tensor(const Checkpoint& checkpoint, std::string_view name) {
  std::string out(checkpoint.find(name)->bytes, '?');
  const Status status = checkpoint.read(name, std::as_writable_bytes(std::span(out)));
  return status.ok() ? out : status.message();
}

TEST(SafetensorsHeaderTest, GivesTensorsByOffsetAndMetadata) {
  const auto header = parse_safetensors_header(
      R"({"__metadata__":{"format":"mlx","x":""},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"( "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]},)"
      R"( "f":{"dtype":"F4","shape":[2,1],"data_offsets":[16,17]},"g":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[17,20]}}   )",
      20);
  ASSERT_TRUE(header.ok()) << header.status().message();
  std::vector<std::string> spelled;
  for (const TensorInfo& tensor : header->tensors) {
    spelled.push_back(
        fmt::format("{} {} at {} for {}", tensor.name, to_string(tensor), tensor.offset, tensor.bytes));
  }
  EXPECT_THAT(spelled,
              ElementsAre("a F32 [] at 0 for 4", "e I64 [0, 7] at 4 for 0", "b BF16 [2, 3] at 4 for 12",
                          "f F4 [2, 1] at 16 for 1", "g F6_E2M3 [4] at 17 for 3"));
  EXPECT_EQ(header->metadata.at("format"), "mlx");
}

struct BadHeader {
  const char* json;
  int64_t data_bytes;
  StatusCode code;
  const char* message;
};

TEST(SafetensorsHeaderTest, RefusesEveryContradictionAndSaysWhere) {
  const StatusCode kBad = StatusCode::kCorrupt;
  const BadHeader kCases[] = {
      {"", 0, kBad, "does not begin"},
      {" {}", 0, kBad, "does not begin"},
      {"[]", 0, kBad, "does not begin"},
      {"{} x", 0, kBad, "text after"},
      {"{\"a\":", 0, kBad, "header: JSON"},
      {R"({"a":1})", 0, kBad, "a: has no string `dtype`"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, StatusCode::kUnsupported,
       "a: dtype \"F31\""},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, kBad, "a: has no array `shape`"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, kBad, "found -1"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, kBad, "found 1.0"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4, kBad,
       "found 18446744073709551615"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, kBad, "a: has no pair `data_offsets`"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 8, kBad, "a: has no pair"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, kBad, "do not lie"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,5]}})", 4, kBad, "do not lie"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4, kBad, "do not lie"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4, kBad, "do not lie"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, kBad, "F32 [2] takes 8 bytes"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, kBad, "whole number"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, kBad, "too large"},
      {R"({"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0]}})", 0, kBad, "too large"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, kBad, "a and b overlap"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, kBad, "bytes 1 to 2 belong to no tensor"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2, kBad,
       "bytes 1 to 2 belong to no tensor"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, kBad, "key \"a\" occurs twice"},
      {R"({"__metadata__":{"format":1}})", 0, kBad, "__metadata__.format: expected a string"},
      {R"({"__metadata__":"x"})", 0, kBad, "__metadata__: expected an object"},
      {R"({"a":{"dtype":"U8","shape":[[[[[[[[[[0]]]]]]]]]],"data_offsets":[0,0]}})", 0, kBad, "header: JSON"},
  };
  for (const BadHeader& bad : kCases) {
    const auto header = parse_safetensors_header(bad.json, bad.data_bytes);
    ASSERT_FALSE(header.ok()) << bad.json;
    EXPECT_EQ(header.status().code(), bad.code) << bad.json;
    EXPECT_THAT(header.status().message(), HasSubstr(bad.message)) << bad.json;
  }
}

TEST(SafetensorsHeaderTest, TheLengthMustFitTheFile) {
  MemoryFileSystem files;
  const std::string whole = make_vectors({{"a", "xyz"}});
  for (size_t size = 0; size < whole.size(); ++size) {
    files.put("d/cut.safetensors", whole.substr(0, size));
    const Status status = Checkpoint::open_file("d/cut.safetensors", files).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << size;
    EXPECT_THAT(status.message(), HasSubstr("cut.safetensors: ")) << size;
    const bool ends_in_header = size >= 8 && size < whole.size() - 3;
    EXPECT_EQ(status.message().find("header length") != std::string::npos, ends_in_header) << size;
  }
  files.put("long", std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
  EXPECT_THAT(Checkpoint::open_file("long", files).status().message(),
              HasSubstr("header length 18446744073709551615"));
  files.put("limit", std::string("\x01\xe1\xf5\x05\x00\x00\x00\x00", 8) + std::string(100'000'001, ' '));
  EXPECT_THAT(Checkpoint::open_file("limit", files).status().message(), HasSubstr("header length 100000001"));
}

TEST(CheckpointTest, ReadsASingleFileWholeAndInParts) {
  MemoryFileSystem files;
  files.put("m/model.safetensors", make_vectors({{"b", "BBBB"}, {"a", "0123456789"}, {"empty", ""}}));
  files.faults.max_read_bytes = 3;
  const auto checkpoint = Checkpoint::open("m", files);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_THAT(checkpoint->names(), ElementsAre("a", "b", "empty"));
  EXPECT_EQ(read_tensor(*checkpoint, "a"), "0123456789");
  EXPECT_EQ(read_tensor(*checkpoint, "b"), "BBBB");
  EXPECT_EQ(read_tensor(*checkpoint, "empty"), "");
  EXPECT_EQ(checkpoint->find("c"), nullptr);
  EXPECT_EQ(checkpoint->total_bytes(), 14);
  std::string part(4, '?');
  ASSERT_TRUE(checkpoint->read(*checkpoint->find("a"), 5, std::as_writable_bytes(std::span(part))).ok());
  EXPECT_EQ(part, "5678");
}

TEST(CheckpointTest, ReadErrorsNameTensorAndFile) {
  MemoryFileSystem files;
  files.put("m/model.safetensors", make_vectors({{"a", "0123456789"}}));
  const auto checkpoint = Checkpoint::open("m", files);
  ASSERT_TRUE(checkpoint.ok());
  files.faults.fail_read_at = files.num_reads + 1;
  EXPECT_THAT(read_tensor(*checkpoint, "a"), testing::StartsWith("a: m/model.safetensors: cannot read"));
  files.truncate("m/model.safetensors", files.content("m/model.safetensors").size() - 1);
  EXPECT_THAT(read_tensor(*checkpoint, "a"), HasSubstr("a: m/model.safetensors: ends at byte"));
}

TEST(CheckpointTest, AnyFailedReadOfAHeaderFailsTheOpening) {
  MemoryFileSystem files;
  files.put("m/model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  files.put("m/1.safetensors", make_vectors({{"a", "A"}}));
  files.put("m/2.safetensors", make_vectors({{"b", "B"}}));
  ASSERT_TRUE(Checkpoint::open("m", files).ok());
  const int num_reads = files.num_reads;
  ASSERT_EQ(num_reads, 5);
  for (int i = 1; i <= num_reads; ++i) {
    files.num_reads = 0;
    files.faults.fail_read_at = i;
    EXPECT_EQ(Checkpoint::open("m", files).status().code(), StatusCode::kIo) << i;
  }
}

/// Two shards and an index that the tests then bend.
class ShardedTest : public testing::Test {
 protected:
  void SetUp() override {
    put_index(R"("a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors")");
    files_.put("m/model-00001-of-00002.safetensors", make_vectors({{"a", "A1"}, {"extra", "E"}}));
    files_.put("m/model-00002-of-00002.safetensors", make_vectors({{"b", "B22"}}));
  }
  void put_index(const std::string& members) {
    files_.put("m/model.safetensors.index.json",
               R"({"metadata":{"total_size":6.0},"weight_map":{)" + members + "}}");
  }
  Status open_status() { return Checkpoint::open("m", files_).status(); }
  MemoryFileSystem files_;
};

TEST_F(ShardedTest, TensorsOfAllShardsAndUnlistedOnesAreFound) {
  const auto checkpoint = Checkpoint::open("m", files_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(read_tensor(*checkpoint, "a"), "A1");
  EXPECT_EQ(read_tensor(*checkpoint, "b"), "B22");
  EXPECT_EQ(read_tensor(*checkpoint, "extra"), "E");
  EXPECT_EQ(checkpoint->file_name_of(*checkpoint->find("b")), "model-00002-of-00002.safetensors");
}

TEST_F(ShardedTest, MissingShardsAreCountedAndNamed) {
  ASSERT_TRUE(files_.remove("m/model-00002-of-00002.safetensors").ok());
  EXPECT_EQ(open_status().code(), StatusCode::kNotFound);
  EXPECT_EQ(open_status().message(),
            "m: 1 of 2 files of model.safetensors.index.json are missing: model-00002-of-00002.safetensors");
}

TEST_F(ShardedTest, AnIndexEntryWithoutATensorIsNamed) {
  put_index(R"("a":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors")");
  EXPECT_EQ(open_status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(open_status().message(), HasSubstr("c (model-00002-of-00002.safetensors)"));
}

TEST_F(ShardedTest, ATensorInAnotherFileThanTheIndexSaysIsNamed) {
  put_index(
      R"("a":"model-00002-of-00002.safetensors","b":"model-00002-of-00002.safetensors","extra":"model-00001-of-00002.safetensors")");
  EXPECT_EQ(open_status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(open_status().message(), HasSubstr("a (model-00002-of-00002.safetensors)"));
}

TEST_F(ShardedTest, OfTwoCopiesTheIndexDecidesAndWithoutItNoneIsTaken) {
  files_.put("m/model-00001-of-00002.safetensors", make_vectors({{"a", "A1"}, {"b", "WRONG"}}));
  const auto checkpoint = Checkpoint::open("m", files_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(read_tensor(*checkpoint, "b"), "B22");
  ASSERT_TRUE(files_.remove("m/model.safetensors.index.json").ok());
  EXPECT_EQ(open_status().message(),
            "b: is in model-00001-of-00002.safetensors and in model-00002-of-00002.safetensors");
}

TEST_F(ShardedTest, WithoutAnIndexNumberedFilesMustBeComplete) {
  ASSERT_TRUE(files_.remove("m/model.safetensors.index.json").ok());
  ASSERT_TRUE(Checkpoint::open("m", files_).ok());
  ASSERT_TRUE(files_.remove("m/model-00001-of-00002.safetensors").ok());
  EXPECT_EQ(open_status().code(), StatusCode::kNotFound);
  EXPECT_THAT(open_status().message(), HasSubstr("model-00001-of-00002.safetensors is missing"));
  files_.put("m/model-00000-of-00002.safetensors", make_vectors({}));
  EXPECT_THAT(open_status().message(), HasSubstr("model-00001-of-00002.safetensors is missing"));
  files_.put("m/model-00001-of-00002.safetensors", make_vectors({}));
  EXPECT_TRUE(open_status().ok()) << open_status().message();
  files_.put("m/model-00001-of-00003.safetensors", make_vectors({}));
  EXPECT_THAT(open_status().message(), HasSubstr("others are of"));
}

TEST(CheckpointTest, NumberedFilesMayCountFromZero) {
  MemoryFileSystem files;
  files.put("m/model-00000-of-00003.safetensors", make_vectors({{"a", "A"}}));
  files.put("m/model-00001-of-00003.safetensors", make_vectors({{"b", "B"}}));
  EXPECT_THAT(Checkpoint::open("m", files).status().message(),
              HasSubstr("model-00002-of-00003.safetensors is missing"));
  files.put("m/model-00002-of-00003.safetensors", make_vectors({{"c", "C"}}));
  EXPECT_TRUE(Checkpoint::open("m", files).ok());
  ASSERT_TRUE(files.remove("m/model-00001-of-00003.safetensors").ok());
  EXPECT_THAT(Checkpoint::open("m", files).status().message(),
              HasSubstr("model-00001-of-00003.safetensors is missing"));
}

TEST(CheckpointTest, WithoutAnIndexEveryModelFileIsTakenAndNoOther) {
  MemoryFileSystem files;
  files.put("m/model.safetensors", make_vectors({{"a", "A"}}));
  files.put("m/model-extra.safetensors", make_vectors({{"b", "B"}}));
  files.put("m/mtp-4bit.safetensors", make_vectors({{"c", "C"}}));
  auto checkpoint = Checkpoint::open("m", files);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_THAT(checkpoint->names(), ElementsAre("a", "b"));
  ASSERT_TRUE(checkpoint->add_file("m/mtp-4bit.safetensors", files).ok());
  EXPECT_EQ(read_tensor(*checkpoint, "c"), "C");
  EXPECT_EQ(checkpoint->add_file("m/model.safetensors", files).code(), StatusCode::kCorrupt);
  EXPECT_EQ(checkpoint->num_files(), 3);
}

TEST(CheckpointTest, AFolderWithoutTensorsSaysWhatItHas) {
  MemoryFileSystem files;
  files.put("m/config.json", "{}");
  EXPECT_EQ(Checkpoint::open("m", files).status().message(), "m: has no model*.safetensors");
  files.put("m/x.gguf", "");
  EXPECT_THAT(Checkpoint::open("m", files).status().message(), HasSubstr("only x.gguf"));
  EXPECT_EQ(Checkpoint::open("none", files).status().code(), StatusCode::kNotFound);
}

TEST(SafetensorsIndexTest, RefusesWhatIsNoMapOfPlainNames) {
  for (const char* json :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"../x.safetensors"}})", R"({"weight_map":{"a":"/x.safetensors"}})",
        R"({"weight_map":{"a":"x\u0000.safetensors"}})", R"({"weight_map":{"a":"x.bin"}})",
        R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"}) {
    EXPECT_EQ(parse_safetensors_index(json).status().code(), StatusCode::kCorrupt) << json;
  }
}

TEST(SafetensorsIndexTest, ReadsPublishedIndexes) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const std::pair<const char*, size_t> kIndexes[] = {{"gpt-oss-20b", 459}, {"qwen3.8-27b", 1199}};
  for (const auto& [name, count] : kIndexes) {
    const std::string path = fmt::format("{}/checkpoints/{}/model.safetensors.index.json", kSharedData, name);
    const auto text = read_text_file(posix_file_system(), path, 10'000'000);
    ASSERT_TRUE(text.ok()) << text.status().message();
    const auto index = parse_safetensors_index(*text);
    ASSERT_TRUE(index.ok()) << index.status().message();
    EXPECT_EQ(index->size(), count) << name;
  }
}

}  // namespace
}  // namespace tensorfold
