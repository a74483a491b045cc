// [emulate] of run.toml: defaults, refusals, and what it makes of a cluster.
#include "millrace/core/emulate_config.h"

#include <gmock/gmock.h>

#include "millrace/core/run_config.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

using testing::HasSubstr;

RunConfig read(const std::string& emulate, bool with_model) {
  std::string text = "[parallel]\nworkers = 3\n[train]\nbatch = 10\n";
  if (with_model) {
    text += "[model]\nname = \"mlp\"\n[data]\nname = \"synthetic\"\n";
  }
  return run_config_from(parse_toml(text + "[emulate]\n" + emulate, "run.toml"));
}

TEST(EmulateConfigTest, AProfileStandsForModelAndData) {
  const RunConfig config = read("profile = \"vgg.json\"", false);
  EXPECT_TRUE(config.emulates_model());
  EmulateConfig expected;
  expected.profile = "vgg.json";
  EXPECT_EQ(config.emulate, expected);
  EXPECT_EQ(config.data.name, "synthetic");
  EXPECT_EQ(config.data.options.find("samples")->integer, 2560);
  EXPECT_FALSE(read("", true).emulates_model());
}

TEST(EmulateConfigTest, ReadsEveryKey) {
  const RunConfig config = read(
      "profile = \"a.json\"\ntime_scale = 4\nshrink = 100\nspeeds = [1, 9.5, 0.5]\n"
      "[[emulate.link]]\nfrom = 2\nto = 0\nbandwidth_bytes_per_s = 1e6\nlatency_s = 0.25\n",
      false);
  EmulateConfig expected;
  expected.profile = "a.json";
  expected.time_scale = 4;
  expected.shrink = 100;
  expected.speeds = {1, 9.5, 0.5};
  expected.links = {{2, 0, 1e6, 0.25}};
  EXPECT_EQ(config.emulate, expected);
  EXPECT_EQ(read("profile = \"a\"\nspeeds = 2.0", false).emulate->speeds, (std::vector<double>{2}));
}

TEST(EmulateConfigTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    bool with_model;
    const char* keys;
    const char* key;
    const char* part;
  };
  const char* profile = "profile = \"a\"\n";
  for (const Case& each : {
           Case{false, "", "", "model: this key is missing"},
           Case{true, "profile = \"a\"", "model", "leave out one of the two"},
           Case{false, "profile = \"\"", "emulate.profile", "empty"},
           Case{true, "time_scale = 0", "emulate.time_scale", "above 0"},
           Case{true, "time_scale = -2.5", "emulate.time_scale", "-2.5"},
           Case{true, "shrink = 2", "emulate.shrink", "give a profile"},
           Case{true, "speeds = [0.5, 1]", "emulate.speeds", "each of the 3 workers, found 2"},
           Case{true, "speeds = [0.5, 1, -1]", "emulate.speeds", "above 0"},
           Case{true, "speeds = 1.5", "emulate.speeds", "up to time_scale = 1, found 1.5"},
           Case{true, "sped = 1", "emulate.sped", "did you mean `speeds`?"},
           Case{true, "[[emulate.link]]\nfrom = 0\nto = 3\nbandwidth_bytes_per_s = 1",
                "emulate.link[0].to", "below 3"},
           Case{true, "[[emulate.link]]\nfrom = 0\nto = 1\nbandwidth_bytes_per_s = 0",
                "emulate.link[0].bandwidth_bytes_per_s", "more than 0"},
           Case{true,
                "[[emulate.link]]\nfrom = 0\nto = 1\nbandwidth_bytes_per_s = 1\n"
                "[[emulate.link]]\nfrom = 1\nto = 0\nbandwidth_bytes_per_s = 1",
                "emulate.link[1]", "stands there twice"},
       }) {
    const Error error = caught([&] { read(each.keys, each.with_model); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(std::string(error.what()), HasSubstr(each.part));
    EXPECT_THAT(error.key().value_or(""), HasSubstr(each.key)) << error.what();
  }
  EXPECT_THAT(caught([&] { read(std::string(profile) + "shrink = 0.5", false); }).message(),
              HasSubstr("1 or more"));
}

TEST(EmulateConfigTest, SpeedsAndLinksReplaceTheClustersOwn) {
  Cluster cluster = free_cluster(4);
  cluster.relative_speed = {2, 2, 2, 2};
  cluster.links = {{0, 1, 5, 0}, {2, 3, 7, 0}};
  EmulateConfig config;
  config.profile = "a";
  EXPECT_EQ(emulated_cluster(config, cluster), cluster);
  config.links = {{1, 0, 9, 0.5}};
  config.speeds = {0.5, 0.25, 1};  // of three workers on four devices
  const Cluster emulated = emulated_cluster(config, cluster);
  EXPECT_EQ(emulated.relative_speed, (std::vector<double>{0.5, 0.25, 1, 1}));
  EXPECT_EQ(emulated.bandwidth_between(0, 1), 9);
  EXPECT_EQ(emulated.latency_between(0, 1), 0.5);
  EXPECT_EQ(emulated.bandwidth_between(3, 2), 7);
  EXPECT_EQ(emulated.links.size(), 2u);
  config.speeds = {3};
  EXPECT_EQ(emulated_cluster(config, cluster).speed_of(3), 3);
}

TEST(EmulateConfigTest, AClustersFastDevicesNeedAProfileOrTime) {
  Cluster cluster = free_cluster(2);
  cluster.relative_speed = {1, 2};
  EmulateConfig config;
  EXPECT_THAT(caught([&] { emulated_cluster(config, cluster); }).message(), HasSubstr("found 2"));
  config.time_scale = 2;
  EXPECT_EQ(emulated_cluster(config, cluster), cluster);
}

}  // namespace
}  // namespace millrace
