// Planner pipedream-2bw: against enumeration of its whole family, and its plans in simulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>

#include "millrace/schedule/registry.h"
#include "millrace/sim/simulate.h"
#include "tests/base/caught.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Instance {
  Profile profile;  // of a minibatch
  Cluster cluster;
  int workers = 1;
};

int below(std::mt19937_64& random, int n) {
  return static_cast<int>(random() % static_cast<uint64_t>(n));
}

Instance random_instance(std::mt19937_64& random) {
  Instance instance;
  const int num_layers = 1 + below(random, 6);
  instance.profile =
      testing::chain(std::vector<testing::Layer>(static_cast<std::size_t>(num_layers)));
  instance.profile.samples_per_microbatch = 1 << below(random, 5);
  for (LayerProfile& layer : instance.profile.layers) {
    layer.forward_s = below(random, 12);
    layer.weight_gradient_s = below(random, 12);
    layer.output_bytes = 64 * below(random, 8);
    layer.parameter_bytes = below(random, 20);
    layer.stash_bytes = layer.output_bytes + 64 * below(random, 8);
  }
  instance.workers = 1 + below(random, 4);
  instance.cluster = testing::flat(instance.workers, 1 << below(random, 8));
  if (below(random, 2) == 0) {
    instance.workers = 4;
    instance.cluster = testing::two_levels(2, 2, 1 << below(random, 8), 1 << below(random, 8));
    instance.cluster.levels[1].latency_s = below(random, 3);
    instance.cluster.levels[0].all_reduce_bandwidth_bytes_per_s = 4;
  }
  if (below(random, 3) == 0 && instance.workers > 1) {
    instance.cluster.links.push_back({0, 1, 0.5, 0.25});
  }
  if (below(random, 2) == 0) {
    instance.cluster.relative_speed.clear();
    for (int device = 0; device < instance.workers; ++device) {
      instance.cluster.relative_speed.push_back(1 << below(random, 3));
    }
  }
  instance.cluster.memory_bytes = below(random, 3) == 0 ? 1e18 : 100 + below(random, 1500);
  return instance;
}

// The statement of the family and the formula, written out anew.
struct Choice {
  double seconds = kNever;
  int workers = 0;
  bool recompute = false;
  int depth = 0;
  int microbatches = 0;
  auto key() const { return std::tuple(seconds, workers, recompute, depth, microbatches); }
};

Choice cost(const Instance& instance, const std::vector<int>& ends, int width, int microbatches,
            bool recompute) {
  const Cluster& cluster = instance.cluster;
  const auto& layers = instance.profile.layers;
  const auto depth = static_cast<int>(ends.size());
  Choice choice{0, depth * width, recompute, depth, microbatches};
  int first = 0;
  for (int s = 0; s < depth; ++s) {
    double seconds = 0;
    double weight_bytes = 0;
    double stash_bytes = 0;
    for (int i = first; i < ends[static_cast<std::size_t>(s)]; ++i) {
      const LayerProfile& layer = layers[static_cast<std::size_t>(i)];
      seconds += layer.compute_s() + (recompute ? layer.forward_s : 0);
      weight_bytes += static_cast<double>(layer.parameter_bytes);
      stash_bytes += static_cast<double>(layer.stash_bytes);
    }
    const double input_bytes =
        first == 0 ? 0
                   : static_cast<double>(layers[static_cast<std::size_t>(first) - 1].output_bytes);
    std::vector<int> devices(static_cast<std::size_t>(width));
    std::iota(devices.begin(), devices.end(), s * width);
    for (const int device : devices) {
      choice.seconds = std::max(choice.seconds, seconds / (width * cluster.speed_of(device)));
      if (s > 0) {
        const double bandwidth = cluster.bandwidth_between(device - width, device);
        choice.seconds = std::max(choice.seconds, 2 * input_bytes / (width * bandwidth));
      }
    }
    choice.seconds = std::max(choice.seconds, cluster.all_reduce_s(devices, weight_bytes));
    const int in_flight = depth - s;
    const double live = recompute ? in_flight * input_bytes + stash_bytes : in_flight * stash_bytes;
    if (4 * weight_bytes + live / (width * microbatches) > cluster.memory_bytes) {
      return {};
    }
    first = ends[static_cast<std::size_t>(s)];
  }
  return choice;
}

Choice best_of_family(const Instance& instance, std::optional<int> stages,
                      std::optional<int> fixed_microbatches) {
  const auto num_layers = static_cast<int>(instance.profile.layers.size());
  Choice best;
  for (int cuts = 0; cuts < 1 << (num_layers - 1); ++cuts) {
    std::vector<int> ends;
    for (int i = 1; i < num_layers; ++i) {
      if (((cuts >> (i - 1)) & 1) != 0) {
        ends.push_back(i);
      }
    }
    ends.push_back(num_layers);
    const auto depth = static_cast<int>(ends.size());
    for (int width = 1; depth * width <= instance.workers; ++width) {
      for (const bool recompute : {false, true}) {
        std::vector<int> counts;
        if (fixed_microbatches) {
          counts = {*fixed_microbatches};
        } else {
          for (int m = depth; m <= 64; m *= 2) {
            counts.push_back(m);
          }
        }
        for (const int m : counts) {
          if (m * width > instance.profile.samples_per_microbatch || m < depth - 1 ||
              (stages && depth != *stages)) {
            continue;
          }
          const Choice choice = cost(instance, ends, width, m, recompute);
          if (choice.seconds < kNever && choice.key() < best.key()) {
            best = choice;
          }
        }
      }
    }
  }
  return best;
}

