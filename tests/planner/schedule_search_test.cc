#include "millrace/planner/schedule_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "millrace/base/error.h"
#include "millrace/schedule/language/language.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/validate.h"
#include "millrace/sim/simulate.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// F takes `seconds`, I and W as much each.
Profile chain_of(const std::vector<double>& seconds) {
  Profile profile;
  profile.model = "chain";
  for (const double time : seconds) {
    LayerProfile& layer = profile.layers.emplace_back();
    layer.name = "l" + std::to_string(profile.layers.size());
    layer.forward_s = layer.input_gradient_s = layer.weight_gradient_s = time;
    layer.parameter_bytes = 100;
    layer.stash_bytes = 1000;
  }
  make_chain(profile);
  return profile;
}

std::vector<double> heavy_end() {
  std::vector<double> seconds(16, 1.0);
  seconds[14] = seconds[15] = 3;
  return seconds;
}

// The least makespan of one stage a rank, whole backwards: every order of every rank, replayed.
// Microbatches are alike, so that each stage may run them in order.
class Exhaustive {
 public:
  Exhaustive(std::vector<double> seconds, int num) : seconds_(std::move(seconds)), num_(num) {
    std::string order;
    orders_of(0, 0, order);
    chosen_.resize(seconds_.size());
  }
  double best() {
    choose(0);
    return best_;
  }

 private:
  void orders_of(int forwards, int backwards, std::string& order) {
    if (backwards == num_) {
      orders_.push_back(order);
      return;
    }
    for (const char kind : {'F', 'B'}) {
      const bool forward = kind == 'F';
      if (forward ? forwards < num_ : backwards < forwards) {
        order.push_back(kind);
        orders_of(forwards + (forward ? 1 : 0), backwards + (forward ? 0 : 1), order);
        order.pop_back();
      }
    }
  }

  void choose(std::size_t stage) {
    if (stage == seconds_.size()) {
      best_ = std::min(best_, replay());
      return;
    }
    for (const std::string& order : orders_) {
      chosen_[stage] = &order;
      choose(stage + 1);
    }
  }

  // Infinite when it deadlocks or is no better than the best.
  double replay() const {
    const std::size_t stages = seconds_.size();
    std::vector<std::array<std::vector<double>, 2>> ends(stages);
    std::vector<double> free(stages);
    std::size_t left = stages * static_cast<std::size_t>(2 * num_);
    for (bool moved = true; moved && left > 0;) {
      moved = false;
      for (std::size_t s = 0; s < stages; ++s) {
        for (;;) {
          const std::size_t at = ends[s][0].size() + ends[s][1].size();
          if (at >= chosen_[s]->size()) {
            break;
          }
          const bool forward = (*chosen_[s])[at] == 'F';
          const std::size_t m = ends[s][forward ? 0 : 1].size();
          double ready = forward ? 0 : ends[s][0][m];
          if (forward ? s > 0 : s + 1 < stages) {
            const std::vector<double>& from = ends[forward ? s - 1 : s + 1][forward ? 0 : 1];
            if (from.size() <= m) {
              break;
            }
            ready = std::max(ready, from[m]);
          }
          free[s] = std::max(free[s], ready) + seconds_[s] * (forward ? 1 : 2);
          if (free[s] >= best_) {
            return std::numeric_limits<double>::infinity();
          }
          ends[s][forward ? 0 : 1].push_back(free[s]);
          moved = true;
          --left;
        }
      }
    }
    return left == 0 ? *std::max_element(free.begin(), free.end())
                     : std::numeric_limits<double>::infinity();
  }

  std::vector<double> seconds_;
  int num_;
  std::vector<std::string> orders_;
  std::vector<const std::string*> chosen_;
  double best_ = std::numeric_limits<double>::infinity();
};

