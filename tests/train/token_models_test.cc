// Models of sequences of tokens through the runtime, against one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "millrace/base/file.h"
#include "millrace/train/verify.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenModels : public ::testing::Test {
 protected:
  TokenModels() {
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += "the quick brown fox " + std::to_string(i * i);
    }
    write_file_atomically(path_, text);
  }
  ~TokenModels() override { std::filesystem::remove(path_); }

  RunConfig config_of(const std::string& model, const std::string& schedule, int stages,
                      int replicas, int microbatches) const {
    RunConfig config;
    config.name = "tokens";
    config.model.name = model;
    config.model.options.set("layers", Value::of(2));
    config.model.options.set("width", Value::of(12));
    config.model.options.set("dropout", Value::of(0.2));
    config.data.name = "text";
    config.data.options.set("path", Value::of(path_));
    config.data.options.set("length", Value::of(10));
    config.parallel.workers = stages * replicas;
    config.parallel.stages = stages;
    config.parallel.replicas = {replicas};
    config.parallel.schedule = schedule;
    config.parallel.microbatches = microbatches;
    config.train.batch = 12;
    config.train.optimizer = "adam";
    config.train.lr = 0.01;
    return config;
  }

  static VerifyResult run(const RunConfig& config) {
    return verify(config, {.cache_dir = "", .fresh = false, .profile_s = 0.0, .sink = nullptr},
                  {.steps = 4});
  }

  std::string path_ = (std::filesystem::temp_directory_path() /
                       ("millrace-tokens-" + std::to_string(::getpid()) + ".txt"))
                          .string();
};

TEST_F(TokenModels, EverySpreadAgreesWithOneProcess) {
  for (const std::string model : {"gpt", "lstm-lm"}) {
    for (const auto& [schedule, stages, replicas, microbatches] :
         {std::tuple{"1f1b", 1, 1, 3}, {"gpipe", 3, 1, 2}, {"1f1b", 2, 2, 2}}) {
      const VerifyResult result = run(config_of(model, schedule, stages, replicas, microbatches));
      EXPECT_TRUE(result.equal) << model << " " << schedule << " "
                                << result.max_relative_difference;
    }
  }
}

TEST_F(TokenModels, PipedreamAgreesBitForBit) {
  for (const std::string model : {"gpt", "lstm-lm"}) {
    const VerifyResult result = run(config_of(model, "pipedream", 3, 1, 1));
    EXPECT_TRUE(result.equal) << model << " " << result.max_relative_difference;
    EXPECT_EQ(result.tolerance, 0);
  }
}

TEST_F(TokenModels, TiedWeightsAgreeInOneStageAndAreRefusedInTwo) {
  for (const char* schedule : {"1f1b", "pipedream"}) {
    RunConfig config = config_of("gpt", schedule, 1, 2, 1);
    config.model.options.set("tied", Value::of(true));
    const VerifyResult result = run(config);
    EXPECT_TRUE(result.equal) << schedule << " " << result.max_relative_difference;
  }
  RunConfig cut = config_of("gpt", "1f1b", 2, 1, 1);
  cut.model.options.set("tied", Value::of(true));
  try {
    run(cut);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("\"tokens\""), HasSubstr("\"projection\""),
                                       HasSubstr("model.tied = false")));
  }
}

TEST_F(TokenModels, ModelAndDataMustMeet) {
  RunConfig config = config_of("gpt", "1f1b", 1, 1, 1);
  config.data.name = "synthetic";
  config.data.options = Value::map();
  EXPECT_THROW(run(config), Error);
  config = config_of("gpt", "1f1b", 1, 1, 1);
  config.data.options.set("length", Value::of(200));
  EXPECT_THROW(run(config), Error);
}

}  // namespace
}  // namespace millrace
