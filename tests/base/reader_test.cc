#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/document.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

Document document() {
  return parse_toml(
      "text = \"abc\"\nint = 3\nfloat = 1.5\nyes = true\nnegative = -1\nnan = nan\ninf = inf\n"
      "texts = [\"a\", \"b\"]\nints = [1, 2]\nmixed = [1,\n\"x\"]\n"
      "[table]\nkey = 1\n[[list]]\na = 1\n[[list]]\nb = 2\n",
      "f.toml");
}

TEST(ReaderTest, ReadsEveryKind) {
  const Document d = document();
  Reader reader(d);
  EXPECT_EQ(reader.text("text"), "abc");
  EXPECT_EQ(reader.integer("int"), 3);
  EXPECT_EQ(reader.number("int"), 3.0) << "a whole number is a number";
  EXPECT_EQ(reader.number("float"), 1.5);
  EXPECT_TRUE(reader.boolean("yes"));
  EXPECT_EQ(reader.texts("texts"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(reader.integers("ints"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(reader.numbers("ints"), (std::vector<double>{1, 2}));
  EXPECT_EQ(reader.object("table").integer("key"), 1);
  std::vector<Reader> items = reader.objects("list");
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1].path(), "list[1]");
  EXPECT_EQ(items[1].line(), 16);
  EXPECT_EQ(reader.count("int", 3), 3);
  EXPECT_EQ(reader.quantity("float"), 1.5);
}

TEST(ReaderTest, FallbacksHoldOnlyForAbsentKeys) {
  const Document d = document();
  Reader reader(d);
  EXPECT_EQ(reader.text("none", "x"), "x");
  EXPECT_EQ(reader.text("text", "x"), "abc");
  EXPECT_EQ(reader.integer("none", 9), 9);
  EXPECT_EQ(reader.number("none", 0.5), 0.5);
  EXPECT_TRUE(reader.boolean("none", true));
  EXPECT_EQ(reader.count("none", 1, 0), 0);
  EXPECT_EQ(reader.quantity("none", 2.0), 2.0);
  EXPECT_THROW(reader.integer("text", 9), Error);
}

TEST(ReaderTest, WrongTypesNameKeyLineExpectedAndFound) {
  const Document d = document();
  Reader reader(d);
  EXPECT_STREQ(caught([&] { reader.integer("text"); }).what(),
               "f.toml:1: text: expected a whole number, found the text `abc`");
  EXPECT_STREQ(caught([&] { reader.integer("float"); }).what(),
               "f.toml:3: float: expected a whole number, found 1.5");
  EXPECT_STREQ(caught([&] { reader.text("int"); }).what(),
               "f.toml:2: int: expected text between quotes, found 3");
  EXPECT_STREQ(caught([&] { reader.number("yes"); }).what(),
               "f.toml:4: yes: expected a number, found true");
  EXPECT_STREQ(caught([&] { reader.number("nan"); }).what(),
               "f.toml:6: nan: expected a finite number, found nan");
  EXPECT_STREQ(caught([&] { reader.quantity("inf"); }).what(),
               "f.toml:7: inf: expected a finite number, found inf");
  EXPECT_STREQ(caught([&] { reader.quantity("negative"); }).what(),
               "f.toml:5: negative: expected 0 or more, found -1");
  EXPECT_STREQ(caught([&] { reader.count("int", 4); }).what(),
               "f.toml:2: int: expected 4 or more, found 3");
  EXPECT_STREQ(caught([&] { reader.integers("mixed"); }).what(),
               "f.toml:11: mixed[1]: expected a whole number, found the text `x`");
  EXPECT_STREQ(caught([&] { reader.texts("text"); }).what(),
               "f.toml:1: text: expected a list, found the text `abc`");
  EXPECT_STREQ(caught([&] { reader.object("int"); }).what(),
               "f.toml:2: int: expected a table of keys, found 3");
  EXPECT_STREQ(caught([&] { reader.objects("ints"); }).what(),
               "f.toml:9: ints[0]: expected a table of keys, found 1");
  EXPECT_STREQ(caught([&] { reader.boolean("table"); }).what(),
               "f.toml:12: table: expected true or false, found a table of 1 keys");
}

TEST(ReaderTest, MissingKeysAreNamedWithALookalike) {
  const Document d = parse_toml("[model]\nnmae = \"x\"\n", "f.toml");
  Reader root(d);
  Reader model = root.object("model");
  EXPECT_STREQ(caught([&] { model.text("name"); }).what(),
               "f.toml:1: model.name: this key is missing; is `nmae` meant to be it?");
  EXPECT_STREQ(caught([&] { model.text("depth"); }).what(),
               "f.toml:1: model.depth: this key is missing; add it");
  EXPECT_EQ(caught([&] { model.text("depth"); }).code(), ErrorCode::kInvalidArgument);
}

TEST(ReaderTest, FinishRefusesUnknownKeysWithTheNearest) {
  const Document d = parse_toml("epocs = 1\nbatch = 2\n[train]\nlearning_rte = 0.1\n", "f.toml");
  Reader reader(d);
  reader.integer("epochs", 1);
  reader.integer("batch");
  EXPECT_STREQ(caught([&] { reader.finish(); }).what(),
               "f.toml:1: epocs: unknown key; did you mean `epochs`? (unknown too: `train`)");
  Reader train = reader.object("train");
  train.number("momentum", 0.0);
  EXPECT_STREQ(caught([&] { train.finish(); }).what(),
               "f.toml:4: train.learning_rte: unknown key; known here: momentum");
  train.number("lr", 0.0);
  EXPECT_STREQ(caught([&] { train.finish(); }).what(),
               "f.toml:4: train.learning_rte: unknown key; did you mean `lr`?");
  train.raw("learning_rte");
  EXPECT_NO_THROW(train.finish());
}

TEST(ReaderTest, OddKeysStayOnOneLine) {
  const Document d = parse_json("{\"a\\nb\": 1}", "f.json");
  Reader reader(d);
  const Error error = caught([&] { reader.finish(); });
  EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  EXPECT_THAT(error.what(), HasSubstr("a\\nb"));
}

TEST(ReaderTest, ValuesPutOverADocumentNameTheirOrigin) {
  Document d = document();
  Value value = Value::of("x");
  value.origin = std::make_shared<const std::string>("--set int=x");
  d.root.set("int", value);
  Reader reader(d);
  EXPECT_STREQ(caught([&] { reader.integer("int"); }).what(),
               "--set int=x: int: expected a whole number, found the text `x`");
}

TEST(ReaderTest, ArtifactsAreTheRightKindAndVersion) {
  const auto check = [](const std::string& text) {
    const Document d = parse_json(text, "f.json");
    Reader reader(d);
    expect_artifact(reader, "plan", 1);
  };
  EXPECT_NO_THROW(check("{\"artifact\": \"plan\", \"version\": 1}"));
  EXPECT_THAT(caught([&] { check("{\"artifact\": \"trace\", \"version\": 1}"); }).message(),
              HasSubstr("expected a plan file, found `trace`"));
  EXPECT_THAT(caught([&] { check("{\"artifact\": \"plan\", \"version\": 2}"); }).message(),
              HasSubstr("expected version 1, found 2"));
  EXPECT_EQ(caught([&] { check("{\"version\": 1}"); }).key(), "artifact");
  EXPECT_EQ(caught([&] { check("{\"artifact\": \"plan\"}"); }).key(), "version");
}

}  // namespace
}  // namespace millrace
