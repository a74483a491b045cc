// The simulator against the papers' closed forms, in slots: once through the registry's own
// formula, once through the formula written down here.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "millrace/schedule/policy.h"
#include "tests/schedule/schedule_testing.h"
#include "tests/sim/sim_testing.h"

namespace millrace {
namespace {

using testing::straight;

struct Slots {
  double f;
  double b;
};
const std::vector<Slots> kRatios = {{1, 1}, {1, 2}, {2, 3}, {3, 1}};

Simulation simulate_slots(const LoweredSchedule& lowered, Slots slots, int64_t num_steps = 1) {
  const Cluster cluster = free_cluster(static_cast<int>(lowered.ranks.size()));
  return simulate(
      {lowered, slot_costs(lowered.num_stages, slots.f, slots.b), cluster, "bsp", num_steps});
}

// Makespan of one drained step of M microbatches on P ranks, and the peak of microbatches in flight
// on rank r.
struct Expected {
  double window;
  double idle_share;
  int peak;
};
Expected expected(const std::string& name, int p, int m, int r, Slots slots) {
  const double pair = slots.f + slots.b;
  if (name == "naive") {
    return {p * m * pair, (p - 1.0) / p, 1};
  }
  const int peak = name == "gpipe" ? m : std::min(m, p - r);
  return {(m + p - 1) * pair, (p - 1.0) / (m + p - 1), peak};
}

TEST(ClosedForm, FlushSchedulesIdleAsTheirPapersSay) {
  int cases = 0;
  for (const std::string name : {"naive", "gpipe", "1f1b"}) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 32; ++m) {
        const LoweredSchedule lowered = straight(name, p, m);
        for (const Slots slots : kRatios) {
          const Simulation simulation = simulate_slots(lowered, slots);
          const SlotFormula formula =
              find_schedule(name).builtin->formula({p, m}, slots.f, slots.b).value();
          const Expected by_hand = expected(name, p, m, 0, slots);
          // Whole slots, so that everything is exact, quotients included.
          ASSERT_EQ(simulation.window_s, formula.window_slots) << name << " " << p << " " << m;
          ASSERT_EQ(simulation.window_s, by_hand.window) << name << " " << p << " " << m;
          ASSERT_EQ(simulation.step_s, by_hand.window);
          ASSERT_EQ(simulation.idle_slots, formula.idle_slots) << name << " " << p << " " << m;
          ASSERT_EQ(simulation.total_slots, p * by_hand.window);
          ASSERT_EQ(simulation.bubble_fraction, by_hand.idle_share) << name << " " << p << " " << m;
          const std::vector<int> peaks = find_schedule(name).builtin->peak_stash({p, m}).ranks;
          for (int r = 0; r < p; ++r) {
            const RankSimulation& rank = simulation.ranks[r];
            ASSERT_EQ(rank.busy_s, m * (slots.f + slots.b));
            ASSERT_EQ(rank.bubble_fraction, by_hand.idle_share);
            ASSERT_EQ(rank.peak_in_flight, peaks[r]);
            ASSERT_EQ(rank.peak_in_flight, expected(name, p, m, r, slots).peak);
            ASSERT_EQ(rank.peak_weight_versions, 1);
          }
          ++cases;
        }
      }
    }
  }
  EXPECT_EQ(cases, 3 * 8 * 32 * 4);
  std::cout << cases << " cases, bits equal\n";
}

TEST(ClosedForm, RepeatedStepsDoNotChangeTheMeasuredOne) {
  for (const std::string name : {"naive", "gpipe", "1f1b"}) {
    const LoweredSchedule lowered = straight(name, 4, 6);
    const Simulation once = simulate_slots(lowered, {1, 2});
    const Simulation thrice = simulate_slots(lowered, {1, 2}, 3);
    EXPECT_EQ(thrice.step_s, once.step_s);
    EXPECT_EQ(thrice.window_s, once.window_s);
    EXPECT_EQ(thrice.bubble_fraction, once.bubble_fraction);
    EXPECT_EQ(thrice.ranks[2].peak_in_flight, once.ranks[2].peak_in_flight);
    EXPECT_EQ(thrice.trace.num_steps, 3);
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(thrice.trace.ranks[r].events.size(), 3 * once.trace.ranks[r].events.size());
    }
    // Microbatches and versions count on through the steps.
    EXPECT_EQ(to_string(thrice.trace.ranks[0].events.back().action), "0STEP12-17@3");
    // Rank 0 starts last and ends last, so that steps follow each other without a gap.
    EXPECT_EQ(thrice.trace.window_s, 3 * once.step_s);
  }
}

// First B and last F of a rank.
std::pair<std::size_t, std::size_t> steady_part(const RankTrace& rank) {
  std::size_t first = rank.events.size();
  std::size_t last = 0;
  for (std::size_t i = 0; i < rank.events.size(); ++i) {
    if (rank.events[i].action.kind == ActionKind::kBackward) {
      first = std::min(first, i);
    } else if (rank.events[i].action.kind == ActionKind::kForward) {
      last = i;
    }
  }
  return {first, last};
}

