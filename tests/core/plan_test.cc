#include "millrace/core/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/core_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using testing::as_document;
using testing::Draws;
using testing::expect_round_trip;
using ::testing::HasSubstr;
using testing::with;
using testing::without;

const std::vector<std::string> kModel = {"conv1", "pool1", "conv2", "flatten", "fc1", "fc2"};

Plan plan_of(std::vector<PlanStage> stages, int workers) {
  Plan plan;
  plan.stages = std::move(stages);
  plan.workers = workers;
  return plan;
}

Plan good_plan() {
  return plan_of({{{"conv1", "pool1", "conv2"}, {0, 2}}, {{"flatten", "fc1", "fc2"}, {3}}}, 5);
}

TEST(PlanTest, AnswersAboutRanks) {
  const Plan plan = good_plan();
  EXPECT_EQ(plan.num_stages(), 2);
  EXPECT_EQ(plan.num_used_ranks(), 3);
  const std::vector<int> expected[] = {{0}, {}, {0}, {1}, {}};
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(plan.stages_of_rank(rank), expected[rank]);
  }
}

// Chunks: rank 0 holds stages 0 and 2; rank 1 holds stage 1 and, as a replica, stage 2.
TEST(PlanTest, ARankMayHoldSeveralStages) {
  const Plan plan = plan_of({{{"conv1"}, {0}}, {{"pool1"}, {1}}, {{"conv2"}, {0, 1}}}, 3);
  EXPECT_EQ(plan_from(as_document(to_value(plan))), plan);
  EXPECT_EQ(plan.num_used_ranks(), 2);
  EXPECT_EQ(plan.max_replicas(), 2);
  EXPECT_EQ(plan.stages_of_rank(0), (std::vector<int>{0, 2}));
  EXPECT_EQ(plan.stages_of_rank(1), (std::vector<int>{1, 2}));
  EXPECT_EQ(plan.stages_of_rank(2), std::vector<int>());
  EXPECT_EQ(describe(plan), "conv1 -> rank 0 | pool1 -> rank 1 | conv2 -> ranks 0, 1");
}

TEST(PlanTest, DescribesItself) {
  EXPECT_EQ(describe(good_plan()), "conv1..conv2 -> ranks 0, 2 | flatten..fc2 -> rank 3");
  EXPECT_EQ(describe(plan_of({{{"a"}, {7, 4, 5, 6, 9}}}, 10)), "a -> ranks 4-7, 9");
  EXPECT_EQ(describe(plan_of({{{"a"}, {0, 1}}}, 2)), "a -> ranks 0, 1");
}

TEST(PlanTest, RandomPlansRoundTrip) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draws draws(seed);
    Plan plan;
    plan.planner = draws.name();
    plan.schedule = draws.name();
    plan.rule = draws.name();
    plan.microbatches = static_cast<int>(draws.between(1, 64));
    plan.objective_s = draws.zero_or_more();
    plan.minibatch_s = draws.zero_or_more();
    plan.data_parallel_minibatch_s = draws.zero_or_more();
    plan.one_worker_minibatch_s = draws.zero_or_more();
    int rank = 0;
    for (int64_t s = draws.between(1, 5); s > 0; --s) {
      PlanStage stage;
      for (int64_t i = draws.between(1, 4); i > 0; --i) {
        stage.layers.push_back(draws.name());
      }
      for (int64_t i = draws.between(1, 3); i > 0; --i) {
        rank += static_cast<int>(draws.between(0, 2));  // leaves some idle
        stage.ranks.push_back(rank++);
      }
      plan.stages.push_back(stage);
    }
    plan.workers = rank + static_cast<int>(draws.between(0, 2));
    if (draws.coin()) {
      for (int i = 0; i < plan.workers; ++i) {
        plan.memory.push_back({draws.bytes(), draws.bytes(), draws.bytes(), draws.bytes(),
                               draws.bytes(), draws.bytes()});
      }
    }
    for (int64_t i = draws.between(0, 2); i > 0; --i) {
      plan.notes.push_back(draws.name());
    }
    expect_round_trip(plan, plan_from);
  }
}

TEST(PlanTest, HandWrittenPlansNeedOnlyStages) {
  const Plan plan = plan_from(parse_toml(
      "[[stages]]\nlayers = [\"a\"]\nranks = [0]\n[[stages]]\nlayers = [\"b\"]\nranks = [1]\n",
      "p.toml"));
  EXPECT_EQ(plan.workers, 2) << "as many as the highest rank needs";
  EXPECT_EQ(plan.planner, "by-hand");
  EXPECT_EQ(plan.schedule, "1f1b");
  EXPECT_EQ(plan.rule, "bsp");
}

