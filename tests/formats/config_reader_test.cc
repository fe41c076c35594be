// formats/config_reader.h: every wrong value is reported with file, path and what was found; the first error
// stays.
#include "formats/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorfold {
namespace {

using testing::ElementsAre;

TEST(ConfigReaderTest, ReadsValuesFallbacksAndNulls) {
  const Json json =
      *parse_json(R"({"i":7,"zero":0,"n":2,"d":0.5,"neg":-1.5,"b":true,"s":"x","null":null,"l":[1,2],)"
                  R"("dl":[1,2.5],"sl":["a","b"],"o":{"k":3}})");
  ConfigReader reader("config.json", json);
  EXPECT_EQ(reader.positive_int("i"), 7);
  EXPECT_EQ(reader.positive_int("none", 4), 4);
  EXPECT_EQ(reader.positive_int("null", 4), 4);
  EXPECT_EQ(reader.non_negative_int("zero", 5), 0);
  EXPECT_EQ(reader.positive_number("n"), 2.0);
  EXPECT_EQ(reader.positive_number("d", 9.0), 0.5);
  EXPECT_EQ(reader.number("neg", 0.0), -1.5);
  EXPECT_EQ(reader.optional_number("null"), std::nullopt);
  EXPECT_TRUE(reader.boolean("b", false));
  EXPECT_EQ(reader.optional_boolean("none"), std::nullopt);
  EXPECT_EQ(reader.string("s"), "x");
  EXPECT_EQ(reader.string("none", "y"), "y");
  EXPECT_THAT(reader.int_or_list("i"), ElementsAre(7));
  EXPECT_THAT(reader.int_or_list("l"), ElementsAre(1, 2));
  EXPECT_TRUE(reader.int_list("none").empty());
  EXPECT_THAT(reader.number_list("dl"), ElementsAre(1.0, 2.5));
  EXPECT_THAT(reader.string_list("sl"), ElementsAre("a", "b"));
  EXPECT_EQ(reader.object("o")->positive_int("k"), 3);
  EXPECT_FALSE(reader.object("none").has_value());
  EXPECT_TRUE(reader.has("zero"));
  EXPECT_FALSE(reader.has("null"));
  EXPECT_TRUE(reader.status().ok()) << reader.status().message();
}

enum class Color { kRed, kBlue };
constexpr std::pair<std::string_view, Color> kColors[] = {{"red", Color::kRed}, {"blue", Color::kBlue}};

/// The message after one read of {"k": VALUE}.
template <class Read>
std::string message_of(const std::string& value, const Read& read) {
  const Json json = *parse_json(value.empty() ? "{}" : fmt::format(R"({{"k":{}}})", value));
  ConfigReader reader("config.json", json);
  read(reader);
  return reader.status().message();
}

TEST(ConfigReaderTest, WrongValuesAreSpelledOut) {
  const auto positive_int = [](ConfigReader& r) { EXPECT_EQ(r.positive_int("k"), 1); };
  const std::string expected = "config.json: k: expected a positive integer below 2^31, ";
  EXPECT_EQ(message_of("\"abc\"", positive_int), expected + "found \"abc\"");
  EXPECT_EQ(message_of("0", positive_int), expected + "found 0");
  EXPECT_EQ(message_of("-3", positive_int), expected + "found -3");
  EXPECT_EQ(message_of("2.0", positive_int), expected + "found 2.0");
  EXPECT_EQ(message_of("2147483648", positive_int), expected + "found 2147483648");
  EXPECT_EQ(message_of("2147483647", [](ConfigReader& r) { EXPECT_EQ(r.positive_int("k"), 2147483647); }),
            "");
  EXPECT_EQ(message_of("[1,2]", positive_int), expected + "found an array of 2");
  EXPECT_EQ(message_of("", positive_int), expected + "but it is missing");
  EXPECT_EQ(message_of("null", positive_int), expected + "but it is missing");
  EXPECT_EQ(message_of("false", [](ConfigReader& r) { EXPECT_EQ(r.positive_int("k", 6), 6); }),
            expected + "found false");
  EXPECT_EQ(message_of("-1", [](ConfigReader& r) { r.non_negative_int("k", 0); }),
            "config.json: k: expected an integer from 0 to 2^31-1, found -1");
  EXPECT_EQ(message_of("1e999", [](ConfigReader& r) { r.number("k", 0); }).substr(0, 40),
            "config.json: k: expected a number, found");
  EXPECT_EQ(message_of("0", [](ConfigReader& r) { r.positive_number("k", 1); }),
            "config.json: k: expected a positive number, found 0");
  EXPECT_EQ(message_of("1", [](ConfigReader& r) { r.boolean("k", true); }),
            "config.json: k: expected true or false, found 1");
  EXPECT_EQ(message_of("1", [](ConfigReader& r) { r.string("k"); }),
            "config.json: k: expected a string, found 1");
  EXPECT_EQ(message_of("", [](ConfigReader& r) { r.string("k"); }),
            "config.json: k: expected a string, but it is missing");
  EXPECT_EQ(message_of("[1,-2]", [](ConfigReader& r) { r.int_or_list("k"); }),
            "config.json: k[1]: expected an integer from 0 to 2^31-1, found -2");
  EXPECT_EQ(message_of("\"1\"", [](ConfigReader& r) { r.int_or_list("k"); }),
            "config.json: k: expected an integer from 0 to 2^31-1, found \"1\"");
  EXPECT_EQ(message_of("3", [](ConfigReader& r) { r.int_list("k"); }),
            "config.json: k: expected a list of integers, found 3");
  EXPECT_EQ(message_of("[\"a\",{}]", [](ConfigReader& r) { r.string_list("k"); }),
            "config.json: k[1]: expected a string, found an object of 0");
  EXPECT_EQ(message_of("[]", [](ConfigReader& r) { EXPECT_FALSE(r.object("k").has_value()); }),
            "config.json: k: expected an object, found an array of 0");
  EXPECT_EQ(message_of("\"green\"", [](ConfigReader& r) { r.choice("k", Color::kBlue, kColors); }),
            "config.json: k: expected one of red, blue, found \"green\"");
  EXPECT_EQ(message_of(fmt::format("\"{}\"", std::string(200, 'x')), positive_int).size(),
            expected.size() + 6 + 80 + 3);
}

TEST(ConfigReaderTest, ChoicesAreReadAndDefaulted) {
  const Json json = *parse_json(R"({"k":"red"})");
  ConfigReader reader("f", json);
  EXPECT_EQ(reader.choice("k", Color::kBlue, kColors), Color::kRed);
  EXPECT_EQ(reader.choice("none", Color::kBlue, kColors), Color::kBlue);
}

TEST(ConfigReaderTest, TheFirstErrorStaysAndIsSharedBySubObjects) {
  const Json json = *parse_json(R"({"a":{"b":{"c":"x"}},"d":"y"})");
  ConfigReader reader("f", json);
  ConfigReader inner = *reader.object("a")->object("b");
  inner.positive_int("c");
  reader.positive_int("d");
  EXPECT_EQ(reader.status().message(), "f: a.b.c: expected a positive integer below 2^31, found \"x\"");
}

TEST(ConfigReaderTest, ALiftedObjectCoversTheRoot) {
  const Json json = *parse_json(R"({"t":{"a":1,"n":null,"bad":"x"},"a":2,"b":3,"n":4})");
  ConfigReader root("f", json);
  ConfigReader reader = root.lifted("t");
  EXPECT_EQ(reader.positive_int("a"), 1);
  EXPECT_EQ(reader.positive_int("b"), 3);
  EXPECT_EQ(reader.positive_int("n", 9), 9);  // The inner null hides the root's 4.
  EXPECT_EQ(root.lifted("none").positive_int("a"), 2);
  reader.positive_int("bad");
  EXPECT_EQ(reader.status().message(), "f: t.bad: expected a positive integer below 2^31, found \"x\"");
  ConfigReader other = ConfigReader("f", json).lifted("t");
  other.positive_int("none");
  EXPECT_EQ(other.status().message(), "f: t.none: expected a positive integer below 2^31, but it is missing");
}

TEST(ConfigReaderTest, ARootThatIsNoObjectIsAnError) {
  const Json json = *parse_json("[1]");
  ConfigReader reader("f", json);
  EXPECT_EQ(reader.positive_int("a", 5), 5);
  EXPECT_EQ(reader.status().message(), "f: expected an object, found an array of 1");
}

}  // namespace
}  // namespace tensorfold
