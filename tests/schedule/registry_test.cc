// The builtin schedules: each registry entry over a grid of sizes, against the closed forms of its
// paper.
#include "millrace/schedule/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "millrace/base/error.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/validate.h"
#include "tests/schedule/schedule_testing.h"
#include "tests/schedule/slots.h"

namespace millrace {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::run_in_slots;
using testing::Times;

// Calls visit(schedule, entry, config) for every entry and offered size, with the default policy.
// Config has the chunks filled in.
template <class Visit>
void over_all(const Visit& visit) {
  for (const ScheduleEntry& entry : schedules()) {
    const std::vector<ScheduleConfig> configs =
        testing::offered(entry, testing::from_to(1, 8), testing::from_to(1, 16));
    EXPECT_GE(configs.size(), 8U) << entry.name;
    for (const ScheduleConfig& config : configs) {
      SCOPED_TRACE(testing::describe(entry, config));
      visit(make_schedule(entry.name, config), entry, config);
      if (::testing::Test::HasFailure()) {
        return;  // one counterexample is enough
      }
    }
  }
}

// The same with every fitting policy.
template <class Visit>
void over_all_policies(const Visit& visit) {
  over_all([&](const Schedule&, const ScheduleEntry& entry, const ScheduleConfig& config) {
    for (const std::string& policy : entry.builtin->policies()) {
      SCOPED_TRACE(policy);
      visit(make_schedule(entry.name, config, policy), entry, config);
    }
  });
}

constexpr std::pair<double, double> kSlots[] = {{1, 1}, {1, 2}, {3, 2}, {2, 7}};

TEST(BuiltinSchedules, AreValidWithEveryPolicyAndSize) {
  over_all_policies([](const Schedule& schedule, const ScheduleEntry&, const ScheduleConfig&) {
    EXPECT_NO_THROW(validate(schedule));
  });
}

// With a flush one step; without, segments that never fill the pipeline, just do, and go on.
TEST(BuiltinSchedules, RunAsLoweredForAnyNumberOfSteps) {
  over_all_policies(
      [&](const Schedule& schedule, const ScheduleEntry&, const ScheduleConfig& config) {
        const std::vector<int> all = config.num_microbatches == 1
                                         ? testing::from_to(1, 2 * config.num_ranks + 5)
                                         : std::vector<int>{1, 2, 3, 7};
        for (const int steps : schedule.flush ? std::vector<int>{1} : all) {
          const LoweredSchedule lowered = lower(schedule, steps);
          EXPECT_EQ(testing::rehearse(lowered), "") << steps << " steps";
          EXPECT_TRUE(find_faults(lowered).empty()) << steps << " steps";
        }
      });
}

// Each rank computes what it holds: all microbatches of a stage in one direction's share of them.
TEST(BuiltinSchedules, EachForwardHasItsBackwardOnItsRank) {
  over_all([](const Schedule& schedule, const ScheduleEntry& entry, const ScheduleConfig& config) {
    const int64_t steps = schedule.flush ? 1 : 2 * config.num_ranks;
    const ActionLists lists = unroll(schedule, steps);
    std::map<int, int64_t> num_of_stage;
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      std::map<ActionKind, std::set<std::pair<int, int64_t>>> done;
      for (const Action& action : lists[rank]) {
        const std::vector<int>& held =
            schedule.stage_ranks.at(static_cast<std::size_t>(action.stage));
        EXPECT_EQ(std::count(held.begin(), held.end(), static_cast<int>(rank)), 1);
        for (int64_t m = action.first; m <= action.last; ++m) {
          const std::pair<int, int64_t> cell{action.stage, m};
          EXPECT_TRUE(done[action.kind].insert(cell).second) << to_string(action);
          const bool weight = action.kind == ActionKind::kWeightGradient;
          EXPECT_TRUE(action.kind == ActionKind::kForward ||
                      done[weight ? ActionKind::kInputGradient : ActionKind::kForward].count(cell))
              << to_string(action);
          num_of_stage[action.stage] += action.kind == ActionKind::kForward ? 1 : 0;
        }
      }
      const bool split = done.count(ActionKind::kWeightGradient) == 1;
      EXPECT_NE(split, done.count(ActionKind::kBackward) == 1);
      EXPECT_EQ(done[split ? ActionKind::kWeightGradient : ActionKind::kBackward],
                done[ActionKind::kForward]);
      EXPECT_EQ(done[ActionKind::kInputGradient], done[ActionKind::kWeightGradient]);
      EXPECT_EQ(static_cast<int64_t>(done[ActionKind::kForward].size()),
                steps * config.num_microbatches * config.chunks)
          << entry.name;
    }
    for (const auto& [stage, num] : num_of_stage) {
      EXPECT_EQ(num, steps * config.num_microbatches);
    }
    EXPECT_EQ(std::ssize(num_of_stage), schedule.num_stages);
  });
}