TEST(ClosedForm, PipedreamNeverIdlesInItsSteadyState) {
  for (int s = 1; s <= 8; ++s) {
    for (const int64_t m : {s + 0, s + 1, 2 * s, 3 * s + 1, 4 * s + 40}) {
      const LoweredSchedule lowered = straight("pipedream", s, 1, m);
      for (const Slots slots : kRatios) {
        const Simulation simulation = simulate_slots(lowered, slots, m);
        for (int r = 0; r < s; ++r) {
          const RankTrace& rank = simulation.trace.ranks[r];
          const auto [first, last] = steady_part(rank);
          for (std::size_t i = first; i < last; ++i) {
            ASSERT_EQ(rank.events[i].end_s, rank.events[i + 1].start_s);
            ASSERT_EQ(rank.events[i + 1].wait_s, 0) << "S=" << s << " M=" << m << " rank " << r;
          }
          ASSERT_EQ(simulation.ranks[r].peak_in_flight, s - r);
          ASSERT_EQ(simulation.ranks[r].peak_in_flight,
                    find_schedule("pipedream").builtin->peak_stash({s, 1}).ranks[r]);
          ASSERT_EQ(simulation.ranks[r].peak_weight_versions,
                    peak_weight_versions(lowered.ranks[r]));
          if (m >= 2 * s) {
            ASSERT_EQ(simulation.ranks[r].peak_weight_versions, s - r);
          }
        }
        // The whole epoch with its drain.
        ASSERT_EQ(simulation.bubble_fraction, (s - 1.0) / static_cast<double>(m + s - 1));
        if (m == 4 * s + 40) {
          ASSERT_EQ(simulation.step_s, slots.f + slots.b);
          ASSERT_EQ(
              simulation.step_s,
              find_schedule("pipedream").builtin->formula({s, 1}, slots.f, slots.b)->window_slots);
        }
      }
    }
  }
}

TEST(ClosedForm, PipedreamOfFewerMinibatchesThanStagesDrains) {
  for (int s = 2; s <= 8; ++s) {
    for (int64_t m = 1; m < s; ++m) {
      const Simulation simulation = simulate_slots(straight("pipedream", s, 1, m), {1, 2}, m);
      EXPECT_EQ(simulation.bubble_fraction, (s - 1.0) / static_cast<double>(m + s - 1));
      EXPECT_EQ(simulation.ranks[0].peak_in_flight, std::min<int64_t>(m, s));
    }
  }
}

TEST(ClosedForm, PipedreamOfFewerStepsThanLoweredStopsAfterThem) {
  const LoweredSchedule lowered = straight("pipedream", 3, 1, 20);
  const Simulation cut = simulate_slots(lowered, {1, 2}, 7);
  const Simulation whole = simulate_slots(straight("pipedream", 3, 1, 7), {1, 2}, 7);
  EXPECT_EQ(cut.window_s, whole.window_s);
  EXPECT_EQ(cut.bubble_fraction, whole.bubble_fraction);
  EXPECT_EQ(cut.trace, whole.trace);
}

// Four balanced stages: 4.00 times the throughput of one microbatch at a time.
TEST(ClosedForm, FourBalancedStagesAreFourTimesFaster) {
  const Simulation naive = simulate_slots(straight("naive", 4, 1), {1, 2});
  const Simulation pipedream = simulate_slots(straight("pipedream", 4, 1, 56), {1, 2}, 56);
  EXPECT_EQ(naive.step_s / pipedream.step_s, 4.0);
}

// Every offered size of every schedule against the formula and the stash that it declares.
TEST(ClosedForm, EveryScheduleKeepsItsOwnFormula) {
  int cases = 0;
  for (const ScheduleEntry& entry : schedules()) {
    const std::vector<ScheduleConfig> configs =
        testing::offered(entry, testing::from_to(1, 8), testing::from_to(1, 16));
    EXPECT_GE(configs.size(), 8U) << entry.name;
    for (const ScheduleConfig& config : configs) {
      SCOPED_TRACE(testing::describe(entry, config));
      const int p = config.num_ranks;
      const Schedule schedule = make_schedule(entry.name, config);
      const StashFormula stash = entry.builtin->peak_stash(config);
      // Long enough for the steady period, and to be full: both in steps.
      const int64_t steps = schedule.flush ? 1 : 8 + 6 * ((p - 1) / config.num_microbatches + 1);
      const LoweredSchedule lowered = lower(schedule, steps);
      for (const Slots slots : kRatios) {
        const auto formula = entry.builtin->formula(config, slots.f, slots.b);
        const bool papers_own = slots.f == 1 && slots.b == 2;
        if (!formula || !(papers_own || (p + config.num_microbatches) % 4 == 0)) {
          continue;
        }
        const Simulation simulation = simulate_slots(lowered, slots, steps);
        // Whole and half slots, so that everything is exact.
        EXPECT_LE(simulation.step_s, formula->window_slots);
        EXPECT_TRUE(!formula->exact || simulation.step_s == formula->window_slots)
            << simulation.step_s << " of " << formula->window_slots;
        double busy_s = 0;
        for (int r = 0; r < p; ++r) {
          const RankSimulation& rank = simulation.ranks[r];
          busy_s += rank.busy_s;
          EXPECT_LE(rank.peak_in_flight, stash.ranks[r]) << "rank " << r;
          EXPECT_TRUE(!stash.exact || rank.peak_in_flight == stash.ranks[r]) << "rank " << r;
          EXPECT_EQ(rank.peak_weight_versions, peak_weight_versions(lowered.ranks[r]));
          EXPECT_TRUE(!schedule.flush || rank.peak_weight_versions == 1);
        }
        if (schedule.flush) {
          EXPECT_EQ(simulation.window_s, simulation.step_s);
          EXPECT_LE(simulation.idle_slots, formula->idle_slots);
          EXPECT_TRUE(!formula->exact || simulation.idle_slots == formula->idle_slots)
              << simulation.idle_slots << " of " << formula->idle_slots;
        } else {
          // In the steady period all ranks are busy all the time.
          const double work = slots.f + slots.b;
          EXPECT_EQ(formula->idle_slots, 0);
          EXPECT_EQ(simulation.step_s, config.num_microbatches * work);
        }
        EXPECT_EQ(busy_s, static_cast<double>(p * config.chunks * config.num_microbatches * steps) *
                              entry.builtin->directions / entry.builtin->directions *
                              (slots.f + slots.b));
        ++cases;
      }
      ASSERT_FALSE(HasFailure());
    }
  }
  std::cout << cases << " cases, bits equal\n";
  EXPECT_GT(cases, 3500);
}

