#include "millrace/cli/common/options.h"

#include <gmock/gmock.h>

#include "tests/cli/cli_testing.h"

namespace millrace::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<std::string> kCommands = {"list",   "plan",   "schedule", "simulate",
                                            "report", "train",  "verify",   "profile",
                                            "eval",   "doctor", "bench"};

TEST(OptionsTest, NoArgumentsShowTheCommandsAndWhatToTryFirst) {
  const Parsed result = parsed({});
  EXPECT_EQ(result.printed.status, 0);
  EXPECT_EQ(result.printed.err, "");
  for (const std::string& command : kCommands) {
    EXPECT_THAT(result.printed.out, HasSubstr("\n  " + command + " ")) << command;
  }
  EXPECT_THAT(result.printed.out, HasSubstr("Try first:  millrace schedule"));
}

TEST(OptionsTest, VersionIsOneLine) {
  const Parsed result = parsed({"--version"});
  EXPECT_EQ(result.printed.status, 0);
  EXPECT_EQ(result.printed.out, std::string("millrace ") + MILLRACE_VERSION + "\n");
}

TEST(OptionsTest, EverySubcommandHasHelpThatEndsWithAnExampleOfItself) {
  for (const std::string& command : kCommands) {
    for (const auto& words :
         {std::vector<std::string>{command, "--help"}, std::vector<std::string>{"help", command}}) {
      const Parsed result = parsed(words);
      EXPECT_EQ(result.printed.status, 0) << command;
      EXPECT_EQ(result.printed.err, "") << command;
      EXPECT_THAT(result.printed.out, HasSubstr("Usage: millrace " + command)) << command;
      EXPECT_THAT(result.printed.out, HasSubstr("--json")) << command;
      EXPECT_THAT(result.printed.out, HasSubstr("Example:\n  millrace " + command)) << command;
    }
  }
}

TEST(OptionsTest, ThatExampleParses) {
  for (const std::string& command : kCommands) {
    const std::string help = parsed({command, "--help"}).printed.out;
    std::string example = help.substr(help.find("Example:\n  millrace ") + 20);
    example = example.substr(0, example.find('\n'));
    std::vector<std::string> words;
    for (std::size_t begin = 0; begin < example.size();) {
      const std::size_t end = std::min(example.find(' ', begin), example.size());
      words.push_back(example.substr(begin, end - begin));
      begin = end + 1;
    }
    EXPECT_EQ(parsed(words).printed.status, -1) << example;
  }
}

TEST(OptionsTest, PlanTakesItsOptions) {
  const Parsed result =
      parsed({"plan",       "p.json",     "--cluster", "c.toml", "--planner",  "one",
              "--workers",  "3",          "--stages",  "2",      "--replicas", "2,1",
              "--straight", "--schedule", "1f1b",      "--rule", "bsp",        "--microbatches",
              "4",          "-o",         "out.json",  "--json"});
  ASSERT_EQ(result.printed.status, -1) << result.printed.err;
  const PlanArgs& plan = result.options.plan;
  EXPECT_EQ(result.options.command, Command::kPlan);
  EXPECT_TRUE(result.options.json);
  EXPECT_EQ(plan.profile, "p.json");
  EXPECT_EQ(plan.cluster, "c.toml");
  EXPECT_EQ(plan.planner, "one");
  EXPECT_EQ(plan.workers, 3);
  EXPECT_EQ(plan.stages, 2);
  EXPECT_THAT(plan.replicas, ElementsAre(2, 1));
  EXPECT_TRUE(plan.straight);
  EXPECT_EQ(plan.schedule, "1f1b");
  EXPECT_EQ(plan.microbatches, 4);
  EXPECT_EQ(plan.output, "out.json");
}

TEST(OptionsTest, DefaultsOfPlanAreThoseOfItsStruct) {
  const Parsed result = parsed({"plan", "p.json", "--cluster", "c.toml"});
  const PlanArgs standard;
  EXPECT_EQ(result.options.plan.planner, standard.planner);
  EXPECT_EQ(result.options.plan.workers, 0);
  EXPECT_FALSE(result.options.plan.stages.has_value());
  EXPECT_TRUE(result.options.plan.replicas.empty());
  EXPECT_FALSE(result.options.plan.microbatches.has_value()) << "the planner's choice, or 1";
  EXPECT_EQ(result.options.plan.shard, "none");
}

