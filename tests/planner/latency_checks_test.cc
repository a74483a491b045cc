#include "millrace/planner/latency_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/caught.h"
#include "tests/planner/latency_testing.h"

namespace millrace {
namespace {

using testing::known_layers;

TEST(LatencyChecks, OnLayersOfAKnownLawErrorsAreSmallAndFlopsAloneAreNot) {
  const std::vector<Profile> profiles = {known_layers(60, 1)};
  const std::vector<HeldOutErrors> rows = held_out_errors(hold_out(profiles));
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows[0].what, "all");
  EXPECT_GT(rows[0].errors.times, 200);
  EXPECT_LT(rows[0].errors.predicted, 0.01);
  EXPECT_GT(rows[0].errors.flops_only, 0.3);
  EXPECT_EQ(rows[0].errors.spread, 0);
}

TEST(LatencyChecks, WhatCannotBeKnownIsAnError) {
  // Times that no descriptor tells: a predictor that had seen the layers it is judged on would do
  // better than a factor.
  Profile profile = known_layers(60, 1);
  const RandomKey key(3);
  for (std::size_t l = 0; l < profile.layers.size(); ++l) {
    LayerProfile& layer = profile.layers[l];
    const double factor = key.below(l, 2) == 0 ? 0.5 : 2.0;
    layer.forward_s *= factor;
    layer.input_gradient_s *= factor;
    layer.weight_gradient_s *= factor;
    layer.forward_spread_s = 0.1 * layer.forward_s;
  }
  const std::vector<Profile> profiles = {profile};
  const std::vector<HeldOutErrors> rows = held_out_errors(hold_out(profiles));
  EXPECT_GT(rows[0].errors.predicted, 0.4);
  EXPECT_EQ(rows[1].what, "forward");
  EXPECT_NEAR(rows[1].errors.spread, 0.1, 1e-9);
}

TEST(LatencyChecks, AnUnseenDeviceIsFoundFromTwentyTimes) {
  const std::vector<Profile> profiles = {known_layers(60, 1)};
  const std::vector<HeldOutLayer> first = hold_out(profiles);
  Profile device = profiles[0];
  for (LayerProfile& layer : device.layers) {
    layer.forward_s = 2 * layer.forward_s + 2e-11 * layer.forward_flops;
    layer.input_gradient_s = 2 * layer.input_gradient_s + 2e-11 * layer.input_gradient_flops;
    layer.weight_gradient_s = 2 * layer.weight_gradient_s + 2e-11 * layer.weight_gradient_flops;
  }
  const DeviceErrors errors = unseen_device_errors(first, {device}, 20);
  EXPECT_GT(errors.slower, 1.9);
  EXPECT_LT(errors.base_measured, 0.05);
  EXPECT_LT(errors.base_predicted, 0.06);
  EXPECT_GT(errors.flops_only, 0.3);
  device.layers.resize(5);
  EXPECT_THAT(caught([&] { unseen_device_errors(first, {device}, 20); }).message(),
              ::testing::HasSubstr("more than 20 times"));
}

TEST(LatencyChecks, TimesThatAreRightMakeTheBestCut) {
  const std::vector<Profile> profiles = {known_layers(60, 1)};
  const PartitionErrors errors = partition_errors(hold_out(profiles));
  EXPECT_GE(errors.mean, 0);
  EXPECT_LT(errors.mean, 0.01);
  EXPECT_GT(errors.flops_mean, errors.mean);
}

}  // namespace
}  // namespace millrace
