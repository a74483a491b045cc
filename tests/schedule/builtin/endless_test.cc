// pipedream-2bw and the schedules of TiMePReSt, which are never drained inside an epoch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/validate.h"
#include "tests/schedule/slots.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using testing::Times;

// 1F1B over all microbatches of the epoch, through the borders of its steps.
TEST(Pipedream2bw, IsTheAlternationOfWholeEpochs) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = std::max(1, p - 1); m <= 16; ++m) {
      const Schedule schedule = make_schedule("pipedream-2bw", {p, m});
      EXPECT_EQ(schedule.period_microbatches, m);
      for (int steps = 1; steps <= 6; ++steps) {
        EXPECT_EQ(unroll(schedule, steps), unroll(make_schedule("1f1b", {p, steps * m}), 1))
            << "P=" << p << " M=" << m << " steps=" << steps;
      }
    }
  }
}

// A microbatch on rank r that enters after the k-th backward of the rank may read versions up to
// k/M. With two versions kept, the forward of microbatch m reads floor(m/M)-1 (the newest but one
// that its step may count on), which is made in time exactly when M >= P-1.
TEST(Pipedream2bw, TwoVersionsAreEnoughExactlyFromRanksLessOneMicrobatches) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      const ActionLists lists = make_schedule("1f1b", {p, 8 * m}).period;
      bool made_in_time = true;
      for (const ActionList& list : lists) {
        int64_t backwards = 0;
        for (const Action& action : list) {
          if (action.kind == ActionKind::kBackward) {
            ++backwards;
          } else {
            made_in_time = made_in_time && backwards / m >= action.first / m - 1;
          }
        }
      }
      const bool offered = !find_schedule("pipedream-2bw").builtin->offers({p, m});
      EXPECT_EQ(made_in_time, offered) << "P=" << p << " M=" << m;
    }
  }
}

TEST(Pipedream2bw, FewerMicrobatchesAreRefusedWithTheReason) {
  try {
    make_schedule("pipedream-2bw", {6, 4});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("a version that is not made yet"));
    EXPECT_THAT(error.message(), HasSubstr("microbatches = 4 on 6 ranks"));
    EXPECT_THAT(error.message(), HasSubstr("set microbatches = 5"));
  }
}

constexpr const char* kTimeprests[] = {"timeprest", "v-timeprest", "i-timeprest"};

// What fills equal slots when every rank runs the backward of a whole minibatch as soon as it can,
// else the next forward: one entry a slot.
ActionLists greedy(int ranks, int n, int64_t minibatches) {
  ActionLists lists(static_cast<std::size_t>(ranks));
  std::vector<int64_t> forwards(lists.size(), 0);
  std::vector<int64_t> backwards(lists.size(), 0);
  for (bool left = true; left;) {
    left = false;
    const std::vector<int64_t> f = forwards;  // before this slot
    const std::vector<int64_t> b = backwards;
    for (int s = 0; s < ranks; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const int64_t ready = s + 1 < ranks ? b[at + 1] : f[at] / n;
      const int64_t arrived = s > 0 ? f[at - 1] : minibatches * n;
      if (b[at] < ready) {
        lists[at].push_back(Action::range(ActionKind::kBackward, s, b[at] * n, b[at] * n + n - 1));
        ++backwards[at];
      } else if (f[at] < arrived) {
        lists[at].push_back(Action::of(ActionKind::kForward, s, f[at]));
        ++forwards[at];
      }
      left = left || backwards[at] < minibatches;
    }
  }
  return lists;
}

TEST(Timeprest, IsTheGreedyOrderForAnyNumberOfMinibatches) {
  for (const char* name : kTimeprests) {
    for (int w = 1; w <= 8; ++w) {
      for (int n = 1; n <= 8; ++n) {
        const Schedule schedule = make_schedule(name, {w, n});
        EXPECT_EQ(schedule.num_microbatches, n);
        for (int minibatches = 1; minibatches <= 20; ++minibatches) {
          ASSERT_EQ(unroll(schedule, minibatches), greedy(w, n, minibatches))
              << "W=" << w << " N=" << n << " minibatches=" << minibatches;
        }
      }
    }
  }
}

// One slot a forward and one the backward of a whole minibatch.
Times in_unit_slots(const ActionLists& lists, int n) {
  return testing::run_in_slots(lists, n, 1);  // so that N backwards take as long as a forward
}

TEST(Timeprest, TableOfThreeStagesAndTwoMicrobatches) {
  const ActionLists lists = unroll(make_schedule("timeprest", {3, 2}), 6);
  const Times times = in_unit_slots(lists, 2);
  std::vector<std::string> rows;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    std::vector<std::string> cells(10, "-");
    for (std::size_t i = 0; i < lists[rank].size(); ++i) {
      const auto slot = static_cast<std::size_t>(times[rank][i].start / 2);
      const Action& action = lists[rank][i];
      if (slot < cells.size()) {
        cells[slot] = to_string(action.kind) + std::to_string(action.first / 2 + 1);
        if (action.kind == ActionKind::kForward) {
          cells[slot] += action.first % 2 == 0 ? "A" : "B";
        }
      }
    }
    std::string& row = rows.emplace_back();
    for (const std::string& cell : cells) {
      row += (row.empty() ? "" : " ") + cell;
    }
  }
  EXPECT_EQ(rows[0], "F1A F1B F2A F2B F3A F3B B1 F4A F4B B2");
  EXPECT_EQ(rows[1], "- F1A F1B F2A F2B B1 F3A F3B B2 F4A");
  EXPECT_EQ(rows[2], "- - F1A F1B B1 F2A F2B B2 F3A F3B");
}

