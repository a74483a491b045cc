#include "millrace/planner/latency_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/caught.h"
#include "tests/planner/latency_testing.h"

namespace millrace {
namespace {

using testing::kLatencySamples;
using testing::known_layers;

double worst_error(const LatencyModel& model, const Profile& profile) {
  double worst = 0;
  for (const LayerProfile& layer : profile.layers) {
    for (const LayerPass pass : kLayerPasses) {
      const double measured_s = seconds_of(layer, pass);
      const double predicted_s =
          predict_latency(model, layer, profile.samples_per_microbatch, pass);
      if (measured_s == 0) {
        EXPECT_EQ(predicted_s, 0) << layer.name;
      } else {
        worst = std::max(worst, std::abs(predicted_s / measured_s - 1));
      }
    }
  }
  return worst;
}

TEST(LatencyModel, FindsTheLawOfLayersThatItHasNotSeen) {
  const LatencyModel model = learn_latencies({known_layers(60, 1)});
  EXPECT_EQ(model.num_layers, 120);
  EXPECT_LT(worst_error(model, known_layers(40, 2)), 0.02);
  // And of sizes beyond what it has seen.
  Profile larger;
  larger.samples_per_microbatch = kLatencySamples;
  larger.layers = {testing::known_linear(4096, 8192), testing::known_relu(2'000'000)};
  EXPECT_LT(worst_error(model, larger), 0.1);
  EXPECT_NEAR(model.update_s, 1e-6, 1e-9);
  EXPECT_NEAR(model.update_s_per_byte, 1e-10, 1e-13);
}

TEST(LatencyModel, LearnsFromSeveralProfilesAsFromOne) {
  const Profile all = known_layers(40, 1);
  Profile one = all;
  Profile other = all;
  one.layers.resize(50);
  other.layers.erase(other.layers.begin(), other.layers.begin() + 50);
  EXPECT_EQ(learn_latencies({one, other}), learn_latencies({all}));
}

TEST(LatencyModel, FillsAProfileAndSaysWhatIsEstimated) {
  const LatencyModel model = learn_latencies({known_layers(60, 1)});
  Profile asked = known_layers(3, 2);
  const Profile truth = asked;
  for (LayerProfile& layer : asked.layers) {
    layer.forward_s = layer.input_gradient_s = layer.weight_gradient_s = layer.update_s = 0;
  }
  std::vector<std::string> unknown;
  const Profile predicted = with_predicted_latencies(asked, model, &unknown);
  EXPECT_TRUE(unknown.empty());
  for (std::size_t l = 0; l < truth.layers.size(); ++l) {
    EXPECT_NEAR(predicted.layers[l].compute_s(), truth.layers[l].compute_s(),
                0.02 * truth.layers[l].compute_s());
    EXPECT_NEAR(predicted.layers[l].update_s, truth.layers[l].update_s,
                0.01 * truth.layers[l].update_s);
    EXPECT_EQ(predicted.layers[l].output_bytes, truth.layers[l].output_bytes);
    EXPECT_THAT(
        predicted.layers[l].estimated,
        ::testing::ElementsAre("forward_s", "input_gradient_s", "weight_gradient_s", "update_s"));
  }
  EXPECT_EQ(profile_from(parse_json(to_json(to_value(predicted)), "p.json")), predicted);
}

TEST(LatencyModel, AKindThatItDoesNotKnowIsGuessedFromAllAndNamed) {
  const LatencyModel model = learn_latencies({known_layers(60, 1)});
  Profile asked;
  asked.samples_per_microbatch = kLatencySamples;
  asked.layers = {testing::known_relu(50'000), testing::known_linear(512, 512)};
  const double relu_s = asked.layers[0].forward_s;
  const double linear_s = asked.layers[1].forward_s;
  asked.layers[0].kind = "swish";
  asked.layers[1].kind = "bilinear";
  std::vector<std::string> unknown;
  const Profile predicted = with_predicted_latencies(asked, model, &unknown);
  EXPECT_THAT(unknown, ::testing::ElementsAre("swish", "bilinear"));
  EXPECT_GT(predicted.layers[0].forward_s, relu_s / 3);
  EXPECT_LT(predicted.layers[0].forward_s, relu_s * 3);
  EXPECT_GT(predicted.layers[1].forward_s, linear_s / 3);
  EXPECT_LT(predicted.layers[1].forward_s, linear_s * 3);
  EXPECT_EQ(predicted.layers[0].weight_gradient_s, 0) << "it has no weights";
  EXPECT_GT(predicted.layers[1].weight_gradient_s, 0);
}

TEST(LatencyModel, DoesNotLearnFromEstimates) {
  Profile profile = known_layers(60, 1);
  const LatencyModel model = learn_latencies({profile});
  LayerProfile wrong = testing::known_linear(300, 300);
  wrong.forward_s = 10;
  wrong.input_gradient_s = 10;
  wrong.weight_gradient_s = 10;
  wrong.estimated = {"forward_s", "input_gradient_s", "weight_gradient_s", "update_s"};
  profile.layers.push_back(wrong);
  LatencyModel with_estimates = learn_latencies({profile});
  EXPECT_EQ(with_estimates.num_layers, model.num_layers + 1);
  with_estimates.num_layers = model.num_layers;
  EXPECT_EQ(with_estimates, model);
}

TEST(LatencyModel, ReadsBackAsItWasWritten) {
  const LatencyModel model = learn_latencies({known_layers(20, 1)});
  const LatencyModel read = latency_model_from(parse_json(to_json(to_value(model)), "model.json"));
  EXPECT_EQ(read, model);
}

TEST(LatencyModel, RefusesWhatItCannotLearnFrom) {
  Profile few = known_layers(9, 1);
  const Error error = caught([&] { learn_latencies({few}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), ::testing::HasSubstr("at least 20 layers"));
  Profile elsewhere = known_layers(20, 2);
  elsewhere.machine = "another";
  EXPECT_THAT(caught([&] {
                learn_latencies({few, elsewhere});
              }).message(),
              ::testing::HasSubstr("one machine"));
  const LatencyModel model = learn_latencies({known_layers(20, 1)});
  few.layers[3].kind.clear();
  EXPECT_THAT(caught([&] { with_predicted_latencies(few, model); }).message(),
              ::testing::HasSubstr("does not say its kind"));
  few.dtype = "float64";
  EXPECT_THAT(caught([&] { with_predicted_latencies(few, model); }).message(),
              ::testing::HasSubstr("float64"));
}

TEST(LatencyModel, RefusesDamagedFiles) {
  const Value good = to_value(learn_latencies({known_layers(20, 1)}));
  const auto read = [](const Value& value) {
    return caught([&] { latency_model_from(parse_json(to_json(value), "model.json")); });
  };
  // Changes one thing of the forward curve of the last kind.
  const auto with = [&](const char* key, const Value& value) {
    Value damaged = good;
    for (auto& [name, member] : damaged.object) {
      if (name == "kinds") {
        for (auto& [pass, curve] : member.array.back().object) {
          if (pass == "forward") {
            curve.set(key, value);
          }
        }
      }
    }
    return damaged;
  };
  EXPECT_THAT(
      read(with("base", Value::list({Value::of(-1.0), Value::of(0.0), Value::of(1.0)}))).what(),
      ::testing::HasSubstr("base"));
  EXPECT_THAT(read(with("slopes", Value::list({Value::of(1.0)}))).what(),
              ::testing::HasSubstr("expected 17 numbers, found 1"));
  EXPECT_THAT(read(with("weights", Value::list({Value::of(1.0)}))).what(),
              ::testing::HasSubstr("points"));
  EXPECT_THAT(read(with("length", Value::of(0.0))).what(), ::testing::HasSubstr("above 0"));
  EXPECT_THAT(read(with("lenght", Value::of(1.0))).what(), ::testing::HasSubstr("lenght"));
  Value nothing = good;
  nothing.set("kinds", Value::list());
  EXPECT_THAT(read(nothing).what(), ::testing::HasSubstr("kinds"));
  Value other = good;
  other.set("artifact", Value::of("profile"));
  EXPECT_THAT(read(other).what(), ::testing::HasSubstr("latency_model"));
}

}  // namespace
}  // namespace millrace