// The steady period of steps of several microbatches, for segments short and long.
TEST(ClosedForm, StepsOfSeveralMicrobatchesHaveTheirPeriod) {
  for (const char* name : {"pipedream-2bw", "timeprest", "v-timeprest", "i-timeprest"}) {
    for (int p = 1; p <= 8; ++p) {
      for (const int m : {1, 2, 3, 4, 5, 7, 8, 16}) {
        const ScheduleEntry& entry = find_schedule(name);
        ScheduleConfig config{.num_ranks = p, .num_microbatches = m, .chunks = 1};
        const auto formula = entry.builtin->formula(config, 1, 2);
        if (entry.builtin->offers(config) || !formula) {
          continue;
        }
        EXPECT_EQ(formula->window_slots, 3 * m);
        // Steps that fill the pipeline, as many that drain it, and two between.
        const int ahead = (2 * (p - 1) + m - 1) / m;
        for (const int copies : {1, 2}) {
          config.copies = copies;
          const Schedule schedule = make_schedule(name, config);
          for (const int64_t steps : {2 * ahead + 3, 2 * ahead + 8, 4 * p + 40}) {
            if (copies * m > 4 && steps == 4 * p + 40) {
              continue;  // slow, and nothing new
            }
            const LoweredSchedule lowered = lower(schedule, steps);
            EXPECT_EQ(simulate_slots(lowered, {1, 2}, steps).step_s, 3 * m)
                << testing::describe(entry, config) << ", " << steps << " steps";
          }
        }
      }
    }
  }
}

// Two versions are enough for pipedream-2bw wherever it is offered. v-timeprest keeps one. Under
// i-timeprest rank r is 2(P-1-r) forwards ahead, and keeps one version for each update that these
// see pass; under timeprest all ranks are as far behind as the last one, and may need as many.
TEST(ClosedForm, WeightVersionsOfSchedulesWithoutAFlush) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      SCOPED_TRACE(::testing::Message() << "P=" << p << " M=" << m);
      const ScheduleConfig config{.num_ranks = p, .num_microbatches = m, .chunks = 1};
      const auto kept = [&](int ahead) { return 1 + (2 * ahead + m - 1) / m; };
      const int64_t steps = 8 + 4 * kept(p - 1);
      const auto versions = [&](const char* name, const char* policy) {
        const LoweredSchedule lowered = lower(make_schedule(name, config, policy), steps);
        std::vector<int> peaks;
        for (const RankSimulation& rank : simulate_slots(lowered, {1, 2}, steps).ranks) {
          peaks.push_back(rank.peak_weight_versions);
        }
        return peaks;
      };
      const auto ranks = static_cast<std::size_t>(p);
      EXPECT_EQ(versions("v-timeprest", ""), std::vector<int>(ranks, 1));
      const std::vector<int> vertical = versions("timeprest", "");
      EXPECT_EQ(vertical.back(), kept(p - 1));
      EXPECT_LE(*std::max_element(vertical.begin(), vertical.end()), kept(p - 1));
      std::vector<int> stashed;
      for (int r = 0; r < p; ++r) {
        stashed.push_back(kept(p - 1 - r));
      }
      EXPECT_EQ(versions("i-timeprest", "blend"), stashed);
      EXPECT_EQ(versions("i-timeprest", "stash"), stashed);
      if (m >= p - 1) {
        EXPECT_EQ(versions("pipedream-2bw", ""), std::vector<int>(ranks, 2));
      } else {
        EXPECT_TRUE(find_schedule("pipedream-2bw").builtin->offers(config));
      }
    }
  }
}

}  // namespace
}  // namespace millrace
