#include "millrace/base/document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "millrace/base/clock.h"
#include "millrace/base/file.h"
#include "millrace/base/random.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

Document json(const std::string& text) { return parse_json(text, "f.json"); }
Document toml(const std::string& text) { return parse_toml(text, "f.toml"); }

void expect_bad(const std::string& name, const std::string& text, bool is_json, int line,
                const std::string& part) {
  const Error error = caught([&] { is_json ? json(text) : toml(text); });
  EXPECT_EQ(error.code(), ErrorCode::kBadFile) << name;
  EXPECT_EQ(error.line().value_or(0), line) << name << ": " << error.what();
  EXPECT_THAT(error.message(), HasSubstr(part)) << name;
  EXPECT_EQ(error.message().find('\n'), std::string::npos) << name;
}

TEST(DocumentTest, JsonValuesKeepKindsAndLines) {
  const Document d = json(
      "\n{ \"a\": 1,\n  \"b\": 1.0,\n \"c\": [true,\n null, \"x\\u00e9\\n\",\n -2\n],\n"
      "\"d\": {\"e\":\n1e3}}\n");
  const Value& root = d.root;
  EXPECT_EQ(root.line, 2);
  EXPECT_EQ(root.find("a")->kind, Value::Kind::kInteger);
  EXPECT_EQ(root.find("a")->number, 1.0);
  EXPECT_EQ(root.find("b")->kind, Value::Kind::kFloat);
  EXPECT_EQ(root.find("b")->line, 3);
  const Value& list = *root.find("c");
  EXPECT_EQ(list.line, 4);
  ASSERT_EQ(list.array.size(), 4u);
  EXPECT_EQ(list.array[0], Value::of(true));
  EXPECT_EQ(list.array[1].line, 5);
  EXPECT_EQ(list.array[2], Value::of("x\xC3\xA9\n"));
  EXPECT_EQ(list.array[3].line, 6) << "the lexer reads the newline after a number";
  EXPECT_EQ(root.find("d")->find("e")->line, 9);
  EXPECT_EQ(root.find("none"), nullptr);
  EXPECT_EQ(root.object[3].first, "d") << "keys stay in file order";
}

TEST(DocumentTest, TomlValuesKeepKindsLinesAndOrder) {
  const Document d = toml(
      "z = 1\na = 1.0 # note\n[model]\nname = 'lenet'\ndepth.inner = 3\n\n[[level]]\nsize = 4\n"
      "[[level]]\nsize = [1,\n2]\n");
  EXPECT_EQ(d.root.object[0].first, "z");
  EXPECT_EQ(d.root.object[1].first, "a");
  EXPECT_EQ(d.root.find("z")->kind, Value::Kind::kInteger);
  EXPECT_EQ(d.root.find("a")->kind, Value::Kind::kFloat);
  EXPECT_EQ(d.root.find("a")->line, 2);
  EXPECT_EQ(d.root.find("model")->find("name")->line, 4);
  EXPECT_EQ(d.root.find("model")->find("depth")->find("inner")->integer, 3);
  EXPECT_EQ(d.root.find("level")->array[1].find("size")->array[1].line, 11);
}

