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

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Calls visit(schedule, entry, config) for every entry, size and fitting policy.
template <class Visit>
void over_the_grid(const Visit& visit) {
  for (const ScheduleEntry& entry : schedules()) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int microbatches = 1; microbatches <= 32; ++microbatches) {
        const ScheduleConfig config{.num_ranks = ranks, .num_microbatches = microbatches};
        if (entry.builtin->offers(config)) {
          continue;
        }
        for (const std::string& policy : entry.builtin->policies()) {
          SCOPED_TRACE(::testing::Message() << entry.name << " P=" << ranks << " M=" << microbatches
                                            << " policy=" << policy);
          visit(make_schedule(entry.name, config, policy), entry, config);
          if (::testing::Test::HasFailure()) {
            return;  // one counterexample is enough
          }
        }
      }
    }
  }
}

// Start and end of every action when F lasts f, B lasts b and messages nothing.
struct Timed {
  double start = -1;
  double end = -1;
};
std::vector<std::vector<Timed>> run_in_slots(const ActionLists& lists, double f, double b) {
  std::vector<std::vector<Timed>> times;
  std::map<std::tuple<ActionKind, int, int64_t>, double> done;
  std::vector<std::size_t> next(lists.size(), 0);
  for (const ActionList& list : lists) {
    times.emplace_back(list.size());
  }
  const int last_stage = static_cast<int>(lists.size()) - 1;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      for (; next[rank] < lists[rank].size(); ++next[rank]) {
        const Action& a = lists[rank][next[rank]];
        const bool forward = a.kind == ActionKind::kForward;
        const int other = a.stage + (forward ? -1 : 1);
        double start = next[rank] == 0 ? 0 : times[rank][next[rank] - 1].end;
        if (other >= 0 && other <= last_stage) {
          const auto found = done.find({a.kind, other, a.first});
          if (found == done.end()) {
            break;
          }
          start = std::max(start, found->second);
        }
        times[rank][next[rank]] = {start, start + (forward ? f : b)};
        done[{a.kind, a.stage, a.first}] = start + (forward ? f : b);
        moved = true;
      }
    }
  }
  return times;
}

constexpr std::pair<double, double> kSlots[] = {{1, 1}, {1, 2}, {3, 2}, {2, 7}};

TEST(BuiltinSchedules, AreValidWithEveryPolicyAndSize) {
  over_the_grid([](const Schedule& schedule, const ScheduleEntry&, const ScheduleConfig&) {
    EXPECT_NO_THROW(validate(schedule));
  });
}

TEST(BuiltinSchedules, RunAsLoweredForAnyNumberOfSteps) {
  int num_run = 0;
  over_the_grid([&](const Schedule& schedule, const ScheduleEntry&, const ScheduleConfig&) {
    for (int64_t steps = 1; steps <= (schedule.flush ? 1 : 32); ++steps) {
      const LoweredSchedule lowered = lower(schedule, steps);
      EXPECT_EQ(testing::rehearse(lowered), "") << steps << " steps";
      EXPECT_TRUE(find_faults(lowered).empty()) << steps << " steps";
      ++num_run;
    }
  });
  EXPECT_EQ(num_run, 3 * 8 * 32 + 3 * 8 * 32);
}

TEST(BuiltinSchedules, EachForwardHasItsBackwardOnItsRank) {
  over_the_grid([](const Schedule& schedule, const ScheduleEntry&, const ScheduleConfig& config) {
    const int64_t steps = schedule.flush ? 1 : 2 * config.num_ranks;
    const ActionLists lists = unroll(schedule, steps);
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      std::set<int64_t> forwards;
      std::set<int64_t> backwards;
      for (const Action& action : lists[rank]) {
        EXPECT_EQ(action.stage, static_cast<int>(rank));
        if (action.kind == ActionKind::kForward) {
          EXPECT_TRUE(forwards.insert(action.first).second);
        } else {
          EXPECT_EQ(action.kind, ActionKind::kBackward);
          EXPECT_TRUE(forwards.count(action.first) == 1 && backwards.insert(action.first).second);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(backwards.size()), steps * config.num_microbatches);
      EXPECT_EQ(forwards, backwards);
    }
  });
}

TEST(BuiltinSchedules, StashIsExactlyTheDeclaredPeak) {
  over_the_grid(
      [](const Schedule& schedule, const ScheduleEntry& entry, const ScheduleConfig& config) {
        const std::vector<int> declared = entry.builtin->peak_stash(config).ranks;
        ASSERT_EQ(declared.size(), static_cast<std::size_t>(config.num_ranks));
        for (const int steps : {1, config.num_ranks, 3 * config.num_ranks}) {
          const ActionLists lists = unroll(schedule, schedule.flush ? 1 : steps);
          for (std::size_t rank = 0; rank < lists.size(); ++rank) {
            // An epoch shorter than the pipeline never fills it.
            const int expected = schedule.flush ? declared[rank] : std::min(declared[rank], steps);
            EXPECT_EQ(testing::peak_in_flight(lists[rank]), expected) << "rank " << rank;
          }
        }
      });
}

TEST(BuiltinSchedules, FlushSchedulesReachTheirFormulaInSlots) {
  over_the_grid(
      [](const Schedule& schedule, const ScheduleEntry& entry, const ScheduleConfig& config) {
        if (!schedule.flush) {
          return;
        }
        for (const auto& [f, b] : kSlots) {
          double window = 0;
          double busy = 0;
          for (const std::vector<Timed>& rank : run_in_slots(unroll(schedule, 1), f, b)) {
            window = std::max(window, rank.back().end);
            for (const Timed& action : rank) {
              busy += action.end - action.start;
            }
          }
          const SlotFormula formula = entry.builtin->formula(config, f, b).value();
          EXPECT_EQ(formula.window_slots, window) << f << ":" << b;
          EXPECT_EQ(formula.idle_slots, config.num_ranks * window - busy) << f << ":" << b;
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
      const std::vector<std::vector<Timed>> times = run_in_slots(lists, f, b);
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
      const LoweredSchedule lowered = lower(schedule, 2);
      EXPECT_EQ(testing::rehearse(lowered), "") << entry.name << " M=" << microbatches;
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
    EXPECT_THAT(entry.builtin->formula_text, HasSubstr("section"));
    EXPECT_EQ(make_schedule(entry.name, {2, 1}).name, entry.name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"naive", "gpipe", "1f1b", "pipedream"}));
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
  EXPECT_THAT(error.message(), HasSubstr("pipedream-2bw, which is not in this build"));
  // True only as long as no such schedule is registered.
  EXPECT_ANY_THROW(find_schedule("pipedream-2bw"));
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
