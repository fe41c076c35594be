// hub/model_path.h: what a MODEL argument may be, in which order places are looked at, and what is said when
// none fits.
#include "hub/model_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/memory_file_system.h"

namespace tensorfold {
namespace {

using testing::HasSubstr;

class ModelPathTest : public testing::Test {
 protected:
  std::string resolve(std::string_view model) {
    const auto path = resolve_model(model, search_, files_);
    return path.ok() ? path->folder + " " + path->name : path.status().message();
  }
  MemoryFileSystem files_;
  ModelSearch search_{.tensorfold_cache = "/tf", .hugging_face_cache = "/hf"};
};

TEST_F(ModelPathTest, AFolderComesFirstAndIsNamedByItsLastPart) {
  files_.put("x/config.json", "{}");
  files_.put("/a/b/config.json", "{}");
  files_.put("/tf/x/config.json", "{}");
  EXPECT_EQ(resolve("x"), "x x");
  EXPECT_EQ(resolve("/a/b"), "/a/b b");
  EXPECT_EQ(resolve("/a/b/"), "/a/b/ b");
}

TEST_F(ModelPathTest, ThenTheCacheThenTheHuggingFaceSnapshot) {
  files_.put("/tf/demo/config.json", "{}");
  EXPECT_EQ(resolve("demo"), "/tf/demo demo");
  files_.put("/hf/models--org--name/refs/main", "0123abcd\n");
  files_.put("/hf/models--org--name/snapshots/0123abcd/config.json", "{}");
  EXPECT_EQ(resolve("org/name"), "/hf/models--org--name/snapshots/0123abcd org/name");
  files_.put("/tf/org/name/config.json", "{}");
  EXPECT_EQ(resolve("org/name"), "/tf/org/name org/name");
}

TEST_F(ModelPathTest, NotFoundListsEveryPlaceAndItsProblem) {
  files_.put("/tf/org/name/README.md", "");
  EXPECT_EQ(resolve("org/name"),
            "model org/name was not found. Looked at:\n  org/name: no such folder\n  /tf/org/name: has no "
            "config.json"
            "\n  /hf/models--org--name: no such folder");
  EXPECT_EQ(resolve_model("org/name", search_, files_).status().code(), StatusCode::kNotFound);
  files_.put("/hf/models--org--name/blobs/x", "");
  EXPECT_THAT(resolve("org/name"), HasSubstr("/hf/models--org--name/refs/main: cannot be read"));
  files_.put("/hf/models--org--name/refs/main", "abc");
  EXPECT_THAT(resolve("org/name"), HasSubstr("/hf/models--org--name/snapshots/abc: no such folder"));
}

TEST_F(ModelPathTest, NamesNeverLeaveACache) {
  files_.put("/tf/../secret/config.json", "{}");
  files_.put("/tf/a/../secret/config.json", "{}");
  files_.put("/hf/models--org--name/refs/main", "../../x");
  files_.put("/hf/models--org--name/snapshots/../../x/config.json", "{}");
  for (std::string_view model :
       {"../secret", "a/../secret", ".", "..", "a/b/c", "a//b", "/", "a/", "org/na me"}) {
    EXPECT_THAT(resolve(model), HasSubstr("was not found")) << model;
    EXPECT_THAT(resolve(model), testing::Not(HasSubstr("/tf"))) << model;
  }
  EXPECT_THAT(resolve("org/name"), HasSubstr("does not hold a commit"));
  files_.put("/hf/models--org--name/refs/main", "..");
  EXPECT_THAT(resolve("org/name"), HasSubstr("does not hold a commit"));
}

TEST_F(ModelPathTest, AnEmptyArgumentIsAnError) {
  EXPECT_EQ(resolve_model("", search_, files_).status().code(), StatusCode::kInvalidArgument);
  search_ = {};
  EXPECT_EQ(resolve("name"), "model name was not found. Looked at:\n  name: no such folder");
}

}  // namespace
}  // namespace tensorfold
