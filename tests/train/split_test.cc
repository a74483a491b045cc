// Runs whose layers are split over ranks against the same runs with whole layers.
#include "millrace/model/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "millrace/base/file.h"
#include "millrace/schedule/split.h"
#include "millrace/train/checkpoint.h"
#include "millrace/train/split_prediction.h"
#include "millrace/train/verify.h"
#include "tests/support/torch/tiny.h"
#include "tests/train/train_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using testing::plan_of;
using testing::state_of;

class SplitRuns : public ::testing::Test {
 protected:
  SplitRuns() {
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += "the quick brown fox " + std::to_string(i * i);
    }
    write_file_atomically(path_, text);
  }
  ~SplitRuns() override { std::filesystem::remove(path_); }

  RunConfig config_of(const std::string& model, int parts, int replicas = 1, int stages = 1) const {
    RunConfig config;
    config.name = "split";
    config.model.name = model;
    if (model == "lstm-lm") {
      config.model.options.set("layers", Value::of(2));
      config.model.options.set("width", Value::of(12));
      config.data.name = "text";
      config.data.options.set("path", Value::of(path_));
      config.data.options.set("length", Value::of(6));
    } else {
      config.data.name = "synthetic";
      config.data.options.set("samples", Value::of(104));
      config.data.options.set("test_samples", Value::of(8));
      if (model == "mlp") {
        config.model.options.set("depth", Value::of(4));
        config.model.options.set("width", Value::of(24));
        config.data.options.set("height", Value::of(6));
        config.data.options.set("width", Value::of(5));
      }
    }
    config.parallel.workers = stages * replicas * parts;
    config.parallel.stages = stages;
    config.parallel.replicas = {replicas};
    config.parallel.schedule = "1f1b";
    config.parallel.split = parts > 1 ? "tensor" : "none";
    config.parallel.cluster = "auto";
    config.train.batch = 8;
    config.train.lr = 0.05;
    config.train.momentum = 0.9;
    return config;
  }

  static VerifyResult run(const RunConfig& config) {
    return verify(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0, .sink = nullptr},
                  {.steps = 4});
  }

  std::string path_ = (std::filesystem::temp_directory_path() /
                       ("millrace-split-" + std::to_string(::getpid()) + ".txt"))
                          .string();
};

// What a run told and left.
struct Outcome {
  std::vector<double> losses;
  LossSums evaluated;
  std::map<std::string, at::Tensor> state;
};

Plan one_stage(const Model& model, int replicas, int parts) {
  return split_plan(plan_of(model, {static_cast<int>(model.layers.size())}, replicas, "1f1b"),
                    parts);
}

Outcome train(const Job& job, const Plan& plan, int64_t epochs, int64_t steps) {
  Session session({.model = &job.model, .plan = plan, .policy = "", .train = job.config.train});
  const SampleOrder order(job.data.train->size(), job.config.train.batch, 1);
  Outcome outcome;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    session.train(*job.data.train, order, epoch, 0, steps,
                  {.on_step = [&](int64_t, const LossSums& sums) {
                    outcome.losses.push_back(sums.loss / static_cast<double>(sums.samples));
                  }});
  }
  outcome.evaluated = session.evaluate(*job.data.test, 8);
  outcome.state = state_of(session);
  return outcome;
}

// FC, CNN and LSTM: 50 steps; in float32 but for the CNN, where a rounding may decide which pixel a
// pool takes, and everything after goes another way.
TEST_F(SplitRuns, LossesAreThoseOfWholeLayers) {
  for (const std::string model : {"mlp", "lenet", "lstm-lm"}) {
    Job job;
    job.config = config_of(model, 1);
    job.config.train.dtype = model == "lenet" ? "float64" : "float32";
    load_data_and_model(job.config, job);
    const Outcome whole = train(job, one_stage(job.model, 1, 1), 5, 10);
    ASSERT_EQ(whole.losses.size(), 50U) << model;
    for (const int parts : {2, 4}) {
      SCOPED_TRACE(model + " in " + std::to_string(parts));
      const Outcome split = train(job, one_stage(job.model, 1, parts), 5, 10);
      ASSERT_EQ(split.losses.size(), whole.losses.size());
      double worst = 0;
      for (std::size_t i = 0; i < whole.losses.size(); ++i) {
        worst = std::max(worst, std::abs(split.losses[i] - whole.losses[i]) /
                                    std::max(1.0, std::abs(whole.losses[i])));
      }
      EXPECT_LE(worst, 1e-5);
      EXPECT_EQ(split.evaluated.samples, whole.evaluated.samples);
      EXPECT_NEAR(split.evaluated.loss, whole.evaluated.loss, 1e-4 * whole.evaluated.loss);
      ASSERT_EQ(split.state.size(), whole.state.size());
      for (const auto& [name, tensor] : whole.state) {
        EXPECT_LE(testing::max_difference(split.state.at(name), tensor), 2e-5) << name;
      }
    }
  }
}

