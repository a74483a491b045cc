// Planners as a user meets them: plans that make sense, restrictions, refusals, the formula by
// hand.
#include "millrace/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "millrace/base/error.h"
#include "millrace/planner/internal/cuts.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using testing::chain;
using testing::flat;
using ::testing::HasSubstr;
using testing::Layer;
using testing::shape;

constexpr int64_t kKilo = 1000;
constexpr int64_t kMega = 1000 * kKilo;
constexpr int64_t kGiga = 1000 * kMega;

Plan plan_of(const std::vector<Layer>& layers, int workers, double bandwidth,
             std::optional<int> stages = {}, std::vector<int> replicas = {},
             bool straight = false) {
  const Profile profile = chain(layers);
  const Cluster cluster = flat(workers, bandwidth);
  return make_plan("pipedream", {profile, cluster, workers, stages, std::move(replicas), straight});
}

template <typename Run>
Error error_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "nothing was thrown"};
}

// Case: plans react to weights and activations as physics says (four layers of 10 ms, 1 GB/s).
TEST(PipedreamPlan, SmallWeightsTieStraightAndReplicated) {
  const std::vector<Layer> layers(4, {0.010, 1 * kKilo, 1 * kMega});
  const Plan plan = plan_of(layers, 4, 1e9);
  EXPECT_NEAR(plan.minibatch_s, 0.010, 1e-12);
  EXPECT_EQ(shape(plan), "4x4");  // a tie: fewest stages
  EXPECT_NEAR(plan_of(layers, 4, 1e9, {}, {}, true).minibatch_s, 0.010, 1e-12);
  EXPECT_EQ(shape(plan_of(layers, 4, 1e9, {}, {}, true)), "1x1 1x1 1x1 1x1");
  EXPECT_NEAR(plan.data_parallel_minibatch_s, 0.010, 1e-12);
  EXPECT_NEAR(plan.one_worker_minibatch_s, 0.040, 1e-12);
}

TEST(PipedreamPlan, LargeWeightsMakeThePipelineWin) {
  const Plan plan = plan_of(std::vector<Layer>(4, {0.010, 1 * kGiga, 1 * kMega}), 4, 1e9);
  EXPECT_EQ(shape(plan), "1x1 1x1 1x1 1x1");
  EXPECT_NEAR(plan.minibatch_s, 0.010, 1e-12);
  EXPECT_NEAR(plan.data_parallel_minibatch_s, 6.0, 1e-9);  // 2 x 3 x 4 GB / 1 GB/s / 4
  EXPECT_GT(plan.data_parallel_minibatch_s / plan.minibatch_s, 100);
}

TEST(PipedreamPlan, LargeActivationsMakeDataParallelWin) {
  const Plan plan = plan_of(std::vector<Layer>(4, {0.010, 1 * kKilo, 1 * kGiga}), 4, 1e9);
  EXPECT_EQ(shape(plan), "4x4");
  EXPECT_EQ(plan.minibatch_s, plan.data_parallel_minibatch_s);
  // A straight pipeline would pay 2 s at each cut; one stage on one worker is then the best
  // straight plan.
  const Plan straight =
      plan_of(std::vector<Layer>(4, {0.010, 1 * kKilo, 1 * kGiga}), 4, 1e9, {}, {}, true);
  EXPECT_EQ(shape(straight), "4x1");
  const Plan forced = plan_of(std::vector<Layer>(4, {0.010, 1 * kKilo, 1 * kGiga}), 4, 1e9, 4);
  EXPECT_NEAR(forced.minibatch_s, 2.0, 1e-12);
}

