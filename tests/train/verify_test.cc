#include "millrace/train/verify.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "millrace/base/file.h"
#include "millrace/runtime/optimizer.h"

namespace millrace {
namespace {

RunConfig config_of(const std::string& schedule, int stages, int replicas, int microbatches) {
  RunConfig config;
  config.name = "verify";
  config.model.name = "mlp";
  config.model.options.set("depth", Value::of(5));
  config.model.options.set("width", Value::of(24));
  config.data.name = "synthetic";
  config.data.options.set("samples", Value::of(103));
  config.data.options.set("test_samples", Value::of(8));
  config.data.options.set("height", Value::of(6));
  config.data.options.set("width", Value::of(5));
  config.parallel.workers = stages * replicas;
  config.parallel.stages = stages;
  config.parallel.replicas = {replicas};
  config.parallel.schedule = schedule;
  config.parallel.microbatches = microbatches;
  config.train.batch = 12;
  config.train.lr = 0.05;
  config.train.momentum = 0.9;
  config.train.weight_decay = 0.001;
  return config;
}

VerifyResult run(const RunConfig& config, Break fault = Break::kNothing) {
  return verify(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0, .sink = nullptr},
                {.steps = 6, .fault = fault});
}

TEST(Verify, SynchronousSchedulesAgreeWithOneProcess) {
  for (const std::string schedule : {"naive", "gpipe", "1f1b"}) {
    for (const auto& [stages, replicas, microbatches] :
         {std::tuple{1, 1, 1}, {2, 1, 1}, {3, 1, 4}, {4, 1, 2}, {1, 2, 3}, {2, 2, 5}}) {
      const VerifyResult result = run(config_of(schedule, stages, replicas, microbatches));
      EXPECT_TRUE(result.equal) << schedule << " " << stages << " " << replicas << " "
                                << microbatches << ": " << result.max_relative_difference;
      EXPECT_EQ(result.steps, 6);
      EXPECT_LE(result.max_relative_difference, 1e-9);
      EXPECT_GT(result.compared, 6 * 10);
    }
  }
}

TEST(Verify, PipedreamAgreesWithDelayedSgdBitForBit) {
  for (int stages = 1; stages <= 5; ++stages) {
    const VerifyResult result = run(config_of("pipedream", stages, 1, 1));
    EXPECT_TRUE(result.equal) << stages;
    EXPECT_EQ(result.tolerance, 0);
    EXPECT_EQ(result.max_relative_difference, 0);
  }
}

RunConfig replicated(const std::string& schedule, const std::vector<int>& replicas,
                     int microbatches) {
  RunConfig config = config_of(schedule, static_cast<int>(replicas.size()), 1, microbatches);
  config.parallel.replicas = replicas;
  config.parallel.workers = std::accumulate(replicas.begin(), replicas.end(), 0);
  return config;
}

const std::vector<std::vector<int>> kShapes = {{3, 1}, {2, 1, 1}, {1, 2}, {2, 2}, {1, 3, 2}, {3}};

TEST(Verify, UnequalReplicasAgreeWithOneProcess) {
  for (const std::string schedule : {"naive", "gpipe", "1f1b"}) {
    for (const std::vector<int>& replicas : kShapes) {
      const VerifyResult result = run(replicated(schedule, replicas, 2));
      EXPECT_TRUE(result.equal) << schedule << ": " << result.max_relative_difference;
    }
  }
}

TEST(Verify, ReplicasWithoutAFlushAgreeWithDelayedSgdBitForBit) {
  for (const std::vector<int>& replicas : kShapes) {
    for (const UpdateRule update : {UpdateRule::kRound, UpdateRule::kStep}) {
      RunConfig config = replicated("pipedream", replicas, 1);
      config.parallel.update = update;
      for (const int64_t steps : {1, 5, 7, 8}) {
        const VerifyResult result =
            verify(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0, .sink = nullptr},
                   {.steps = steps});
        EXPECT_TRUE(result.equal) << to_string(update) << " " << steps
                                  << " steps: " << result.max_relative_difference;
        EXPECT_EQ(result.tolerance, 0);
      }
    }
  }
}

// Steps 3 to 8 of the epoch: in warm-up and past it, with the optimizer's own state.
TEST(Verify, HoldsForEveryOptimizerAndARateThatChanges) {
  for (const OptimizerEntry& entry : optimizers()) {
    for (const std::string schedule : {"1f1b", "pipedream"}) {
      for (const std::vector<int>& replicas : {std::vector<int>{1, 1}, {2, 1}}) {
        RunConfig config = replicated(schedule, replicas, 1);
        config.train.optimizer = entry.name;
        if (entry.name != "sgd") {
          config.train.momentum.reset();
          config.train.lr = 0.002;
        }
        config.train.lr_schedule = "cosine";
        config.train.warmup_steps = 5;
        if (schedule == "1f1b") {
          config.train.clip_norm = 0.1;  // below every gradient here
        }
        const VerifyResult result = run(config);
        EXPECT_TRUE(result.equal) << entry.name << " " << schedule << " "
                                  << result.max_relative_difference;
      }
    }
  }
}

