#include "millrace/cli/common/mpirun.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "millrace/base/error.h"

namespace millrace::cli {
namespace {

TEST(Mpirun, CommandNamesHostsSlotsAndVariables) {
  MpirunPlan plan;
  plan.num_processes = 3;
  plan.hosts = {{"node1", 2}, {"node2", 1}};
  plan.remote_shell = "rsh";
  plan.as_root = true;
  plan.variables = {"OMP_NUM_THREADS"};
  plan.program = "/bin/millrace";
  plan.arguments = {"train", "run.toml"};
  EXPECT_THAT(
      mpirun_command(plan),
      testing::ElementsAre("mpirun", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root",
                           "--host", "node1:2,node2:1", "--mca", "plm_rsh_agent", "rsh", "-x",
                           "OMP_NUM_THREADS", "-n", "3", "/bin/millrace", "train", "run.toml"));
}

// mpirun's status tells how, the board who.
TEST(Mpirun, TheProcessThatWasGoneFirstHasItsStatus) {
  JobBoard board = JobBoard::create(3);
  for (int process = 0; process < 3; ++process) {
    board.set_pid(process, 100 + process);
    board.set_phase(process, JobPhase::kTraining);
  }
  ProcessEnd mpirun;
  mpirun.how = ProcessEnd::How::kStatus;
  mpirun.value = 137;
  const std::vector<ProcessEnd> ends = ends_under_mpirun(mpirun, board, 2);
  ASSERT_EQ(ends.size(), 3U);
  EXPECT_FALSE(ended_badly(ends[0]));
  EXPECT_FALSE(ended_badly(ends[1]));
  EXPECT_EQ(ends[2].how, ProcessEnd::How::kSignal);
  EXPECT_EQ(ends[2].value, 9);
  EXPECT_EQ(ends[2].pid, 102);
  EXPECT_TRUE(ended_badly(ends_under_mpirun(mpirun, board, -1)[0]));
}

TEST(Mpirun, AProcessOpensTheBoardByItsPath) {
  JobBoard board = JobBoard::create(2);
  const std::string path = fmt::format("/proc/{}/fd/{}", ::getpid(), board.fd());
  const std::optional<JobBoard> opened =
      open_board(WorldPlace(), [&](const char*) { return path.c_str(); });
  ASSERT_TRUE(opened.has_value());
  board.set_step(1, 7);
  EXPECT_EQ(opened->step(1), 7);
}

TEST(Mpirun, NoBoardWhereNoneIsNamed) {
  EXPECT_FALSE(open_board(WorldPlace(), [](const char*) { return nullptr; }).has_value());
}

TEST(Mpirun, APathWithoutABoardIsRefused) {
  for (const char* path : {"/proc/self/fd/999", "/dev/null"}) {
    EXPECT_THAT(
        [&] { open_board(WorldPlace(), [&](const char*) { return path; }); },
        testing::Throws<Error>(testing::Property(&Error::code, ErrorCode::kInvalidArgument)));
  }
}

}  // namespace
}  // namespace millrace::cli
