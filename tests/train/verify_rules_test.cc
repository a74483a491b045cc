// `millrace verify` under every exchange rule: runs that are right agree with the rule's law, and
// runs that are broken are found and located.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "millrace/rule/rule.h"
#include "millrace/train/verify.h"

namespace millrace {
namespace {

RunConfig config_of(const std::string& rule, const std::vector<int>& replicas) {
  RunConfig config;
  config.name = "verify-rules";
  config.model.name = "mlp";
  config.model.options.set("depth", Value::of(3));
  config.model.options.set("width", Value::of(12));
  config.data.name = "synthetic";
  config.data.options.set("samples", Value::of(103));  // the last batch has 7
  config.data.options.set("test_samples", Value::of(8));
  config.data.options.set("height", Value::of(5));
  config.data.options.set("width", Value::of(4));
  config.parallel.workers = std::accumulate(replicas.begin(), replicas.end(), 0);
  config.parallel.stages = static_cast<int>(replicas.size());
  config.parallel.replicas = replicas;
  config.parallel.schedule = "1f1b";
  config.parallel.microbatches = 2;
  config.parallel.rule = rule;
  config.train.batch = 12;
  config.train.lr = 0.05;
  config.train.momentum = 0.9;
  config.train.weight_decay = 0.001;
  return config;
}

// What is measured of a number of workers serves all tests of this file.
std::string cache_dir() {
  return (std::filesystem::temp_directory_path() /
          ("millrace-verify-rules-" + std::to_string(::getpid())))
      .string();
}

VerifyResult run(const RunConfig& config, const VerifyOptions& options = {}) {
  return verify(config,
                {.cache_dir = cache_dir(), .fresh = false, .profile_s = 0.0, .sink = nullptr},
                options);
}

class Cache : public ::testing::Environment {
 public:
  void TearDown() override { std::filesystem::remove_all(cache_dir()); }
};
const ::testing::Environment* const kCache = ::testing::AddGlobalTestEnvironment(new Cache);

std::string told(const VerifyResult& result) {
  std::string text = result.oracle + ": " + std::to_string(result.max_relative_difference);
  if (result.first_difference) {
    text += " step " + std::to_string(result.first_difference->step) + " stage " +
            std::to_string(result.first_difference->stage) + " " + result.first_difference->layer +
            " " + result.first_difference->what;
  }
  for (const std::string& note : result.notes) {
    text += "; " + note;
  }
  return text;
}

void expect_equal(const RunConfig& config) {
  const VerifyResult result = run(config);
  EXPECT_TRUE(result.equal) << config.parallel.rule << " " << told(result);
  EXPECT_EQ(result.steps, 8);
  EXPECT_GT(result.compared, 8 * 12) << config.parallel.rule;
}

class VerifyRule : public ::testing::TestWithParam<std::string> {};

TEST_P(VerifyRule, AgreesWithItsLaw) {
  for (const int replicas : {2, 4}) {
    const RunConfig config = config_of(GetParam(), {replicas});
    const VerifyResult result = run(config);
    EXPECT_TRUE(result.equal) << told(result);
    EXPECT_EQ(result.steps, 8);
    EXPECT_GT(result.compared, 8 * 12);
    EXPECT_NE(result.oracle.find("one process"), std::string::npos) << result.oracle;
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const RuleEntry& rule : rules()) {
    all.push_back(rule.name);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Every, VerifyRule, ::testing::ValuesIn(names()), [](const auto& rule) {
  std::string name = rule.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

struct Variant {
  std::string rule;
  std::vector<std::pair<std::string, Value>> options;
};

RunConfig config_of(const Variant& variant, const std::vector<int>& replicas) {
  RunConfig config = config_of(variant.rule, replicas);
  for (const auto& [key, value] : variant.options) {
    config.rule_options.set(key, value);
  }
  return config;
}

TEST(VerifyRules, AtOtherOptions) {
  const std::vector<Variant> variants = {
      {"local-sgd", {{"tau", Value::of(3)}}},
      {"pipe-sgd", {{"width", Value::of(1)}}},
      {"pipe-sgd", {{"width", Value::of(4)}}},
      {"gradient-flow", {{"threshold_kib", Value::of(0)}}},
      {"gradient-flow", {{"density", Value::of(0.3)}, {"chunk", Value::of(16)}}},
      {"gradient-flow",
       {{"density", Value::of(0.2)},
        {"chunk", Value::of(16)},
        {"warmup", Value::of(2)},
        {"ramp", Value::of(3)}}},
      {"daso", {{"node_size", Value::of(1)}, {"skip", Value::of(2)}}},
      {"daso", {{"node_size", Value::of(2)}, {"skip", Value::of(3)}, {"wait", Value::of(2)}}},
      {"daso", {{"node_size", Value::of(2)}, {"skip", Value::of(2)}, {"wait", Value::of(0)}}},
      {"daso", {{"node_size", Value::of(2)}, {"skip", Value::of(0)}}},
      {"daso",
       {{"node_size", Value::of(2)},
        {"skip", Value::of(1)},
        {"max_skip", Value::of(8)},
        {"period", Value::of(1)},
        {"patience", Value::of(0)},
        {"threshold", Value::of(0.9)}}},
      {"daso",
       {{"node_size", Value::of(2)},
        {"skip", Value::of(2)},
        {"warmup", Value::of(3)},
        {"cooldown", Value::of(6)}}},
      {"decentralized", {{"topology", Value::of("complete")}}},
      {"decentralized", {{"topology", Value::of("exponential")}}},
      {"decentralized", {{"topology", Value::of("alternating")}, {"node_size", Value::of(2)}}},
      {"gosgd", {{"probability", Value::of(0.4)}}},
      {"easgd", {{"tau", Value::of(1)}, {"alpha", Value::of(0.3)}}},
      {"easgd", {{"tau", Value::of(3)}}},
      {"asgd", {{"tau", Value::of(3)}}},
      {"downpour", {{"n_fetch", Value::of(3)}, {"n_push", Value::of(2)}}},
      {"downpour", {{"n_fetch", Value::of(1)}, {"n_push", Value::of(4)}}},
      {"server-bounded", {{"staleness", Value::of(0)}}},
      {"dssp", {{"s_low", Value::of(0)}, {"range", Value::of(2)}}},
      {"dssp", {{"s_low", Value::of(1)}, {"cap", Value::of(false)}}},
      {"slim", {{"alpha", Value::of(1.0)}, {"beta", Value::of(1.0)}}},
      {"slim", {{"refresh", Value::of(2)}, {"period", Value::of(2)}, {"weight", Value::of(3.0)}}},
  };
  for (const Variant& variant : variants) {
    expect_equal(config_of(variant, {4}));
  }
  expect_equal(config_of({"decentralized", {{"topology", Value::of("exponential")}}}, {3}));
  expect_equal(config_of({"gosgd", {{"probability", Value::of(1.0)}}}, {2}));
}

TEST(VerifyRules, WithinPipelines) {
  for (const char* rule : {"local-sgd", "server-async", "gosgd", "pipe-sgd", "daso", "slim"}) {
    for (const std::vector<int>& replicas : {std::vector<int>{2, 2}, {2, 1}, {1, 2}}) {
      RunConfig config = config_of(std::string(rule), replicas);
      config.parallel.microbatches = 4;
      expect_equal(config);
    }
  }
  EXPECT_TRUE(run(config_of("bsp", {2, 2})).equal);
}

// An optimizer with state of two kinds, and rates that change.
TEST(VerifyRules, WithAnotherOptimizerAndARateThatChanges) {
  for (const char* rule :
       {"bsp-average", "local-sgd", "easgd", "decentralized", "server-bounded"}) {
    RunConfig config = config_of(std::string(rule), {2});
    config.train.optimizer = "adam";
    config.train.momentum.reset();
    config.train.lr = 0.002;
    config.train.lr_schedule = "cosine";
    config.train.warmup_steps = 4;
    expect_equal(config);
  }
}

TEST(VerifyRules, GradientsOfAnotherScaleAreFoundUnderEveryRule) {
  for (const RuleEntry& rule : rules()) {
    const VerifyResult result = run(config_of(rule.name, {2}), {.fault = Break::kScale});
    EXPECT_FALSE(result.equal) << rule.name;
    ASSERT_TRUE(result.first_difference) << rule.name;
    EXPECT_EQ(result.first_difference->step, rule.name == "pipe-sgd" ? 1 : 0) << told(result);
    EXPECT_EQ(result.first_difference->layer, "linear1") << told(result);
  }
  const VerifyResult sparse = run(
      config_of({"gradient-flow", {{"density", Value::of(0.3)}, {"chunk", Value::of(16)}}}, {2}),
      {.fault = Break::kScale});
  EXPECT_FALSE(sparse.equal);
}

// The oracle is told of one option and the run has another.
TEST(VerifyRules, AnOptionThatTheOracleIsNotToldOfIsFound) {
  struct Case {
    std::string rule;
    std::string key;
    Value told;
    Value run;
    int64_t step;  // of the first difference
  };
  const std::vector<Case> cases = {
      {"local-sgd", "tau", Value::of(3), Value::of(4), 2},
      {"pipe-sgd", "width", Value::of(2), Value::of(3), 1},
      {"gradient-flow", "density", Value::of(0.5), Value::of(0.3), 0},
      {"daso", "skip", Value::of(3), Value::of(4), 3},
      {"decentralized", "topology", Value::of("ring"), Value::of("complete"), 1},
      {"easgd", "tau", Value::of(2), Value::of(3), 1},
      {"asgd", "tau", Value::of(2), Value::of(3), 1},
      {"downpour", "n_fetch", Value::of(2), Value::of(3), 1},
      {"gosgd", "probability", Value::of(0.0), Value::of(1.0), -1},
      {"slim", "alpha", Value::of(0.4), Value::of(0.3), 0},
      {"easgd", "alpha", Value::of(0.5), Value::of(0.4), -1},
  };
  for (const Case& each : cases) {
    RunConfig config = config_of(each.rule, {4});
    config.rule_options.set("chunk", Value::of(16));
    if (each.rule != "gradient-flow") {
      config.rule_options = Value::map();
    }
    if (each.rule == "daso") {
      config.rule_options.set("node_size", Value::of(2));
    }
    if (each.rule == "easgd" && each.key == "alpha") {
      config.rule_options.set("tau", Value::of(1));
    }
    VerifyOptions options;
    options.run_rule_options = config.rule_options;
    if (each.rule == "gradient-flow") {
      options.run_rule_options->set("momentum", Value::of(0.9));
      options.run_rule_options->set("decay", Value::of(0.001));
    }
    options.run_rule_options->set(each.key, each.run);
    config.rule_options.set(each.key, each.told);
    const VerifyResult result = run(config, options);
    EXPECT_FALSE(result.equal) << each.rule;
    ASSERT_TRUE(result.first_difference) << each.rule;
    if (each.step >= 0) {
      EXPECT_EQ(result.first_difference->step, each.step) << told(result);
    }
  }
}

TEST(VerifyRules, WhatIsNotVerifiedIsRefusedWithItsKey) {
  const auto key_of = [](const RunConfig& config) -> std::string {
    try {
      run(config);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      return error.key().value_or("");
    }
    return "";
  };
  RunConfig on_demand = config_of("server-async", {2});
  on_demand.parallel.deal = "on-demand";
  EXPECT_EQ(key_of(on_demand), "parallel.deal");
  RunConfig delayed = config_of("local-sgd", {2, 2});
  delayed.parallel.schedule = "pipedream";
  delayed.parallel.microbatches = 1;
  EXPECT_EQ(key_of(delayed), "parallel.rule");
}

}  // namespace
}  // namespace millrace
