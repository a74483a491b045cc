#include "millrace/cli/common/find_world.h"

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::cli {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

WorldPlace find(const Variables& variables, const WorldRequest& request = {}) {
  return find_world(request, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const Variables kOurs = {{"MILLRACE_PROCESS", "2"},       {"MILLRACE_PROCESSES", "4"},
                         {"MILLRACE_LOCAL_PROCESS", "2"}, {"MILLRACE_BOARD_FD", "5"},
                         {"MILLRACE_JOB", "abc"},         {"MILLRACE_STORE", "127.0.0.1:0"},
                         {"MILLRACE_ENGINE", "gloo"}};
const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "job7"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                           {"PMIX_NAMESPACE", "1234"}};
const Variables kSrun = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_JOB_ID", "123456"},
                         {"SLURM_JOB_NODELIST", "node[01-04,7]"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    variables[name] = value;
  }
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(FindWorldTest, NothingFoundIsOneProcess) {
  for (const Variables& variables : {Variables{}, Variables{{"RANK", ""}, {"WORLD_SIZE", ""}},
                                     Variables{{"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}},
                                     // The shell of an allocation is no task of it.
                                     Variables{{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}}}) {
    const WorldPlace place = find(variables, {"gloo", 4});
    EXPECT_EQ(place.num_processes, 1);
    EXPECT_EQ(place.engine, "");
    EXPECT_EQ(place.started_by, "");
  }
}

TEST(FindWorldTest, OurLauncher) {
  const WorldPlace place = find(kOurs, {"gloo", 4});
  EXPECT_EQ(place.process, 2);
  EXPECT_EQ(place.num_processes, 4);
  EXPECT_EQ(place.local_process, 2);
  EXPECT_EQ(place.engine, "gloo");
  EXPECT_EQ(place.store_host, "127.0.0.1");
  EXPECT_EQ(place.store_port, 0);
  EXPECT_FALSE(place.store_served);
  EXPECT_EQ(place.job_id, "abc");
  EXPECT_EQ(place.started_by, "millrace");
  EXPECT_EQ(place.board_fd, 5);
  // On another host there is no board, but a port.
  const WorldPlace remote =
      find(without(with(kOurs, {{"MILLRACE_STORE", "::1:45000"}}), "MILLRACE_BOARD_FD"));
  EXPECT_EQ(remote.board_fd, -1);
  EXPECT_EQ(remote.store_host, "::1");
  EXPECT_EQ(remote.store_port, 45000);
}

TEST(FindWorldTest, OursComeFirstThenTorchThenMpiThenSlurm) {
  Variables all = with(with(kSrun, kMpirun), with(kTorchrun, kOurs));
  EXPECT_EQ(find(all).started_by, "millrace");
  for (const auto& [name, value] : kOurs) {
    all.erase(name);
  }
  EXPECT_EQ(find(all).started_by, "torchrun");
  all.erase("RANK");  // what is left of torch's variables, such as the master, is mpirun's to use
  EXPECT_EQ(find(all).started_by, "mpirun");
  for (const auto& [name, value] : kMpirun) {
    all.erase(name);
  }
  EXPECT_EQ(find(all).started_by, "slurm");
}

TEST(FindWorldTest, Torchrun) {
  const WorldPlace place = find(kTorchrun);
  EXPECT_EQ(place.process, 3);
  EXPECT_EQ(place.num_processes, 4);
  EXPECT_EQ(place.local_process, 1);
  EXPECT_EQ(place.engine, "gloo");
  EXPECT_EQ(place.store_host, "node1");
  EXPECT_EQ(place.store_port, 29500);
  EXPECT_TRUE(place.store_served);
  EXPECT_EQ(place.job_id, "job7.0");
  EXPECT_EQ(place.board_fd, -1);
  EXPECT_EQ(find(kTorchrun, {"nccl", 0}).engine, "nccl");

  const WorldPlace by_hand = find(
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4000"}});
  EXPECT_EQ(by_hand.started_by, "");
  EXPECT_EQ(by_hand.job_id, "");
  EXPECT_FALSE(by_hand.store_served);
}

TEST(FindWorldTest, Mpirun) {
  const WorldPlace place = find(kMpirun);
  EXPECT_EQ(place.process, 1);
  EXPECT_EQ(place.num_processes, 2);
  EXPECT_EQ(place.local_process, 0);
  EXPECT_EQ(place.engine, "mpi");
  EXPECT_EQ(place.store_host, "");
  EXPECT_EQ(place.job_id, "1234");
  const Variables with_master =
      with(kMpirun, {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "4000"}});
  const WorldPlace gloo = find(with_master, {"gloo", 2});
  EXPECT_EQ(gloo.engine, "gloo");
  EXPECT_EQ(gloo.store_host, "localhost");
  EXPECT_EQ(gloo.store_port, 4000);
  EXPECT_EQ(gloo.started_by, "mpirun");
}

TEST(FindWorldTest, Slurm) {
  const WorldPlace place = find(kSrun);
  EXPECT_EQ(place.process, 5);
  EXPECT_EQ(place.num_processes, 8);
  EXPECT_EQ(place.local_process, 1);
  EXPECT_EQ(place.engine, "gloo");
  EXPECT_EQ(place.store_host, "node01");
  EXPECT_EQ(place.job_id, "123456.0");
  EXPECT_EQ(place.store_port, 20000 + 123456 % 12000);
  EXPECT_EQ(find(kSrun, {"mpi", 0}).store_host, "");

  // A step of fewer tasks and hosts than its job.
  const WorldPlace step = find(with(
      kSrun,
      {{"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_STEP_NODELIST", "node04"}}));
  EXPECT_EQ(step.num_processes, 6);
  EXPECT_EQ(step.store_host, "node04");
  EXPECT_EQ(step.job_id, "123456.3");
  EXPECT_NE(step.store_port, place.store_port);

  const WorldPlace chosen = find(with(kSrun, {{"MASTER_ADDR", "ib0"}, {"MASTER_PORT", "4000"}}));
  EXPECT_EQ(chosen.store_host, "ib0");
  EXPECT_EQ(chosen.store_port, 4000);
}

TEST(FindWorldTest, AWorldOfOneProcessNeedsNothingElse) {
  for (const Variables& variables :
       {Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}},
        Variables{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
        Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
        Variables{{"MILLRACE_PROCESS", "0"}, {"MILLRACE_PROCESSES", "1"}}}) {
    const WorldPlace place = find(variables);
    EXPECT_EQ(place.num_processes, 1);
    EXPECT_EQ(place.engine, "");
  }
}

struct Refused {
  Variables variables;
  std::string key;
  std::string says;
  WorldRequest request = {};
};

class FindWorldRefusesTest : public ::testing::TestWithParam<Refused> {};

TEST_P(FindWorldRefusesTest, NamesTheVariable) {
  try {
    find(GetParam().variables, GetParam().request);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.key().value_or(""), GetParam().key);
    EXPECT_THAT(error.message(), HasSubstr(GetParam().says));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variables, FindWorldRefusesTest,
    ::testing::Values(
        Refused{without(kOurs, "MILLRACE_PROCESSES"), "MILLRACE_PROCESSES", "found none"},
        Refused{without(kOurs, "MILLRACE_PROCESS"), "MILLRACE_PROCESS", "found none"},
        Refused{without(kOurs, "MILLRACE_JOB"), "MILLRACE_JOB", "found none"},
        Refused{without(kOurs, "MILLRACE_STORE"), "MILLRACE_STORE", "found none"},
        Refused{without(kOurs, "MILLRACE_ENGINE"), "MILLRACE_ENGINE", "found none"},
        Refused{without(kOurs, "MILLRACE_BOARD_FD"), "MILLRACE_BOARD_FD", "found none"},
        Refused{with(kOurs, {{"MILLRACE_BOARD_FD", "-1"}}), "MILLRACE_BOARD_FD", "found `-1`"},
        Refused{with(kOurs, {{"MILLRACE_STORE", "4000"}}), "MILLRACE_STORE", "host:port"},
        Refused{with(kOurs, {{"MILLRACE_STORE", "h:x"}}), "MILLRACE_STORE", "a port"},
        Refused{kOurs, "MILLRACE_ENGINE", "nccl as --engine says", {"nccl", 0}},
        Refused{kOurs, "MILLRACE_PROCESSES", "expected 3 processes", {"", 3}},
        Refused{without(kTorchrun, "WORLD_SIZE"), "WORLD_SIZE", "RANK = `3`"},
        Refused{{{"WORLD_SIZE", "4"}}, "RANK", "WORLD_SIZE = `4`"},
        Refused{without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR", "found none"},
        Refused{without(kTorchrun, "MASTER_PORT"), "MASTER_PORT", "found none"},
        Refused{with(kTorchrun, {{"RANK", "4"}}), "RANK", "from 0 to 3, found `4`"},
        Refused{with(kTorchrun, {{"RANK", "3x"}}), "RANK", "found `3x`"},
        Refused{with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE", "found `0`"},
        Refused{with(kTorchrun, {{"LOCAL_RANK", "9"}}), "LOCAL_RANK", "found `9`"},
        Refused{with(kTorchrun, {{"MASTER_PORT", "70000"}}), "MASTER_PORT", "65535"},
        Refused{with(kTorchrun, {{"MASTER_PORT", "0"}}), "MASTER_PORT", "found `0`"},
        Refused{kTorchrun, "WORLD_SIZE", "a world of 4", {"", 2}},
        Refused{kTorchrun, "RANK", "mpirun -n", {"mpi", 0}},
        Refused{kTorchrun, "", "did you mean `gloo`", {"glo", 0}},
        Refused{without(kMpirun, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE", "found none"},
        Refused{kMpirun, "MASTER_ADDR", "found none", {"gloo", 0}},
        Refused{with(kMpirun, {{"MASTER_ADDR", "h"}}), "MASTER_PORT", "found none", {"gloo", 0}},
        Refused{without(kSrun, "SLURM_JOB_ID"), "SLURM_JOB_ID", "found none"},
        Refused{without(kSrun, "SLURM_JOB_NODELIST"), "SLURM_JOB_NODELIST", "found none"},
        Refused{with(kSrun, {{"SLURM_JOB_NODELIST", "node[1-"}}), "SLURM_JOB_NODELIST",
                "not closed"},
        Refused{with(kSrun, {{"SLURM_JOB_ID", "x"}}), "SLURM_JOB_ID", "found `x`"}));

TEST(FirstHostTest, ReadsSlurmsNotation) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[01-04,7],gpu3"), "node01");
  EXPECT_EQ(first_host("node[7,01-04]"), "node7");
  EXPECT_EQ(first_host("rack[2-3]n[5,6].example.org,x"), "rack2n5.example.org");
  for (const char* bad : {"", ",a", "n[]", "n[1"}) {
    EXPECT_THROW(first_host(bad), Error) << bad;
  }
}

TEST(SlurmPortTest, JobsThatFollowEachOtherHaveOtherPortsBelowTheSystemsOwn) {
  std::set<int> ports;
  for (int job = 1000; job < 1100; ++job) {
    const int port = find(with(kSrun, {{"SLURM_JOB_ID", std::to_string(job)}})).store_port;
    EXPECT_GE(port, 20000);
    EXPECT_LT(port, 32768);
    ports.insert(port);
  }
  EXPECT_EQ(ports.size(), 100U);
}

}  // namespace
}  // namespace millrace::cli
