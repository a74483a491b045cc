// Every builtin schedule on real threads, for every shape of up to four ranks that it offers:
// against one process, under random delays, with recomputation.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "millrace/base/file.h"
#include "millrace/base/random.h"
#include "millrace/core/cluster.h"
#include "millrace/model/layers.h"
#include "millrace/schedule/registry.h"
#include "millrace/train/verify.h"
#include "tests/base/caught.h"
#include "tests/support/torch/tiny.h"
#include "tests/train/train_testing.h"

namespace millrace {
namespace {

using testing::config_of;
using testing::state_of;

// Links of no cost, so that no run measures them first.
std::string cluster_file() {
  static const std::string file = [] {
    const std::string path = (std::filesystem::temp_directory_path() /
                              ("millrace-schedules-" + std::to_string(::getpid())))
                                 .string() +
                             ".json";
    write_file_atomically(path, to_json(to_value(free_cluster(8))));
    std::atexit([] { std::filesystem::remove(cluster_file()); });
    return path;
  }();
  return file;
}

// Enough layers for eight stages.
RunConfig run_config(const std::string& schedule, int workers, int microbatches, int replicas = 1) {
  RunConfig config;
  config.name = "schedules";
  config.model.name = "mlp";
  config.model.options.set("depth", Value::of(6));
  config.model.options.set("width", Value::of(8));
  config.data.name = "synthetic";
  config.data.options.set("samples", Value::of(3 * 19));
  config.data.options.set("test_samples", Value::of(8));
  config.data.options.set("height", Value::of(4));
  config.data.options.set("width", Value::of(4));
  config.parallel.cluster = cluster_file();
  config.parallel.workers = workers * replicas;
  config.parallel.replicas = {replicas};
  config.parallel.schedule = schedule;
  config.parallel.microbatches = microbatches;
  if (find_schedule(schedule).builtin->deals) {
    config.parallel.stages = workers;
  }
  config.train.batch = 19;  // never divides evenly
  config.train.momentum = 0.9;
  return config;
}

VerifyResult run(const RunConfig& config) {
  return verify(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0, .sink = nullptr},
                {.steps = 3});
}

void expect_equal(const RunConfig& config) {
  const VerifyResult result = run(config);
  EXPECT_TRUE(result.equal) << result.max_relative_difference;
  EXPECT_GT(result.compared, 3 * 12);
  const bool flush = has_flush(*find_schedule(config.parallel.schedule).builtin);
  EXPECT_EQ(result.tolerance == 0, !flush);
}

TEST(Schedules, AgreeWithTheirOracleForEveryShape) {
  int num_run = 0;
  for (const ScheduleEntry& entry : schedules()) {
    for (int workers = 2; workers <= 4; ++workers) {
      for (int microbatches = 1; microbatches <= 16; ++microbatches) {
        const ScheduleConfig shape{.num_ranks = workers, .num_microbatches = microbatches};
        if (why_refused(entry, shape)) {
          continue;
        }
        for (const std::string& policy : entry.builtin->policies()) {
          SCOPED_TRACE(::testing::Message()
                       << entry.name << " P=" << workers << " M=" << microbatches << " " << policy);
          RunConfig config = run_config(entry.name, workers, microbatches);
          config.parallel.policy = policy;
          expect_equal(config);
          ++num_run;
          if (HasFailure()) {
            return;
          }
        }
      }
    }
  }
  EXPECT_GT(num_run, 19 * 10);
}

TEST(Schedules, EqualCopiesAndOtherChunksAgreeToo) {
  for (const auto& [schedule, workers, microbatches, replicas, chunks] :
       {std::tuple{"1f1b-interleaved", 2, 4, 2, 3},
        {"breadth-first", 2, 3, 1, 4},
        {"1f1b-interleaved", 3, 5, 1, 1},
        {"chimera", 2, 2, 2, 1},
        {"zb-h1", 2, 3, 3, 1},
        {"zb-v", 2, 5, 2, 2},
        {"pipedream-2bw", 2, 3, 2, 1},
        {"timeprest", 2, 2, 2, 1}}) {
    SCOPED_TRACE(schedule);
    RunConfig config = run_config(schedule, workers, microbatches, replicas);
    config.parallel.chunks = chunks;
    expect_equal(config);
  }
}

TEST(Schedules, ClippingTakesOneNormOfAllChunks) {
  for (const char* schedule : {"1f1b-interleaved", "chimera", "bitpipe", "zb-v"}) {
    SCOPED_TRACE(schedule);
    RunConfig config = run_config(schedule, 2, 2);
    config.train.clip_norm = 0.05;
    expect_equal(config);
  }
}

// 22 layers, dropout among them, on mlp4_data.
Model dropout_model() {
  Model model;
  model.name = "dropout";
  model.input = {{8}, at::kDouble};
  model.target = {{4}, at::kDouble};
  for (int l = 0; l < 8; ++l) {
    const std::string number = std::to_string(l);
    model.layers.push_back(linear("linear" + number, l == 0 ? 8 : 12, l == 7 ? 4 : 12));
    if (l < 7) {
      model.layers.push_back(tanh("tanh" + number));
      model.layers.push_back(dropout("dropout" + number, 0.25));
    }
  }
  model.loss = half_squared_error();
  return model;
}

Plan plan_for(const Model& model, const std::string& name, int ranks, int microbatches) {
  const Schedule schedule =
      make_schedule(name, {.num_ranks = ranks, .num_microbatches = microbatches});
  Plan plan;
  plan.schedule = name;
  plan.workers = ranks;
  plan.microbatches = microbatches;
  const std::vector<std::string> layers = model.layer_names();
  auto next = layers.begin();
  int stage = 0;
  for (const int64_t size :
       split_evenly(static_cast<int64_t>(layers.size()), schedule.num_stages)) {
    plan.stages.push_back(
        {{next, next + size}, schedule.stage_ranks[static_cast<std::size_t>(stage++)]});
    next += size;
  }
  return plan;
}

using State = std::map<std::string, at::Tensor>;

State trained(const Model& model, const Plan& plan, SessionSetup setup = {}) {
  const testing::TensorData data = testing::mlp4_data(60);
  setup.model = &model;
  setup.plan = plan;
  setup.train = config_of(15);
  setup.train.momentum = 0.9;
  Session session(setup);
  EXPECT_EQ(session.train(data, SampleOrder(60, 15, 1), 0, 0, 4, {}), 4);
  return state_of(session);
}

void expect_same_bits(const State& found, const State& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }
}