TEST(Verify, VerticalSyncAgreesBitForBit) {
  for (const std::vector<int>& replicas :
       {std::vector<int>{1, 1}, {1, 1, 1, 1}, {2, 2}, {3, 1}, {1, 2}}) {
    RunConfig config = replicated("pipedream", replicas, 1);
    config.parallel.policy = "vertical_sync";
    config.parallel.update = UpdateRule::kStep;
    const VerifyResult result = run(config);
    EXPECT_TRUE(result.equal) << result.max_relative_difference;
    EXPECT_EQ(result.tolerance, 0);
  }
  RunConfig unequal = replicated("pipedream", {2, 1}, 1);
  unequal.parallel.policy = "vertical_sync";
  EXPECT_THROW(run(unequal), Error);
}

// Batch norm: the oracle cuts its minibatches as the run does.
TEST(Verify, ModelsWithBatchNorm) {
  for (const auto& [schedule, stages, replicas, microbatches] :
       {std::tuple{"gpipe", 2, 2, 2}, {"1f1b", 3, 1, 3}, {"pipedream", 3, 1, 1}}) {
    RunConfig config = config_of(schedule, stages, replicas, microbatches);
    config.model.name = "vgg11";
    config.model.options = Value::map();
    config.model.options.set("width", Value::of(2));
    config.data.options.set("samples", Value::of(104));
    config.data.options.set("height", Value::of(8));
    config.data.options.set("width", Value::of(8));
    const VerifyResult result = run(config);
    EXPECT_TRUE(result.equal) << schedule << " " << result.max_relative_difference;
  }
}

TEST(Verify, BrokenStashingIsCaughtAtTheFirstLayerThatDiffers) {
  for (int stages = 2; stages <= 3; ++stages) {
    const VerifyResult result = run(config_of("pipedream", stages, 1, 1), Break::kStash);
    EXPECT_FALSE(result.equal);
    ASSERT_TRUE(result.first_difference);
    EXPECT_EQ(result.first_difference->stage, 0);
    EXPECT_EQ(result.first_difference->layer, "linear1")
        << "the layer below another one with weights";
    EXPECT_EQ(result.first_difference->step, 1) << "the first backward after an update";
    EXPECT_NE(result.first_difference->what.find("gradient"), std::string::npos);
  }
}

TEST(Verify, BrokenScaleIsCaughtEverywhere) {
  for (const std::string schedule : {"naive", "gpipe", "1f1b", "pipedream"}) {
    const VerifyResult result = run(config_of(schedule, 2, 1, 1), Break::kScale);
    EXPECT_FALSE(result.equal) << schedule;
    ASSERT_TRUE(result.first_difference);
    EXPECT_EQ(result.first_difference->step, 0);
    EXPECT_EQ(result.first_difference->layer, "linear1");
  }
}

TEST(Verify, BreakingWhatTheConfigurationLacksIsRefused) {
  const auto refused = [](const RunConfig& config, Break fault) {
    try {
      run(config, fault);
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      return true;
    }
  };
  EXPECT_TRUE(refused(config_of("1f1b", 2, 1, 2), Break::kStash));
  EXPECT_TRUE(refused(config_of("pipedream", 1, 1, 1), Break::kStash));
  RunConfig single = config_of("1f1b", 2, 1, 1);
  single.train.batch = 1;
  EXPECT_TRUE(refused(single, Break::kScale));
  EXPECT_THROW(parse_break("everything"), Error);
}