// Copies of the whole pipeline side by side, as many ranks as they take.
TEST(BuiltinSchedules, CopiesAreValidAndRun) {
  for (const ScheduleEntry& entry : schedules()) {
    for (ScheduleConfig config : testing::offered(entry, {1, 2, 3, 4}, {1, 2, 3, 4, 8})) {
      for (const int copies : {2, 3}) {
        config.copies = copies;
        SCOPED_TRACE(testing::describe(entry, config));
        const Schedule schedule = make_schedule(entry.name, config);
        EXPECT_EQ(schedule.num_ranks, copies * config.num_ranks);
        EXPECT_EQ(schedule.num_microbatches, config.num_parts());
        EXPECT_NO_THROW(validate(schedule));
        const Plan plan = plan_of_positions(schedule);
        const std::vector<StageLink> links = chain_links(schedule.num_stages);
        for (const bool clips : {false, true}) {
          if (clips && !schedule.flush) {
            continue;
          }
          for (const int steps : {1, 4}) {
            const LoweredSchedule lowered = lower(schedule, plan, steps, links, clips);
            ASSERT_EQ(testing::rehearse(lowered), "") << steps << " steps";
            ASSERT_TRUE(find_faults(lowered).empty()) << steps << " steps";
            if (schedule.flush) {
              break;
            }
          }
        }
      }
    }
  }
}

// The plan of a schedule's positions has the shape that the schedule was made for.
TEST(BuiltinSchedules, ShapesComeBackFromTheirPlan) {
  for (const ScheduleEntry& entry : schedules()) {
    for (ScheduleConfig config :
         testing::offered(entry, testing::from_to(1, 8), {1, 2, 3, 4, 6, 8, 16})) {
      for (int copies = 1; copies <= 3; ++copies) {
        config.copies = copies;
        SCOPED_TRACE(testing::describe(entry, config));
        const Schedule schedule = make_schedule(entry.name, config);
        Plan plan = plan_of_positions(schedule);
        plan.microbatches = config.num_microbatches;
        const ScheduleConfig shape = schedule_config(plan);
        if (entry.builtin->deals) {
          // It deals to the replicas that copies make; with no more than one stage each replica
          // is a copy.
          EXPECT_EQ(shape.num_ranks, copies * config.num_ranks);
          EXPECT_EQ(shape.replicas,
                    std::vector<int>(static_cast<std::size_t>(config.num_ranks), copies));
          EXPECT_EQ(shape.copies, 1);
        } else {
          EXPECT_EQ(shape.num_ranks, config.num_ranks);
          EXPECT_EQ(shape.copies, copies);
          EXPECT_EQ(shape.chunks, config.chunks);
          EXPECT_TRUE(shape.replicas.empty());
          EXPECT_EQ(make_schedule(entry.name, shape), schedule);
        }
        EXPECT_EQ(shape.num_microbatches, config.num_microbatches);
        EXPECT_EQ(make_schedule(entry.name, shape).stage_ranks.size(), schedule.stage_ranks.size());
      }
    }
  }
}