// The least shape of four ranks that a schedule offers with at least so many microbatches.
std::optional<int> offered_microbatches(const ScheduleEntry& entry, int ranks, int least) {
  for (int microbatches = least; microbatches <= 16; ++microbatches) {
    if (!why_refused(entry, {.num_ranks = ranks, .num_microbatches = microbatches})) {
      return microbatches;
    }
  }
  return std::nullopt;
}

TEST(Schedules, RandomDelaysChangeNoBit) {
  const Model model = dropout_model();
  for (const ScheduleEntry& entry : schedules()) {
    const int microbatches =
        offered_microbatches(entry, 4, 3).value_or(1);  // pipedream takes one only
    SCOPED_TRACE(entry.name);
    const Plan plan = plan_for(model, entry.name, 4, microbatches);
    const State expected = trained(model, plan);
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SessionSetup setup;
      std::array<std::atomic<uint64_t>, 4> draws{};
      setup.before_action = [&](int rank, const Action&) {
        const uint64_t draw = draws[static_cast<std::size_t>(rank)]++;
        const double share = RandomKey(seed).with(static_cast<uint64_t>(rank)).uniform(draw);
        if (share < 0.3) {  // most actions run at once
          std::this_thread::sleep_for(std::chrono::duration<double>(share * 1e-3));
        }
      };
      expect_same_bits(trained(model, plan, setup), expected);
    }
  }
}

TEST(Schedules, RecomputingChangesNoBit) {
  const Model model = dropout_model();
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-v", "chimera", "1f1b-interleaved",
                           "pipedream", "pipedream-2bw"}) {
    const int microbatches = offered_microbatches(find_schedule(name), 2, 2).value_or(1);
    Plan plan = plan_for(model, name, 2, microbatches);
    const State expected = trained(model, plan);
    for (const Recompute recompute : {Recompute::kStage, Recompute::kLayer}) {
      SCOPED_TRACE(::testing::Message() << name << " " << to_string(recompute));
      plan.recompute = recompute;
      expect_same_bits(trained(model, plan), expected);
    }
  }
}

