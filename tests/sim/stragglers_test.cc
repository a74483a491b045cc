// What slow workers do to the registered rules, in virtual time: parts on demand, one stage, eight
// workers, an iteration of 1 s, everything else free. Times are held against closed forms and
// against a replay of pushes that knows nothing of ports, messages and the simulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <tuple>

#include "millrace/base/random.h"
#include "millrace/rule/release.h"
#include "tests/sim/rule_testing.h"

namespace millrace {
namespace {

using testing::flat;
using testing::stage;

constexpr int kWorkers = 8;
constexpr int64_t kPushes = 1600;  // so many parts are looked at

// How many times as long a worker's own iteration lasts.
using Slowdown = std::function<double(int worker, int64_t iteration)>;

struct Outcome {
  std::vector<double> push_s{};       // ascending
  std::vector<int64_t> iterations{};  // of each worker
  // When so many are there, others being under way still.
  double time_s(int64_t pushes = kPushes) const {
    return push_s.at(static_cast<std::size_t>(pushes) - 1);
  }
};

// Parts for `pushes` and as many more as workers, so that nobody is without one before.
Outcome simulated(const std::string& rule, const std::vector<std::pair<std::string, int>>& options,
                  const Slowdown& slowdown, int64_t pushes) {
  const LoweredSchedule lowered = flat(kWorkers);
  const Cluster cluster = free_cluster(kWorkers);
  SimulationInput input{.lowered = lowered,
                        .costs = {stage(0.25, 0.75, 0, 400)},
                        .cluster = cluster,
                        .rule = rule,
                        .num_steps = pushes / kWorkers + 1};
  for (const auto& [key, value] : options) {
    input.rule_options.set(key, Value::of(value));
  }
  input.slowdown = slowdown;
  input.on_demand = true;
  const Simulation s = simulate(input);
  Outcome outcome;
  for (const RankTrace& rank : s.trace.ranks) {
    outcome.iterations.push_back(0);
    for (const TraceEvent& e : rank.events) {
      if (e.action.kind == ActionKind::kBackward) {
        outcome.push_s.push_back(e.end_s);
        ++outcome.iterations.back();
      }
    }
  }
  std::sort(outcome.push_s.begin(), outcome.push_s.end());
  return outcome;
}

Outcome bsp(const Slowdown& slowdown, int64_t pushes = kPushes) {
  return simulated("bsp", {}, slowdown, pushes);
}
Outcome ssp(int staleness, const Slowdown& slowdown, int64_t pushes = kPushes) {
  return simulated("server-bounded", {{"staleness", staleness}}, slowdown, pushes);
}
Outcome dssp(const Slowdown& slowdown, int64_t pushes = kPushes) {
  return simulated("dssp", {{"s_low", 3}, {"range", 12}}, slowdown, pushes);
}
Outcome async(const Slowdown& slowdown, int64_t pushes = kPushes) {
  return simulated("server-async", {}, slowdown, pushes);
}

// Pushes in the order of time, of equal times the lowest worker's first; who is let go asks for
// the next part at once. `low` below 0: everybody always is.
Outcome replayed(int64_t low, int64_t range, const Slowdown& slowdown) {
  Release release({.num_members = kWorkers, .low = std::max<int64_t>(low, 0), .range = range});
  Outcome outcome;
  outcome.iterations.resize(kWorkers);
  std::set<std::tuple<double, int, bool>> messages;  // true: a push; false: a goodbye
  int64_t left = kPushes + kWorkers;
  const auto ask = [&](int worker, double now_s) {
    const bool works = left > 0;
    double then_s = now_s;
    if (works) {
      --left;
      then_s += slowdown(worker, outcome.iterations[worker]++);
    }
    messages.emplace(then_s, worker, works);
  };
  for (int worker = 0; worker < kWorkers; ++worker) {
    ask(worker, 0);
  }
  while (!messages.empty()) {
    const auto [now_s, worker, pushes] = *messages.begin();
    messages.erase(messages.begin());
    std::vector<int> released;
    if (low >= 0) {
      released = pushes ? release.on_push(worker, now_s) : release.on_goodbye(worker);
    } else if (pushes) {
      released.push_back(worker);
    }
    if (pushes) {
      outcome.push_s.push_back(now_s);
    }
    std::sort(released.begin(), released.end());
    for (const int other : released) {
      ask(other, now_s);
    }
  }
  return outcome;
}

void expect_equal(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.iterations, expected.iterations);
  ASSERT_EQ(found.push_s.size(), expected.push_s.size());
  for (std::size_t i = 0; i < found.push_s.size(); ++i) {
    ASSERT_NEAR(found.push_s[i], expected.push_s[i], 1e-6) << "push " << i;
  }
}

double mean_of_bounded_s(const Slowdown& slowdown) {
  double sum_s = 0;
  for (int staleness = 3; staleness <= 15; ++staleness) {
    sum_s += ssp(staleness, slowdown).time_s();
  }
  return sum_s / 13;
}

// --- one worker that is always twice as slow

double last_is_slow(int worker, int64_t /*iteration*/) { return worker == kWorkers - 1 ? 2 : 1; }

// bsp: 200 rounds of 2 s. Asynchronous: n pushes are there when 7 t + floor(t / 2) >= n. SSP(s):
// from t = 2 s + 2 on the fast ones are let go when the slow one pushes, at t = 2 j: it has pushed
// j times then and they s + j times, so all together 8 j + 7 s, and 7 more at 2 j + 1.
TEST(Stragglers, OneSlowWorkerCostsWhatTheClosedFormsSay) {
  const auto bounded_s = [](int staleness) {
    for (int64_t t = 0;; ++t) {
      if (8 * (t / 2) + 7 * staleness + 7 * (t % 2) >= kPushes) {
        return static_cast<double>(t);
      }
    }
  };
  EXPECT_EQ(bsp(last_is_slow).time_s(), 400);
  EXPECT_EQ(bounded_s(3), 395);
  EXPECT_EQ(bounded_s(15), 373);
  EXPECT_EQ(ssp(3, last_is_slow).time_s(), bounded_s(3));
  EXPECT_EQ(ssp(15, last_is_slow).time_s(), bounded_s(15));
  EXPECT_EQ(async(last_is_slow).time_s(), 214);
  const Outcome dynamic = dssp(last_is_slow);
  expect_equal(dynamic, replayed(3, 12, last_is_slow));
  EXPECT_GT(dynamic.time_s(), bounded_s(15));
  EXPECT_LT(dynamic.time_s(), bounded_s(3));
  // It is no better than the mean of the bounds that it chooses from.
  EXPECT_NEAR(dynamic.time_s() / mean_of_bounded_s(last_is_slow), 1.02, 0.005);
}

// Twice as many pushes take 400 s more, the slow worker's 200 iterations, under every rule with a
// bound; without one the others do 14 of every 15 parts. The dynamic bound lets leads grow and
// takes them back, between those of its two ends.
TEST(Stragglers, UnderABoundAllGoAtTheSlowOnesSpeedButForTheFirstLead) {
  const auto low = [](const Slowdown& slowdown, int64_t pushes) {
    return ssp(3, slowdown, pushes);
  };
  const auto high = [](const Slowdown& slowdown, int64_t pushes) {
    return ssp(15, slowdown, pushes);
  };
  const auto later_half_s = [](const auto& run) {
    return run(last_is_slow, 2 * kPushes).time_s(2 * kPushes) - run(last_is_slow, kPushes).time_s();
  };
  EXPECT_EQ(later_half_s(bsp), 400);
  EXPECT_EQ(later_half_s(low), 400);
  EXPECT_EQ(later_half_s(high), 400);
  EXPECT_NEAR(later_half_s(async), 2 * kPushes / 15.0, 1);
  for (const int64_t pushes : {2 * kPushes, 4 * kPushes, 6 * kPushes}) {
    const double dynamic_s = dssp(last_is_slow, pushes).time_s(pushes);
    EXPECT_GE(dynamic_s, high(last_is_slow, pushes).time_s(pushes));
    EXPECT_LE(dynamic_s, low(last_is_slow, pushes).time_s(pushes));
  }
  const auto lead = [](const Outcome& outcome) {
    return outcome.iterations.front() - outcome.iterations.back();
  };
  EXPECT_EQ(lead(bsp(last_is_slow)), 0);
  EXPECT_EQ(lead(ssp(3, last_is_slow)), 4);
  EXPECT_EQ(lead(ssp(15, last_is_slow)), 16);
  EXPECT_LE(lead(dssp(last_is_slow)), 16);
  EXPECT_NEAR(lead(async(last_is_slow)), 107, 1);
}

// --- slowness that moves round

// Each worker in turn is twice as slow for 20 of its own iterations, so that each is for an eighth
// of them. Who waits for everybody waits for the slow one of each round; nobody else is late.
TEST(Stragglers, SpellsOfSlownessCostTheLessTheMoreARuleLetsGo) {
  const Slowdown spells = [](int worker, int64_t iteration) {
    return iteration / 20 % kWorkers == worker ? 2.0 : 1.0;
  };
  const double synchronous_s = bsp(spells).time_s();
  const Outcome low = ssp(3, spells);
  const Outcome dynamic = dssp(spells);
  const Outcome high = ssp(15, spells);
  const Outcome loose = async(spells);
  EXPECT_EQ(synchronous_s, 400);
  EXPECT_NEAR(loose.time_s(), 200 * 1.125, 2);
  EXPECT_LE(loose.time_s(), high.time_s());
  EXPECT_LT(high.time_s(), dynamic.time_s());
  EXPECT_LT(dynamic.time_s(), low.time_s());
  EXPECT_LT(low.time_s(), synchronous_s);
  EXPECT_GT(dynamic.time_s(), mean_of_bounded_s(spells));
  expect_equal(low, replayed(3, 0, spells));
  expect_equal(dynamic, replayed(3, 12, spells));
  expect_equal(high, replayed(15, 0, spells));
  expect_equal(loose, replayed(-1, 0, spells));
}

// --- slowness drawn for every iteration of every worker

TEST(Stragglers, OfEqualDrawsTheMoreARuleLetsGoTheSoonerAllIsDone) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const double deviation = seed % 2 == 0 ? 0.3 : 1;
    const RandomKey key = RandomKey(seed).with("stragglers");
    const Slowdown drawn = [=](int worker, int64_t iteration) {
      const double normal = key.with(static_cast<uint64_t>(worker)).normal(iteration);
      const double slow = seed % 3 == 0 && worker == kWorkers - 1 ? 2 : 1;
      return slow * std::exp(deviation * normal);
    };
    const Outcome loose = async(drawn);
    const Outcome high = ssp(15, drawn);
    const Outcome dynamic = dssp(drawn);
    const Outcome low = ssp(3, drawn);
    EXPECT_LE(loose.time_s(), high.time_s()) << seed;
    EXPECT_LE(high.time_s(), dynamic.time_s()) << seed;
    EXPECT_LE(dynamic.time_s(), low.time_s()) << seed;
    EXPECT_LT(low.time_s(), bsp(drawn).time_s()) << seed;
    expect_equal(loose, replayed(-1, 0, drawn));
    expect_equal(high, replayed(15, 0, drawn));
    expect_equal(dynamic, replayed(3, 12, drawn));
    expect_equal(low, replayed(3, 0, drawn));
  }
}

}  // namespace
}  // namespace millrace