TEST_F(SplitRuns, VerifyAgreesWithOneProcess) {
  for (const auto& [model, parts] :
       {std::pair{"mlp", 2}, {"mlp", 3}, {"lenet", 2}, {"lstm-lm", 3}}) {
    const VerifyResult result = run(config_of(model, parts));
    EXPECT_TRUE(result.equal) << model << " " << result.max_relative_difference;
    EXPECT_LE(result.max_relative_difference, 1e-9);
    EXPECT_GT(result.compared, 4 * 8);
  }
}

TEST_F(SplitRuns, ComposesWithReplicasPipelinesAndClipping) {
  for (const auto& [replicas, stages] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    RunConfig config = config_of("mlp", 2, replicas, stages);
    config.parallel.microbatches = 2;
    config.train.clip_norm = 0.5;
    const VerifyResult result = run(config);
    EXPECT_TRUE(result.equal) << replicas << " " << stages << ": "
                              << result.max_relative_difference;
  }
  RunConfig config = config_of("mlp", 2, 1, 3);
  config.parallel.schedule = "pipedream";
  const VerifyResult result = run(config);
  EXPECT_TRUE(result.equal) << result.max_relative_difference;
  EXPECT_EQ(result.tolerance, 1e-9);
}

TEST_F(SplitRuns, VerifySeesAFault) {
  const VerifyResult result =
      verify(config_of("mlp", 2), {.cache_dir = "", .fresh = false, .profile_s = 0.0},
             {.steps = 2, .fault = Break::kScale});
  EXPECT_FALSE(result.equal);
}

// A checkpoint knows no parts: saved split and gone on with whole, and the reverse.
TEST_F(SplitRuns, CheckpointsGoFromSplitToWholeAndBack) {
  Job job;
  job.config = config_of("lstm-lm", 1);
  job.config.train.optimizer = "adam";
  job.config.train.momentum.reset();
  load_data_and_model(job.config, job);
  const SampleOrder order(job.data.train->size(), 8, 1);
  const Plan whole = one_stage(job.model, 1, 1);
  const Plan split = one_stage(job.model, 2, 2);
  const auto run_on = [&](Session& session, int64_t first) {
    session.train(*job.data.train, order, 0, first, 5, {});
  };
  for (const auto& [from, to] : {std::pair{&split, &whole}, {&whole, &split}}) {
    Session first({.model = &job.model, .plan = *from, .policy = "", .train = job.config.train});
    run_on(first, 0);
    LoadedCheckpoint checkpoint;
    for (const auto& [name, tensor] : state_of(first)) {
      checkpoint.tensors.push_back({name, "", tensor});
    }
    Session second({.model = &job.model, .plan = *to, .policy = "", .train = job.config.train});
    load_into(checkpoint, second);
    for (const NamedTensor& saved : checkpoint.tensors) {
      EXPECT_EQ(testing::max_difference(state_of(second).at(saved.name), saved.tensor), 0)
          << saved.name;
    }
    run_on(first, 5);
    run_on(second, 5);
    const std::map<std::string, at::Tensor> expected = state_of(first);
    for (const auto& [name, tensor] : state_of(second)) {
      EXPECT_LE(testing::max_difference(tensor, expected.at(name)), 1e-4) << name;
    }
  }
}

Model wide() {
  Model model;
  model.name = "wide";
  model.input = {{8}, at::kDouble};
  model.target = {{4}, at::kDouble};
  model.append(linear("a", 8, 256));
  model.append(tanh("t"));
  model.append(linear("b", 256, 64));
  model.append(linear("c", 64, 4));
  model.loss = half_squared_error();
  return model;
}