TEST(ScheduleSearch, IsWithinTwoPercentOfExhaustiveSearch) {
  for (const std::vector<double>& seconds :
       {std::vector<double>{1, 1, 1, 1}, {1, 1, 1, 3}, {3, 1, 1, 1}, {1, 4, 2, 1}, {2, 1, 3, 1}}) {
    const Profile profile = chain_of(seconds);
    const Cluster cluster = free_cluster(4);
    SearchRequest request{
        .profile = profile, .cluster = cluster, .ranks = 4, .microbatches = 4, .effort = 0.2};
    const double exhaustive = Exhaustive(seconds, 4).best();
    // All that the search may do.
    EXPECT_LE(search_schedule(request).step_s, 1.02 * exhaustive);
    // The very orders that the exhaustive search goes through.
    request.split = false;
    request.use_builtins = false;
    const FoundSchedule found = search_schedule(request);
    EXPECT_LE(found.step_s, 1.02 * exhaustive) << found.origin;
    EXPECT_GE(found.step_s, exhaustive * (1 - 1e-12));
  }
  EXPECT_EQ(Exhaustive({1, 1, 1, 1}, 4).best(), 21);  // 1F1B's (M + S - 1) x 3
}

TEST(ScheduleSearch, IsNeverSlowerThanABuiltinOnEqualLayers) {
  for (const int ranks : {2, 4}) {
    for (const int microbatches : {2, 4, 8}) {
      const Profile profile = chain_of(std::vector<double>(8, 1.0));
      const Cluster cluster = free_cluster(ranks);
      const FoundSchedule found = search_schedule({.profile = profile,
                                                   .cluster = cluster,
                                                   .ranks = ranks,
                                                   .microbatches = microbatches,
                                                   .effort = 0.05});
      EXPECT_FALSE(found.best_builtin.empty());
      EXPECT_LE(found.step_s, found.best_builtin_s);
      EXPECT_NO_THROW(validate(found.schedule, found.plan, chain_links(found.plan.num_stages())));
    }
  }
}

TEST(ScheduleSearch, BeatsOneFOneBWhereTheLastLayersAreHeavy) {
  const Profile profile = chain_of(heavy_end());
  const Cluster cluster = free_cluster(4);
  int told = 0;
  const FoundSchedule found = search_schedule({.profile = profile,
                                               .cluster = cluster,
                                               .ranks = 4,
                                               .microbatches = 8,
                                               .effort = 0.25,
                                               .progress = [&](const std::string&) { ++told; }});
  EXPECT_GE(found.one_f_one_b_s / found.step_s, 1.4);  // 1.49 when searched at full length
  EXPECT_GT(told, 0);
  RecordProperty("speedup_percent", static_cast<int>(100 * found.one_f_one_b_s / found.step_s));
}

TEST(ScheduleSearch, HoldsTheMemoryLimit) {
  const Profile profile = chain_of(heavy_end());
  const Cluster cluster = free_cluster(4);
  SearchRequest request{.profile = profile,
                        .cluster = cluster,
                        .ranks = 4,
                        .microbatches = 8,
                        .memory_bytes = 30000,
                        .effort = 0.1};
  const FoundSchedule found = search_schedule(request);
  ASSERT_EQ(found.plan.memory.size(), 4U);
  for (const MemoryUse& memory : found.plan.memory) {
    EXPECT_LE(memory.total(), 30000);
  }
  request.memory_bytes = 100;
  try {
    search_schedule(request);
    FAIL() << "nothing fits into 100 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("none fits into 100 B a rank"));
  }
}

TEST(ScheduleSearch, RefusesWhatCannotBe) {
  const Profile profile = chain_of({1, 1});
  const Cluster cluster = free_cluster(2);
  try {
    search_schedule({.profile = profile, .cluster = cluster, .ranks = 3, .microbatches = 2});
    FAIL() << "three ranks for two layers";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("2 layers for 3 ranks"));
  }
}

TEST(ScheduleSearch, FindsTheSameAgainAndItReadsBack) {
  const Profile profile = chain_of(heavy_end());
  const Cluster cluster = free_cluster(4);
  const SearchRequest request{.profile = profile,
                              .cluster = cluster,
                              .ranks = 4,
                              .microbatches = 4,
                              .most_chunks = 2,
                              .effort = 0.2};
  const FoundSchedule found = search_schedule(request);
  EXPECT_EQ(search_schedule(request).schedule, found.schedule);
  const auto written = written_schedule(schedule_text(found.schedule), "auto.sched");
  EXPECT_EQ(written->builtin.make({.num_ranks = 4, .num_microbatches = 4}), found.schedule);
}

}  // namespace
}  // namespace millrace
