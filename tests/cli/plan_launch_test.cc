#include "millrace/cli/common/plan_launch.h"

#include <gmock/gmock.h>

#include <map>

#include "millrace/base/error.h"
#include "millrace/cli/common/output.h"
#include "tests/cli/cli_testing.h"

namespace millrace::cli {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

std::optional<LaunchPlan> planned(const TrainArgs& args, int num_workers,
                                  const Variables& variables = {}) {
  return plan_launch(args, num_workers, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const TrainArgs& args, int num_workers, const Variables& variables = {}) {
  try {
    planned(args, num_workers, variables);
  } catch (const Error& error) {
    EXPECT_EQ(exit_status_of(error), 2);
    return error.what();
  }
  return "accepted";
}

const Variables kTorchrun = {
    {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "4000"}};

TEST(PlanLaunchTest, OneProcessTrainsItself) {
  EXPECT_FALSE(planned({}, 4).has_value());
  TrainArgs args;
  args.processes = 1;
  args.engine = "gloo";
  EXPECT_FALSE(planned(args, 4).has_value());
}

TEST(PlanLaunchTest, SeveralProcessesAreStartedWithTheStandardEngine) {
  TrainArgs args;
  args.processes = 3;
  const LaunchPlan plan = planned(args, 4).value();
  EXPECT_EQ(plan.num_processes, 3);
  EXPECT_EQ(plan.engine, "gloo");
  EXPECT_TRUE(plan.hosts.empty());
  args.engine = "nccl";
  EXPECT_EQ(planned(args, 4)->engine, "nccl");
}

TEST(PlanLaunchTest, WithinAWorldNothingIsStarted) {
  TrainArgs args;
  args.processes = 2;
  EXPECT_FALSE(planned(args, 2, kTorchrun).has_value());
  args.processes.reset();
  EXPECT_FALSE(planned(args, 2, kTorchrun).has_value());
  EXPECT_THAT(refusal(args, 1, kTorchrun), HasSubstr("found 1 worker and 2 processes; add -n 2"));
  args.hosts = "hosts.txt";
  EXPECT_THAT(refusal(args, 2, kTorchrun), HasSubstr("--hosts starts processes"));
}

TEST(PlanLaunchTest, HostsGiveTheNumberOfProcessesAndThePort) {
  const TemporaryFolder folder;
  TrainArgs args;
  args.hosts = folder.write("hosts", "a slots=2\nb\n");
  const LaunchPlan plan = planned(args, 3).value();
  EXPECT_EQ(plan.num_processes, 3);
  ASSERT_EQ(plan.hosts.size(), 2U);
  EXPECT_EQ(plan.hosts[0].name, "a");
  EXPECT_EQ(plan.remote_shell, "ssh");
  EXPECT_GE(plan.store_port, 20000);
  EXPECT_LE(plan.store_port, 59999);
  const LaunchPlan other =
      planned(args, 3, {{"MASTER_PORT", "4000"}, {"MILLRACE_SSH", "/bin/fake"}}).value();
  EXPECT_EQ(other.store_port, 4000);
  EXPECT_EQ(other.remote_shell, "/bin/fake");
  args.processes = 2;
  EXPECT_EQ(planned(args, 3)->num_processes, 2);
  args.processes = 4;
  EXPECT_THAT(refusal(args, 4), HasSubstr("hosts with 4 slots"));
  args.processes.reset();
  EXPECT_THAT(refusal(args, 3, {{"MASTER_PORT", "x"}}), HasSubstr("MASTER_PORT: "));
  args.hosts = folder.path("missing");
  EXPECT_THAT(refusal(args, 3), HasSubstr("missing"));
  args.hosts = folder.write("one", "localhost");  // one process, but there
  EXPECT_EQ(planned(args, 1)->num_processes, 1);
}

TEST(PlanLaunchTest, WhatCannotBeIsRefusedWithWhatToDo) {
  TrainArgs args;
  args.engine = "gloo";
  EXPECT_THAT(refusal(args, 2), HasSubstr("add --processes N"));
  args.processes = 4;
  EXPECT_THAT(refusal(args, 1), HasSubstr("found 1 worker and 4 processes; add -n 4"));
  EXPECT_THAT(refusal(args, 3), HasSubstr("found 3 workers and 4 processes"));
  args.engine = "mpi";
  EXPECT_EQ(planned(args, 4)->engine, "mpi");
}

}  // namespace
}  // namespace millrace::cli
