#include "millrace/rule/release.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "millrace/base/random.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Table = std::vector<std::vector<double>>;  // by member and update

Release ssp(int num_members, int64_t s) { return Release({.num_members = num_members, .low = s}); }

TEST(Release, HoldsWhoeverIsTooFarAheadEarliestFirst) {
  Release release = ssp(3, 1);
  EXPECT_THAT(release.on_push(2, 1), ElementsAre(2));
  EXPECT_THAT(release.on_push(2, 2), IsEmpty());
  EXPECT_THAT(release.on_push(0, 3), ElementsAre(0));
  EXPECT_THAT(release.on_push(0, 4), IsEmpty());
  EXPECT_EQ(release.lead(0), 2);
  EXPECT_THAT(release.on_push(1, 5), ElementsAre(1, 2, 0));
  EXPECT_EQ(release.lead(0), 1);
}

TEST(Release, WhoeverLeftHoldsNobody) {
  Release release = ssp(3, 0);
  EXPECT_THAT(release.on_push(0, 1), IsEmpty());
  EXPECT_THAT(release.on_push(2, 2), IsEmpty());
  EXPECT_THAT(release.on_goodbye(1), ElementsAre(0, 2));
  EXPECT_THAT(release.on_push(2, 3), IsEmpty());
  EXPECT_THAT(release.on_goodbye(0), ElementsAre(2));
  EXPECT_THAT(release.on_push(2, 4), ElementsAre(2));  // alone
  EXPECT_THAT(release.on_goodbye(2), IsEmpty());
}

// Member 0 pushes at 5, 8 and 9, where it is held until member 1's second push; then at 10, 11, ...
// How many of these it is let go after, before it is held again.
int granted(double slow_first_s, double slow_second_s, const Release::Config& config, int most) {
  Release release(config);
  std::vector<std::pair<double, int>> pushes = {
      {5, 0}, {8, 0}, {9, 0}, {slow_first_s, 1}, {slow_second_s, 1}};
  std::sort(pushes.begin(), pushes.end());
  for (const auto& [now_s, member] : pushes) {
    release.on_push(member, now_s);
  }
  int count = 0;
  while (count < most && !release.on_push(0, 10 + count).empty()) {
    ++count;
  }
  return count;
}

TEST(Release, TheControllerGrantsWhatMakesTheWaitShortest) {
  const Release::Config config{.num_members = 2, .low = 1, .range = 4};
  // The slow one is foretold at 12, 14.75, ...: two more, then at 12 none.
  EXPECT_EQ(granted(6.5, 9.25, config, 20), 2);
  // At 11, 12.25, ...: one more, then at 11 none.
  EXPECT_EQ(granted(8.5, 9.75, config, 20), 1);
  // At 11.5, 13.5, ...: 1 to 4 are as good, so 4; then the cap of 5 holds.
  EXPECT_EQ(granted(7.5, 9.5, config, 20), 4);
  // At 18: as near as it may, 4.
  EXPECT_EQ(granted(1, 9.5, config, 20), 4);
  // Leads of 2 and 3 need no credit under s_low = 3.
  EXPECT_EQ(granted(8.5, 9.75, {.num_members = 2, .low = 3, .range = 0}, 20), 2);
}

TEST(Release, WithoutCreditsNothingIsGranted) {
  EXPECT_EQ(granted(7.5, 9.5, {.num_members = 2, .low = 1, .range = 0}, 20), 0);
}

// Foretold at 11.5, 13.5, ... 19.5: asked again at 14, 4 more; at 18, 2 more; at 20 none.
TEST(Release, WithoutTheCapCreditsAreGrantedAgain) {
  const Release::Config config{.num_members = 2, .low = 1, .range = 4, .cap = false};
  EXPECT_EQ(granted(7.5, 9.5, config, 20), 4 + 4 + 2);
}