TEST(BuiltinSchedules, BareListsHaveNoFaultForAnyNumberOfSteps) {
  over_all([](const Schedule& schedule, const ScheduleEntry&, const ScheduleConfig& config) {
    EXPECT_EQ(schedule.num_microbatches, config.num_microbatches);
    for (const int steps : {1, 2, 3, 7, 2 * config.num_ranks + 1}) {
      const ActionLists lists = unroll(schedule, steps);
      const std::vector<Finding> findings =
          find_faults(lists, schedule.stage_ranks, int64_t{steps} * schedule.num_microbatches);
      EXPECT_TRUE(findings.empty()) << steps << " steps: " << findings.front().text;
    }
  });
}

// Each stage on as many positions as the schedule has directions, each rank with V stages of each.
TEST(BuiltinSchedules, PlacementIsTheDeclaredOne) {
  over_all([](const Schedule& schedule, const ScheduleEntry& entry, const ScheduleConfig& config) {
    EXPECT_EQ(schedule.num_ranks, config.num_ranks);
    EXPECT_EQ(schedule.num_stages, config.num_ranks * config.chunks);
    std::vector<int> held(static_cast<std::size_t>(config.num_ranks), 0);
    for (const std::vector<int>& positions : schedule.stage_ranks) {
      EXPECT_EQ(positions.size(), static_cast<std::size_t>(entry.builtin->directions));
      for (const int position : positions) {
        ++held.at(static_cast<std::size_t>(position));
      }
    }
    EXPECT_EQ(held, std::vector<int>(static_cast<std::size_t>(config.num_ranks),
                                     config.chunks * entry.builtin->directions));
  });
}

TEST(BuiltinSchedules, StashIsTheDeclaredPeakOrWithinTheBound) {
  over_all([](const Schedule& schedule, const ScheduleEntry& entry, const ScheduleConfig& config) {
    const StashFormula declared = entry.builtin->peak_stash(config);
    ASSERT_EQ(declared.ranks.size(), static_cast<std::size_t>(config.num_ranks));
    for (const int steps : {1, config.num_ranks, 3 * config.num_ranks}) {
      const ActionLists lists = unroll(schedule, schedule.flush ? 1 : steps);
      for (std::size_t rank = 0; rank < lists.size(); ++rank) {
        // An epoch shorter than the pipeline never fills it.
        const int most = schedule.flush
                             ? declared.ranks[rank]
                             : std::min(declared.ranks[rank], steps * config.num_microbatches);
        const int peak = testing::peak_stash(lists[rank]);
        EXPECT_LE(peak, most) << "rank " << rank;
        EXPECT_TRUE(peak == most || !declared.exact)
            << "rank " << rank << ": " << peak << " of " << most;
      }
    }
  });
}

TEST(BuiltinSchedules, FlushSchedulesReachTheirFormulaInSlots) {
  over_all([](const Schedule& schedule, const ScheduleEntry& entry, const ScheduleConfig& config) {
    if (!schedule.flush) {
      return;
    }
    const ActionLists lists = unroll(schedule, 1);
    ASSERT_TRUE(entry.builtin->formula(config, 1, 2)) << "the papers' own slots";
    for (const auto& [f, b] : kSlots) {
      const std::optional<SlotFormula> formula = entry.builtin->formula(config, f, b);
      if (!formula) {
        continue;
      }
      const testing::Window window = testing::window_of(run_in_slots(lists, f, b));
      EXPECT_LE(window.slots, formula->window_slots) << f << ":" << b;
      EXPECT_LE(window.idle, formula->idle_slots) << f << ":" << b;
      if (formula->exact) {
        EXPECT_EQ(window.slots, formula->window_slots) << f << ":" << b;
        EXPECT_EQ(window.idle, formula->idle_slots) << f << ":" << b;
      }
    }
  });
}

