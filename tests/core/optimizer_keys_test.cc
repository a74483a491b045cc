#include "millrace/core/optimizer_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/caught.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

const std::vector<OptimizerText> kOffered = {{"plain", "momentum=0 weight_decay=0.5"},
                                             {"fast", "beta1=0.75 epsilon=1e-8"},
                                             {"faster", "beta1=0.5"}};

TEST(OptimizerKeysTest, AKeyIsTakenByItsWholeName) {
  EXPECT_TRUE(takes_key("beta1=0.9 beta2", "beta1"));
  EXPECT_TRUE(takes_key("beta1=0.9 beta2", "beta2"));
  EXPECT_FALSE(takes_key("beta1=0.9 beta2", "beta"));
  EXPECT_FALSE(takes_key("", "beta1"));
}

TEST(OptimizerKeysTest, UnsetKeysGetTheOptimizersDefaultsAndSetOnesStay) {
  TrainConfig config;
  config.optimizer = "plain";
  config.momentum = 0.25;
  settle_optimizer(config, kOffered);
  EXPECT_EQ(config.momentum, 0.25);
  EXPECT_EQ(config.weight_decay, 0.5);
  EXPECT_EQ(config.beta1, std::nullopt);
  TrainConfig again = config;
  settle_optimizer(again, kOffered);
  EXPECT_EQ(again, config);
}

TEST(OptimizerKeysTest, AKeyOfOthersIsRefusedNamingThem) {
  TrainConfig config;
  config.optimizer = "plain";
  config.beta1 = 0.9;
  const Error error = caught([&] { settle_optimizer(config, kOffered); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.key(), "train.beta1");
  EXPECT_THAT(error.message(), HasSubstr("`plain` does not use this; fast or faster does"));
  config.beta1.reset();
  config.beta2 = 0.9;
  EXPECT_THAT(caught([&] { settle_optimizer(config, kOffered); }).message(),
              HasSubstr("none does"));
}

TEST(OptimizerKeysTest, AnUnknownOptimizerIsToldWithTheNearest) {
  TrainConfig config;
  config.optimizer = "fats";
  const Error error = caught([&] { settle_optimizer(config, kOffered); });
  EXPECT_EQ(error.key(), "train.optimizer");
  EXPECT_THAT(error.message(), HasSubstr("did you mean `fast`?"));
}

}  // namespace
}  // namespace millrace