TEST(PipedreamPlan, OrderOfLinesIsIrrelevant) {
  std::vector<std::string> lines;
  std::string edges;
  for (int l = 0; l < 6; ++l) {
    lines.push_back(R"({"name": "n)" + std::to_string(l) + R"(", "forward_s": 0.0)" +
                    std::to_string(l + 1) +
                    R"(, "input_gradient_s": 0.01, "weight_gradient_s": 0.02, "update_s": 0.0,)" +
                    R"( "output_bytes": )" + std::to_string(1000 * (7 - l)) +
                    R"(, "parameter_bytes": 5000, "stash_bytes": 10})");
    if (l > 0) {
      edges += std::string(l > 1 ? ", " : "") + R"({"from": "n)" + std::to_string(l - 1) +
               R"(", "to": "n)" + std::to_string(l) + R"("})";
    }
  }
  const auto read = [&edges](const std::vector<std::string>& in_order) {
    std::string text =
        R"({"artifact": "profile", "version": 1, "model": "m", "samples_per_microbatch": 8, "layers": [)";
    for (std::size_t i = 0; i < in_order.size(); ++i) {
      text += (i > 0 ? ", " : "") + in_order[i];
    }
    return profile_from(parse_json(text + R"(], "edges": [)" + edges + "]}", "profile.json"));
  };
  const Cluster cluster = flat(4, 1e6);
  const Profile sorted = read(lines);
  const Plan expected = make_plan("pipedream", {sorted, cluster, 4, 3, {}, false});
  ASSERT_EQ(expected.num_stages(), 3);
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(lines.begin(), lines.end(), random);
    const Profile profile = read(lines);
    EXPECT_EQ(make_plan("pipedream", {profile, cluster, 4, 3, {}, false}), expected);
  }
}

// Case: layers vanish in an uneven split.
TEST(PipedreamPlan, UnevenSplitsKeepEveryLayer) {
  for (const auto& [layers, stages] :
       std::vector<std::pair<int, int>>{{7, 2}, {7, 3}, {7, 4}, {7, 6}, {7, 7}, {30, 4}, {1, 1}}) {
    std::vector<Layer> equal(layers, {0.010, 4 * kKilo, 1 * kKilo});
    const Profile profile = chain(equal);
    const Cluster cluster = flat(8, 1e9);
    const Plan plan = make_plan("pipedream", {profile, cluster, 8, stages, {}, true});
    ASSERT_EQ(plan.num_stages(), stages);
    std::vector<std::string> names;
    std::size_t largest = 0;
    for (const PlanStage& stage : plan.stages) {
      names.insert(names.end(), stage.layers.begin(), stage.layers.end());
      largest = std::max(largest, stage.layers.size());
      EXPECT_FALSE(stage.layers.empty());
    }
    EXPECT_EQ(names, layer_names(profile)) << layers << " on " << stages;
    EXPECT_EQ(largest, static_cast<std::size_t>((layers + stages - 1) / stages));
  }
  // The earliest cuts among the balanced ones: the remainder gathers at the end.
  EXPECT_EQ(shape(plan_of(std::vector<Layer>(7, {0.010, 0, 0}), 3, 1e9, 3, {}, true)),
            "1x1 3x1 3x1");
}

TEST(PipedreamPlan, MoreStagesThanLayersIsRefusedWithBothNumbers) {
  const Error error = error_of([] { plan_of(std::vector<Layer>(7, {0.010, 0, 0}), 8, 1e9, 8); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("8 stages"), HasSubstr("7 layers")));
}

TEST(PipedreamPlan, MayLeaveWorkersIdle) {
  // One heavy layer cannot be cut, and its weights make replicas dearer than none.
  const Plan plan = plan_of({{0.010, 1 * kGiga, 0}}, 4, 1e9);
  EXPECT_EQ(shape(plan), "1x1");
  EXPECT_EQ(plan.workers, 4);
  EXPECT_EQ(plan.num_used_ranks(), 1);
  EXPECT_TRUE(plan.stages_of_rank(3).empty());
  // An even split needs only two of three workers: fewest workers among equals.
  EXPECT_EQ(shape(plan_of({{1, kGiga, 0}, {1, kGiga, 0}}, 3, 1e9)), "1x1 1x1");
}

