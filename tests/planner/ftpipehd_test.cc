// Planner ftpipehd: against enumeration of its whole family, in simulation on the devices of its
// acceptance, and refreshed from what a run measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <tuple>

#include "millrace/planner/measured_speeds.h"
#include "millrace/sim/simulate.h"
#include "tests/base/caught.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

struct Instance {
  Profile profile;
  Cluster cluster;
  int workers = 1;
};

// Times are whole, speeds and bandwidths powers of two: every sum and quotient is exact.
Instance random_instance(std::mt19937_64& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Instance instance;
  std::vector<testing::Layer> layers(static_cast<std::size_t>(2 + below(6)));
  for (testing::Layer& layer : layers) {
    layer.compute_s = below(12);
    layer.output_bytes = below(8);
  }
  instance.profile = testing::chain(layers);
  instance.workers = 1 + below(4);
  if (below(2) == 0) {
    instance.cluster = testing::flat(instance.workers, 1 << below(4));
  } else {
    instance.workers = 4;
    instance.cluster = testing::two_levels(2, 2, 1 << below(4), 1 << below(4));
  }
  instance.cluster.relative_speed.clear();
  for (int device = 0; device < instance.workers; ++device) {
    instance.cluster.relative_speed.push_back(1 << below(4));
  }
  if (below(3) == 0 && instance.workers > 1) {
    instance.cluster.links.push_back({0, instance.workers - 1, 0.5, 0});
  }
  return instance;
}

// Least time, then fewest devices, over every choice of devices in their order and every cut.
class Family {
 public:
  Family(const Instance& instance, std::optional<int> stages)
      : instance_(instance), stages_(stages) {
    extend(0, -1, 0, 0);
  }
  std::pair<double, int> best() const { return best_; }

 private:
  void extend(std::size_t done, int last_device, double slowest_s, int used) {
    const std::vector<LayerProfile>& layers = instance_.profile.layers;
    if (done == layers.size()) {
      if (!stages_ || used == *stages_) {
        best_ = std::min(best_, {slowest_s, used});
      }
      return;
    }
    for (int device = last_device + 1; device < instance_.workers; ++device) {
      double slowest_here_s = slowest_s;
      if (done > 0) {
        slowest_here_s =
            std::max(slowest_s, 2.0 * static_cast<double>(layers[done - 1].output_bytes) /
                                    instance_.cluster.bandwidth_between(last_device, device));
      }
      double seconds = 0;
      for (std::size_t end = done + 1; end <= layers.size(); ++end) {
        seconds += layers[end - 1].compute_s();
        extend(end, device, std::max(slowest_here_s, seconds / instance_.cluster.speed_of(device)),
               used + 1);
      }
    }
  }

  const Instance& instance_;
  std::optional<int> stages_;
  std::pair<double, int> best_{std::numeric_limits<double>::infinity(), 0};
};

TEST(Ftpipehd, EqualsEnumerationOfItsFamily) {
  std::mt19937_64 random(7);
  int idle = 0;
  for (int i = 0; i < 600; ++i) {
    const Instance instance = random_instance(random);
    const auto [best_s, used] = Family(instance, std::nullopt).best();
    const Plan plan = make_plan(
        "ftpipehd", {instance.profile, instance.cluster, instance.workers, {}, {}, false});
    EXPECT_EQ(plan.objective_s, best_s) << "instance " << i;
    EXPECT_EQ(plan.num_stages(), used) << "instance " << i;
    idle += used < instance.workers ? 1 : 0;
  }
  EXPECT_GT(idle, 100);
}

TEST(Ftpipehd, EqualsEnumerationWhereTheNumberOfStagesIsGiven) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 300; ++i) {
    const Instance instance = random_instance(random);
    const int most = std::min(instance.workers, static_cast<int>(instance.profile.layers.size()));
    const int stages = 1 + static_cast<int>(random() % static_cast<uint64_t>(most));
    const auto [best_s, used] = Family(instance, stages).best();
    const Plan plan = make_plan(
        "ftpipehd", {instance.profile, instance.cluster, instance.workers, stages, {}, false});
    EXPECT_EQ(plan.objective_s, best_s) << "instance " << i;
    EXPECT_EQ(plan.num_stages(), stages) << "instance " << i;
  }
}

// Steady seconds of a minibatch in one-forward-one-backward order without a flush.
double simulated_s(Plan plan, const Profile& profile, const Cluster& cluster) {
  plan.schedule = "pipedream";
  return simulate_plan(plan, profile, cluster, 1).step_s;
}

struct Devices {
  std::vector<double> speeds;
  double gain;
  std::string shape;
};

