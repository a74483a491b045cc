#include <gtest/gtest.h>

#include "millrace/profiler/measure_cluster.h"
#include "millrace/profiler/profile_model.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

TEST(Profiler, MeasuresEveryLayerAndCountsItsBytes) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(5);
  ProfileRequest request;
  request.model = &model;
  request.dataset = &data;
  request.samples = 12;  // more than there are: indices wrap
  request.busy_ranks = 2;
  request.seconds = 0;
  request.machine = "test";
  double last = 0;
  request.progress = [&](double fraction) {
    EXPECT_GE(fraction, 0);
    EXPECT_LE(fraction, 1);
    last = fraction;
  };
  const Profile profile = profile_model(request);
  EXPECT_GE(last, 0);
  ASSERT_EQ(profile.layers.size(), model.layers.size());
  EXPECT_TRUE(is_chain(profile));
  EXPECT_EQ(profile.samples_per_microbatch, 12);
  EXPECT_EQ(profile.dtype, "float64");
  EXPECT_EQ(profile.busy_ranks, 2);
  EXPECT_GT(profile.peak_flops_per_s, 1e8);
  const LayerProfile& first = profile.layers[0];
  EXPECT_EQ(first.name, "linear1");
  EXPECT_EQ(first.output_bytes, 12 * 16 * 8);
  EXPECT_GE(first.parameter_bytes, (8 * 16 + 16) * 8);
  EXPECT_EQ(first.stash_bytes, 12 * 8 * 8) << "a linear layer keeps its input";
  for (const LayerProfile& layer : profile.layers) {
    EXPECT_GT(layer.forward_s, 0) << layer.name;
    EXPECT_TRUE(layer.estimated.empty());
  }
  EXPECT_EQ(first.kind, "linear");
  EXPECT_EQ(first.input_shape, (std::vector<int64_t>{8}));
  EXPECT_EQ(first.output_shape, (std::vector<int64_t>{16}));
  EXPECT_EQ(first.weight_shape, (std::vector<int64_t>{16, 8}));
  EXPECT_EQ(first.forward_flops, 12 * 2 * 8 * 16);
  EXPECT_EQ(first.input_gradient_flops, 0) << "nothing before it has weights";
  EXPECT_EQ(first.weight_gradient_flops, first.forward_flops);
  EXPECT_EQ(first.input_gradient_spread_s, 0);
  const LayerProfile& second = profile.layers[1];
  EXPECT_EQ(second.forward_flops, 12 * 16) << "one an element";
  EXPECT_EQ(second.input_gradient_flops, second.forward_flops);
  EXPECT_EQ(second.weight_gradient_flops, 0);
  EXPECT_TRUE(second.weight_shape.empty());
  double spreads_s = 0;
  for (const LayerProfile& layer : profile.layers) {
    EXPECT_GE(layer.forward_spread_s, 0);
    spreads_s += layer.forward_spread_s + layer.weight_gradient_spread_s;
  }
  EXPECT_GT(spreads_s, 0) << "no two passes take equal times";
  EXPECT_EQ(profile.layers[1].parameter_bytes, 0);
  EXPECT_EQ(profile.layers[1].update_s, 0);
  EXPECT_GT(profile.layers[0].update_s, 0);
  // What it writes reads back.
  EXPECT_EQ(profile_from(parse_json(to_json(to_value(profile)), "profile.json")), profile);
}

TEST(Profiler, ALayerThatFailsEndsEveryThread) {
  Model model;
  model.name = "broken";
  model.input = {{1}, at::kDouble};
  model.target = {{1}, at::kDouble};
  model.layers.push_back(std::make_unique<testing::Scale>(
      "bad", [] { throw Error(ErrorCode::kUnsupported, "no such kernel"); }));
  model.loss = half_squared_error();
  const testing::TensorData data = testing::count_to(3);
  ProfileRequest request;
  request.model = &model;
  request.dataset = &data;
  request.busy_ranks = 2;
  EXPECT_THROW(profile_model(request), Error);
}

TEST(MeasureCluster, GivesPositiveSpeedsAndAValidCluster) {
  const Cluster cluster = measure_cluster(2, "test");
  EXPECT_EQ(cluster.num_devices(), 2);
  EXPECT_GT(cluster.latency_between(0, 1), 0);
  EXPECT_GT(cluster.bandwidth_between(0, 1), 1e6);
  EXPECT_GT(cluster.all_reduce_s({0, 1}, 1e6), 0);
  EXPECT_EQ(cluster_from(parse_json(to_json(to_value(cluster)), "cluster.json")), cluster);
  EXPECT_FALSE(machine_name().empty());
  EXPECT_GT(machine_memory_bytes(), 1e8);
}

}  // namespace
}  // namespace millrace