// Statistics of batch norm move once for a microbatch, recomputed or not.
TEST(Schedules, RecomputingNeverMovesRunningStatistics) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    for (const char* recompute : {"stage", "layer"}) {
      for (const char* rule : {"per_microbatch", "deferred"}) {
        SCOPED_TRACE(::testing::Message() << schedule << " " << recompute << " " << rule);
        RunConfig config = run_config(schedule, 2, 2);
        config.model.name = "resnet18";
        config.model.options = Value::map();
        config.model.options.set("width", Value::of(2));
        config.data.options.set("height", Value::of(8));
        config.data.options.set("width", Value::of(8));
        config.train.batch = 8;
        config.train.batch_norm = rule;
        const auto state = [&](const char* mode) {
          config.parallel.recompute = parse_recompute(mode);
          const Job job =
              prepare(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0, .sink = nullptr});
          Session session(
              {.model = &job.model, .plan = job.plan, .policy = "", .train = job.config.train});
          const SampleOrder order(job.data.train->size(), config.train.batch, 1);
          session.train(*job.data.train, order, 0, 0, 2, {});
          return state_of(session);
        };
        expect_same_bits(state(recompute), state("none"));
      }
    }
  }
}

TEST(Schedules, RecomputingIsRefusedWhereTheBackwardReadsOtherWeights) {
  const Model model = dropout_model();
  for (const char* name : {"timeprest", "v-timeprest", "i-timeprest"}) {
    Plan plan = plan_for(model, name, 2, 2);
    plan.recompute = Recompute::kStage;
    EXPECT_EQ(caught([&] { trained(model, plan); }).code(), ErrorCode::kUnsupported) << name;
  }
}

// I-TiMePReSt between its ends: all weight on the newest version, or on the forward's.
TEST(Schedules, BlendEndsAreLatestAndStash) {
  const Model model = dropout_model();
  const Plan blended = plan_for(model, "i-timeprest", 4, 2);
  const Plan newest = plan_for(model, "v-timeprest", 4, 2);
  const auto with_lambda = [&](double lambda) {
    SessionSetup setup;
    setup.blend_lambda = lambda;
    return trained(model, blended, setup);
  };
  SessionSetup stash;
  stash.policy = "stash";
  expect_same_bits(with_lambda(std::numeric_limits<double>::infinity()), trained(model, newest));
  expect_same_bits(with_lambda(0), trained(model, blended, stash));
  const State between = with_lambda(0.7);
  EXPECT_FALSE(at::equal(between.at("linear0.weight"), with_lambda(0).at("linear0.weight")));
}

// What is alive between F and B, or I, or W is what the profile says of it.
TEST(Schedules, MeasuredStashIsThePredictedOne) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-v", "chimera", "1f1b-interleaved",
                               "2bp-1f1b-1", "breadth-first", "bitpipe", "pipedream-2bw"}) {
    SCOPED_TRACE(schedule);
    RunConfig config =
        run_config(schedule, 4, offered_microbatches(find_schedule(schedule), 4, 4).value());
    config.parallel.plan = "equal-layers";  // the same cut whatever the profile measures
    config.model.options.set("width", Value::of(64));
    config.data.options.set("height", Value::of(8));
    config.data.options.set("width", Value::of(8));
    config.train.batch = 16 * config.parallel.microbatches;
    config.data.options.set("samples", Value::of(3 * config.train.batch));
    const Job job =
        prepare(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0, .sink = nullptr});
    Session session({.model = &job.model,
                     .plan = job.plan,
                     .policy = "",
                     .train = job.config.train,
                     .measures_stash = true});
    const SampleOrder order(job.data.train->size(), config.train.batch, 1);
    session.train(*job.data.train, order, 0, 0, 2, {});
    for (int rank = 0; rank < 4; ++rank) {
      const auto predicted =
          static_cast<double>(job.predicted.ranks[static_cast<std::size_t>(rank)].peak_stash_bytes);
      EXPECT_NEAR(static_cast<double>(session.worker(rank).peak_stash_bytes()), predicted,
                  0.1 * predicted)
          << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace millrace