TEST(DocumentTest, RefusesBadJsonWithItsLine) {
  expect_bad("empty", "", true, 0, "empty");
  expect_bad("blank", " \n\t", true, 0, "empty");
  expect_bad("trailing comma", "{\"a\": 1,\n}", true, 2, "not valid JSON");
  expect_bad("comma in list", "{\"a\": [1,\n\n]}", true, 3, "not valid JSON");
  expect_bad("unquoted key", "{a: 1}", true, 1, "not valid JSON");
  expect_bad("comment", "{ // note\n\"a\": 1}", true, 1, "not valid JSON");
  expect_bad("unfinished", "{\"a\": [1", true, 1, "not valid JSON");
  expect_bad("two roots", "{}\n{}", true, 2, "not valid JSON");
  expect_bad("NaN", "{\"a\":\nNaN}", true, 2, "not valid JSON");
  expect_bad("overflow", "{\"a\": 1e999}", true, 1, "not valid JSON");
  expect_bad("list root", "\n[1]", true, 2, "expected a JSON object");
  expect_bad("duplicate", "{\"a\": 1,\n\"b\": {\"a\": 1},\n\"a\": 2}", true, 3,
             "duplicate key `a`");
  expect_bad("not UTF-8", "{\"a\":\n\"\xff\"}", true, 2, "byte 0xff is not UTF-8");
  expect_bad("overlong", "{\"a\": \"\xC0\xAF\"}", true, 1, "not UTF-8");
  expect_bad("surrogate", "{\"a\": \"\xED\xA0\x80\"}", true, 1, "not UTF-8");
  expect_bad("beyond int64", "{\"a\": 9223372036854775808}", true, 1, "does not fit 64 bits");
  expect_bad("beyond uint64", "{\"a\":\n-123456789012345678901234567890}", true, 2,
             "does not fit 64 bits");
  expect_bad("NUL", std::string("{\"a\": \0 1}", 10), true, 1, "not valid JSON");
}

TEST(DocumentTest, RefusesBadTomlWithItsLine) {
  expect_bad("empty", "", false, 0, "empty");
  expect_bad("duplicate", "a = 1\n\na = 2\n", false, 3, "duplicate key");
  expect_bad("duplicate table", "[a]\nx=1\n[a]\ny=1\n", false, 3, "duplicate key");
  expect_bad("no value", "a = 1\nb =\n", false, 2, "not valid TOML");
  expect_bad("bare word", "a = word", false, 1, "not valid TOML");
  expect_bad("date", "a = 1\nb = 2020-01-01\n", false, 2, "dates");
  expect_bad("beyond int64", "a = 9223372036854775808", false, 1, "not valid TOML");
  expect_bad("not UTF-8", "a = 1\nb = \"\xfe\"\n", false, 2, "not UTF-8");
}

TEST(DocumentTest, ReadsTheBordersOfIntegers) {
  const Document d = json("{\"a\": 9223372036854775807, \"b\": -9223372036854775808}");
  EXPECT_EQ(d.root.find("a")->integer, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(d.root.find("b")->integer, std::numeric_limits<int64_t>::min());
}

std::string repeat(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) {
    text += part;
  }
  return text;
}

TEST(DocumentTest, DeepNestingIsRefusedNotFatal) {
  EXPECT_NO_THROW(json("{\"a\": " + repeat("[", 190) + repeat("]", 190) + "}"));
  expect_bad("lists", "{\"a\": " + repeat("[", 100000), true, 1, "nested deeper than 200");
  expect_bad("objects", repeat("{\"a\":", 100000), true, 1, "nested deeper than 200");
  EXPECT_NO_THROW(toml("a = " + repeat("[", 190) + repeat("]", 190)));
  expect_bad("toml lists", "\na = " + repeat("[", 100000), false, 2, "nested deeper than 200");
  expect_bad("dotted key", "a" + repeat(".a", 100000) + " = 1", false, 1, "nested deeper than 200");
  expect_bad("header", "x=1\n[a" + repeat(".a", 100000) + "]", false, 2, "nested deeper than 200");
  const std::string dotted = "{a" + repeat(".a", 60) + " = ";
  expect_bad("both", "a = " + repeat(dotted, 100), false, 1, "nested deeper than 200");
  // Dots in strings and comments are text; a quote in a comment opens nothing.
  const std::string dots = repeat(".", 300);
  EXPECT_NO_THROW(toml("a = '" + dots + "'\nb = \"\\\"" + dots + "\"\n# it's" + dots +
                       "\nc = '''\n'" + dots + "'''\nd = \"\"\"\n\\\"\"\"" + dots + "\"\"\"\n"));
}

