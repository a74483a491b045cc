#include "millrace/rule/rule.h"

#include <gmock/gmock.h>

#include <set>
#include <string>
#include <variant>

#include "millrace/base/error.h"
#include "millrace/base/random.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// "reduce[0,8)* step release": the star marks the last range of an update.
std::string text_of(const RuleActions& actions) {
  std::string text;
  for (const RuleAction& action : actions) {
    text += text.empty() ? "" : " ";
    if (const auto* reduce = std::get_if<AllReduceSum>(&action)) {
      text += "reduce[" + std::to_string(reduce->range.begin) + "," +
              std::to_string(reduce->range.end) + ")" + (reduce->last ? "*" : "");
    } else if (std::holds_alternative<ApplyUpdate>(action)) {
      text += "step";
    } else {
      text += "release";
    }
  }
  return text;
}

Error find_error(const std::string& name) {
  try {
    find_rule(name);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

TEST(Registry, NamesAreUniqueFoundAndDescribed) {
  std::set<std::string> names;
  for (const RuleEntry& entry : rules()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_EQ(&find_rule(entry.name), &entry);
    for (const std::string& text : {entry.text, entry.conserves, entry.sends, entry.staleness}) {
      EXPECT_FALSE(text.empty()) << entry.name;
    }
    EXPECT_NE(entry.make({2, 1}), nullptr) << entry.name;
  }
  EXPECT_TRUE(names.contains("bsp"));
}

TEST(Registry, UnknownNamesGetTheNearestOrAll) {
  const Error near = find_error("bps");
  EXPECT_EQ(near.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(near.message(), HasSubstr("`bps`"));
  EXPECT_THAT(near.message(), HasSubstr("did you mean `bsp`?"));
  EXPECT_THAT(find_error("gradient-descent").message(), HasSubstr("there are: bsp"));
}

TEST(Registry, FactoriesRefuseReplicasThatDoNotExist) {
  for (const RuleEntry& entry : rules()) {
    for (const RuleConfig& config : {RuleConfig{0, 0}, RuleConfig{2, 2}, RuleConfig{2, -1}}) {
      try {
        entry.make(config);
        ADD_FAILURE() << entry.name << " took replica " << config.replica;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.message(), HasSubstr("of " + std::to_string(config.num_replicas)));
      }
    }
  }
}

TEST(Bsp, OneRangeAnUpdate) {
  const auto rule = find_rule("bsp").make({2, 0});
  for (int update = 0; update < 3; ++update) {
    EXPECT_EQ(text_of(rule->on(GradientsReady{{0, 8}, true})), "reduce[0,8)*");
    EXPECT_EQ(text_of(rule->on(AllReduced{{0, 8}, true})), "step release");
  }
}

TEST(Bsp, RangesAreReducedAsTheyComeAndTheUpdateWaitsForAll) {
  const auto rule = find_rule("bsp").make({3, 1});
  for (int update = 0; update < 2; ++update) {
    EXPECT_EQ(text_of(rule->on(GradientsReady{{4, 8}, false})), "reduce[4,8)");
    EXPECT_EQ(text_of(rule->on(AllReduced{{4, 8}, false})), "");
    EXPECT_EQ(text_of(rule->on(GradientsReady{{2, 4}, false})), "reduce[2,4)");
    EXPECT_EQ(text_of(rule->on(GradientsReady{{0, 2}, true})), "reduce[0,2)*");
    // The last one asked for may complete first.
    EXPECT_EQ(text_of(rule->on(AllReduced{{0, 2}, true})), "");
    EXPECT_EQ(text_of(rule->on(AllReduced{{2, 4}, false})), "step release");
  }
}

TEST(Bsp, EmptyRangeStillMakesItsUpdate) {
  const auto rule = find_rule("bsp").make({1, 0});
  EXPECT_EQ(text_of(rule->on(GradientsReady{{0, 0}, true})), "reduce[0,0)*");
  EXPECT_EQ(text_of(rule->on(AllReduced{{0, 0}, true})), "step release");
}

TEST(Bsp, ImpossibleEventsAreBugs) {
  const auto rule = find_rule("bsp").make({2, 0});
  EXPECT_THROW(rule->on(AllReduced{{0, 8}, true}), Error);
  EXPECT_THROW(rule->on(GradientsReady{{8, 0}, true}), Error);
  rule->on(GradientsReady{{0, 8}, true});
  EXPECT_THROW(rule->on(GradientsReady{{8, 9}, false}), Error);
}

// Every rule, whatever the order in which ranges become ready: all elements are reduced once or not
// at all, the update is made at most once and the worker is let go exactly once, never before the
// last event.
TEST(AllRules, AnUpdateReleasesTheWorkerOnce) {
  for (const RuleEntry& entry : rules()) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(testing::Message() << entry.name << " seed " << seed);
      const RandomKey key(seed);
      const auto rule = entry.make({4, static_cast<int>(seed % 4)});
      const int64_t num_ranges = 1 + static_cast<int64_t>(key.below(0, 6));
      const std::vector<int64_t> order = permutation(key.with("order"), num_ranges);
      std::multiset<int64_t> reduced;
      int num_updates = 0;
      int num_releases = 0;
      const auto run = [&](const auto& self, const RuleActions& actions) -> void {
        for (const RuleAction& action : actions) {
          if (const auto* reduce = std::get_if<AllReduceSum>(&action)) {
            for (int64_t i = reduce->range.begin; i < reduce->range.end; ++i) {
              reduced.insert(i);
            }
            self(self, rule->on(AllReduced{reduce->range, reduce->last}));
          } else if (std::holds_alternative<ApplyUpdate>(action)) {
            ++num_updates;
          } else {
            ++num_releases;
          }
        }
      };
      for (int64_t i = 0; i < num_ranges; ++i) {
        EXPECT_EQ(num_releases, 0);
        const int64_t begin = 3 * order[static_cast<std::size_t>(i)];
        run(run, rule->on(GradientsReady{{begin, begin + 3}, i + 1 == num_ranges}));
      }
      EXPECT_EQ(num_releases, 1);
      EXPECT_LE(num_updates, 1);
      EXPECT_EQ(reduced.size(), std::set<int64_t>(reduced.begin(), reduced.end()).size());
    }
  }
}

}  // namespace
}  // namespace millrace
