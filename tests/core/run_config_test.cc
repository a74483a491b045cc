#include "millrace/core/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/optimizer_keys.h"
#include "tests/core/core_testing.h"

namespace millrace {
namespace {

using testing::Draws;
using testing::expect_round_trip;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const char kHead[] = "[model]\nname = \"lenet\"\n[data]\nname = \"synthetic\"\n";

RunConfig read(const std::string& text) {
  return run_config_from(parse_toml(text, "conf/run.toml"));
}
RunConfig read_parallel(const std::string& keys) {
  return read(std::string(kHead) + "[parallel]\n" + keys);
}

TEST(RunConfigTest, ReadsTheDocumentedFile) {
  const RunConfig config = read(R"(# run.toml
[model]
name = "lenet"
width = 3
sizes = [1, 2.5]
[data]
name = "fashion-mnist"
path = "x"
[parallel]
workers = 2
plan = "pipedream"
stages = 2
replicas = 1
cluster = "auto"
schedule = "pipedream"
rule = "bsp"
microbatches = 1
[train]
epochs = 3
batch = 128
optimizer = "sgd"
lr = 0.05
lr_schedule = "constant"
momentum = 0.9
dtype = "float32"
seed = 1
)");
  EXPECT_EQ(config.name, "run") << "the file's stem";
  EXPECT_EQ(config.model.name, "lenet");
  EXPECT_EQ(to_json(config.model.options, -1), "{\"width\": 3, \"sizes\": [1, 2.5]}");
  EXPECT_EQ(to_json(config.data.options, -1), "{\"path\": \"x\"}");
  EXPECT_EQ(config.parallel.stages, 2);
  EXPECT_EQ(config.parallel.replicas, std::vector<int>{1});
  EXPECT_EQ(config.parallel.schedule, "pipedream");
  EXPECT_EQ(config.train.epochs, 3);
  EXPECT_EQ(config.train.momentum, 0.9);
}

TEST(RunConfigTest, DefaultsAreTheHeaders) {
  RunConfig expected;
  expected.name = "run";
  expected.model.name = "lenet";
  expected.data.name = "synthetic";
  EXPECT_EQ(read(kHead), expected);
  EXPECT_EQ(read(std::string("name = \"mine\"\n") + kHead).name, "mine");
}

TEST(RunConfigTest, EffectiveConfigsReadBackTheSame) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draws draws(seed);
    RunConfig config;
    config.name = "run" + std::to_string(seed);
    config.model.name = draws.name();
    config.model.options.set("depth", Value::of(draws.between(1, 9)));
    config.model.options.set("rate", Value::of(draws.positive()));
    config.data.name = draws.name();
    config.data.options.set("deep", Value::map()).set("path", Value::of(draws.name()));
    ParallelConfig& parallel = config.parallel;
    parallel.workers = static_cast<int>(draws.between(4, 16));
    parallel.microbatches = static_cast<int>(draws.between(1, 8));
    parallel.schedule = draws.name();
    parallel.policy = draws.coin() ? draws.name() : "";
    parallel.rule = draws.name();
    parallel.cluster = draws.name();
    parallel.timeout_s = draws.positive();
    if (draws.coin()) {
      parallel.codec = "accept";
      parallel.codec_exponent_bits = draws.between(2, 8);
    }
    TrainConfig& train = config.train;
    if (draws.coin()) {
      parallel.plan = "plans/a.json";
    } else if (draws.coin()) {
      parallel.stages = 2;
      parallel.replicas = draws.coin() ? std::vector<int>{1, 3} : std::vector<int>{2};
    }
    train.batch = parallel.microbatches * 6 * draws.between(1, 4);
    if (draws.coin() && parallel.replicas.size() == 1) {
      parallel.microbatch_size = static_cast<int>(train.batch / parallel.microbatches / 2);
    }
    if (draws.coin()) {
      train.max_steps = draws.between(1, 1000);
    }
    train.epochs = draws.between(1, 100);
    train.lr = draws.positive();
    for (const OptimizerKey& key : optimizer_keys()) {
      if (draws.coin()) {
        const bool counts = key.range == OptimizerKey::Range::kCount;
        train.*key.member = draws.coin() ? (counts ? 1 : 0.5) : (counts ? 12 : 0.875);
      }
    }
    train.warmup_steps = draws.between(0, 9);
    train.lr_scaling = draws.coin() ? "replicas" : "none";
    if (draws.coin()) {
      train.clip_norm = draws.positive();
    }
    train.keep_checkpoints = draws.between(0, 9);
    train.lr_schedule = draws.coin() ? "step" : draws.coin() ? "cosine" : "polynomial";
    if (train.lr_schedule == "step") {
      train.lr_decay = draws.positive();
      if (draws.coin()) {
        train.lr_step_epochs = draws.between(1, 9);
      } else {
        train.lr_milestones = {2, draws.between(3, 9)};
      }
    } else {
      train.lr_end = draws.zero_or_more();
    }
    if (train.lr_schedule == "polynomial") {
      train.lr_power = draws.positive();
    }
    train.dtype = draws.coin() ? "float64" : "float32";
    train.seed = static_cast<uint64_t>(draws.bytes());
    train.eval_every_epochs = draws.between(0, 3);
    train.checkpoint_every_epochs = draws.between(0, 3);
    if (draws.coin()) {
      EmulateConfig& emulate = config.emulate.emplace();
      emulate.time_scale = draws.positive();
      if (draws.coin()) {
        emulate.profile = draws.name();
        config.model = {};
        if (draws.coin()) {
          emulate.shrink = 1 + draws.zero_or_more();
        }
      }
      if (draws.coin()) {
        emulate.speeds.assign(draws.coin() ? 1 : static_cast<std::size_t>(parallel.workers),
                              emulate.time_scale / 2);
      }
      emulate.links.push_back({3, 1, draws.positive(), draws.zero_or_more()});
    }
    expect_round_trip(config, run_config_from);
  }
}

