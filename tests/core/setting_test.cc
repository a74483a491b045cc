#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "millrace/core/run_config.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const char kHead[] = "[model]\nname = \"lenet\"\n[data]\nname = \"synthetic\"\n";

RunConfig with_settings(const std::vector<std::string>& settings) {
  Document document = parse_toml(std::string(kHead) + "[train]\nlr = 0.5\nseed = 3\n", "run.toml");
  for (const std::string& setting : settings) {
    apply_setting(document, setting);
  }
  return run_config_from(document);
}

TEST(SettingTest, ValuesAreTomlAndBareWordsText) {
  const RunConfig config = with_settings(
      {"train.lr=0.25", "train.epochs = 7", "train.dtype=float64", "parallel.plan=plans/a.json",
       "model.depth=3", "model.note=\"a, b = c\"", "model.sizes=[1, 2]", "data.deep.flag=true",
       "name=2020-01-01", "model.name='mlp'"});
  EXPECT_EQ(config.train.lr, 0.25);
  EXPECT_EQ(config.train.seed, 3u) << "what is not set stays";
  EXPECT_EQ(config.train.epochs, 7);
  EXPECT_EQ(config.train.dtype, "float64");
  EXPECT_EQ(config.parallel.plan, "plans/a.json");
  EXPECT_EQ(config.model.name, "mlp");
  EXPECT_EQ(to_json(config.model.options, -1),
            "{\"depth\": 3, \"note\": \"a, b = c\", \"sizes\": [1, 2]}");
  EXPECT_EQ(to_json(config.data.options, -1), "{\"deep\": {\"flag\": true}}");
  EXPECT_EQ(config.name, "2020-01-01");
  EXPECT_EQ(with_settings({"train.lr=1.0", "train.lr=2.0"}).train.lr, 2.0) << "the last one holds";
}

TEST(SettingTest, ErrorsNameTheSetting) {
  const auto what = [](const std::string& setting) {
    return std::string(caught([&] { with_settings({setting}); }).what());
  };
  EXPECT_EQ(what("train.lr"), "--set train.lr: expected table.key=value, found no `=`");
  EXPECT_THAT(what("train.lr="), StartsWith("--set train.lr=: expected a value after `=`"));
  EXPECT_THAT(what("train..lr=1"), HasSubstr("an empty name"));
  EXPECT_THAT(what("=1"), HasSubstr("an empty name"));
  EXPECT_THAT(what("train.lr.x=1"), HasSubstr("`lr` is no table"));
  EXPECT_THAT(what("train.lr=[1"), StartsWith("--set train.lr=[1: not valid TOML"));
  EXPECT_THAT(what("train.lr=1\nseed = 2"), HasSubstr("expected one value"));
  EXPECT_EQ(what("train.lr=fast"),
            "--set train.lr=fast: train.lr: expected a number, found the text `fast`");
  EXPECT_EQ(what("train.lr=nan"),
            "--set train.lr=nan: train.lr: expected a finite number, found nan");
  EXPECT_EQ(what("train.epocs=2"),
            "--set train.epocs=2: train.epocs: unknown key; did you mean `epochs`?");
  EXPECT_EQ(
      what("train.dtype=half"),
      "--set train.dtype=half: train.dtype: `half` is not offered; use `float32` or `float64`");
  EXPECT_THAT(what("parallel.replicas=[1, x]"), StartsWith("--set"));
  EXPECT_THAT(
      what("parallel.replicas=[1, \"x\"]"),
      HasSubstr("--set parallel.replicas=[1, \"x\"]: parallel.replicas[1]: expected a whole"));
}

TEST(SettingTest, ARefusedSettingChangesNothing) {
  Document document = parse_toml(kHead, "run.toml");
  const Value before = document.root;
  EXPECT_THROW(apply_setting(document, "new.table.x=[1"), Error);
  EXPECT_THROW(apply_setting(document, "model.name.x=1"), Error);
  EXPECT_EQ(document.root, before);
}

}  // namespace
}  // namespace millrace