TEST(OptionsTest, ScheduleAndSimulateTakeTheSameSources) {
  for (const std::string command : {"schedule", "simulate"}) {
    const Parsed named = parsed({command, "--name", "gpipe", "--ranks", "4", "--microbatches", "8",
                                 "--policy", "flush", "--slots", "1:3"});
    ASSERT_EQ(named.printed.status, -1) << named.printed.err;
    const bool simulate = command == "simulate";
    const ScheduleSource& source =
        simulate ? named.options.simulate.source : named.options.schedule.source;
    EXPECT_EQ(source.name, "gpipe");
    EXPECT_EQ(source.ranks, 4);
    EXPECT_EQ(source.microbatches, 8);
    EXPECT_EQ(source.policy, "flush");
    EXPECT_EQ(simulate ? named.options.simulate.slots : named.options.schedule.slots, "1:3");
    EXPECT_EQ(parsed({command, "plan.json"}).printed.status, -1);
  }
}

TEST(OptionsTest, TrainTakesItsOptionsAndTheirSettings) {
  const Parsed result = parsed({"train",        "run.toml",    "--set",
                                "train.lr=0.1", "--set",       "parallel.replicas=[1, 1]",
                                "-n",           "4",           "--plan",
                                "p.json",       "--resume",    "runs/x",
                                "--run-dir",    "d",           "--dry-run",
                                "--fresh",      "--processes", "2",
                                "--engine",     "gloo",        "--hosts",
                                "h.txt"});
  ASSERT_EQ(result.printed.status, -1) << result.printed.err;
  const TrainArgs& train = result.options.train;
  EXPECT_EQ(train.run.config, "run.toml");
  EXPECT_TRUE(train.run.fresh);
  EXPECT_TRUE(train.dry_run);
  EXPECT_EQ(train.resume, "runs/x");
  EXPECT_EQ(train.run_dir, "d");
  EXPECT_EQ(train.processes, 2);
  EXPECT_EQ(train.engine, "gloo");
  EXPECT_EQ(train.hosts, "h.txt");
  EXPECT_THAT(all_settings(train), ElementsAre("train.lr=0.1", "parallel.replicas=[1, 1]",
                                               "parallel.workers=4", "parallel.plan=\"p.json\""));
}

TEST(OptionsTest, TheOtherSubcommandsTakeTheirs) {
  const Parsed verify = parsed({"verify", "r.toml", "--break", "stash", "--steps", "3"});
  EXPECT_EQ(verify.options.verify.fault, "stash");
  EXPECT_EQ(verify.options.verify.steps, 3);
  const Parsed profile = parsed({"profile", "r.toml", "--samples", "5", "-o", "x.json"});
  EXPECT_EQ(profile.options.profile.samples, 5);
  EXPECT_EQ(profile.options.profile.output, "x.json");
  EXPECT_FALSE(profile.options.profile.kernels);
  const Parsed kernels = parsed({"profile", "r.toml", "--kernels"});
  EXPECT_TRUE(kernels.options.profile.kernels);
  EXPECT_EQ(kernels.options.profile.output, "kernels.json");
  EXPECT_EQ(parsed({"profile", "r.toml", "--kernels", "-o", "y.json"}).options.profile.output,
            "y.json");
  EXPECT_EQ(parsed({"eval", "runs/a"}).options.eval.dir, "runs/a");
  const Parsed doctor = parsed({"doctor", "--measure", "--workers", "3"});
  EXPECT_TRUE(doctor.options.doctor.measure);
  EXPECT_EQ(doctor.options.doctor.workers, 3);
  const Parsed bench = parsed({"bench", "throughput", "--model", "mlp", "--repeats", "3"});
  EXPECT_EQ(bench.options.bench.what, "throughput");
  EXPECT_THAT(bench.options.bench.models, ElementsAre("mlp"));
  EXPECT_EQ(bench.options.bench.repeats, 3);
  const Parsed latency = parsed({"bench", "latency", "--layers", "40", "--from", "a", "-o", "b"});
  EXPECT_EQ(latency.options.bench.layers, 40);
  EXPECT_EQ(latency.options.bench.from, "a");
  EXPECT_EQ(latency.options.bench.output, "b");
  const Parsed predict = parsed({"profile", "r.toml", "--predict", "m.json", "--observe", "4"});
  EXPECT_EQ(predict.options.profile.predict, "m.json");
  EXPECT_EQ(predict.options.profile.observe, 4);
  EXPECT_EQ(parsed({"list", "rules"}).options.list.kind, "rules");
  EXPECT_EQ(parsed({"report", "runs/a"}).options.report.dir, "runs/a");
}

struct Refused {
  std::vector<std::string> words;
  std::string says;
};

class RefusedTest : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedTest, InOneLineWithStatus2) {
  const Parsed result = parsed(GetParam().words);
  EXPECT_EQ(result.printed.status, 2);
  EXPECT_EQ(result.printed.out, "");
  EXPECT_THAT(result.printed.err, StartsWith("millrace: "));
  EXPECT_THAT(result.printed.err, HasSubstr(GetParam().says));
  EXPECT_EQ(std::count(result.printed.err.begin(), result.printed.err.end(), '\n'), 1);
}