TEST(PlanTest, MemoryTotalAddsEveryPart) {
  const MemoryUse use{1, 20, 300, 4000, 50000, 600000};
  EXPECT_EQ(use.total(), 654321);
}

TEST(PlanTest, RefusesBadForms) {
  const Value good = to_value(good_plan());
  const auto refuse = [&](const std::string& path, const Value& item, const std::string& key,
                          const std::string& part) {
    const Error error = caught([&] { plan_from(as_document(with(good, path, item))); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << path;
    EXPECT_EQ(error.key(), key) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(part)) << error.what();
    return error;
  };
  const auto ranks = [](std::vector<int> numbers) {
    Value list = Value::list();
    for (const int number : numbers) {
      list.push(Value::of(number));
    }
    return list;
  };
  EXPECT_EQ(refuse("stages.1.ranks", ranks({3, 4, 3}), "stages[1].ranks",
                   "rank 3 stands twice in stage 1")
                .stage(),
            1);
  refuse("stages.0.ranks", ranks({-1}), "stages[0].ranks", "from 0 up, found -1");
  refuse("stages.0.ranks", ranks({}), "stages[0].ranks", "stage 0 has no ranks");
  refuse("stages.0.ranks", ranks({5}), "stages", "rank 5 of stage 0 is beyond the 5 workers");
  refuse("stages.1.layers", Value::list(), "stages[1].layers", "stage 1 has no layers");
  refuse("stages.1.layers", Value::list({Value::of("pool1")}), "stages[1].layers",
         "layer `pool1` stands twice: in stage 0 and in stage 1");
  refuse("stages.1.layers", Value::list({Value::of(3)}), "stages[1].layers[0]", "text");
  refuse("stages.1.ranks", Value::list({Value::of(0.5)}), "stages[1].ranks[0]", "whole number");
  refuse("stages", Value::list(), "stages", "at least one stage");
  refuse("workers", Value::of(0), "workers", "1 or more");
  refuse("microbatches", Value::of(0), "microbatches", "1 or more");
  refuse("minibatch_s", Value::of(-0.5), "minibatch_s", "0 or more");
  refuse("minibatch_s", Value::of(std::nan("")), "minibatch_s", "finite");
  refuse("memory", Value::list({to_value(good_plan())}), "memory[0].weight_bytes", "missing");
  refuse("stages.0.rank", ranks({1}), "stages[0].rank", "did you mean `ranks`");
  refuse("version", Value::of(2), "version", "expected version 1");
  EXPECT_EQ(caught([&] { plan_from(as_document(without(good, "stages.0.ranks"))); }).key(),
            "stages[0].ranks");
  EXPECT_THROW(plan_from(parse_json("{\"stages\": [{\"layers\": [\"a\"], \"ranks\": [0]}],"
                                    "\"memory\": [], \"workers\": 9999999999}",
                                    "f")),
               Error);
}

TEST(PlanTest, CheckAcceptsWhatFits) {
  EXPECT_NO_THROW(check_plan(good_plan(), kModel, {}));
  std::vector<PlanStage> stages;
  for (int i = 0; i < 6; ++i) {
    stages.push_back({{kModel[static_cast<std::size_t>(i)]}, {i}});
  }
  EXPECT_NO_THROW(check_plan(plan_of(stages, 6), kModel, {}));
}

std::string findings(const std::vector<std::vector<std::string>>& stages) {
  std::vector<PlanStage> list;
  for (const auto& layers : stages) {
    list.push_back({layers, {static_cast<int>(list.size())}});
  }
  const Error error = caught([&] { check_plan(plan_of(list, 20), kModel, {}, "plan.json"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.file(), "plan.json");
  return error.message();
}

TEST(PlanTest, CheckNamesEveryKindOfFault) {
  EXPECT_THAT(findings({{"conv1", "pool1"}, {"fc1", "fc2"}}),
              HasSubstr("layers `conv2` to `flatten` are in no stage (after stage 0)"));
  EXPECT_THAT(findings({{"pool1", "conv2", "flatten"}, {"fc1", "fc2"}}),
              HasSubstr("layer `conv1` is in no stage"));
  EXPECT_THAT(findings({{"conv1", "pool1", "conv2"}, {"conv2", "flatten", "fc1", "fc2"}}),
              HasSubstr("stage 1: layer `conv2` is in stage 0 already"));
  EXPECT_THAT(findings({{"flatten", "fc1", "fc2"}, {"conv1", "pool1", "conv2"}}),
              HasSubstr("stage 1: layer `conv1` comes after `fc2`, but before it in the model"));
  EXPECT_THAT(findings({{"conv1", "conv2", "pool1"}, {"flatten", "fc1", "fc2"}}),
              HasSubstr("stage 0: layer `pool1` comes after `conv2`"));
  EXPECT_THAT(findings({{"conv1", "pool1", "conv3"}, {"flatten", "fc1", "fc2"}}),
              HasSubstr("stage 0: the model has no layer `conv3`; did you mean `conv1`?"));
  EXPECT_THAT(findings({{"conv1", "pool1", "conv2", "flatten", "fc1", "fc2"}, {}}),
              HasSubstr("stage 1 has no layers"));
  EXPECT_THAT(findings({}), HasSubstr("no stages"));
  EXPECT_THAT(findings({{"conv1"}, {"pool1"}, {"conv2"}, {"flatten"}, {"fc1"}, {"fc2"}, {"x"}}),
              HasSubstr("7 stages for a model of 6 layers"));
  // Interleaved layers are no consecutive runs.
  EXPECT_THAT(findings({{"conv1", "conv2", "fc1"}, {"pool1", "flatten", "fc2"}}),
              HasSubstr("stage 1: layer `pool1` comes after `fc1`"));
}

// in -> a1 -> a2 -> out, in -> b1 -> out
const std::vector<std::string> kDiamond = {"in", "a1", "a2", "b1", "out"};
const std::vector<ProfileEdge> kDiamondEdges = {
    {"in", "a1"}, {"a1", "a2"}, {"a2", "out"}, {"in", "b1"}, {"b1", "out"}};

std::string diamond_findings(const std::vector<std::vector<std::string>>& stages) {
  std::vector<PlanStage> list;
  for (const auto& layers : stages) {
    list.push_back({layers, {static_cast<int>(list.size())}});
  }
  try {
    check_plan(plan_of(list, 20), kDiamond, kDiamondEdges);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(PlanTest, CheckOfADagAsksForEdgesThatLeadOnward) {
  EXPECT_EQ(diamond_findings({{"in", "b1"}, {"a1", "a2", "out"}}),
            "");  // a1 before b1 in the model
  EXPECT_EQ(diamond_findings({{"in"}, {"b1"}, {"a1"}, {"a2"}, {"out"}}), "");
  EXPECT_EQ(diamond_findings({{"in", "a1", "b1"}, {"a2", "out"}}), "");
  EXPECT_THAT(diamond_findings({{"in", "a2"}, {"a1", "b1", "out"}}),
              AllOf(HasSubstr("no edge to an earlier stage"),
                    HasSubstr("stage 0: layer `a2` needs the output of `a1`, which is in the later "
                              "stage 1")));
  EXPECT_THAT(diamond_findings({{"b1", "in"}, {"a1", "a2", "out"}}),
              HasSubstr("stage 0: layer `in` comes after `b1`"));
  EXPECT_THAT(diamond_findings({{"in", "b1"}, {"a1", "out"}}),
              HasSubstr("layer `a2` is in no stage"));
  EXPECT_THAT(diamond_findings({{"in", "a1", "a2", "b1"}, {"a1", "out"}}),
              HasSubstr("stage 1: layer `a1` is in stage 0 already"));
  EXPECT_THAT(diamond_findings({{"in", "a1", "a2", "b1"}, {"oot"}}),
              HasSubstr("did you mean `out`?"));
}

TEST(PlanTest, CheckTakesTheEdgesOfAChainAsTheChain) {
  std::vector<ProfileEdge> edges;
  for (std::size_t i = 1; i < kModel.size(); ++i) {
    edges.push_back({kModel[i - 1], kModel[i]});
  }
  const Plan plan =
      plan_of({{{"conv1", "conv2", "pool1"}, {0}}, {{"flatten", "fc1", "fc2"}, {1}}}, 2);
  EXPECT_THAT(
      caught([&] { check_plan(plan, kModel, edges); }).message(),
      AllOf(HasSubstr("in order"), HasSubstr("stage 0: layer `pool1` comes after `conv2`")));
}

TEST(PlanTest, CheckReportsAllFindingsAtOnce) {
  EXPECT_THAT(findings({{"conv1", "nope"}, {"flatten", "conv2", "flatten"}}),
              AllOf(HasSubstr("`nope`"), HasSubstr("`conv2` comes after `flatten`"),
                    HasSubstr("`flatten` is in stage 1 already"),
                    HasSubstr("`pool1` is in no stage"), HasSubstr("`fc1` to `fc2`")));
  std::vector<std::string> strange(100, "z");
  for (std::size_t i = 0; i < strange.size(); ++i) {
    strange[i] += std::to_string(i);
  }
  EXPECT_THAT(findings({strange}), HasSubstr("and 81 more"));  // 100 strange, 1 gap, 20 shown
}

}  // namespace
}  // namespace millrace