void expect_refused(const std::string& parallel, const std::string& train, const std::string& key,
                    const std::string& part, ErrorCode code = ErrorCode::kInvalidArgument) {
  const std::string text = std::string(kHead) + "[parallel]\n" + parallel + "\n[train]\n" + train;
  const Error error = caught([&] { read(text); });
  EXPECT_EQ(error.code(), code) << error.what();
  EXPECT_EQ(error.key(), key) << error.what();
  EXPECT_EQ(error.file(), "conf/run.toml") << error.what();
  EXPECT_GT(error.line().value_or(0), 0) << error.what();
  EXPECT_THAT(error.message(), HasSubstr(part)) << error.what();
}

TEST(RunConfigTest, RefusesValuesOutOfRange) {
  expect_refused("workers = 0", "", "parallel.workers", "1 or more, found 0");
  expect_refused("workers = 9999999999", "", "parallel.workers", "at most");
  expect_refused("plan = \"\"", "", "parallel.plan", "empty");
  expect_refused("microbatches = 0", "", "parallel.microbatches", "1 or more");
  expect_refused("timeout_s = 0", "", "parallel.timeout_s", "more than 0");
  expect_refused("timeout_s = inf", "", "parallel.timeout_s", "finite");
  expect_refused("codec_mantissa_bits = 2", "", "parallel.codec_mantissa_bits", "codec accept has");
  expect_refused("slices = 1", "", "parallel.slices", "unknown key");
  expect_refused("", "epochs = 0", "train.epochs", "1 or more");
  expect_refused("", "batch = 1.5", "train.batch", "whole number, found 1.5");
  expect_refused("", "max_steps = 0", "train.max_steps", "1 or more");
  expect_refused("", "momentum = 1.0", "train.momentum", "less than 1");
  expect_refused("", "momentum = -0.1", "train.momentum", "0 or more");
  expect_refused("", "weight_decay = -1", "train.weight_decay", "0 or more");
  expect_refused("", "beta1 = 1", "train.beta1", "less than 1");
  expect_refused("", "beta2 = -0.5", "train.beta2", "0 or more");
  expect_refused("", "epsilon = 0", "train.epsilon", "above 0");
  expect_refused("", "accumulate = 0", "train.accumulate", "1 or more");
  expect_refused("", "accumulate = 2.5", "train.accumulate", "whole number");
  expect_refused("", "clip_norm = 0", "train.clip_norm", "above 0");
  expect_refused("", "warmup_steps = -1", "train.warmup_steps", "0 or more");
  expect_refused("", "keep_checkpoints = -1", "train.keep_checkpoints", "0 or more");
  expect_refused("", "seed = -1", "train.seed", "0 or more");
  expect_refused("", "eval_every_epochs = -1", "train.eval_every_epochs", "0 or more");
}