TEST(DocumentTest, LargeFilesEndInReasonableTime) {
  // Bounds are wide: they catch quadratic behaviour (minutes), not a slow machine.
  const double start = monotonic_s();
  std::string keys = "{";
  for (int i = 0; keys.size() < 10'000'000; ++i) {
    keys += "\"key" + std::to_string(i) + "\": " + std::to_string(i) + ",\n";
  }
  keys += "\"last\": 0}";
  EXPECT_EQ(json(keys).root.object.back().first, "last");
  std::string table;
  for (int i = 0; table.size() < 3'000'000; ++i) {
    table += "key" + std::to_string(i) + " = " + std::to_string(i) + "\n";
  }
  const Document d = toml(table);
  EXPECT_EQ(d.root.object.front().first, "key0");
  const Error unknown = caught([&] { Reader(d).finish(); });
  EXPECT_THAT(unknown.message(), HasSubstr("unknown key"));
  EXPECT_LT(monotonic_s() - start, 60.0);
}

TEST(DocumentTest, LimitsSizeAndNumberOfValues) {
  expect_bad("size", "{\"a\": \"" + std::string(std::size_t{64} << 20, 'x') + "\"}", true, 0,
             "larger than");
  expect_bad("values", "{\"a\": [" + repeat("1,", 5'000'001) + "1]}", true, 1,
             "more than 5,000,000 values");
}

TEST(DocumentTest, ReadDocumentTellsTheFormsApart) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("millrace-doc-" + std::to_string(::getpid())))
          .string();
  write_file_atomically(path, "\xEF\xBB\xBF \n{\"a\": 2}");
  EXPECT_EQ(read_document(path).root.find("a")->integer, 2);
  write_file_atomically(path, "\xEF\xBB\xBF# note\na = 3\n");
  EXPECT_EQ(read_document(path).root.find("a")->integer, 3);
  EXPECT_EQ(read_document(path).file, path);
  write_file_atomically(path, "");
  EXPECT_THAT(caught([&] { read_document(path); }).message(), HasSubstr("empty"));
  std::filesystem::remove(path);
  EXPECT_EQ(caught([&] { read_document(path); }).code(), ErrorCode::kBadFile);
}

TEST(DocumentTest, EqualityIgnoresLinesAndOrderButNotKinds) {
  EXPECT_EQ(json("{\"a\": 1, \"b\": [1.5]}").root, json("{\n\"b\": [1.5],\n\"a\": 1}").root);
  EXPECT_FALSE(Value::of(1) == Value::of(1.0));
  EXPECT_FALSE(json("{\"a\": 1}").root == json("{\"a\": 1, \"b\": 1}").root);
  EXPECT_FALSE(json("{\"a\": 1}").root == json("{\"b\": 1}").root);
  EXPECT_FALSE(json("{\"a\": [1, 2]}").root == json("{\"a\": [2, 1]}").root);
}

TEST(DocumentTest, SetReplacesAndMakesObjects) {
  Value value;
  value.set("a", Value::of(1));
  value.set("b", Value::of(2));
  value.set("a", Value::of(3));
  EXPECT_EQ(to_json(value, -1), "{\"a\": 3, \"b\": 2}");
  Value text = Value::of("x");
  EXPECT_EQ(caught([&] { text.set("a", Value()); }).code(), ErrorCode::kInternal);
}

TEST(DocumentTest, WritesGoldenJson) {
  const Value v =
      json(
          "{\"i\": 1, \"d\": 1.0, \"t\": 0.1, \"big\": 1e300, \"s\": \"a\\\"\\\\\\n\\u0001\","
          "\"l\": [1, 2], \"o\": {\"n\": null}, \"e\": [], \"m\": [{\"x\": [true]}, {}]}")
          .root;
  EXPECT_EQ(to_json(v, -1),
            "{\"i\": 1, \"d\": 1.0, \"t\": 0.1, \"big\": 1e+300, \"s\": \"a\\\"\\\\\\n\\u0001\", "
            "\"l\": [1, 2], \"o\": {\"n\": null}, \"e\": [], \"m\": [{\"x\": [true]}, {}]}");
  EXPECT_EQ(to_json(v),
            "{\n  \"i\": 1,\n  \"d\": 1.0,\n  \"t\": 0.1,\n  \"big\": 1e+300,\n"
            "  \"s\": \"a\\\"\\\\\\n\\u0001\",\n  \"l\": [1, 2],\n  \"o\": {\"n\": null},\n"
            "  \"e\": [],\n  \"m\": [\n    {\n      \"x\": [true]\n    },\n    {}\n  ]\n}\n");
  // Bytes that are no UTF-8 (file names may hold them) still give valid JSON.
  EXPECT_EQ(to_json(Value::of("a\xff"), -1), "\"a\\ufffd\"");
  EXPECT_EQ(caught([] { to_json(Value::of(std::nan(""))); }).code(), ErrorCode::kInternal);
}