// A step's first backwards on a rank, once the pipeline is filled: the declared period, over and
// over.
TEST(BuiltinSchedules, SchedulesWithoutFlushKeepTheirPeriodInSlots) {
  over_all([](const Schedule& schedule, const ScheduleEntry& entry, const ScheduleConfig& config) {
    if (schedule.flush) {
      return;
    }
    constexpr int kSteps = 48;
    const ActionLists lists = unroll(schedule, kSteps);
    for (const auto& [f, b] : kSlots) {
      const std::optional<SlotFormula> formula = entry.builtin->formula(config, f, b);
      if (!formula) {
        continue;
      }
      const Times times = run_in_slots(lists, f, b);
      EXPECT_EQ(formula->idle_slots, 0);
      for (std::size_t rank = 0; rank < lists.size(); ++rank) {
        std::vector<double> starts;
        for (std::size_t i = 0; i < lists[rank].size(); ++i) {
          const Action& action = lists[rank][i];
          if (action.kind == ActionKind::kBackward && action.first % config.num_microbatches == 0) {
            starts.push_back(times[rank][i].start);
          }
        }
        ASSERT_EQ(starts.size(), static_cast<std::size_t>(kSteps));
        for (std::size_t step = kSteps / 2; step < kSteps / 2 + 4; ++step) {
          EXPECT_EQ(starts[step] - starts[step - 1], formula->window_slots)
              << f << ":" << b << " rank " << rank << " step " << step;
        }
      }
    }
  });
}

// The published shares, written here once more in the papers' own form.
TEST(BuiltinSchedules, IdleSharesAreThoseOfThePapers) {
  for (int s = 1; s <= 8; ++s) {
    for (int m = 1; m <= 32; ++m) {
      const ScheduleConfig config{.num_ranks = s, .num_microbatches = m};
      const auto share = [&](const char* name) {
        const SlotFormula formula = find_schedule(name).builtin->formula(config, 1, 2).value();
        return formula.idle_slots / (s * formula.window_slots);
      };
      EXPECT_DOUBLE_EQ(share("naive"), (s - 1.0) / s);
      EXPECT_DOUBLE_EQ(share("gpipe"), (s - 1.0) / (m + s - 1.0));
      EXPECT_DOUBLE_EQ(share("1f1b"), (s - 1.0) / (m + s - 1.0));
    }
  }
}

TEST(BuiltinSchedules, WithoutFlushNobodyWaitsBetweenFirstBackwardAndLastForward) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const Schedule schedule = make_schedule("pipedream", {.num_ranks = ranks});
    const ActionLists lists = unroll(schedule, 5 * ranks);
    for (const auto& [f, b] : kSlots) {
      const Times times = run_in_slots(lists, f, b);
      const SlotFormula formula =
          find_schedule("pipedream").builtin->formula({ranks, 1}, f, b).value();
      EXPECT_EQ(formula.idle_slots, 0);
      for (std::size_t rank = 0; rank < lists.size(); ++rank) {
        const auto is = [](ActionKind kind) {
          return [kind](const Action& a) { return a.kind == kind; };
        };
        const auto first_backward =
            std::find_if(lists[rank].begin(), lists[rank].end(), is(ActionKind::kBackward));
        const auto last_forward =
            std::find_if(lists[rank].rbegin(), lists[rank].rend(), is(ActionKind::kForward));
        const auto begin = static_cast<std::size_t>(first_backward - lists[rank].begin());
        const auto end = static_cast<std::size_t>(lists[rank].rend() - last_forward);
        // With unequal slots the pipeline needs a few periods to settle: the claim is for equal
        // ones.
        for (std::size_t i = begin + 1; i < end && f == b; ++i) {
          EXPECT_EQ(times[rank][i].start, times[rank][i - 1].end)
              << "rank " << rank << " action " << i;
        }
        // The steady period: two successive forwards in the middle of the epoch.
        const std::size_t middle = (begin + end) / 2;
        EXPECT_EQ(times[rank][middle + 2].start - times[rank][middle].start, formula.window_slots)
            << "P=" << ranks << " rank " << rank << " slots " << f << ":" << b;
      }
    }
  }
}