TEST(RunConfigTest, SaysWhatIsOfferedInstead) {
  const ErrorCode unsupported = ErrorCode::kUnsupported;
  expect_refused("", "lr_schedule = \"cosin\"", "train.lr_schedule", "did you mean `cosine`?",
                 unsupported);
  expect_refused("", "dtype = \"float16\"", "train.dtype", "use `float32` or `float64`",
                 unsupported);
}

// A key that changes nothing would be believed in.
TEST(RunConfigTest, KeysOfAnotherLearningRateScheduleAreRefused) {
  expect_refused("", "lr_decay = 0.5", "train.lr_decay",
                 "lr_schedule `constant` does not use this; step does");
  expect_refused("", "lr_schedule = \"step\"\nlr_step_epochs = 1\nlr_end = 0.1", "train.lr_end",
                 "cosine or polynomial does");
  expect_refused("", "lr_schedule = \"cosine\"\nlr_power = 2", "train.lr_power", "polynomial does");
  expect_refused("", "lr_schedule = \"cosine\"\nlr_milestones = [1]", "train.lr_milestones",
                 "step does");
}

TEST(RunConfigTest, AStepScheduleSaysWhenItSteps) {
  expect_refused("", "lr_schedule = \"step\"", "train.lr_schedule", "one of the two");
  expect_refused("", "lr_schedule = \"step\"\nlr_step_epochs = 2\nlr_milestones = [3]",
                 "train.lr_schedule", "one of the two");
  for (const char* epochs : {"[2, 2]", "[3, 1]", "[0]"}) {
    expect_refused("", std::string("lr_schedule = \"step\"\nlr_milestones = ") + epochs,
                   "train.lr_milestones", "increasing epochs from 1");
  }
  expect_refused("", "lr_schedule = \"step\"\nlr_step_epochs = 0", "train.lr_step_epochs",
                 "1 or more");
}

// Every TRY of case "misspelt or dead configuration keys".
TEST(RunConfigTest, MisspeltKeysAndWrongValuesNameFileLineAndKey) {
  const std::string head = std::string(kHead) + "[train]\n";
  const auto what = [](const std::string& text) {
    return std::string(caught([&] { read(text); }).what());
  };
  EXPECT_EQ(what(head + "learning_rte = 0.1\n"),
            "conf/run.toml:6: train.learning_rte: unknown key; did you mean `lr`?");
  EXPECT_EQ(what(head + "epocs = 1\n"),
            "conf/run.toml:6: train.epocs: unknown key; did you mean `epochs`?");
  EXPECT_THAT(what(head + "lr = 0.1\nlr = 0.2\n"), StartsWith("conf/run.toml:7: duplicate key"));
  EXPECT_EQ(what(head + "lr = \"0.1\"\n"),
            "conf/run.toml:6: train.lr: expected a number, found the text `0.1`");
  EXPECT_EQ(what(head + "lr = -0.1\n"),
            "conf/run.toml:6: train.lr: expected a rate above 0, found -0.1");
  EXPECT_EQ(what(head + "lr = nan\n"),
            "conf/run.toml:6: train.lr: expected a finite number, found nan");
  EXPECT_THAT(what(""), HasSubstr("the file is empty"));
  EXPECT_THAT(what(head + "dtype = \"\xff\"\n"), StartsWith("conf/run.toml:6: byte 0xff"));
  EXPECT_THAT(what(head + "lr = 0.1,\n"), StartsWith("conf/run.toml:6: not valid TOML"));
  EXPECT_THAT(what(head + std::string(10'000'000, 'x') + "\n"), StartsWith("conf/run.toml:"));
  EXPECT_EQ(what("[model]\nname = \"a\"\n"), "conf/run.toml:1: data: this key is missing; add it");
  EXPECT_EQ(what("[model]\nnmae = \"a\"\n[data]\nname = \"b\"\n"),
            "conf/run.toml:1: model.name: this key is missing; is `nmae` meant to be it?");
  EXPECT_THAT(what("[model]\nname = \"a\"\nrate = [1.0, nan]\n[data]\nname = \"b\"\n"),
              StartsWith("conf/run.toml:3: model.rate: expected a finite number"));
  EXPECT_THAT(what(std::string(kHead) + "[trian]\nlr = 1.0\n"), HasSubstr("did you mean `train`"));
  EXPECT_THAT(what("name = \"a/b\"\n" + head), HasSubstr("a folder's"));
  EXPECT_THAT(what("name = \"..\"\n" + head), HasSubstr("a folder's"));
}

