// Runs on emulated devices: what they compute is right, what they tell is in the devices' own
// seconds, and nothing ends before it could. That nothing ends much later is measured by
// `millrace bench emulation`.
#include "millrace/train/emulation.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "millrace/base/file.h"
#include "millrace/train/prepare.h"
#include "millrace/train/session.h"
#include "millrace/train/verify.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

class EmulationTest : public ::testing::Test {
 protected:
  EmulationTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("millrace-emulation-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    Profile profile;
    profile.model = "five";
    profile.samples_per_microbatch = 8;
    for (int l = 0; l < 5; ++l) {
      LayerProfile layer;
      layer.name = "layer" + std::to_string(l);
      layer.forward_s = 0.001 + 0.0002 * l;
      layer.input_gradient_s = layer.forward_s;
      layer.weight_gradient_s = 0.5 * layer.forward_s;
      layer.update_s = 0.0003;
      layer.output_bytes = 8 * 4 * (40 - 7 * l);
      layer.parameter_bytes = l == 2 ? 0 : 4000 + 4 * l;
      layer.stash_bytes = layer.output_bytes;
      profile.layers.push_back(layer);
    }
    make_chain(profile);
    profile_file_ = (folder_ / "profile.json").string();
    write_file_atomically(profile_file_, to_json(to_value(profile)) + "\n");
  }
  ~EmulationTest() override { std::filesystem::remove_all(folder_); }

  // As read from a file with [emulate]: no [model], no [data].
  RunConfig config_of(const std::string& keys, const std::string& emulate = "") {
    return run_config_from(parse_toml(keys + "\n[train]\nbatch = 16\nmomentum = 0.9\n[emulate]\n" +
                                          "profile = \"" + profile_file_ + "\"\n" + emulate,
                                      "run.toml"));
  }

  std::filesystem::path folder_;
  std::string profile_file_;
};

Trace run(const Job& job, int64_t steps) {
  const SampleOrder order(job.data.train->size(), job.config.train.batch, 1);
  Session session({.model = &job.model,
                   .plan = job.plan,
                   .policy = job.config.parallel.policy,
                   .train = job.config.train,
                   .emulation = job.emulation_or_null()});
  session.train(*job.data.train, order, 0, 0, steps, {});
  return session.trace();
}

// The prediction is the profile's and the cluster's, nothing is measured; and since every emulated
// action and reduction lasts at least as long as its simulation, so does a step with a flush.
TEST_F(EmulationTest, AStepLastsNoLessThanItsSimulation) {
  const std::string link =
      "[[emulate.link]]\nfrom = 0\nto = 1\nbandwidth_bytes_per_s = 4e6\nlatency_s = 1e-4\n";
  for (const std::string scale : {"1", "2.5"}) {
    const Job job = prepare(config_of("[parallel]\nworkers = 2\nplan = \"data-parallel\"",
                                      "time_scale = " + scale + "\nspeeds = [1.0, 0.5]\n" + link),
                            {});
    // 16 samples on two replicas: the slower takes twice the profile's seconds, then both reduce
    // 16 032 bytes at 4 MB/s with two latencies, then the slower updates.
    const double compute_s = 2 * 2.5 * (5 * 0.001 + 10 * 0.0002);
    EXPECT_NEAR(job.predicted.step_s, compute_s + 16'032 / 4e6 + 2e-4 + 2 * 5 * 0.0003, 2e-5);
    const Trace trace = run(job, 5);
    EXPECT_EQ(trace.num_steps, 5);
    EXPECT_GE(trace.step_s, job.predicted.step_s * (1 - 1e-9)) << scale;
    const std::vector<StageTimes> measured = stage_times(trace);
    const std::vector<StageTimes> predicted = stage_times(job.predicted.trace);
    EXPECT_GE(measured[0].compute_s, predicted[0].compute_s * (1 - 1e-9));
    EXPECT_GE(measured[0].update_s, predicted[0].update_s * (1 - 1e-9));
    EXPECT_GT(measured[0].wait_s, 0) << "the faster replica waits for the other";
  }
}

// Messages count the profile's bytes, of whatever small tensors they are.
TEST_F(EmulationTest, MessagesCountTheProfilesBytes) {
  const Job job = prepare(config_of("[parallel]\nworkers = 2\nstages = 2\nreplicas = 1\n"
                                    "schedule = \"pipedream\"",
                                    "shrink = 50\n"),
                          {});
  ASSERT_EQ(job.plan.num_stages(), 2);
  const std::string last = job.plan.stages[0].layers.back();
  const int64_t sample_bytes = 4 * (40 - 7 * (last.back() - '0'));
  const Trace trace = run(job, 3);
  int messages = 0;
  for (const RankTrace& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) {
      if (is_send(event.action.kind) || is_receive(event.action.kind)) {
        EXPECT_EQ(event.bytes, 16 * sample_bytes) << to_string(event.action);
        ++messages;
      }
    }
  }
  EXPECT_EQ(messages, 3 * 4);
}