// Only a fastest one is granted anything: member 0 is at 4 of member 1's 2, but member 2 is at 5.
TEST(Release, OnlyAFastestIsGranted) {
  for (const bool is_other_ahead : {false, true}) {
    Release release({.num_members = 3, .low = 1, .range = 4});
    std::vector<std::pair<double, int>> pushes = {{5, 0},    {8, 0},   {9, 0},   {6.5, 1},
                                                  {9.25, 1}, {5.1, 2}, {8.1, 2}, {9.05, 2}};
    if (is_other_ahead) {
      pushes.insert(pushes.end(), {{9.5, 2}, {9.75, 2}});
    }
    std::sort(pushes.begin(), pushes.end());
    for (const auto& [now_s, member] : pushes) {
      release.on_push(member, now_s);
    }
    EXPECT_EQ(release.on_push(0, 10).empty(), is_other_ahead);
  }
}

struct Replayed {
  Table pushes_s;
  Table releases_s;
  int64_t largest_lead = 0;    // at a release
  int64_t largest_spread = 0;  // of the counts of those still there, at a push
};

// Members that compute for as long as the table says, push, and go on when released; after the last
// they say goodbye. Null: everybody goes on at once.
Replayed replay(const Table& durations_s, Release* release) {
  const std::size_t num_members = durations_s.size();
  Replayed out;
  out.pushes_s.resize(num_members);
  out.releases_s.resize(num_members);
  std::map<int, double> next_s;  // of those that compute
  std::map<int, int64_t> present;
  for (std::size_t p = 0; p < num_members; ++p) {
    next_s[static_cast<int>(p)] = durations_s[p][0];
    present[static_cast<int>(p)] = 0;
  }
  const auto lead_of = [&](int member) {
    int64_t least = present.at(member);
    for (const auto& [other, pushes] : present) {
      least = std::min(least, pushes);
    }
    return present.at(member) - least;
  };
  while (!next_s.empty()) {
    const auto first =
        std::min_element(next_s.begin(), next_s.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto [member, now_s] = *first;
    next_s.erase(first);
    out.pushes_s[static_cast<std::size_t>(member)].push_back(now_s);
    ++present[member];
    out.largest_spread = std::max(out.largest_spread, lead_of(member));
    std::vector<int> goes_on =
        release != nullptr ? release->on_push(member, now_s) : std::vector<int>{member};
    for (std::size_t i = 0; i < goes_on.size(); ++i) {
      const int other = goes_on[i];
      const auto place = static_cast<std::size_t>(other);
      out.releases_s[place].push_back(now_s);
      const std::size_t done = out.releases_s[place].size();
      if (done < durations_s[place].size()) {
        next_s[other] = now_s + durations_s[place][done];
      }
    }
    for (std::size_t i = 0; i < goes_on.size(); ++i) {
      out.largest_lead = std::max(out.largest_lead, lead_of(goes_on[i]));
    }
    // Goodbyes come after all releases of a push.
    for (std::size_t i = 0; i < goes_on.size(); ++i) {
      const int other = goes_on[i];
      const auto place = static_cast<std::size_t>(other);
      if (out.releases_s[place].size() < durations_s[place].size() || present.count(other) == 0) {
        continue;
      }
      present.erase(other);
      for (const int freed : release != nullptr ? release->on_goodbye(other) : std::vector<int>{}) {
        out.largest_lead = std::max(out.largest_lead, lead_of(freed));
        const auto at = static_cast<std::size_t>(freed);
        out.releases_s[at].push_back(now_s);
        goes_on.push_back(freed);
        if (out.releases_s[at].size() < durations_s[at].size()) {
          next_s[freed] = now_s + durations_s[at][out.releases_s[at].size()];
        }
      }
    }
  }
  return out;
}

// The stale-synchronous rule without events: update k of p ends d after k - 1 was released, and is
// released when it and update k - s of every other have come, or the other has left.
class SspTimes {
 public:
  SspTimes(const Table& durations_s, int64_t s) : durations_s_(durations_s), s_(s) {}

  double push_s(std::size_t p, int64_t k) {
    return released_s(p, k - 1) + durations_s_[p][static_cast<std::size_t>(k - 1)];
  }
  double released_s(std::size_t p, int64_t k) {
    if (k < 1) {
      return 0;
    }
    if (const auto known = known_.find({p, k}); known != known_.end()) {
      return known->second;
    }
    double when = push_s(p, k);
    for (std::size_t q = 0; q < durations_s_.size(); ++q) {
      const auto last = static_cast<int64_t>(durations_s_[q].size());
      if (q != p && k - s_ >= 1) {
        when = std::max(when, k - s_ <= last ? push_s(q, k - s_) : released_s(q, last));
      }
    }
    return known_[{p, k}] = when;
  }

 private:
  const Table& durations_s_;
  int64_t s_;
  std::map<std::pair<std::size_t, int64_t>, double> known_;
};

// Durations drawn beforehand: one twice as slow, spells of slowness that move round, lognormal of
// two widths; members do unlike numbers of updates in half of the tables.
Table drawn(uint64_t number) {
  const RandomKey key = RandomKey(20).with(number);
  const std::size_t num_members = std::vector<std::size_t>{2, 3, 4, 8}[number % 4];
  Table table(num_members);
  for (std::size_t p = 0; p < num_members; ++p) {
    const auto count = 80 - static_cast<int64_t>(number >= 12 ? key.below(1000 + p, 60) : 0);
    for (int64_t k = 0; k < count; ++k) {
      const double normal = key.with(p).normal(static_cast<uint64_t>(k));
      const double jitter = std::exp((number % 3 == 2 ? 1.0 : 0.05) * normal);
      const bool is_slow = number % 3 == 0   ? p == num_members - 1
                           : number % 3 == 1 ? (static_cast<std::size_t>(k) / 20) % num_members == p
                                             : false;
      table[p].push_back(jitter * (is_slow ? 2 : 1));
    }
  }
  return table;
}

constexpr uint64_t kTables = 24;

TEST(ReleaseReplay, WithoutRangeItIsTheStaleSynchronousRuleEventForEvent) {
  for (uint64_t number = 0; number < kTables; ++number) {
    const Table durations_s = drawn(number);
    for (const int64_t s : {0, 1, 3}) {
      Release release = ssp(static_cast<int>(durations_s.size()), s);
      const Replayed times = replay(durations_s, &release);
      SspTimes expected(durations_s, s);
      for (std::size_t p = 0; p < durations_s.size(); ++p) {
        ASSERT_EQ(times.releases_s[p].size(), durations_s[p].size());
        for (std::size_t k = 0; k < durations_s[p].size(); ++k) {
          const auto update = static_cast<int64_t>(k) + 1;
          ASSERT_EQ(times.pushes_s[p][k], expected.push_s(p, update))
              << number << " " << p << " " << k;
          ASSERT_EQ(times.releases_s[p][k], expected.released_s(p, update));
        }
      }
      EXPECT_LE(times.largest_lead, s);
      EXPECT_LE(times.largest_spread, s + 1);
    }
  }
}

// Every push of every member comes between: asynchronous <= SSP(s_low + range) <= dynamic <=
// SSP(s_low). So do the times of whole runs.
TEST(ReleaseReplay, DynamicIsBetweenItsBounds) {
  int num_sooner = 0;
  int num_later = 0;
  for (uint64_t number = 0; number < kTables; ++number) {
    const Table durations_s = drawn(number);
    const int num_members = static_cast<int>(durations_s.size());
    const int64_t low = 3;
    const int64_t range = 12;
    Release upper = ssp(num_members, low + range);
    Release lower = ssp(num_members, low);
    Release dynamic({.num_members = num_members, .low = low, .range = range});
    const Table async = replay(durations_s, nullptr).pushes_s;
    const Table most = replay(durations_s, &upper).pushes_s;
    const Table least = replay(durations_s, &lower).pushes_s;
    const Replayed times = replay(durations_s, &dynamic);
    bool is_sooner = false;
    bool is_later = false;
    for (std::size_t p = 0; p < durations_s.size(); ++p) {
      ASSERT_EQ(times.pushes_s[p].size(), durations_s[p].size());
      for (std::size_t k = 0; k < durations_s[p].size(); ++k) {
        const double now_s = times.pushes_s[p][k];
        ASSERT_LE(async[p][k], most[p][k]);
        ASSERT_LE(most[p][k], now_s);
        ASSERT_LE(now_s, least[p][k]);
        is_sooner |= now_s < least[p][k];
        is_later |= now_s > most[p][k];
      }
    }
    num_sooner += is_sooner ? 1 : 0;
    num_later += is_later ? 1 : 0;
    EXPECT_LE(times.largest_lead, low + range) << number;
    EXPECT_LE(times.largest_spread, low + range + 1) << number;
  }
  EXPECT_GE(num_sooner, 12);
  EXPECT_GE(num_later, 12);
}

// A permanently slow member: the uncapped controller lets leads grow far beyond the range.
TEST(ReleaseReplay, WithoutTheCapTheLeadIsOnlyReported) {
  const Table durations_s = {std::vector<double>(400, 1.0), std::vector<double>(400, 2.0)};
  Release capped({.num_members = 2, .low = 3, .range = 12});
  Release uncapped({.num_members = 2, .low = 3, .range = 12, .cap = false});
  EXPECT_EQ(replay(durations_s, &capped).largest_lead, 15);
  EXPECT_GT(replay(durations_s, &uncapped).largest_lead, 100);
}

// Others' pushes between a member's release and its next push.
class Gaps {
 public:
  Gaps(const Release::Config& config, int64_t updates)
      : release_(config),
        left_(static_cast<std::size_t>(config.num_members), updates),
        read_at_(left_.size(), 0),
        is_held_(left_.size(), false) {}

  bool can_push(int member) const { return left_[place(member)] > 0 && !is_held_[place(member)]; }
  void push(int member) {
    now_s_ += 1;
    largest_ = std::max(largest_, num_pushes_ - read_at_[place(member)]);
    ++num_pushes_;
    --left_[place(member)];
    is_held_[place(member)] = true;
    free(release_.on_push(member, now_s_));
  }
  int64_t largest() const { return largest_; }

 private:
  static std::size_t place(int member) { return static_cast<std::size_t>(member); }
  void free(const std::vector<int>& members) {
    for (const int member : members) {
      read_at_[place(member)] = num_pushes_;
      is_held_[place(member)] = false;
    }
    for (const int member : members) {
      if (left_[place(member)] == 0) {
        free(release_.on_goodbye(member));
      }
    }
  }

  Release release_;
  std::vector<int64_t> left_;
  std::vector<int64_t> read_at_;
  std::vector<bool> is_held_;
  double now_s_ = 0;
  int64_t num_pushes_ = 0;
  int64_t largest_ = 0;
};

// Member 0 runs ahead as far as it may and falls asleep; the others run past it as far as they may.
TEST(ReleaseGap, IsAttained) {
  for (const int num_members : {2, 3, 4, 8}) {
    for (const int64_t s : {0, 1, 3}) {
      Gaps gaps({.num_members = num_members, .low = s}, 100);
      for (int64_t i = 0; i < s; ++i) {
        gaps.push(0);
      }
      ASSERT_TRUE(gaps.can_push(0));
      for (int member = 1; member < num_members; ++member) {
        for (int64_t i = 0; i < 2 * s + 1; ++i) {
          // In step with the rest, or one would be held by those that have not begun.
          for (int other = 1; member == 1 && other < num_members; ++other) {
            ASSERT_TRUE(gaps.can_push(other));
            gaps.push(other);
          }
        }
      }
      EXPECT_FALSE(gaps.can_push(1));
      gaps.push(0);
      EXPECT_EQ(gaps.largest(), (num_members - 1) * (2 * s + 1));
    }
  }
}

TEST(ReleaseGap, IsNeverExceededInAnyOrder) {
  for (const int num_members : {1, 2, 3, 4, 8}) {
    for (const auto& [low, range] : {std::pair{0, 0}, std::pair{2, 0}, std::pair{1, 3}}) {
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        const RandomKey key(seed);
        Gaps gaps({.num_members = num_members, .low = low, .range = range}, 60);
        for (uint64_t draw = 0;; ++draw) {
          std::vector<int> able;
          // One member sleeps for 40 draws, then another.
          const auto asleep = static_cast<int>(key.with("asleep").below(draw / 40, 8));
          for (int member = 0; member < num_members; ++member) {
            if (gaps.can_push(member)) {
              able.push_back(member);
            }
          }
          if (able.empty()) {
            break;
          }
          if (able.size() > 1) {
            std::erase(able, asleep);
          }
          gaps.push(able[key.below(draw, able.size())]);
        }
        EXPECT_LE(gaps.largest(), (num_members - 1) * (2 * (low + range) + 1));
        for (int member = 0; member < num_members; ++member) {
          EXPECT_FALSE(gaps.can_push(member));
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
