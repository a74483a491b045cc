// A model of a program's own with a layer kind that Millrace does not know: from its entry in the
// table to what `verify` says of it.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "millrace/model/layers.h"
#include "millrace/train/verify.h"
#include "tests/support/torch/tiny.h"

namespace millrace::testing {
namespace {

Model own_model(ModelRequest& request) {
  Model model;
  model.name = "own";
  model.input = request.input;
  model.target = {{}, at::kLong};
  model.loss = cross_entropy();
  model.append(flatten("flatten"));
  model.append(linear("in", model.output().sample_shape[0], request.options.count("width", 1, 6)));
  model.append(std::make_unique<Product>("product"));
  model.append(tanh("bend"));
  model.append(std::make_unique<Scale>("scale"));
  model.append(linear("out", model.output().sample_shape[0], request.num_classes));
  return model;
}

RunConfig config_of(const std::string& schedule, const std::vector<int>& replicas) {
  RunConfig config;
  config.name = "own";
  config.model.name = "own";
  config.model.options.set("width", Value::of(5));
  config.data.name = "synthetic";
  config.data.options.set("samples", Value::of(60));
  config.data.options.set("test_samples", Value::of(8));
  config.parallel.stages = static_cast<int>(replicas.size());
  config.parallel.replicas = replicas;
  config.parallel.workers = std::accumulate(replicas.begin(), replicas.end(), 0);
  config.parallel.schedule = schedule;
  config.train.batch = 6;
  config.train.lr = 0.05;
  return config;
}

VerifyResult run(const RunConfig& config, Break fault) {
  return verify(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0, .sink = nullptr},
                {.steps = 6, .fault = fault});
}

TEST(OwnModel, IsCutReplicatedAndVerifiedLikeABuiltin) {
  add_model({"own", "two layers of its own kinds", "width=6", own_model});
  for (const std::string schedule : {"1f1b", "pipedream"}) {
    for (const std::vector<int>& replicas : {std::vector<int>{1, 1}, {1, 1, 1}, {2, 1}, {2}}) {
      const VerifyResult right = run(config_of(schedule, replicas), Break::kNothing);
      EXPECT_TRUE(right.equal) << schedule << " " << right.max_relative_difference;
    }
  }
  EXPECT_FALSE(run(config_of("pipedream", {1, 1, 1}), Break::kStash).equal);
}

TEST(OwnModel, ATakenNameIsRefused) {
  EXPECT_THROW(add_model({"mlp", "another", "", own_model}), Error);
  EXPECT_THROW(add_dataset({"synthetic", "another", "", nullptr}), Error);
}

}  // namespace
}  // namespace millrace::testing