// When the last stage starts the backward of minibatch j, the updates of the first j+1-v are
// complete on all stages, for the least such v once the pipeline is filled: ceil(W/(N+1)).
TEST(Timeprest, BackwardLag) {
  for (int w = 2; w <= 8; ++w) {
    for (int n = 2; n <= 8; ++n) {
      constexpr int kMinibatches = 40;
      const ActionLists lists = unroll(make_schedule("timeprest", {w, n}), kMinibatches);
      const Times times = in_unit_slots(lists, n);
      std::vector<double> starts;
      std::vector<double> complete(kMinibatches, 0);
      for (std::size_t rank = 0; rank < lists.size(); ++rank) {
        for (std::size_t i = 0; i < lists[rank].size(); ++i) {
          const Action& action = lists[rank][i];
          if (action.kind != ActionKind::kBackward) {
            continue;
          }
          double& end = complete[static_cast<std::size_t>(action.first / n)];
          end = std::max(end, times[rank][i].end);
          if (rank + 1 == lists.size()) {
            starts.push_back(times[rank][i].start);
          }
        }
      }
      const int middle = kMinibatches / 2;
      int lag = 1;
      while (complete[static_cast<std::size_t>(middle - lag)] >
             starts[static_cast<std::size_t>(middle)]) {
        ++lag;
      }
      EXPECT_EQ(lag, (w + n) / (n + 1)) << "W=" << w << " N=" << n;
      // The paper's own form is one too high at three sizes.
      const bool differs = std::pair{w, n} == std::pair{6, 2} ||
                           std::pair{w, n} == std::pair{8, 2} || std::pair{w, n} == std::pair{8, 3};
      EXPECT_EQ((w + n - 2) / n, lag + (differs ? 1 : 0)) << "W=" << w << " N=" << n;
    }
  }
}

// When stage 0 starts a minibatch, so many of the updates before it are missing there.
TEST(Timeprest, ForwardLag) {
  for (int w = 2; w <= 8; ++w) {
    for (int n = 2; n <= 8; ++n) {
      const ActionList list = unroll(make_schedule("timeprest", {w, n}), 40)[0];
      int64_t updates = 0;
      for (const Action& action : list) {
        if (action.kind == ActionKind::kBackward) {
          ++updates;
        } else if (action.first == 20 * n) {
          EXPECT_EQ(20 - updates, (2 * (w - 1) + n - 1) / n) << "W=" << w << " N=" << n;
        }
      }
    }
  }
}

TEST(Timeprest, NobodyWaitsInTheSteadyPeriodOfUnitSlots) {
  for (int w = 1; w <= 8; ++w) {
    for (int n = 1; n <= 8; ++n) {
      const ActionLists lists = unroll(make_schedule("timeprest", {w, n}), 40);
      const Times times = in_unit_slots(lists, n);
      for (std::size_t rank = 0; rank < lists.size(); ++rank) {
        std::size_t i = 1;
        for (; lists[rank][i].last < 30 * n; ++i) {
          EXPECT_EQ(times[rank][i].start, times[rank][i - 1].end) << "W=" << w << " N=" << n;
        }
      }
      const auto formula = find_schedule("timeprest").builtin->formula({w, n}, n, 1);
      ASSERT_TRUE(formula);
      EXPECT_EQ(formula->window_slots, n * (n + 1));
    }
  }
}

// Where a minibatch's backward is longer than a forward, stages wait for it: no formula then.
TEST(Timeprest, LongBackwardsMakeStagesWait) {
  const ScheduleBuiltin& builtin = *find_schedule("timeprest").builtin;
  EXPECT_TRUE(builtin.formula({4, 2}, 1, 2));
  EXPECT_FALSE(builtin.formula({2, 3}, 1, 1));
  const ActionLists lists = unroll(make_schedule("timeprest", {2, 3}), 40);
  const Times times = testing::run_in_slots(lists, 1, 1);
  std::vector<double> starts;
  for (std::size_t i = 0; i < lists[0].size(); ++i) {
    if (lists[0][i].kind == ActionKind::kBackward) {
      starts.push_back(times[0][i].start);
    }
  }
  EXPECT_EQ(starts[21] - starts[20], 8);  // instead of 6
}

TEST(Timeprest, PoliciesTellTheThreeApart) {
  EXPECT_EQ(make_schedule("timeprest", {3, 2}).policy, "vertical_newest");
  EXPECT_EQ(make_schedule("v-timeprest", {3, 2}).policy, "latest");
  EXPECT_EQ(make_schedule("i-timeprest", {3, 2}).policy, "blend");
  EXPECT_EQ(make_schedule("i-timeprest", {3, 2}, "stash").policy, "stash");
}

}  // namespace
}  // namespace millrace