TEST(BuiltinSchedules, GoldenOrders) {
  const auto order = [](const char* name, int ranks, int microbatches, std::size_t rank) {
    return to_string(unroll(make_schedule(name, {ranks, microbatches}), 1)[rank]);
  };
  EXPECT_EQ(order("naive", 2, 2, 0), "0F0 0B0 0F1 0B1");
  EXPECT_EQ(order("gpipe", 2, 3, 1), "1F0 1F1 1F2 1B0 1B1 1B2");
  EXPECT_EQ(order("1f1b", 4, 6, 0), "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0B3 0B4 0B5");
  EXPECT_EQ(order("1f1b", 4, 6, 2), "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2B5");
  EXPECT_EQ(order("1f1b", 4, 6, 3), "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5");
  // Fewer microbatches than stages: warm-up min(M, S-1-s).
  EXPECT_EQ(order("1f1b", 4, 2, 0), "0F0 0F1 0B0 0B1");
  EXPECT_EQ(order("1f1b", 4, 2, 2), "2F0 2F1 2B0 2B1");
  EXPECT_EQ(order("1f1b", 4, 2, 3), "3F0 3B0 3F1 3B1");
}

TEST(BuiltinSchedules, PipedreamIsTheAlternationOfWholeEpochs) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const Schedule endless = make_schedule("pipedream", {ranks, 1});
    for (int minibatches = 1; minibatches <= 24; ++minibatches) {
      EXPECT_EQ(unroll(endless, minibatches),
                unroll(make_schedule("1f1b", {ranks, minibatches}), 1))
          << "P=" << ranks << " minibatches=" << minibatches;
    }
  }
}

// Case: fewer microbatches than stages, everything on offer, two steps.
TEST(BuiltinSchedules, FewerMicrobatchesThanStages) {
  for (const ScheduleEntry& entry : schedules()) {
    for (int microbatches = 1; microbatches <= 3; ++microbatches) {
      const ScheduleConfig config{.num_ranks = 4, .num_microbatches = microbatches};
      if (entry.builtin->offers(config)) {
        continue;
      }
      const Schedule schedule = make_schedule(entry.name, config);
      EXPECT_EQ(testing::rehearse(lower(schedule, 2)), "") << entry.name << " M=" << microbatches;
      const ActionLists two_steps = unroll(schedule, 2);
      EXPECT_TRUE(find_faults(two_steps, schedule.stage_ranks, 2 * microbatches).empty());
    }
  }
  const SlotFormula formula = find_schedule("1f1b").builtin->formula({4, 1}, 1, 2).value();
  EXPECT_EQ(formula.idle_slots / (4 * formula.window_slots), 0.75);
}

template <class Call>
Error error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "expected an Error";
  return Error(ErrorCode::kInternal, "");
}

TEST(Registry, NamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const ScheduleEntry& entry : schedules()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_EQ(find_schedule(entry.name).builtin, entry.builtin);
    EXPECT_FALSE(entry.text.empty());
    EXPECT_THAT(entry.builtin->formula_text, AnyOf(HasSubstr("section"), HasSubstr("figure")));
    ScheduleConfig config{.num_ranks = 2};
    while (entry.builtin->offers(config)) {
      ASSERT_LT(config.num_microbatches++, 4) << entry.name;
    }
    const Schedule schedule = make_schedule(entry.name, config);
    EXPECT_EQ(schedule.name, entry.name);
    const std::vector<std::string> fitting = entry.builtin->policies();
    ASSERT_FALSE(fitting.empty());
    EXPECT_EQ(schedule.policy, fitting.front());
    EXPECT_EQ(entry.builtin->make(testing::with_chunks(entry, config)).policy, fitting.front());
  }
  EXPECT_EQ(names, (std::set<std::string>{"naive", "gpipe", "1f1b", "pipedream", "1f1b-interleaved",
                                          "breadth-first", "bitpipe", "bitpipe-published",
                                          "chimera", "2bp-naive", "2bp-gpipe", "2bp-1f1b-1",
                                          "2bp-1f1b-2", "zb-h1", "zb-v", "pipedream-2bw",
                                          "timeprest", "v-timeprest", "i-timeprest"}));
}