TEST(PipedreamPlan, ReplicatesTheSlowStage) {
  // 3 s of convolution with little weight, 1 s of heavy weight: the shape of the paper's figure.
  const std::vector<Layer> layers = {{1, 0, 0}, {1, 0, 0}, {1, 0, 0}, {1, 40 * kGiga, 0}};
  const Plan plan = plan_of(layers, 4, 1e9);
  EXPECT_EQ(shape(plan), "3x3 1x1");
  EXPECT_EQ(plan.minibatch_s, 1.0);
  EXPECT_EQ(plan.stages[0].ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(plan.stages[1].ranks, (std::vector<int>{3}));
}

TEST(PipedreamPlan, KeepsItsRestrictions) {
  const std::vector<Layer> layers(6, {1, 0, 0});
  EXPECT_EQ(shape(plan_of(layers, 6, 1e9, 2, {2})), "3x2 3x2");
  EXPECT_EQ(shape(plan_of(layers, 6, 1e9, {}, {1, 2})), "2x1 4x2");
  EXPECT_EQ(shape(plan_of(layers, 6, 1e9, 3, {1, 1, 1}, true)), "2x1 2x1 2x1");
  EXPECT_EQ(shape(plan_of(layers, 6, 1e9, {}, {3})), "3x3 3x3");
  EXPECT_EQ(shape(plan_of(layers, 6, 1e9, {}, {4})), "6x4");  // two stages of four do not fit
}

TEST(PipedreamPlan, PlansAtTheSlowestOfTheDevicesThatMayBeUsed) {
  const Profile profile = chain(std::vector<Layer>(4, {1, 0, 0}));
  Cluster cluster = flat(4, 1e9);
  cluster.relative_speed = {2.0, 1.0, 0.5, 0.25};
  EXPECT_EQ(make_plan("pipedream", {profile, cluster, 1, {}, {}, false}).minibatch_s, 2.0);
  EXPECT_EQ(make_plan("pipedream", {profile, cluster, 2, {}, {}, false}).minibatch_s, 2.0);
  EXPECT_EQ(make_plan("pipedream", {profile, cluster, 4, 4, {}, true}).minibatch_s, 4.0);
}

// l0 -> {a0 -> a1, b0} -> l3, and the skip l0 -> l3.
Profile branching() {
  Profile profile = chain({{1, 10, 100}, {1, 20, 40}, {2, 30, 40}, {3, 40, 30}, {1, 50, 0}});
  profile.edges = {{"l0", "l1"}, {"l1", "l2"}, {"l0", "l3"},
                   {"l2", "l4"}, {"l3", "l4"}, {"l0", "l4"}};
  return profile;
}

TEST(PipedreamPlan, CutsLayerGraphs) {
  const Profile profile = branching();
  const Cluster cluster = flat(4, 1e6);
  const Plan plan = make_plan("pipedream", {profile, cluster, 3, 3, {}, true});
  // Both branches take 3 s; the first one may stand beside l0 only if the cut stays closed.
  EXPECT_EQ(plan.minibatch_s, 3.0);
  ASSERT_EQ(plan.num_stages(), 3);
  EXPECT_NO_THROW(check_plan(plan, layer_names(profile), profile.edges));
  EXPECT_EQ(shape(make_plan("data-parallel", {profile, cluster, 4, {}, {}, false})), "5x4");
  // Two chains side by side: no edge joins them.
  Profile apart = chain(std::vector<Layer>(4, {1, 0, 0}));
  apart.edges = {{"l0", "l2"}, {"l1", "l3"}};
  EXPECT_EQ(make_plan("pipedream", {apart, cluster, 4, 4, {}, false}).minibatch_s, 1.0);
  apart.edges.clear();
  EXPECT_THAT(error_of([&] {
                make_plan("pipedream", {apart, cluster, 4, {}, {}, false});
              }).what(),
              HasSubstr("expected edges among the profile's 4 layers"));
}

TEST(PipedreamPlan, CountsATensorOnceAtEveryCutItPasses) {
  const Profile profile = branching();
  const internal::Cuts cuts(profile);
  // {}, l0, l0 l1, l0 l3, l0 l1 l2, l0 l1 l3, l0 l1 l2 l3, all.
  ASSERT_EQ(cuts.count(), 8);
  EXPECT_FALSE(cuts.ordered());
  EXPECT_FALSE(cuts.linear());
  const int64_t crossing[] = {0,        100,           100 + 40,      100 + 30,
                              100 + 40, 100 + 40 + 30, 100 + 40 + 30, 0};
  for (int cut = 0; cut < cuts.count(); ++cut) {
    EXPECT_EQ(cuts.output_bytes(cut), crossing[cut]) << cut;
  }
  EXPECT_TRUE(cuts.nested(2, 5));
  EXPECT_FALSE(cuts.nested(3, 4));
  EXPECT_EQ(cuts.layers(1, 5), (std::vector<int>{1, 3}));
  EXPECT_EQ(cuts.compute_s(1, 5), 4.0);
  EXPECT_EQ(cuts.parameter_bytes(1, 5), 60);
}

TEST(PipedreamPlan, KeepsInputsInTheFirstStage) {
  // An input that only the last layer reads.
  Profile profile = chain({{0, 0, 0}, {1, 0, 0}, {1, 0, 0}, {0, 0, 0}, {1, 0, 0}});
  profile.edges = {{"l0", "l1"}, {"l1", "l2"}, {"l2", "l4"}, {"l3", "l4"}};
  const Cluster cluster = flat(3, 1e6);
  const Plan plan = make_plan("pipedream", {profile, cluster, 3, 3, {}, true});
  ASSERT_EQ(plan.num_stages(), 3);
  EXPECT_EQ(plan.stages[0].layers, (std::vector<std::string>{"l0", "l1", "l3"}));
}

TEST(PipedreamPlan, SaysWhenNotAllCutsWereSearched) {
  // Twelve branches of one layer: 2^12 cuts and two more.
  std::vector<Layer> layers(14, {1, 0, 0});
  Profile profile = chain(layers);
  profile.edges.clear();
  for (int branch = 1; branch <= 12; ++branch) {
    profile.edges.push_back({"l0", "l" + std::to_string(branch)});
    profile.edges.push_back({"l" + std::to_string(branch), "l13"});
  }
  const Cluster cluster = flat(7, 1e6);
  const Plan plan = make_plan("pipedream", {profile, cluster, 7, 7, {}, true});
  EXPECT_EQ(plan.minibatch_s, 2.0);
  ASSERT_EQ(plan.notes.size(), 1U);
  EXPECT_THAT(plan.notes[0], HasSubstr("more than 2000 cuts"));
  const Profile line = chain(layers);
  EXPECT_THAT(make_plan("pipedream", {line, cluster, 7, 7, {}, true}).notes, ::testing::IsEmpty());
}

TEST(PipedreamPlan, FollowsTheLevelsOfTheNetwork) {
  // Machines of 2. The first two layers have no weights: they are worth a machine each. The others'
  // exchange is cheap inside a machine only.
  const Profile profile = chain({{4, 0, 10}, {4, 0, 10}, {2, 1000, 10}, {2, 1000, 0}});
  const Cluster cluster = testing::two_levels(2, 3, 10000, 100);
  const Plan plan = make_plan("pipedream", {profile, cluster, 6, {}, {}, false});
  EXPECT_EQ(shape(plan), "2x4 2x2");
  EXPECT_EQ(plan.minibatch_s, 2.0);
  EXPECT_EQ(plan.stages[0].ranks, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(plan.stages[1].ranks, (std::vector<int>{4, 5}));

  // An inner pipeline of two, on both machines: each of its stages has a rank in each.
  const Profile pair = chain({{4, 1000, 1}, {4, 1000, 0}});
  const Cluster slow_inside = testing::two_levels(2, 2, 400, 5000);
  const Plan both = make_plan("pipedream", {pair, slow_inside, 4, {}, {}, false});
  EXPECT_EQ(both.minibatch_s, 2.0);
  ASSERT_EQ(both.num_stages(), 2);
  EXPECT_EQ(both.stages[0].ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(both.stages[1].ranks, (std::vector<int>{1, 3}));

  // Workers that fill no machine stay idle: 5 are two machines and one left over.
  const Plan five = make_plan("pipedream", {profile, cluster, 5, {}, {}, false});
  EXPECT_LE(five.num_used_ranks(), 4);
  // A level of size 1 is no level.
  const Cluster one_each = testing::two_levels(1, 4, 1e10, 1e9);
  const Profile plain = chain(std::vector<Layer>(4, {1, 0, 0}));
  EXPECT_EQ(make_plan("pipedream", {plain, one_each, 4, {}, {}, true}).minibatch_s, 1.0);
}

TEST(PipedreamPlan, ReplicasOnSeveralLevelsArePlannedAtTheSlowest) {
  const Profile profile = chain(std::vector<Layer>(4, {1, 100, 10}));
  const Cluster cluster = testing::two_levels(2, 2, 1e6, 1e3);
  const Plan plan = make_plan("pipedream", {profile, cluster, 4, 2, {2}, false});
  EXPECT_EQ(shape(plan), "2x2 2x2");
  ASSERT_EQ(plan.notes.size(), 1U);
  EXPECT_THAT(plan.notes[0], HasSubstr("as slow as the slowest"));
  // One worker a stage is planned level by level.
  EXPECT_THAT(make_plan("pipedream", {profile, cluster, 4, {}, {1, 1, 1}, false}).notes,
              ::testing::IsEmpty());
}

TEST(PipedreamPlan, KeepsWithinMemory) {
  // Four layers of 1 GB weights and 1 GB stash each. One worker needs 4 + 4 + 4 = 12 GB. Two
  // stages: the first has two minibatches in flight, 2 (2 + 2) + 2 = 10 GB. Four: 4 (1 + 1) + 1 = 9
  // GB.
  Profile profile = chain(std::vector<Layer>(4, {1, kGiga, 0}));
  for (LayerProfile& layer : profile.layers) {
    layer.stash_bytes = kGiga;
  }
  Cluster cluster = flat(4, 1e6);
  const auto plan = [&](double memory_bytes, int workers) {
    cluster.memory_bytes = memory_bytes;
    return make_plan("pipedream", {profile, cluster, workers, {}, {}, true});
  };
  EXPECT_EQ(shape(plan(12e9, 1)), "4x1");
  EXPECT_EQ(shape(plan(10e9, 2)), "2x1 2x1");
  EXPECT_EQ(shape(plan(9e9, 4)), "1x1 1x1 1x1 1x1");
  // The first stage is what is tight: a smaller one, although slower.
  EXPECT_EQ(shape(plan(9e9, 2)), "1x1 3x1");
  const Error error = error_of([&] { plan(8.9e9, 2); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("2 workers"), HasSubstr("9.0 GB"), HasSubstr("8.9 GB")));
}

TEST(MakePlan, RefusesRequestsThatDoNotFit) {
  const Profile profile = chain(std::vector<Layer>(4, {1, 0, 0}));
  const Cluster cluster = flat(4, 1e9);
  struct Case {
    const char* planner;
    int workers;
    std::optional<int> stages;
    std::vector<int> replicas;
    bool straight;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"pipedream", 0, {}, {}, false, {"at least 1 worker", "workers = 0"}},
      {"pipedream", 5, {}, {}, false, {"5 workers", "has 4"}},
      {"pipedream", 4, 0, {}, false, {"at least 1 stage", "stages = 0"}},
      {"pipedream", 2, 3, {}, false, {"3 stages", "2 workers"}},
      {"pipedream", 4, 2, {3}, false, {"needs 6 workers", "workers = 4"}},
      {"pipedream", 4, {}, {3, 2}, false, {"needs 5 workers", "workers = 4"}},
      {"pipedream", 4, {}, {5}, false, {"needs 5 workers"}},
      {"pipedream", 4, {}, {1, 0}, false, {"at least 1 replica", "1, 0"}},
      {"pipedream", 4, 3, {2, 1}, false, {"names 2 stages", "stages = 3"}},
      {"pipedream", 4, {}, {2}, true, {"straight", "replicas = 2"}},
      {"one", 4, 2, {}, false, {"`one`", "stages = 2"}},
      {"one", 4, {}, {2}, false, {"`one`", "replicas = 2"}},
      {"data-parallel", 4, 2, {}, false, {"`data-parallel`", "stages = 2"}},
      {"data-parallel", 4, {}, {2}, false, {"`data-parallel`", "4 workers"}},
      {"data-parallel", 4, {}, {}, true, {"straight"}},
      {"pipedreem", 4, {}, {}, false, {"pipedreem", "did you mean `pipedream`?"}},
      {"pipedream-released", 4, 2, {}, false, {"`pipedream-released`", "drop them"}},
      {"pipedream-released", 6, {}, {}, true, {"6 workers", "has 4"}},
      {"zzzzzzzzzzz", 4, {}, {}, false, {"pipedream, pipedream-released, equal-layers"}},
  };
  for (const Case& c : cases) {
    const Error error = error_of([&] {
      make_plan(c.planner, {profile, cluster, c.workers, c.stages, c.replicas, c.straight});
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    for (const std::string& text : c.says) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  }
  const Profile empty;
  const Error error = error_of([&] { make_plan("one", {empty, cluster, 1, {}, {}, false}); });
  EXPECT_THAT(error.what(), HasSubstr("at least one layer"));
}

// Every registered planner, over a grid.
TEST(EveryPlanner, MakesAWholePlanThatCostsWhatItSays) {
  std::mt19937 random(5);
  for (const PlannerEntry& planner : planners()) {
    EXPECT_FALSE(planner.text.empty());
    EXPECT_EQ(&find_planner(planner.name), &planner);
    for (int n = 1; n <= 6; ++n) {
      for (int workers = 1; workers <= 5; ++workers) {
        std::vector<Layer> layers;
        for (int l = 0; l < n; ++l) {
          layers.push_back({0.1 * static_cast<double>(random() % 20),
                            static_cast<int64_t>(random() % 3000),
                            static_cast<int64_t>(random() % 900)});
        }
        const Profile profile = chain(layers);
        const Cluster cluster = flat(8, 1000);
        const Plan plan = make_plan(planner.name, {profile, cluster, workers, {}, {}, false});
        EXPECT_EQ(plan.planner, planner.name);
        EXPECT_EQ(plan.workers, workers);
        EXPECT_LE(plan.num_used_ranks(), workers);
        int rank = 0;
        for (const PlanStage& stage : plan.stages) {
          for (int r : stage.ranks) {
            EXPECT_EQ(r, rank++);  // consecutive, in stage order
          }
        }
        EXPECT_NO_THROW(check_plan(plan, layer_names(profile), profile.edges));
        EXPECT_EQ(plan.minibatch_s, pipedream_minibatch_s(plan, profile, cluster));
        EXPECT_EQ(plan.one_worker_minibatch_s,
                  make_plan("one", {profile, cluster, workers, {}, {}, false}).minibatch_s);
        EXPECT_EQ(
            plan.data_parallel_minibatch_s,
            make_plan("data-parallel", {profile, cluster, workers, {}, {}, false}).minibatch_s);
        if (planner.name == "pipedream") {
          EXPECT_LE(plan.minibatch_s, plan.data_parallel_minibatch_s);
          EXPECT_LE(plan.minibatch_s, plan.one_worker_minibatch_s);
          if (workers > 1) {
            EXPECT_LE(
                plan.minibatch_s,
                make_plan("pipedream", {profile, cluster, workers - 1, {}, {}, false}).minibatch_s);
          }
        }
      }
    }
  }
}

TEST(Baselines, EqualLayersGivesTheFirstStagesOneMore) {
  const Profile profile = chain(std::vector<Layer>(7, {1, 0, 0}));
  const Cluster cluster = flat(8, 1e9);
  EXPECT_EQ(shape(make_plan("equal-layers", {profile, cluster, 3, {}, {}, false})), "3x1 2x1 2x1");
  EXPECT_EQ(shape(make_plan("equal-layers", {profile, cluster, 8, 2, {2}, false})), "4x2 3x2");
  EXPECT_EQ(shape(make_plan("equal-layers", {profile, cluster, 8, {}, {1, 3}, false})), "4x1 3x3");
  EXPECT_EQ(make_plan("equal-layers", {profile, cluster, 8, {}, {}, false}).num_stages(), 7);
}

// Against all cuts of random chains.
TEST(Baselines, EqualTimeHasTheLeastVariance) {
  const Cluster cluster = flat(5, 1e9);
  std::mt19937 random(23);
  for (int round = 0; round < 200; ++round) {
    const int n = 1 + static_cast<int>(random() % 9);
    const int stages = 1 + static_cast<int>(random() % std::min(n, 5));
    std::vector<Layer> layers;
    for (int l = 0; l < n; ++l) {
      layers.push_back({static_cast<double>(random() % 8), 0, 0});
    }
    const Profile profile = chain(layers);
    const auto squares = [&](const std::vector<int>& sizes) {
      double sum = 0;
      int layer = 0;
      for (const int size : sizes) {
        double seconds = 0;
        for (int l = 0; l < size; ++l) {
          seconds += layers[static_cast<std::size_t>(layer++)].compute_s;
        }
        sum += seconds * seconds;
      }
      return sum;
    };
    std::vector<int> best;  // whole numbers: sums of squares are exact, and so are ties
    for (unsigned cuts = 0; cuts < (1U << (n - 1)); ++cuts) {
      std::vector<int> sizes = {1};
      for (int l = 1; l < n; ++l) {
        if ((cuts >> (l - 1)) & 1U) {
          sizes.push_back(1);
        } else {
          ++sizes.back();
        }
      }
      if (static_cast<int>(sizes.size()) == stages &&
          (best.empty() || std::pair(squares(sizes), sizes) < std::pair(squares(best), best))) {
        best = sizes;
      }
    }
    const Plan plan = make_plan("equal-time", {profile, cluster, 5, stages, {}, false});
    std::vector<int> sizes;
    for (const PlanStage& stage : plan.stages) {
      sizes.push_back(static_cast<int>(stage.layers.size()));
    }
    EXPECT_EQ(sizes, best) << "round " << round;
  }
}

TEST(Formula, OfSeveralLevelsByHand) {
  const Profile profile = chain({{8, 100, 50}, {2, 1000, 7}, {1, 400, 0}});
  Cluster cluster = testing::two_levels(2, 3, 100, 10);
  Plan plan;
  plan.workers = 6;
  // Two machines of two replicas: max(max(8, 2*1*100/100 = 2) / 2 = 4, 2*1*100/10 = 20) / 2 = 10.
  // Its cut: 2*50/10 = 10. The third machine: stages of 2 and 1 s, and between them 2*7/100.
  plan.stages = {{{"l0"}, {0, 1, 2, 3}}, {{"l1"}, {4}}, {{"l2"}, {5}}};
  EXPECT_EQ(pipedream_minibatch_s(plan, profile, cluster), 10.0);
  cluster.levels[1].bandwidth_bytes_per_s = 1000;
  // max(4, 0.2) / 2 and max(2, 1, 0.14) and 0.1.
  EXPECT_EQ(pipedream_minibatch_s(plan, profile, cluster), 2.0);
  // An inner pipeline on two machines: max(8, 3, 1) / 2, and the exchange of 1500 bytes over 1000
  // B/s.
  plan.stages = {{{"l0"}, {0, 2}}, {{"l1", "l2"}, {1, 3}}};
  EXPECT_EQ(pipedream_minibatch_s(plan, profile, cluster), 4.0);
  cluster.levels[1].bandwidth_bytes_per_s = 100;
  EXPECT_EQ(pipedream_minibatch_s(plan, profile, cluster), 15.0);
  // A stage on one and a half machines follows no level: all links count as the slowest.
  cluster = testing::two_levels(2, 3, 1e6, 100);
  plan.stages = {{{"l0"}, {0, 1, 2}}, {{"l1", "l2"}, {3}}};
  EXPECT_EQ(pipedream_minibatch_s(plan, profile, cluster), 3.0);
  // Outputs that a later stage reads, wherever it stands.
  Profile skip = chain({{1, 0, 50}, {1, 0, 7}, {1, 0, 0}});
  skip.edges.push_back({"l0", "l2"});
  plan.stages = {{{"l0"}, {0}}, {{"l1"}, {1}}, {{"l2"}, {2}}};
  cluster = flat(6, 10);
  EXPECT_EQ(pipedream_minibatch_s(plan, skip, cluster), 2.0 * 57 / 10);
}

TEST(Formula, ByHand) {
  Profile profile = chain({{0.5, 300, 40}, {0.25, 100, 8}, {1.0, 1000, 0}});
  profile.layers[0].input_gradient_s = 0.25;
  profile.layers[0].weight_gradient_s = 0.25;
  profile.layers[0].update_s = 100;  // not in the formula
  Cluster cluster = flat(4, 100);
  Plan plan;
  plan.workers = 4;
  plan.stages = {{{"l0", "l1"}, {0, 1}}, {{"l2"}, {2}}};
  // Stage 0: max(1.25, 2*1*400/100 = 8) / 2 = 4; cut 2*8/100; stage 1: 1.
  EXPECT_EQ(pipedream_minibatch_s(plan, profile, cluster), 4.0);
  // Stage 1 on three replicas: max(1, 2*2*1000/100 = 40) / 3.
  plan.stages = {{{"l0", "l1"}, {0}}, {{"l2"}, {1, 2, 3}}};
  EXPECT_EQ(pipedream_minibatch_s(plan, profile, cluster), 40.0 / 3);
  // A cut that dominates: 2*40/100 at a hundred times the speed.
  cluster.relative_speed = {100.0};
  plan.stages = {{{"l0"}, {0}}, {{"l1", "l2"}, {1}}};
  EXPECT_EQ(pipedream_minibatch_s(plan, profile, cluster), 0.8);
  // The slowest link between any two workers counts.
  cluster.links = {{2, 3, 50, 0.0}};
  EXPECT_EQ(pipedream_minibatch_s(plan, profile, cluster), 1.6);

  plan.stages = {{{"l0"}, {0}}, {{"l1", "nonesuch"}, {1}}};
  const Error error = error_of([&] { pipedream_minibatch_s(plan, profile, cluster); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.stage(), 1);
  EXPECT_THAT(error.what(), HasSubstr("nonesuch"));
}

}  // namespace
}  // namespace millrace