TEST_P(RefusedTest, AsJsonWhenAskedFor) {
  std::vector<std::string> words = GetParam().words;
  words.insert(words.begin(), "--json");
  const Parsed result = parsed(words);
  EXPECT_EQ(result.printed.status, 2);
  EXPECT_EQ(result.printed.err, "");
  const Document answer = parse_json(result.printed.out, "stdout");
  Reader error = Reader(answer).object("error");
  EXPECT_EQ(error.text("code"), "invalid-argument");
  EXPECT_THAT(error.text("message"), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    CommandLines, RefusedTest,
    ::testing::Values(
        Refused{{"trian"}, "unknown subcommand `trian`; did you mean `train`?"},
        Refused{{"--verzion"}, "unknown option `--verzion`; did you mean `--version`?"},
        Refused{{"plan", "p.json", "--clutser", "c"}, "`--clutser`; did you mean `--cluster`?"},
        Refused{{"plan", "--clutser=c"}, "`--clutser`; did you mean `--cluster`?"},
        Refused{{"plan"}, "plan: PROFILE is missing; see `millrace plan --help`"},
        Refused{{"plan", "p.json"}, "plan: --cluster is missing"},
        Refused{{"plan", "p.json", "--cluster", ""}, "plan: --cluster is missing"},
        Refused{{"plan", "p", "q", "--cluster", "c"}, "one argument too many: `q`"},
        Refused{{"plan", "p", "--cluster", "c", "--workers", "0"},
                "expected a whole number of 1 or more, found `0`"},
        Refused{{"plan", "p", "--cluster", "c", "--stages", "-2"}, "1 or more, found `-2`"},
        Refused{{"plan", "p", "--cluster", "c", "--replicas", "1,0"}, "1 or more, found `0`"},
        Refused{{"plan", "p", "--cluster", "c", "--stages", "1.5"}, "1 or more, found `1.5`"},
        Refused{{"schedule", "--name", "1f1b", "--ranks", "99999999999"}, "--ranks"},
        Refused{{"schedule", "--name"}, "--name"}, Refused{{"train"}, "train: RUN is missing"},
        Refused{{"train", "run.toml", "--workers", "two"}, "found `two`"},
        Refused{{"train", "run.toml", "--processes", "0"}, "1 or more, found `0`"},
        Refused{{"train", "run.toml", "--engine", "glooo"}, "`glooo`; did you mean `gloo`?"}));

TEST(OptionsTest, OnlyWhatComputesOnTensorsNeedsTorch) {
  for (const std::string& command : kCommands) {
    const bool light = command == "list" || command == "plan" || command == "schedule" ||
                       command == "simulate" || command == "report";
    const std::string help = parsed({command, "--help"}).printed.out;
    // Enough words for every subcommand: options it does not know are not given.
    std::vector<std::string> words = {command};
    if (command != "list" && command != "doctor") {
      words.emplace_back("x");
    }
    if (command == "plan") {
      words.insert(words.end(), {"--cluster", "c"});
    }
    const Parsed result = parsed(words);
    ASSERT_EQ(result.printed.status, -1) << command << result.printed.err;
    EXPECT_EQ(needs_torch(result.options), !light) << command;
  }
  EXPECT_FALSE(needs_torch(parsed({"profile", "--from", "graph.txt"}).options));
}

TEST(OptionsTest, AProfileIsMeasuredOrRead) {
  EXPECT_NE(parsed({"profile"}).printed.err.find("RUN is missing, or --from FILE"),
            std::string::npos);
  EXPECT_NE(parsed({"profile", "run.toml", "--from", "g.txt"}).printed.err.find("give one"),
            std::string::npos);
  EXPECT_NE(parsed({"profile", "--from", "g.txt", "--predict", "m.json"})
                .printed.err.find("--from and --predict exclude each other"),
            std::string::npos);
  EXPECT_NE(parsed({"profile", "r.toml", "--observe", "4"}).printed.err.find("goes with --predict"),
            std::string::npos);
  EXPECT_NE(parsed({"profile", "r.toml", "--predict", "m.json", "--kernels"})
                .printed.err.find("--kernels and --predict exclude each other"),
            std::string::npos);
  EXPECT_NE(parsed({"profile", "--from", "g.txt", "--kernels"}).printed.err.find("measures a RUN"),
            std::string::npos);
  EXPECT_NE(parsed({"profile", "--from", "g.txt", "--fresh"}).printed.err.find("go with RUN"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::cli