TEST(Registry, UnknownNameGetsTheNearest) {
  const Error error = error_of([] { find_schedule("gpip"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("gpipe"));
  EXPECT_THAT(error.message(), HasSubstr("pipedream"));
}

TEST(Registry, SeveralMicrobatchesWithoutFlushAreRefusedWithTheWayOut) {
  const Error error = error_of([] { make_schedule("pipedream", {4, 8}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("microbatches = 8"));
  EXPECT_THAT(error.message(), HasSubstr("set microbatches = 1"));
  EXPECT_THAT(error.message(), HasSubstr("pipedream-2bw"));
  EXPECT_NO_THROW(make_schedule("pipedream-2bw", {4, 8}));
}

TEST(Registry, UnfittingPolicyIsRefusedNamingThoseThatFit) {
  const Error without = error_of([] { make_schedule("pipedream", {2, 1}, "flush"); });
  EXPECT_EQ(without.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(without.message(), HasSubstr("stash, vertical_sync, latest"));
  const Error with = error_of([] { make_schedule("1f1b", {2, 4}, "stash"); });
  EXPECT_EQ(with.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(with.message(), HasSubstr("choose one that fits: flush"));
  const Error unknown = error_of([] { make_schedule("1f1b", {2, 4}, "stsh"); });
  EXPECT_EQ(unknown.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(unknown.message(), HasSubstr("stash"));
  EXPECT_EQ(make_schedule("pipedream", {2, 1}).policy, "stash");
  EXPECT_EQ(make_schedule("pipedream", {2, 1}, "latest").policy, "latest");
}

// Of a schedule that deals microbatches to replicas itself, `1f1b`.
TEST(Registry, TheShapeOfAPlanThatIsDealtTo) {
  Plan plan = testing::plan_of_replicas({2, 1, 3});
  plan.schedule = "1f1b";
  plan.microbatches = 4;
  plan.workers = 9;
  const ScheduleConfig config = schedule_config(plan);
  EXPECT_EQ(config.num_ranks, 6);
  EXPECT_EQ(config.replicas, (std::vector<int>{2, 1, 3}));
  EXPECT_EQ(config.copies, 1);
  EXPECT_EQ(config.num_stages(), 3);
  EXPECT_EQ(config.num_parts(), 12);
  plan.stages[1].ranks = {0};
  const Error error = error_of([&] { schedule_config(plan); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(
      error.message(),
      HasSubstr("1f1b runs one stage a rank; the plan has 3 stages in 6 places on 5 ranks"));
}

TEST(Registry, ChunksAndCopiesOutOfRangeAreRefused) {
  ScheduleConfig config{.num_ranks = 2, .num_microbatches = 2, .chunks = 2};
  const Error chunks = error_of([&] { make_schedule("1f1b", config); });
  EXPECT_EQ(chunks.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(chunks.message(), HasSubstr("one stage a rank, found chunks = 2"));
  config.chunks = -1;
  EXPECT_EQ(error_of([&] { make_schedule("1f1b", config); }).code(), ErrorCode::kInvalidArgument);
  config.chunks = 1;
  EXPECT_EQ(make_schedule("1f1b", config), make_schedule("1f1b", {2, 2}));
  config.copies = 0;
  EXPECT_THAT(error_of([&] { make_schedule("1f1b", config); }).message(), HasSubstr("0 copies"));
}

TEST(Registry, SizesBelowOneAreRefused) {
  for (const ScheduleEntry& entry : schedules()) {
    for (const ScheduleConfig& config :
         {ScheduleConfig{0, 1}, ScheduleConfig{-3, 1}, ScheduleConfig{2, 0}}) {
      EXPECT_EQ(error_of([&] { make_schedule(entry.name, config); }).code(),
                ErrorCode::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace millrace