TEST(DocumentTest, WritesGoldenToml) {
  const Value v = json(
                      "{\"model\": {\"name\": \"a\", \"sub\": {\"k\": 1.0}}, \"z\": true,"
                      "\"level\": [{\"size\": 2}, {\"size\": 3, \"o\": {\"p\": 1}}],"
                      "\"mixed\": [{\"a\": 1}, 2], \"odd key\": 1, \"none\": []}")
                      .root;
  EXPECT_EQ(
      to_toml(v),
      "z = true\nmixed = [{ a = 1 }, 2]\n\"odd key\" = 1\nnone = []\n\n[model]\nname = \"a\"\n"
      "\n[model.sub]\nk = 1.0\n\n[[level]]\nsize = 2\n\n[[level]]\nsize = 3\n\n"
      "[level.o]\np = 1\n");
  EXPECT_EQ(toml(to_toml(v)).root, v);
  EXPECT_EQ(caught([] { to_toml(json("{\"a\": null}").root); }).code(), ErrorCode::kInternal);
}

// A random value; `depth` bounds nesting. TOML has no null.
Value random_value(const RandomKey& key, int depth, bool with_null) {
  const uint64_t kind = key.below(0, depth > 0 ? 7 : 5);
  switch (kind) {
    case 0:
      return with_null ? Value() : Value::of(false);
    case 1:
      return Value::of(key.below(1, 2) == 0);
    case 2:
      return Value::of(static_cast<int64_t>(key.bits(1)));
    case 3: {
      double number = 0;
      const uint64_t bits = key.bits(1);
      std::memcpy(&number, &bits, sizeof(number));
      return Value::of(std::isfinite(number) ? number : static_cast<double>(bits));
    }
    case 4: {
      std::string text;
      for (uint64_t i = 0; i < key.below(1, 12); ++i) {
        const uint64_t pick = key.below(10 + i, 140);
        text += pick < 128 ? std::string(1, static_cast<char>(pick)) : std::string("\xE2\x82\xAC");
      }
      return Value::of(text);
    }
    default: {
      Value value = kind == 5 ? Value::list() : Value::map();
      for (uint64_t i = 0; i < key.below(1, 5); ++i) {
        Value item = random_value(key.with(i), depth - 1, with_null);
        if (kind == 5) {
          value.push(std::move(item));
        } else {
          value.set("k " + std::to_string(key.below(100 + i, 50)), std::move(item));
        }
      }
      return value;
    }
  }
}

TEST(DocumentTest, RandomValuesSurviveWritingAndReading) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Value root = Value::map();
    for (uint64_t i = 0; i < 4; ++i) {
      root.set("m" + std::to_string(i), random_value(RandomKey(seed).with(i), 4, true));
    }
    ASSERT_EQ(json(to_json(root)).root, root);
    ASSERT_EQ(json(to_json(root, -1)).root, root);
    Value table = Value::map();
    for (uint64_t i = 0; i < 4; ++i) {
      table.set("m" + std::to_string(i), random_value(RandomKey(seed).with(i), 4, false));
    }
    ASSERT_EQ(toml(to_toml(table)).root, table) << to_toml(table);
  }
}

}  // namespace
}  // namespace millrace