// Gathered: every output, from each part to the others. Summed: every input but the data's own.
TEST(SplitBytes, AreActivationsByFormulaAndNeverWeights) {
  const Model model = wide();
  const testing::TensorData data = testing::mlp4_data(40);
  for (const int parts : {2, 4}) {
    for (const int64_t batch : {4, 20}) {
      const Plan plan = one_stage(model, 1, parts);
      TrainConfig config = testing::config_of(batch);
      Session session({.model = &model, .plan = plan, .policy = "", .train = config});
      session.train(data, SampleOrder(40, batch, 1), 0, 0, 2, {});
      const int64_t gathered = batch * (256 + 64 + 4) * 8 / parts * (parts - 1);
      const int64_t summed = batch * (256 + 64) * 8 * 2 / parts * (parts - 1);
      const Trace trace = session.trace();
      for (const RankTrace& rank : trace.ranks) {
        int64_t forward = 0;
        int64_t backward = 0;
        for (const TraceEvent& event : rank.events) {
          (event.action.kind == ActionKind::kForward ? forward : backward) += event.bytes;
        }
        EXPECT_EQ(forward, 2 * gathered) << parts << " parts";
        EXPECT_EQ(backward, 2 * summed) << parts << " parts";
      }
      int64_t elements = 0;
      for (int part = 0; part < parts; ++part) {
        elements += session.held(0, 0, part).gradient.numel();
        EXPECT_NEAR(static_cast<double>(session.held(0, 0, part).gradient.numel()) * parts,
                    static_cast<double>(model.num_parameters()),
                    0.05 * static_cast<double>(model.num_parameters()));
      }
      EXPECT_GE(elements, model.num_parameters());
    }
  }
}

TEST(SplitPrediction, DividesComputeAndAddsMeetings) {
  const Model model = wide();
  Profile profile;
  profile.samples_per_microbatch = 10;
  for (const std::string& name : model.layer_names()) {
    LayerProfile layer;
    layer.name = name;
    layer.forward_s = 4;
    layer.input_gradient_s = name == "a" ? 0 : 2;
    layer.weight_gradient_s = 2;
    layer.update_s = 1;
    layer.output_bytes = 1000;
    layer.parameter_bytes = name == "t" ? 0 : 800;
    profile.layers.push_back(layer);
  }
  make_chain(profile);
  Cluster cluster = free_cluster(4);
  cluster.levels.front().bandwidth_bytes_per_s = 100;
  cluster.levels.front().latency_s = 0.5;
  const Profile part = profile_of_part(profile, model, 2, cluster);
  EXPECT_DOUBLE_EQ(part.layers[0].forward_s, 2 + 0.5 + 500 / 100.0);
  EXPECT_EQ(part.layers[0].input_gradient_s, 0);
  EXPECT_EQ(part.layers[0].parameter_bytes, 400);
  EXPECT_EQ(part.layers[1], profile.layers[1]) << "nothing to split";
  EXPECT_DOUBLE_EQ(part.layers[2].input_gradient_s, 1 + cluster.all_reduce_s({0, 1}, 1000));
  EXPECT_EQ(profile_of_part(profile, model, 1, cluster), profile);
}

std::string refusal_of(const RunConfig& config, const std::string& key) {
  try {
    prepare(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0});
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(key));
    return error.message();
  }
  return "";
}

TEST_F(SplitRuns, WhatDoesNotComposeIsRefusedByName) {
  RunConfig config = config_of("mlp", 2, 2);
  config.parallel.rule = "easgd";
  EXPECT_THAT(refusal_of(config, "parallel.rule"), HasSubstr("easgd"));
  config = config_of("mlp", 2, 2);
  config.parallel.deal = "on-demand";
  EXPECT_THAT(refusal_of(config, "parallel.deal"), HasSubstr("whole replicas"));
  config = config_of("mlp", 2);
  config.parallel.split_parts = 2;
  config.parallel.workers = 3;
  EXPECT_THAT(refusal_of(config, "parallel.split_parts"), HasSubstr("3 workers"));
  config = config_of("mlp", 2);
  config.parallel.split = "none";
  config.parallel.split_parts = 2;
  EXPECT_THAT(refusal_of(config, "parallel.split_parts"), HasSubstr("no layer is split"));
  config = config_of("mlp", 2);
  config.parallel.split_parts = 64;
  config.parallel.workers = 64;
  EXPECT_THAT(refusal_of(config, "parallel.split"), HasSubstr("no layer of mlp"));
}

TEST_F(SplitRuns, PredictionIsOfAllRanks) {
  RunConfig config = config_of("mlp", 2, 1, 2);
  const Job job = prepare(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0});
  EXPECT_EQ(job.plan.split_parts, 2);
  EXPECT_EQ(job.plan.workers, 4);
  ASSERT_EQ(job.predicted.trace.ranks.size(), 4U);
  ASSERT_EQ(job.plan.memory.size(), 4U);
  for (std::size_t rank = 0; rank < 4; rank += 2) {
    EXPECT_EQ(job.plan.memory[rank], job.plan.memory[rank + 1]);
    EXPECT_GT(job.plan.memory[rank].weight_bytes, 0);
    EXPECT_EQ(job.predicted.trace.ranks[rank + 1].rank, static_cast<int>(rank + 1));
    EXPECT_EQ(job.predicted.trace.ranks[rank].events.size(),
              job.predicted.trace.ranks[rank + 1].events.size());
  }
  EXPECT_GT(job.predicted.step_s, 0);
}

}  // namespace
}  // namespace millrace