TEST_F(EmulationTest, EmulatedRunsAreProvedLikeOthers) {
  for (const std::string parallel :
       {"workers = 3\nstages = 3\nreplicas = 1\nschedule = \"pipedream\"",
        "workers = 4\nstages = 2\nreplicas = [3, 1]\nschedule = \"pipedream\"",
        "workers = 4\nstages = 2\nreplicas = 2\nschedule = \"1f1b\"\nmicrobatches = 4",
        "workers = 3\nplan = \"data-parallel\""}) {
    const RunConfig config =
        config_of("[parallel]\n" + parallel, "time_scale = 0.05\nspeeds = 2.0\n");
    const VerifyResult result = verify(config, {}, {.steps = 4});
    EXPECT_TRUE(result.equal) << parallel << ": " << result.max_relative_difference;
    EXPECT_GT(result.compared, 4 * 5);
    EXPECT_FALSE(verify(config, {}, {.steps = 4, .fault = Break::kScale}).equal) << parallel;
  }
}

// Fails where the last stage is about to update; the first stage's rank then waits for years.
class Refusing final : public UpdateObserver {
 public:
  void before_update(int stage, int /*replica*/, int64_t /*step*/, const at::Tensor& /*gradients*/,
                     double /*samples*/, const at::Tensor& /*before*/) override {
    throw Error(ErrorCode::kNoSpace, "stage " + std::to_string(stage) + " has no room");
  }
  void after_update(int /*stage*/, int /*replica*/, int64_t /*step*/,
                    const at::Tensor& /*after*/) override {}
};

TEST_F(EmulationTest, AFailureEndsEmulatedWaits) {
  Job job = prepare(config_of("[parallel]\nworkers = 2\nstages = 2\nreplicas = 1"), {});
  job.emulation->profile->layers[0].weight_gradient_s = 1e9;
  Session session({.model = &job.model,
                   .plan = job.plan,
                   .policy = "",
                   .train = job.config.train,
                   .emulation = job.emulation_or_null()});
  const SampleOrder order(job.data.train->size(), job.config.train.batch, 1);
  Refusing refusing;
  const Error error =
      caught([&] { session.train(*job.data.train, order, 0, 0, 2, {}, &refusing); });
  EXPECT_EQ(error.code(), ErrorCode::kNoSpace);
  EXPECT_THAT(error.message(), ::testing::HasSubstr("stage 1"));
}

TEST(EmulationConfigTest, AMeasuredClustersLinksAreNotShaped) {
  Cluster measured = free_cluster(2);
  measured.levels[0].bandwidth_bytes_per_s = 1000;
  EmulateConfig config;
  config.links.push_back({0, 1, 10, 0.5});
  measured = emulated_cluster(config, measured);
  EXPECT_EQ(emulation_config(config, measured, false).cluster, measured);
  const Cluster shaped = emulation_config(config, measured, true).cluster;
  EXPECT_EQ(shaped.links, config.links);
  measured.links.clear();
  EXPECT_EQ(emulation_config({}, measured, true).cluster.all_reduce_s({0, 1}, 1e9), 0);
}

// A real model on a device of half the speed.
TEST(EmulationConfigTest, ARealModelCanBeMadeSlower) {
  const RunConfig config = run_config_from(
      parse_toml("[model]\nname = \"mlp\"\nwidth = 64\n[data]\nname = \"synthetic\"\nsamples = "
                 "64\n[parallel]\nworkers = 2\nstages = 2\nreplicas = 1\n[train]\nbatch = "
                 "16\n[emulate]\nspeeds = [1.0, 0.25]\n",
                 "run.toml"));
  const PrepareOptions options{.cache_dir = "", .fresh = false, .profile_s = 0.0};
  EXPECT_TRUE(verify(config, options, {.steps = 3}).equal);
  const Job job = prepare(config, options);
  EXPECT_EQ(job.cluster.relative_speed, (std::vector<double>{1, 0.25}));
  EXPECT_FALSE(job.emulation->profile.has_value());
}

}  // namespace
}  // namespace millrace