Choice planned(const Instance& instance, std::optional<int> stages, std::optional<int> microbatches,
               Plan* made = nullptr) {
  PlanRequest request{instance.profile, instance.cluster, instance.workers, stages, {}, false};
  request.microbatches = microbatches;
  try {
    const Plan plan = make_plan("pipedream-2bw", request);
    if (made != nullptr) {
      *made = plan;
    }
    return {plan.objective_s, plan.num_used_ranks(), plan.recompute == Recompute::kStage,
            plan.num_stages(), plan.microbatches};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.message();
    return {};
  }
}

TEST(PipeDream2bw, EqualsEnumerationOfItsFamily) {
  std::mt19937_64 random(21);
  int infeasible = 0;
  int recomputed = 0;
  int deep = 0;
  int wide = 0;
  for (int i = 0; i < 600; ++i) {
    const Instance instance = random_instance(random);
    const Choice expected = best_of_family(instance, std::nullopt, std::nullopt);
    EXPECT_EQ(planned(instance, std::nullopt, std::nullopt).key(), expected.key())
        << "instance " << i;
    infeasible += expected.seconds == kNever ? 1 : 0;
    recomputed += expected.recompute ? 1 : 0;
    deep += expected.depth > 1 ? 1 : 0;
    wide += expected.workers > expected.depth ? 1 : 0;
  }
  EXPECT_GT(infeasible, 20);
  EXPECT_GT(recomputed, 20);
  EXPECT_GT(deep, 100);
  EXPECT_GT(wide, 50);
}

TEST(PipeDream2bw, EqualsEnumerationUnderRestrictions) {
  std::mt19937_64 random(22);
  for (int i = 0; i < 300; ++i) {
    const Instance instance = random_instance(random);
    const int most = std::min(instance.workers, static_cast<int>(instance.profile.layers.size()));
    const int stages = 1 + below(random, most);
    const int microbatches = 1 + below(random, 6);
    EXPECT_EQ(planned(instance, stages, microbatches).key(),
              best_of_family(instance, stages, microbatches).key())
        << "instance " << i;
  }
}

TEST(PipeDream2bw, PlansRunAndTakeWhatTheFormulaSaysWhereExchangeIsFree) {
  std::mt19937_64 random(23);
  int plans = 0;
  for (int i = 0; i < 60; ++i) {
    Instance instance = random_instance(random);
    instance.cluster = free_cluster(instance.workers);
    Plan plan;
    if (planned(instance, std::nullopt, std::nullopt, &plan).seconds == kNever) {
      continue;
    }
    ++plans;
    EXPECT_EQ(plan.schedule, "pipedream-2bw");
    const Simulation simulation = simulate_plan(plan, instance.profile, instance.cluster,
                                                instance.profile.samples_per_microbatch);
    EXPECT_NEAR(simulation.step_s, plan.objective_s, 1e-9 * plan.objective_s + 1e-12)
        << "instance " << i << " " << describe(plan);
  }
  EXPECT_GT(plans, 40);
}

// Twelve equal layers on four devices: data parallelism holds four copies of the weights of all
// layers, which does not fit; halves do, and quarters leave the exchange out.
TEST(PipeDream2bw, MemoryDecidesTheDepth) {
  Profile profile = testing::chain(std::vector<testing::Layer>(12, {1, 100, 64}));
  profile.samples_per_microbatch = 64;
  for (LayerProfile& layer : profile.layers) {
    layer.stash_bytes = 64 * 64;
  }
  Cluster cluster = free_cluster(4);
  const auto depth = [&](double memory_bytes) {
    cluster.memory_bytes = memory_bytes;
    return make_plan("pipedream-2bw", {profile, cluster, 4, {}, {}, false}).num_stages();
  };
  EXPECT_EQ(depth(1e9), 1);
  EXPECT_EQ(depth(4000), 2);
  EXPECT_EQ(depth(2000), 4);
}

TEST(PipeDream2bw, FewMicrobatchesUnlessMemoryAsksForMore) {
  Profile profile = testing::chain(std::vector<testing::Layer>(4, {1, 0, 64}));
  profile.samples_per_microbatch = 64;
  for (LayerProfile& layer : profile.layers) {
    layer.stash_bytes = 6400;
  }
  Cluster cluster = free_cluster(4);
  cluster.links.push_back({0, 1, 1e9, 0});
  PlanRequest request{profile, cluster, 4, 4, {}, false};
  request.recompute = Recompute::kNothing;
  cluster.memory_bytes = 1e9;
  EXPECT_EQ(make_plan("pipedream-2bw", request).microbatches, 4);
  cluster.memory_bytes = 1600;  // stage 0 holds 4 of m microbatches: 25600 / m
  EXPECT_EQ(make_plan("pipedream-2bw", request).microbatches, 16);
  request.microbatches = 8;
  EXPECT_EQ(caught([&] { make_plan("pipedream-2bw", request); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(PipeDream2bw, RefusesWhatItsFamilyLacks) {
  const Profile profile = testing::chain(std::vector<testing::Layer>(4));
  const Cluster cluster = free_cluster(4);
  PlanRequest request{profile, cluster, 4, {}, {}, false};
  request.schedule = "1f1b";
  EXPECT_NE(caught([&] { make_plan("pipedream-2bw", request); }).message().find("1f1b"),
            std::string::npos);
  request.schedule.reset();
  request.replicas = {2, 1};
  EXPECT_NE(caught([&] { make_plan("pipedream-2bw", request); }).message().find("unequal"),
            std::string::npos);
  request.replicas.clear();
  request.recompute = Recompute::kLayer;
  EXPECT_NE(caught([&] { make_plan("pipedream-2bw", request); }).message().find("layer"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace
