// Case C45 and C44: what is wrong in run.toml is said with file, line, key and a suggestion, before
// anything is launched.
#include <gmock/gmock.h>

#include "millrace/base/file.h"
#include "millrace/cli/common/catalog.h"
#include "tests/base/caught.h"
#include "tests/cli/cli_testing.h"

namespace millrace::cli {
namespace {

using ::testing::HasSubstr;

constexpr const char* kRun = "tests/cli/data/run.toml";
constexpr const char* kPlan = "tests/cli/data/plan.json";
constexpr const char* kCluster = "tests/cli/data/cluster.toml";

TEST(ReadRunConfigTest, TakesAGoodFileAndItsSettings) {
  const RunConfig config =
      read_run_config(kRun, {"train.lr=0.25", "model.depth=4", "data.samples=64"});
  EXPECT_EQ(config.name, "run");
  EXPECT_EQ(config.model.name, "mlp");
  EXPECT_EQ(config.parallel.microbatches, 4);
  EXPECT_EQ(config.train.lr, 0.25);
  EXPECT_EQ(config.model.options.find("depth")->integer, 4);
  EXPECT_EQ(config.data.options.find("samples")->integer, 64);
}

TEST(ReadRunConfigTest, TakesTheExamples) {
  EXPECT_EQ(read_run_config("examples/fashion_mnist.toml", {}).model.name, "lenet");
}

TEST(ReadRunConfigTest, TakesAFileAsSchedule) {
  TemporaryFolder folder;
  const RunConfig config =
      read_run_config(kRun, {"parallel.schedule=examples/schedules/gpipe.sched"});
  EXPECT_EQ(config.parallel.schedule, "examples/schedules/gpipe.sched");
  EXPECT_EQ(config.parallel.recompute, Recompute::kNothing);
  const std::string order =
      "placement linear forwards { repeat M { F(r) } } backwards { repeat M { B(r) } } warm_up M";
  const std::string again =
      folder.write("again.sched", "schedule \"again\" recompute stage " + order);
  EXPECT_EQ(read_run_config(kRun, {"parallel.schedule=" + again}).parallel.recompute,
            Recompute::kStage);
  const auto refused = [](const std::string& schedule) {
    return std::string(
        caught([&] { read_run_config(kRun, {"parallel.schedule=" + schedule}); }).what());
  };
  EXPECT_THAT(refused("none.sched"), HasSubstr("none.sched"));
  EXPECT_THAT(refused(folder.write("wrong.sched", "schedule 1")),
              HasSubstr("wrong.sched:1: column"));
  EXPECT_THAT(refused(folder.write("five.sched", "schedule \"five\" ranks 5 " + order)),
              HasSubstr("it is written for 5 stages, found 2"));
}

TEST(ReadRunConfigTest, TakesTheEmulatedExample) {
  const RunConfig config = read_run_config("examples/emulated.toml", {});
  EXPECT_TRUE(config.emulates_model());
  EXPECT_EQ(config.model.name, "");
  EXPECT_EQ(config.data.name, "synthetic");
}

TEST(ReadRunConfigTest, RefusesWhatCannotBeEmulated) {
  const auto refused = [](const std::string& setting) {
    return std::string(
        caught([&] { read_run_config("examples/emulated.toml", {setting}); }).what());
  };
  EXPECT_THAT(refused("emulate.profile=none.json"),
              HasSubstr("emulate.profile: there is no file `none.json`"));
  EXPECT_THAT(refused("emulate.profile=examples/cluster.toml"), HasSubstr("examples/cluster.toml"));
  EXPECT_THAT(refused("emulate.timescale=2"), HasSubstr("did you mean `time_scale`?"));
  EXPECT_THAT(refused("model.name=lenet"), HasSubstr("leave out one of the two"));
  // A real model on the devices of a cluster file that are faster than this one.
  TemporaryFolder folder;
  const std::string fast = folder.write("fast.toml", R"([device]
relative_speed = 1.5
[[level]]
size = 4
bandwidth_bytes_per_s = 1e9
)");
  const Error error = caught([&] {
    read_run_config(kRun, {"parallel.cluster=" + fast, "emulate.time_scale=1.2"});
  });
  EXPECT_THAT(error.message(), HasSubstr("cannot be faster than it is"));
  read_run_config(kRun, {"parallel.cluster=" + fast, "emulate.time_scale=1.5"});
}

TEST(ReadRunConfigTest, TakesPlanAndClusterFiles) {
  TemporaryFolder folder;
  std::string text = read_file(kRun);
  text.replace(text.find("stages = 2\nreplicas = 1\n"), 24,
               std::string("plan = \"") + kPlan + "\"\ncluster = \"" + kCluster + "\"\n");
  const RunConfig config = read_run_config(folder.write("run.toml", text), {});
  EXPECT_TRUE(config.parallel.plan_is_file());
  const Error few =
      caught([&] { read_run_config(folder.path("run.toml"), {"parallel.workers=1"}); });
  EXPECT_THAT(few.message(), HasSubstr("is for 2 workers, but workers = 1"));
  const Error many =
      caught([&] { read_run_config(folder.path("run.toml"), {"parallel.workers=5"}); });
  EXPECT_THAT(many.message(), HasSubstr("4 devices"));
  EXPECT_EQ(many.key(), "parallel.cluster");
}

struct Wrong {
  std::string setting;
  std::string key;
  std::string says;
};

class WrongSettingTest : public ::testing::TestWithParam<Wrong> {};

// Given as a setting: the refusal names the setting.
TEST_P(WrongSettingTest, IsRefusedWithItsKey) {
  const Wrong& wrong = GetParam();
  const Error error = caught([&] { read_run_config(kRun, {wrong.setting}); });
  EXPECT_EQ(error.key(), wrong.key) << error.what();
  EXPECT_EQ(error.file(), "--set " + wrong.setting) << error.what();
  EXPECT_THAT(error.message(), HasSubstr(wrong.says));
  EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
}

// Written into the file: the refusal names the file and the line.
TEST_P(WrongSettingTest, IsRefusedWithItsLine) {
  const Wrong& wrong = GetParam();
  const std::size_t dot = wrong.setting.find('.');
  const std::string table = "[" + wrong.setting.substr(0, dot) + "]\n";
  const std::string line = wrong.setting.substr(dot + 1);
  const std::string key = line.substr(0, line.find('='));
  // The key's own line is replaced, or a new one added as the table's first.
  std::string text = read_file(kRun);
  const std::size_t begin = text.find(table) + table.size();
  std::size_t at = text.find("\n" + key + " = ", begin - 1);
  const std::size_t next_table = std::min(text.find("\n[", begin), text.size());
  if (at == std::string::npos || at >= next_table) {
    at = begin;
  } else {
    ++at;
    text.erase(at, text.find('\n', at) + 1 - at);
  }
  text.insert(at, line + "\n");
  const auto number = 1 + std::count(text.begin(), text.begin() + static_cast<long>(at), '\n');
  TemporaryFolder folder;
  const std::string file = folder.write("bad.toml", text);
  const Error error = caught([&] { read_run_config(file, {}); });
  EXPECT_EQ(error.file(), file) << error.what();
  EXPECT_EQ(error.line(), static_cast<int>(number)) << error.what() << "\n" << text;
  EXPECT_EQ(error.key(), wrong.key) << error.what();
  EXPECT_THAT(error.message(), HasSubstr(wrong.says));
}

INSTANTIATE_TEST_SUITE_P(
    Settings, WrongSettingTest,
    ::testing::Values(
        Wrong{"train.learning_rte=0.1", "train.learning_rte", "unknown key; did you mean `lr`?"},
        Wrong{"train.lr=\"fast\"", "train.lr", "expected a number, found the text `fast`"},
        Wrong{"train.lr=-0.1", "train.lr", "expected a rate above 0, found -0.1"},
        Wrong{"train.lr=nan", "train.lr", "expected a finite number"},
        Wrong{"train.batch=1.5", "train.batch", "expected a whole number"},
        Wrong{"parallel.schedule=\"1f2b\"", "parallel.schedule", "did you mean `1f1b`?"},
        Wrong{"parallel.rule=\"bps\"", "parallel.rule", "bsp"},
        Wrong{"parallel.plan=\"pipedreem\"", "parallel.plan", "did you mean `pipedream`?"},
        Wrong{"parallel.policy=\"stach\"", "parallel.policy", "did you mean `stash`?"},
        Wrong{"parallel.policy=\"stash\"", "parallel.policy", "does not take weight policy"},
        Wrong{"parallel.cluster=\"no/such.toml\"", "parallel.cluster", "no file `no/such.toml`"},
        Wrong{"parallel.cluster=\"atuo\"", "parallel.cluster", "did you mean `auto`?"},
        Wrong{"model.name=\"lennet\"", "model.name", "did you mean `lenet`?"},
        Wrong{"model.dpeth=3", "model.dpeth", "did you mean `depth`?"},
        Wrong{"model.depth=\"deep\"", "model.depth", "expected a whole number, found `deep`"},
        Wrong{"model.depth=2.5", "model.depth", "expected a whole number, found 2.5"},
        Wrong{"train.optimizer=\"adma\"", "train.optimizer", "did you mean `adam`?"},
        Wrong{"train.beta1=0.5", "train.beta1",
              "optimizer `sgd` does not use this; adam or adamw or accum-adam does"},
        Wrong{"data.name=\"fashion-mnst\"", "data.name", "did you mean `fashion-mnist`?"},
        Wrong{"data.noise=true", "data.noise", "expected a number, found true"},
        Wrong{"data.samlpes=3", "data.samlpes", "did you mean `samples`?"}),
    [](const auto& tested) { return "Case" + std::to_string(tested.index); });

TEST(ReadRunConfigTest, AMissingPlanFileIsToldWhereItIsNamed) {
  TemporaryFolder folder;
  std::string text = read_file(kRun);
  text.replace(text.find("stages = 2\nreplicas = 1\n"), 24, "plan = \"no/such.json\"\n");
  const Error error = caught([&] { read_run_config(folder.write("run.toml", text), {}); });
  EXPECT_EQ(error.file(), folder.path("run.toml"));
  EXPECT_EQ(error.line(), 12);
  EXPECT_EQ(error.key(), "parallel.plan");
  EXPECT_THAT(error.message(), HasSubstr("no file `no/such.json`"));
}

TEST(ReadRunConfigTest, OptionsOfARuleAreCheckedForAnyNumberOfReplicas) {
  const auto read = [](const std::string& rule, const std::string& option) {
    return read_run_config(kRun, {"parallel.rule=" + rule, "rule." + option});
  };
  // Of two replicas one node of two can be made, of one replica none.
  EXPECT_EQ(read("daso", "node_size=2").rule_options.find("node_size")->integer, 2);
  EXPECT_EQ(caught([&] { read("daso", "node_size=7"); }).key(), "rule.node_size");
  EXPECT_THAT(caught([&] { read("bsp", "tau=3"); }).message(), HasSubstr("has no options"));
  const Error low = caught([&] { read("easgd", "tau=0"); });
  EXPECT_EQ(low.key(), "rule.tau");
  EXPECT_THAT(low.message(), HasSubstr("at least 1"));
  EXPECT_THAT(caught([&] { read("easgd", "taux=1"); }).message(), HasSubstr("did you mean `tau`?"));
}

TEST(ReadRunConfigTest, KeysOfTheOptimizerGetTheDefaultsThatItsLineSays) {
  const RunConfig sgd = read_run_config(kRun, {"train.momentum=0.5"});
  EXPECT_EQ(sgd.train.momentum, 0.5);
  EXPECT_EQ(sgd.train.weight_decay, 0);
  EXPECT_EQ(sgd.train.beta1, std::nullopt);
  const std::string without_momentum = [] {
    std::string text = read_file(kRun);
    const std::size_t at = text.find("momentum");
    return at == std::string::npos ? text : text.erase(at, text.find('\n', at) + 1 - at);
  }();
  TemporaryFolder folder;
  const RunConfig adamw = read_run_config(folder.write("run.toml", without_momentum),
                                          {"train.optimizer=adamw", "train.beta2=0.99"});
  EXPECT_EQ(adamw.train.beta1, 0.9);
  EXPECT_EQ(adamw.train.beta2, 0.99);
  EXPECT_EQ(adamw.train.epsilon, 1e-8);
  EXPECT_EQ(adamw.train.weight_decay, 0.01);
  EXPECT_EQ(adamw.train.momentum, std::nullopt);
  // The effective configuration that a run folder keeps reads back the same.
  EXPECT_EQ(read_run_config(folder.write("effective.toml", to_toml(to_value(adamw))), {}), adamw);
}

TEST(ReadRunConfigTest, ClippingOfStagesWithoutAFlushIsRefusedBeforeAnyProfiling) {
  const std::vector<std::string> settings = {"parallel.schedule=\"pipedream\"",
                                             "parallel.microbatches=1", "train.clip_norm=1.0"};
  const Error error = caught([&] { read_run_config(kRun, settings); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.key(), "train.clip_norm");
  EXPECT_THAT(error.message(), HasSubstr("update at different times"));
  EXPECT_EQ(read_run_config(kRun, {"train.clip_norm=1.0"}).train.clip_norm, 1.0);
}

TEST(ReadRunConfigTest, TextIsDueWhereADefaultIsText) {
  const Error error =
      caught([] { read_run_config("examples/fashion_mnist.toml", {"data.path=3"}); });
  EXPECT_THAT(error.message(), HasSubstr("expected text between quotes, found 3"));
}

TEST(ReadRunConfigTest, TextIsDueWhereThereIsNoDefault) {
  const std::vector<std::string> settings = {"data.name=\"image-folder\"", "data.path=\"photos\""};
  EXPECT_EQ(
      read_run_config("examples/fashion_mnist.toml", settings).data.options.find("path")->string,
      "photos");
}

TEST(ReadRunConfigTest, TrueOrFalseIsDueWhereADefaultIsOne) {
  const RunConfig config = read_run_config("examples/gpt.toml", {"model.tied=true"});
  EXPECT_EQ(*config.model.options.find("tied"), Value::of(true));
  const Error error = caught([] { read_run_config("examples/gpt.toml", {"model.tied=1"}); });
  EXPECT_EQ(error.key(), "model.tied");
  EXPECT_THAT(error.message(), HasSubstr("expected true or false, found 1"));
  EXPECT_EQ(read_run_config("examples/lstm_lm.toml", {}).data.name, "text");
}

TEST(ReadRunConfigTest, ASchedulesOwnReasonIsGivenAtTheKeyThatWouldHelp) {
  const Error error = caught([] { read_run_config(kRun, {"parallel.schedule=\"pipedream\""}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.key(), "parallel.microbatches");
  EXPECT_EQ(error.file(), kRun);
  EXPECT_EQ(error.line(), 16);
  EXPECT_THAT(error.message(), HasSubstr("pipedream-2bw"));
}

TEST(ReadRunConfigTest, StagesMayHaveUnequalReplicas) {
  const RunConfig config = read_run_config(
      kRun, {"parallel.schedule=\"pipedream\"", "parallel.microbatches=1", "parallel.workers=4",
             "parallel.stages=2", "parallel.replicas=[3,1]", "parallel.update=\"step\""});
  EXPECT_EQ(config.parallel.replicas, (std::vector<int>{3, 1}));
  EXPECT_EQ(config.parallel.update, UpdateRule::kStep);
  const Error error = caught([] { read_run_config(kRun, {"parallel.update=\"rounds\""}); });
  EXPECT_THAT(error.message(), HasSubstr("round"));
}

TEST(ReadRunConfigTest, BatchArithmeticShowsTheEquation) {
  for (const std::string batch : {"3", "2"}) {  // four microbatches each need a sample
    const Error error = caught([&] { read_run_config(kRun, {"train.batch=" + batch}); });
    EXPECT_EQ(error.key(), "train.batch");
    EXPECT_THAT(error.message(), HasSubstr("microbatches x replicas"));
  }
  const Error size = caught([] { read_run_config(kRun, {"parallel.microbatch_size=5"}); });
  EXPECT_THAT(size.message(), HasSubstr("5 x 4 x 1 = 20"));
}

TEST(ReadRunConfigTest, DamagedFilesNameTheirPlace) {
  TemporaryFolder folder;
  const std::string good = read_file(kRun);
  const auto refusal = [&](const std::string& text) {
    const std::string file = folder.write("bad.toml", text);
    const Error error = caught([&] { read_run_config(file, {}); });
    EXPECT_EQ(error.file(), file) << error.what();
    return error;
  };
  EXPECT_GT(refusal(good + "lr = 0.1\n").line().value_or(0), 20);  // a key given twice
  refusal("");
  EXPECT_EQ(refusal("[model]\nname = \"\xff\xfe\"\n").line(), 2);
  refusal("{\"model\": {\"name\": \"mlp\",}}");
  EXPECT_EQ(refusal("[model\n").line(), 1);
  const Error large = refusal("# " + std::string(10'000'000, 'x') + "\n[modle]\nname = 3\n");
  EXPECT_THAT(large.what(), HasSubstr("model"));
}

}  // namespace
}  // namespace millrace::cli