// Skip edges inside stages and across them, batch norm, and every way to spread them. The plan file
// cuts resnet18 inside its blocks, so that a tensor passes by one stage or two.
RunConfig resnet(const std::string& schedule, const std::vector<std::size_t>& cuts,
                 const std::vector<int>& replicas, const std::string& file) {
  RunConfig config = config_of(schedule, 1, 1, 1);
  config.model.name = "resnet18";
  config.model.options = Value::map();
  config.model.options.set("width", Value::of(2));
  config.data.options.set("samples", Value::of(28));
  config.data.options.set("height", Value::of(16));  // so that batch norm has pixels in the end
  config.data.options.set("width", Value::of(16));
  config.train.batch = 8;
  Job job;
  load_data_and_model(config, job);
  const std::vector<std::string> layers = job.model.layer_names();
  Plan plan;
  plan.workers = 0;
  std::size_t first = 0;
  for (std::size_t s = 0; s < replicas.size(); ++s) {
    const std::size_t last = s < cuts.size() ? cuts[s] : layers.size();
    PlanStage& stage = plan.stages.emplace_back();
    stage.layers.assign(layers.begin() + static_cast<std::ptrdiff_t>(first),
                        layers.begin() + static_cast<std::ptrdiff_t>(last));
    for (int r = 0; r < replicas[s]; ++r) {
      stage.ranks.push_back(plan.workers++);
    }
    first = last;
  }
  write_file_atomically(file, to_json(to_value(plan)));
  config.parallel.plan = file;
  config.parallel.workers = plan.workers;
  config.parallel.stages.reset();
  config.parallel.replicas.clear();
  return config;
}

TEST(Verify, SkipEdgesAcrossStagesAgree) {
  const std::string file = (std::filesystem::temp_directory_path() /
                            ("millrace-verify-resnet-" + std::to_string(::getpid()) + ".json"))
                               .string();
  struct Shape {
    std::vector<std::size_t> cuts;
    std::vector<int> replicas;
  };
  const std::vector<Shape> shapes = {{{}, {2}},
                                     {{12}, {1, 1}},
                                     {{5, 6, 7}, {1, 1, 1, 1}},
                                     {{6, 21}, {1, 2, 1}},
                                     {{13, 30}, {2, 1, 1}},
                                     {{25}, {3, 1}}};
  for (const Shape& shape : shapes) {
    RunConfig flush = resnet("1f1b", shape.cuts, shape.replicas, file);
    flush.parallel.microbatches = 2;
    const VerifyResult one = run(flush);
    EXPECT_TRUE(one.equal) << one.max_relative_difference << " "
                           << (one.first_difference ? one.first_difference->layer : "");
    const VerifyResult delayed = run(resnet("pipedream", shape.cuts, shape.replicas, file));
    EXPECT_TRUE(delayed.equal) << delayed.max_relative_difference << " "
                               << (delayed.first_difference ? delayed.first_difference->layer : "");
    EXPECT_EQ(delayed.tolerance, 0);
  }
  std::filesystem::remove(file);
}

// A stage's layers need not follow one another in the model: here the first one also has the side
// branch of a later block.
TEST(Verify, StagesOfScatteredLayersAgree) {
  const std::string file = (std::filesystem::temp_directory_path() /
                            ("millrace-verify-scattered-" + std::to_string(::getpid()) + ".json"))
                               .string();
  for (const std::string schedule : {"1f1b", "pipedream"}) {
    const RunConfig config = resnet(schedule, {}, {1}, file);
    const Plan one = plan_from(read_document(file));
    Plan plan = one;
    plan.workers = 2;
    plan.stages = {{{}, {0}}, {{}, {1}}};
    bool before = true;
    for (const std::string& layer : one.stages[0].layers) {
      before = before && layer != "g2a.conv1";
      const bool side = layer == "g2a.conv_skip" || layer == "g2a.bn_skip";
      plan.stages[before || side ? 0 : 1].layers.push_back(layer);
    }
    ASSERT_EQ(plan.stages[0].layers.back(), "g2a.bn_skip") << "the side branch is there";
    write_file_atomically(file, to_json(to_value(plan)));
    RunConfig scattered = config;
    scattered.parallel.workers = 2;
    const VerifyResult result = run(scattered);
    EXPECT_TRUE(result.equal) << schedule << " " << result.max_relative_difference << " "
                              << (result.first_difference ? result.first_difference->layer : "");
  }
  std::filesystem::remove(file);
}

// The planned cut may leave nothing to see; then another one is verified, and said so.
TEST(Verify, ACutThatHidesStashingIsMovedAndSaidSo) {
  RunConfig config = config_of("pipedream", 2, 1, 1);
  const std::string file = (std::filesystem::temp_directory_path() /
                            ("millrace-verify-plan-" + std::to_string(::getpid()) + ".json"))
                               .string();
  Plan plan;
  plan.workers = 2;
  plan.schedule = "pipedream";
  plan.stages = {{{"flatten", "linear1", "relu1"}, {0}},
                 {{"linear2", "relu2", "linear3", "relu3", "linear4", "relu4", "linear5"}, {1}}};
  write_file_atomically(file, to_json(to_value(plan)));
  config.parallel.plan = file;
  config.parallel.stages.reset();
  config.parallel.replicas.clear();
  EXPECT_THROW(run(config, Break::kStash), Error) << "a plan given by hand is not changed";
  EXPECT_TRUE(run(config).equal);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace millrace
