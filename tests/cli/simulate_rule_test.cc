// `millrace simulate` of a plan whose rule's steps are not alike: what its figures are of.
#include <gmock/gmock.h>

#include <string>

#include "millrace/base/file.h"
#include "millrace/cli/commands.h"
#include "millrace/core/trace.h"
#include "tests/cli/cli_testing.h"

namespace millrace::cli {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Not;

struct Answer {
  Document document;
  std::string text;
  Trace trace{};
};

// Two replicas of all four layers, of 20 ms a microbatch of 8 samples each.
Answer answer_for(const std::string& rule, const std::string& schedule) {
  const TemporaryFolder folder;
  SimulateArgs args;
  args.source.plan =
      folder.write("plan.json", R"({"artifact": "plan", "version": 1, "schedule": ")" + schedule +
                                    R"(", "microbatches": 1, "workers": 2,
      "stages": [{"layers": ["a", "b", "c", "d"], "ranks": [0, 1]}], )" +
                                    rule + "}");
  args.profile = "tests/cli/data/profile.json";
  args.cluster = "tests/cli/data/cluster.toml";
  args.trace = folder.path("trace.json");
  args.batch = 16;
  const auto print = [&](bool json) {
    return printed_by([&] {
             Output output(json);
             return run_simulate(args, output);
           })
        .out;
  };
  Answer answer{.document = parse_json(print(true), "stdout"), .text = print(false)};
  answer.trace = trace_from(read_document(args.trace));
  return answer;
}

TEST(SimulateRuleTest, AWindowOfSeveralStepsSaysSo) {
  const Answer answer = answer_for(R"("rule": "server-async")", "gpipe");
  Reader reader(answer.document);
  const int64_t steps = reader.integer("num_steps");
  EXPECT_GT(steps, 30);
  EXPECT_EQ(answer.trace.num_steps, steps);
  const double step_s = reader.number("step_s");
  EXPECT_GT(step_s, 0.04);
  EXPECT_THAT(reader.number("window_s"), DoubleNear(step_s * static_cast<double>(steps), step_s));
  EXPECT_THAT(answer.text, HasSubstr("the mean of 60 steps' later two thirds"));
  EXPECT_THAT(answer.text, HasSubstr("of the ranks' time idle, over all 60 steps"));
}

TEST(SimulateRuleTest, OneStepStandsForAllWhereTheyAreAlike) {
  const Answer answer = answer_for(R"("rule": "bsp")", "gpipe");
  EXPECT_EQ(Reader(answer.document).integer("num_steps"), 1);
  EXPECT_THAT(answer.text, Not(HasSubstr("steps")));
}

// The segment is what was lowered, whatever the rule.
TEST(SimulateRuleTest, WithoutAFlushTheSegmentStays) {
  const Answer equal = answer_for(R"("rule": "bsp")", "pipedream");
  const Answer elastic = answer_for(R"("rule": "server-async")", "pipedream");
  EXPECT_EQ(Reader(equal.document).integer("num_steps"),
            Reader(elastic.document).integer("num_steps"));
  EXPECT_EQ(elastic.trace.num_steps, equal.trace.num_steps);
  EXPECT_THAT(elastic.text, HasSubstr("the steady period"));
}

}  // namespace
}  // namespace millrace::cli
