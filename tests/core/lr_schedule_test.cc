#include "millrace/core/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/base/caught.h"

namespace millrace {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

TrainConfig config_of(const std::string& schedule, int64_t epochs) {
  TrainConfig config;
  config.lr = 1.0;
  config.lr_schedule = schedule;
  config.epochs = epochs;
  return config;
}

std::vector<double> rates(const TrainConfig& config, int64_t steps_per_epoch) {
  const LrSchedule lr(config, steps_per_epoch);
  std::vector<double> all;
  for (int64_t step = 0; step < total_steps(config, steps_per_epoch); ++step) {
    all.push_back(lr.at(step));
  }
  return all;
}

TEST(LrScheduleTest, ConstantIsLr) {
  EXPECT_THAT(rates(config_of("constant", 2), 2), ElementsAre(1, 1, 1, 1));
}

TEST(LrScheduleTest, StepDecaysEverySoManyEpochs) {
  TrainConfig config = config_of("step", 5);
  config.lr_step_epochs = 2;
  config.lr_decay = 0.5;
  EXPECT_THAT(rates(config, 2), ElementsAre(1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25));
}

TEST(LrScheduleTest, MilestonesAreTheFirstEpochsOfTheLowerRate) {
  TrainConfig config = config_of("step", 5);
  config.lr_milestones = {1, 4};
  config.lr_decay = 0.1;
  EXPECT_THAT(rates(config, 1), ElementsAre(DoubleEq(1), DoubleEq(0.1), DoubleEq(0.1),
                                            DoubleEq(0.1), DoubleNear(0.01, 1e-17)));
}

TEST(LrScheduleTest, CosineFallsFromLrTowardsItsEnd) {
  TrainConfig config = config_of("cosine", 4);
  config.lr_end = 0.2;
  const double half = std::sqrt(0.5);
  EXPECT_THAT(rates(config, 1), Pointwise(DoubleNear(1e-15), {1.0, 0.2 + 0.4 * (1 + half), 0.6,
                                                              0.2 + 0.4 * (1 - half)}));
}

TEST(LrScheduleTest, PolynomialIsAPowerOfWhatIsLeft) {
  TrainConfig config = config_of("polynomial", 4);
  EXPECT_THAT(rates(config, 1), ElementsAre(1, 0.75, 0.5, 0.25)) << "power 1 is a line";
  config.lr_power = 2;
  config.lr_end = 0.5;
  EXPECT_THAT(rates(config, 1), ElementsAre(1, 0.5 + 0.5 * 0.5625, 0.625, 0.5 + 0.5 * 0.0625));
}

TEST(LrScheduleTest, WarmUpRisesInALineAndMeetsTheScheduleAtItsStart) {
  for (const LrScheduleEntry& entry : lr_schedules()) {
    TrainConfig config = config_of(entry.name, 2);
    config.lr_milestones = {100};
    config.warmup_steps = 4;
    const std::vector<double> all = rates(config, 6);
    for (int64_t step = 0; step < 4; ++step) {
      EXPECT_EQ(all[static_cast<std::size_t>(step)], static_cast<double>(step + 1) / 4)
          << entry.name;
    }
    EXPECT_EQ(all[4], 1) << entry.name;
  }
  TrainConfig config = config_of("polynomial", 1);
  config.warmup_steps = 2;
  EXPECT_THAT(rates(config, 6), ElementsAre(0.5, 1, 1, 0.75, 0.5, 0.25))
      << "the decay takes the updates after warm-up";
}

// C29: base x W^(k/5), and never unasked.
TEST(LrScheduleTest, ReplicasRaiseTheRateOverFiveEpochsWhereThatIsAsked) {
  TrainConfig config = config_of("constant", 8);
  config.lr_replicas = 4;
  EXPECT_THAT(rates(config, 1), ::testing::Each(1.0));
  config.lr_scaling = "replicas";
  const std::vector<double> all = rates(config, 2);
  for (int64_t step = 0; step < 16; ++step) {
    const double epoch = std::min<double>(5, static_cast<double>(step / 2));
    EXPECT_DOUBLE_EQ(all[static_cast<std::size_t>(step)], std::pow(4.0, epoch / 5)) << step;
  }
  EXPECT_EQ(all.back(), 4.0);
  config.warmup_steps = 2;
  EXPECT_EQ(rates(config, 2).front(), 0.5) << "both at once multiply";
}

TEST(LrScheduleTest, MaxStepsShortensTheRunAndWithItTheDecay) {
  TrainConfig config = config_of("polynomial", 100);
  config.max_steps = 4;
  EXPECT_THAT(rates(config, 3), ElementsAre(1, 0.75, 0.5, 0.25));
  config.max_steps = 1000;
  EXPECT_EQ(total_steps(config, 3), 300) << "the epochs end first";
}

// Every schedule stays between 0 and lr, is pure, and holds at its ends when warm-up is all there
// is.
TEST(LrScheduleTest, EveryScheduleIsFiniteWhateverTheLengths) {
  for (const LrScheduleEntry& entry : lr_schedules()) {
    for (const int64_t warmup : {0, 1, 5, 12, 50}) {
      TrainConfig config = config_of(entry.name, 4);
      config.lr_step_epochs = 1;
      config.warmup_steps = warmup;
      const std::vector<double> all = rates(config, 3);
      for (const double rate : all) {
        EXPECT_GE(rate, 0) << entry.name;
        EXPECT_LE(rate, 1) << entry.name;
      }
      EXPECT_EQ(all, rates(config, 3));
    }
  }
}

TEST(LrScheduleTest, AnUnknownNameIsToldWithTheNearest) {
  const Error error = caught([] { find_lr_schedule("cosinus"); });
  EXPECT_EQ(error.key(), "train.lr_schedule");
  EXPECT_THAT(error.message(), HasSubstr("did you mean `cosine`?"));
}

}  // namespace
}  // namespace millrace
