// base/json.h: order, number kinds, errors with a place, and the two spellings.
#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tensorfold {
namespace {

TEST(JsonTest, KeepsOrderAndNumberKinds) {
  const Result<Json> parsed =
      parse_json(R"({"b":1,"a":1.0,"c":[1e2,-3,18446744073709551615,123456789012345678901234],"d":"\u00e9\ud83d\ude00"})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(dump_json(*parsed),
            "{\"b\":1,\"a\":1.0,\"c\":[100.0,-3,18446744073709551615,1.2345678901234569e+23],\"d\":\"é😀\"}");
  EXPECT_TRUE(parsed->find("b")->is_int());
  EXPECT_TRUE(parsed->find("a")->is_double());
}

TEST(JsonTest, LastOfDuplicateKeysWinsInTheFirstPlace) {
  EXPECT_EQ(dump_json(*parse_json(R"({"a":1,"b":2,"a":3,"c":4,"a":5,"b":6})")), R"({"a":5,"b":6,"c":4})");
}

TEST(JsonTest, DuplicateKeysCanBeRefusedByName) {
  const JsonLimits limits{.unique_keys = true};
  EXPECT_TRUE(parse_json(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})", limits).ok());
  // The place is the end of the object.
  EXPECT_EQ(parse_json(R"([{"b":1,"k":{"x":1,"y":2,"x":3}}])", limits).status().message().substr(0, 37),
            "JSON line 1, column 31: key \"x\" occur");
  EXPECT_FALSE(parse_json(R"({"a":1,"\u0061":2})", limits).ok());
}

TEST(JsonTest, SpellsLikePython) {
  const Json value = *parse_json(R"({"k":[1,{"x":"\u0001\n/\""}],"e":[],"f":1e-5})");
  EXPECT_EQ(dump_json(value, {.spaces = true}), R"({"k": [1, {"x": "\u0001\n/\""}], "e": [], "f": 1e-05})");
  EXPECT_EQ(dump_json(value, {.indent = 2}),
            "{\n  \"k\": [\n    1,\n    {\n      \"x\": \"\\u0001\\n/\\\"\"\n    }\n  ],\n  \"e\": [],\n  \"f\": 1e-05\n}");
  EXPECT_EQ(dump_json(Json("é😀\x7f"), {.ensure_ascii = true}), R"("\u00e9\ud83d\ude00\u007f")");
}

TEST(JsonTest, FloatReprIsPythons) {
  EXPECT_EQ(python_float_repr(1.0), "1.0");
  EXPECT_EQ(python_float_repr(1e15), "1000000000000000.0");
  EXPECT_EQ(python_float_repr(1e16), "1e+16");
  EXPECT_EQ(python_float_repr(0.0001), "0.0001");
  EXPECT_EQ(python_float_repr(0.00001), "1e-05");
  EXPECT_EQ(python_float_repr(-0.0), "-0.0");
  EXPECT_EQ(python_float_repr(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(python_float_repr(NAN), "nan");
}

TEST(JsonTest, ErrorsNameLineAndColumn) {
  EXPECT_EQ(parse_json("{\"a\": 1,\n  oops}").status().message().substr(0, 22), "JSON line 2, column 3:");
  EXPECT_FALSE(parse_json("").ok());
  EXPECT_FALSE(parse_json("1 2").ok());
  EXPECT_FALSE(parse_json("\"\xff\"").ok());
  EXPECT_FALSE(parse_json(std::string(100, '[') + std::string(100, ']')).ok());
  EXPECT_TRUE(parse_json(" [1] \n").ok());
}

}  // namespace
}  // namespace tensorfold
