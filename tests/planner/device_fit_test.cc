#include "millrace/planner/device_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/base/caught.h"
#include "tests/planner/latency_testing.h"

namespace millrace {
namespace {

using testing::kLatencySamples;
using testing::known_layers;

// A device on which everything takes twice as long, and each FLOP a little more.
double on_device(const LayerProfile& layer) {
  return 2 * layer.forward_s + 3e-11 * layer.forward_flops + 1e-5;
}

double mean_error(const DeviceFit& fit, const Profile& profile) {
  double sum = 0;
  for (const LayerProfile& layer : profile.layers) {
    const double predicted =
        fit.predict(layer, kLatencySamples, LayerPass::kForward, layer.forward_s);
    EXPECT_GE(predicted, 0);
    sum += std::abs(predicted / on_device(layer) - 1);
  }
  return sum / static_cast<double>(profile.layers.size());
}

TEST(DeviceFit, FindsADeviceOfItsForm) {
  DeviceFit fit;
  const Profile unseen = known_layers(40, 2);
  const double before = mean_error(fit, unseen);
  const Profile seen = known_layers(10, 1);
  for (const LayerProfile& layer : seen.layers) {
    fit.observe(layer, kLatencySamples, LayerPass::kForward, layer.forward_s, on_device(layer));
  }
  EXPECT_EQ(fit.num_observations(), 20U);
  EXPECT_GT(before, 0.4);
  EXPECT_LT(mean_error(fit, unseen), 0.01);
}

TEST(DeviceFit, EachObservationMayHelpAndFewAreEnough) {
  const Profile unseen = known_layers(40, 2);
  const Profile seen = known_layers(10, 1);
  DeviceFit fit;
  std::vector<double> errors = {mean_error(fit, unseen)};
  for (const LayerProfile& layer : seen.layers) {
    // Measured to 5 percent.
    const double noise = errors.size() % 2 == 0 ? 1.05 : 0.95;
    fit.observe(layer, kLatencySamples, LayerPass::kForward, layer.forward_s,
                noise * on_device(layer));
    errors.push_back(mean_error(fit, unseen));
  }
  EXPECT_LT(errors[4], errors[0]);
  EXPECT_LT(errors.back(), 0.06);  // the noise, and little beyond
}

TEST(DeviceFit, NeverPredictsLessThanNothing) {
  // Times that fall as work grows: the best plain fit would be negative for large layers.
  DeviceFit fit;
  for (const int64_t size : {64, 128, 256, 512}) {
    const LayerProfile layer = testing::known_linear(size, size);
    fit.observe(layer, kLatencySamples, LayerPass::kForward, layer.forward_s,
                1e-3 / static_cast<double>(size));
  }
  for (const double coefficient : fit.coefficients()) {
    EXPECT_GE(coefficient, 0);
  }
  const LayerProfile large = testing::known_linear(4096, 4096);
  EXPECT_GT(fit.predict(large, kLatencySamples, LayerPass::kForward, large.forward_s), 0);
  EXPECT_EQ(fit.predict(large, kLatencySamples, LayerPass::kForward, 0), 0);
}

TEST(DeviceFit, AKindThatDiffersFromOthersGetsAFactorOfItsOwn) {
  DeviceFit fit;
  const Profile seen = known_layers(20, 1);
  for (const LayerProfile& layer : seen.layers) {
    fit.observe(layer, kLatencySamples, LayerPass::kForward, layer.forward_s,
                layer.forward_s * (layer.kind == "relu" ? 3.0 : 1.5));
  }
  const LayerProfile relu = testing::known_relu(30'000);
  const LayerProfile linear = testing::known_linear(700, 700);
  EXPECT_NEAR(
      fit.predict(relu, kLatencySamples, LayerPass::kForward, relu.forward_s) / relu.forward_s, 3,
      0.5);
  EXPECT_NEAR(fit.predict(linear, kLatencySamples, LayerPass::kForward, linear.forward_s) /
                  linear.forward_s,
              1.5, 0.25);
}

TEST(DeviceFit, RefinesWhatIsEstimatedAndLeavesWhatWasMeasured) {
  DeviceFit fit;
  for (const LayerProfile& layer : known_layers(10, 1).layers) {
    fit.observe(layer, kLatencySamples, LayerPass::kForward, layer.forward_s, 2 * layer.forward_s);
  }
  Profile profile = known_layers(1, 2);
  profile.layers[0].estimated = {"forward_s"};
  const Profile fitted = with_fitted_latencies(profile, fit);
  EXPECT_NEAR(fitted.layers[0].forward_s, 2 * profile.layers[0].forward_s,
              1e-3 * profile.layers[0].forward_s);
  EXPECT_EQ(fitted.layers[0].input_gradient_s, profile.layers[0].input_gradient_s);
  EXPECT_EQ(fitted.layers[1], profile.layers[1]);
}

TEST(DeviceFit, RefusesTimesThatAreNone) {
  DeviceFit fit;
  const LayerProfile layer = testing::known_relu(1000);
  const Error error =
      caught([&] { fit.observe(layer, kLatencySamples, LayerPass::kForward, layer.forward_s, 0); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), ::testing::HasSubstr("above 0"));
  EXPECT_EQ(fit.num_observations(), 0U);
}

TEST(FlopsOnly, IsTheBestOfAllConstants) {
  const std::vector<FlopsTime> observed = {{1e6, 1e-4}, {2e6, 1e-4}, {5e6, 9e-4}, {1e5, 3e-5}};
  const auto error = [&](double c) {
    double sum = 0;
    for (const FlopsTime& one : observed) {
      sum += std::abs(c * one.flops / one.seconds - 1);
    }
    return sum;
  };
  const double best = fit_seconds_per_flop(observed);
  for (double c = 1e-12; c < 1e-8; c *= 1.01) {
    EXPECT_GE(error(c), error(best) - 1e-12);
  }
  EXPECT_EQ(fit_seconds_per_flop({}), 0);
}

}  // namespace
}  // namespace millrace