// Every TRY of case "batch arithmetic that cannot hold", as a config.
TEST(RunConfigTest, RefusesBatchArithmeticThatCannotHold) {
  const auto refuse = [](int batch, int size, int replicas, const std::string& key,
                         const std::string& part) {
    expect_refused("workers = 8\nreplicas = " + std::to_string(replicas) +
                       "\nmicrobatch_size = " + std::to_string(size),
                   "batch = " + std::to_string(batch), key, part);
  };
  refuse(8, 2, 8, "train.batch",
         "batch is 8 and 2 x 1 x 8 = 16; use microbatch_size = 1, or batch = 16");
  refuse(10, 4, 1, "train.batch", "batch = 8 with microbatches = 2, or batch = 12");
  refuse(0, 1, 1, "train.batch", "1 or more, found 0");
  refuse(8, -1, 2, "parallel.microbatch_size", "1 or more, found -1");
  refuse(8, 16, 1, "train.batch", "16 x 1 x 1 = 16");
  expect_refused("microbatches = 9", "batch = 8", "train.batch", "9 x 1 = 9 parts");
  expect_refused("workers = 5\nstages = 2\nreplicas = [1, 4]\nmicrobatches = 4", "batch = 8",
                 "train.batch", "4 x 4 = 16 parts");
  const Error error = caught([] { read_parallel("microbatches = 200"); });
  EXPECT_EQ(error.key(), "train.batch") << "the default batch of 128 is meant";
}

TEST(RunConfigTest, MicrobatchesFollowFromTheOtherThree) {
  const auto microbatches = [](const std::string& parallel) {
    return read_parallel(parallel + "\n[train]\nbatch = 24\n").parallel.microbatches;
  };
  EXPECT_EQ(microbatches("microbatch_size = 4"), 6) << "one worker: one replica";
  EXPECT_EQ(microbatches("microbatch_size = 4\nworkers = 2\nreplicas = 2"), 3);
  EXPECT_EQ(microbatches("microbatch_size = 4\nworkers = 2\nstages = 2"), 6);
  EXPECT_EQ(microbatches("microbatch_size = 12\nworkers = 2"), 1) << "two replicas would do";
  EXPECT_EQ(microbatches("microbatch_size = 4\nmicrobatches = 3\nworkers = 2"), 3);
  EXPECT_EQ(
      caught([&] { microbatches("microbatch_size = 4\nmicrobatches = 3\nworkers = 1"); }).key(),
      "train.batch");
  EXPECT_EQ(
      caught([&] { microbatches("microbatch_size = 4\nmicrobatches = 1\nworkers = 2"); }).key(),
      "train.batch");
}

TEST(RunConfigTest, StagesReplicasAndWorkersMustFit) {
  EXPECT_EQ(read_parallel("workers = 5\nstages = 2\nreplicas = [1, 4]").parallel.replicas,
            (std::vector<int>{1, 4}));
  EXPECT_NO_THROW(read_parallel("workers = 5\nstages = 2\nreplicas = 2"));
  expect_refused("workers = 2\nstages = 3", "", "parallel.stages", "3 stages need as many workers");
  expect_refused("workers = 5\nstages = 3\nreplicas = 2", "", "parallel.replicas",
                 "need 6 workers");
  expect_refused("workers = 4\nreplicas = [1, 4]", "", "parallel.replicas", "need 5 workers");
  expect_refused("workers = 9\nstages = 3\nreplicas = [1, 2]", "", "parallel.replicas",
                 "each of the 3 stages, found 2");
  expect_refused("replicas = 0", "", "parallel.replicas", "from 1 to");
  expect_refused("replicas = []", "", "parallel.replicas", "empty list");
  expect_refused("replicas = [1, 1.5]", "", "parallel.replicas[1]", "whole number");
}

TEST(RunConfigTest, APlanFileExcludesWhatItFixes) {
  for (const char* plan : {"p.json", "p.toml", "plans/p", "./p"}) {
    const std::string key = "workers = 2\nplan = \"" + std::string(plan) + "\"\n";
    EXPECT_TRUE(read_parallel(key).parallel.plan_is_file()) << plan;
    expect_refused(key + "stages = 2", "", "parallel.stages", "fixes this already");
    expect_refused(key + "replicas = 1", "", "parallel.replicas", "fixes this already");
  }
  EXPECT_FALSE(read_parallel("plan = \"pipedream\"").parallel.plan_is_file());
  EXPECT_FALSE(read_parallel("plan = \".json\"").parallel.plan_is_file());
}

}  // namespace
}  // namespace millrace