class FtpipehdDevices : public ::testing::TestWithParam<Devices> {};

TEST_P(FtpipehdDevices, GainExactlySoMuchOverAnEqualSplit) {
  const Profile profile = testing::chain(std::vector<testing::Layer>(15));
  Cluster cluster = free_cluster(3);
  cluster.relative_speed = GetParam().speeds;
  const Plan plan = make_plan("ftpipehd", {profile, cluster, 3, {}, {}, false});
  const Plan equal = make_plan("equal-layers", {profile, cluster, 3, 3, {}, false});
  EXPECT_EQ(testing::shape(plan), GetParam().shape);
  EXPECT_NEAR(simulated_s(equal, profile, cluster) / simulated_s(plan, profile, cluster),
              GetParam().gain, 1e-12);
  EXPECT_EQ(testing::shape(equal), "5x1 5x1 5x1");
  EXPECT_NEAR(simulated_s(plan, profile, cluster), plan.objective_s, 1e-12);
}

// The device of speed 1 is idle: 9-5-1 takes as long as 10-5, and 8-7 less than any plan that uses
// it.
INSTANTIATE_TEST_SUITE_P(Acceptance, FtpipehdDevices,
                         ::testing::Values(Devices{{10, 5, 1}, 5.0, "10x1 5x1"},
                                           Devices{{10, 10, 1}, 6.25, "7x1 8x1"},
                                           Devices{{10, 1, 10}, 6.25, "7x1 8x1"}),
                         [](const auto& devices) {
                           std::string name;
                           for (const double speed : devices.param.speeds) {
                             name += "Speed" + std::to_string(static_cast<int>(speed));
                           }
                           return name;
                         });

// Times of each device as a run on devices of `true_speeds` would measure them.
std::vector<DeviceTime> measured(const Plan& plan, const Profile& profile, const Cluster& believed,
                                 const std::vector<double>& true_speeds) {
  std::vector<DeviceTime> times;
  for (const PlanStage& stage : plan.stages) {
    double seconds = 0;
    for (const LayerProfile& layer : profile.layers) {
      const bool here =
          std::find(stage.layers.begin(), stage.layers.end(), layer.name) != stage.layers.end();
      seconds += here ? layer.compute_s() : 0.0;
    }
    const int device = stage.ranks[0];
    times.push_back({device, seconds / believed.speed_of(device),
                     seconds / true_speeds[static_cast<std::size_t>(device)]});
  }
  return times;
}

TEST(Ftpipehd, OneRefreshFromMeasuredTimesFindsThePlanOfTheTrueSpeeds) {
  const Profile profile = testing::chain(std::vector<testing::Layer>(15));
  const std::vector<double> truth = {10, 5, 1};
  Cluster believed = free_cluster(3);
  const Plan first = make_plan("ftpipehd", {profile, believed, 3, {}, {}, false});
  EXPECT_EQ(testing::shape(first), "5x1 5x1 5x1");
  believed = with_measured_speeds(believed, measured(first, profile, believed, truth));
  EXPECT_EQ(believed.relative_speed, truth);
  const Plan second = make_plan("ftpipehd", {profile, believed, 3, {}, {}, false});
  EXPECT_EQ(testing::shape(second), "10x1 5x1");
  const Cluster again = with_measured_speeds(believed, measured(second, profile, believed, truth));
  EXPECT_EQ(again, believed);
}

TEST(Ftpipehd, IdleDevicesKeepTheirSpeed) {
  Cluster cluster = free_cluster(3);
  cluster.relative_speed = {4, 2, 1};
  EXPECT_EQ(with_measured_speeds(cluster, {{0, 1.0, 2.0}}).relative_speed,
            (std::vector<double>{2, 2, 1}));
}

TEST(Ftpipehd, RefusesTimesThatMeanNothing) {
  const Cluster cluster = free_cluster(2);
  for (const std::vector<DeviceTime>& times :
       {std::vector<DeviceTime>{{2, 1, 1}}, {{0, 0, 1}}, {{0, 1, 0}}, {{1, 1, 1}, {1, 1, 1}}}) {
    const Error error = caught([&] { with_measured_speeds(cluster, times); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
}

TEST(Ftpipehd, RefusesReplicas) {
  const Profile profile = testing::chain(std::vector<testing::Layer>(4));
  const Cluster cluster = free_cluster(4);
  const Error error = caught([&] { make_plan("ftpipehd", {profile, cluster, 4, {}, {2}, false}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message().find("pipedream"), std::string::npos) << error.message();
}

}  // namespace
}  // namespace millrace
