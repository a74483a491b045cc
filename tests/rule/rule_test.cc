#include "millrace/rule/rule.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "millrace/base/error.h"
#include "tests/base/caught.h"
#include "tests/rule/rule_world.h"

namespace millrace {
namespace {

using testing::HasSubstr;

Value options(const std::string& key, Value value) {
  Value all = Value::map();
  all.set(key, std::move(value));
  return all;
}

TEST(Registry, NamesAreUniqueFoundAndDescribed) {
  std::set<std::string> names;
  for (const RuleEntry& entry : rules()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_EQ(&find_rule(entry.name), &entry);
    for (const std::string& text : {entry.text, entry.conserves, entry.sends, entry.staleness}) {
      EXPECT_FALSE(text.empty()) << entry.name;
    }
    EXPECT_NE(entry.make({2, 1, settle_rule(entry, Value::map())}), nullptr) << entry.name;
  }
  EXPECT_TRUE(names.contains("bsp"));
}

TEST(Registry, UnknownNamesGetTheNearestOrAll) {
  const Error near = caught([] { find_rule("bps"); });
  EXPECT_EQ(near.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(near.message(), HasSubstr("`bps`"));
  EXPECT_THAT(near.message(), HasSubstr("did you mean `bsp`?"));
  EXPECT_THAT(caught([] { find_rule("gradient-descent"); }).message(), HasSubstr("there are: bsp"));
}

TEST(Registry, FactoriesRefuseReplicasThatDoNotExist) {
  for (const RuleEntry& entry : rules()) {
    const RuleOptions defaults = settle_rule(entry, Value::map());
    for (const auto& [members, member] : {std::pair{0, 0}, std::pair{2, 2}, std::pair{2, -1}}) {
      const Error error = caught([&] { entry.make({members, member, defaults}); });
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << entry.name;
      EXPECT_THAT(error.message(), HasSubstr("of " + std::to_string(members)));
    }
  }
}

// A rule with an option of each type.
RuleEntry entry_of(const std::string& keys) {
  RuleEntry entry;
  entry.name = "trial";
  entry.keys = keys;
  entry.make = [](const RuleConfig& config) -> std::unique_ptr<Rule> {
    check_rule_config(config);
    if (config.options.integer("tau") < 1) {
      refuse_option(config, "tau", "a whole number of 1 or more");
    }
    refuse_option(config, "topology", "ring or star");
  };
  return entry;
}

const char* const kKeys = "tau=10 alpha=0.5 cap=true topology=ring";

TEST(SettleRule, SetsEveryKey) {
  const RuleOptions defaults = settle_rule(entry_of(kKeys), Value::map());
  EXPECT_EQ(defaults.integer("tau"), 10);
  EXPECT_EQ(defaults.number("alpha"), 0.5);
  EXPECT_TRUE(defaults.flag("cap"));
  EXPECT_EQ(defaults.word("topology"), "ring");

  Value given = options("alpha", Value::of(1));
  given.set("cap", Value::of(false));
  const RuleOptions changed = settle_rule(entry_of(kKeys), given);
  EXPECT_EQ(changed.number("alpha"), 1.0);  // a whole number is a number
  EXPECT_FALSE(changed.flag("cap"));
  EXPECT_EQ(changed.integer("tau"), 10);
  EXPECT_THROW(changed.number("beta"), Error);
}

TEST(SettleRule, UnknownOptionsGetTheNearestAndAll) {
  const Error error =
      caught([] { settle_rule(entry_of(kKeys), options("alhpa", Value::of(0.1))); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.key(), "rule.alhpa");
  EXPECT_THAT(error.message(), HasSubstr("rule trial has no option `alhpa`"));
  EXPECT_THAT(error.message(), HasSubstr("did you mean `alpha`?"));
  EXPECT_THAT(error.message(), HasSubstr("it has: tau, alpha, cap, topology"));
  EXPECT_THAT(caught([] { settle_rule(entry_of(""), options("tau", Value::of(1))); }).message(),
              HasSubstr("has no options, found `tau`"));
}

TEST(SettleRule, TypesAreThoseOfTheDefaults) {
  const auto message = [](const std::string& key, const Value& value) {
    const Error error = caught([&] { settle_rule(entry_of(kKeys), options(key, value)); });
    EXPECT_EQ(error.key(), "rule." + key);
    return error.message();
  };
  EXPECT_THAT(message("tau", Value::of(1.5)), HasSubstr("a whole number for option `tau`"));
  EXPECT_THAT(message("alpha", Value::of("half")), HasSubstr("expected a number"));
  EXPECT_THAT(message("cap", Value::of(1)), HasSubstr("true or false"));
  EXPECT_THAT(message("topology", Value::of(true)), HasSubstr("a word"));
}

TEST(SettleRule, FactoriesRefuseWhatIsOutOfRange) {
  const auto make = [](const Value& given) {
    const RuleEntry entry = entry_of(kKeys);
    entry.make({2, 0, settle_rule(entry, given)});
  };
  const Error number = caught([&] { make(options("tau", Value::of(0))); });
  EXPECT_EQ(number.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(number.key(), "rule.tau");
  EXPECT_THAT(number.message(), HasSubstr("a whole number of 1 or more for `tau`, found 0"));
  EXPECT_THAT(caught([&] { make(options("topology", Value::of("tree"))); }).message(),
              HasSubstr("ring or star for `topology`, found tree"));
}

// Every rule, with its defaults: segments of equal numbers of updates end cleanly in any order of
// events, and settle() gives the same on all members.
TEST(AllRules, SegmentsEndAndSettle) {
  for (const RuleEntry& entry : rules()) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      SCOPED_TRACE(testing::Message() << entry.name << " seed " << seed);
      WorldConfig config;
      config.num_members = std::vector<int>{1, 2, 4, 8}[seed % 4];
      config.num_elements = 12;
      config.order = seed <= 2 ? Order::kLockStep : Order::kRandom;
      config.seed = seed;
      config.num_ranges = static_cast<int>(1 + seed % 3);
      config.in_place = seed % 2 == 0;
      RuleWorld world(entry.name, Value::map(), config);
      world.run(11);
      const Values first = world.settled();
      world.run(10);
      EXPECT_GT(distance(world.settled(), first), 0);
    }
  }
}

// Sums of gradients of unlike numbers of samples are divided by all samples; as one worker with the
// joined batch. Member 2 has none in every third update.
TEST(Bsp, IsOneWorkerWithTheJoinedBatch) {
  const auto samples = [](int member, int64_t step) -> double {
    return member == 2 && step % 3 == 2 ? 0 : member + 1;
  };
  const auto gradient = [&](int member, int64_t step, const Values& w) {
    Values sums;
    for (std::size_t i = 0; i < w.size(); ++i) {
      sums.push_back(samples(member, step) * (w[i] - member - static_cast<double>(i)));
    }
    return sums;
  };
  WorldConfig config;
  config.num_members = 3;
  config.momentum = 0.9;
  config.decay = 0.01;
  config.own_samples = samples;
  config.gradient = gradient;
  config.num_ranges = 3;
  config.order = Order::kRandom;
  RuleWorld world("bsp", Value::map(), config);
  world.run(20);

  config.num_members = 1;
  config.own_samples = [&](int, int64_t step) {
    return samples(0, step) + samples(1, step) + samples(2, step);
  };
  config.gradient = [&](int, int64_t step, const Values& w) {
    Values sums(w.size());
    for (int member = 0; member < 3; ++member) {
      const Values part = gradient(member, step, w);
      for (std::size_t i = 0; i < w.size(); ++i) {
        sums[i] += part[i];
      }
    }
    return sums;
  };
  RuleWorld alone("bsp", Value::map(), config);
  alone.run(20);
  EXPECT_LT(distance(world.settled(), alone.settled()), 1e-13);
  EXPECT_EQ(world.counts(1).reduced_elements, 20 * 4);
  EXPECT_EQ(world.counts(1).messages, 0);
}

}  // namespace
}  // namespace millrace
