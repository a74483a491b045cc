// The processes that these tests launch are this very program: with MILLRACE_TEST_HELPER set it
// does what its arguments say, before any test runs. An argument is "PROCESS:WORD:WORD..." or
// "*:..." for all of them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>  // kill
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "millrace/base/job_board.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/find_world.h"
#include "millrace/cli/common/launch.h"
#include "millrace/cli/common/output.h"
#include "tests/cli/cli_testing.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

volatile std::sig_atomic_t helper_signal = 0;

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// What a helper can do; see the cases below.
class Helper {
 public:
  explicit Helper(const WorldPlace& place) : place_(place), process_(place.process) {
    if (place.board_fd >= 0) {
      board_ = JobBoard::attach(place.board_fd);
      board_->set_pid(process_, ::getpid());
    }
  }

  void run(const std::string& words) {
    for (const std::string& word : split(words, ':')) {
      const std::size_t equals = word.find('=');
      run(word.substr(0, equals), equals == std::string::npos ? "" : word.substr(equals + 1));
    }
  }

 private:
  void run(const std::string& word, const std::string& value) {
    const auto on_signal = [](int signal) { helper_signal = signal; };
    if (word == "train") {  // tells all that a process tells
      board_->set_ranks(process_, 2 * process_, 2 * process_ + 1);
      board_->set_stages(process_, "stage " + std::to_string(process_) + " of 3");
      board_->set_phase(process_, JobPhase::kTraining);
      board_->set_step(process_, std::stoi(value));
    } else if (word == "steps") {
      for (int64_t step = 1;; ++step) {
        board_->set_step(process_, step);
        nap();
        if (board_->stop_requested()) {
          fail(ErrorCode::kPeerLost, "lost my peer");
        }
      }
    } else if (word == "ready") {  // a file that holds the pid
      write_file_atomically(value + "/" + std::to_string(process_), std::to_string(::getpid()));
    } else if (word == "await_stop") {
      while (!board_->stop_requested()) {
        nap();
      }
    } else if (word == "lose") {
      fail(ErrorCode::kPeerLost, "lost my peer");
    } else if (word == "fail") {
      fail(ErrorCode::kInvalidArgument, value);
    } else if (word == "tell") {  // but linger
      board_->set_failure(process_, Error(ErrorCode::kInternal, value));
    } else if (word == "await_peer_failure") {
      while (!board_->failure(std::stoi(value))) {
        nap();
      }
    } else if (word == "out") {
      std::printf("%s", value.c_str());
      std::fflush(stdout);
    } else if (word == "err") {
      std::fprintf(stderr, "%s\n", value.c_str());
    } else if (word == "stop_text") {
      std::printf("told: %s\n", board_->stop_text().c_str());
      std::fflush(stdout);
    } else if (word == "place") {
      std::printf("%d of %d local %d store %s:%d engine %s job %zu\n", process_,
                  place_.num_processes, place_.local_process, place_.store_host.c_str(),
                  place_.store_port, place_.engine.c_str(), place_.job_id.size());
      std::fflush(stdout);
    } else if (word == "fds") {
      std::string names;
      for (int fd = 0; fd < 256; ++fd) {
        names += ::fcntl(fd, F_GETFD) >= 0 ? std::to_string(fd) + " " : "";
      }
      std::printf("fds %sboard %d group %d\n", names.c_str(), place_.board_fd,
                  ::getpgrp() == ::getpid() ? 1 : 0);
      std::fflush(stdout);
    } else if (word == "fork") {  // a process of its own that outlives it
      if (::fork() == 0) {
        write_file_atomically(value + "/grandchild", std::to_string(::getpid()));
        sleep_forever();
      }
      while (!fs::exists(value + "/grandchild")) {
        nap();
      }
    } else if (word == "drain") {
      std::signal(SIGINT, on_signal);
      std::signal(SIGTERM, on_signal);
    } else if (word == "await_signal") {
      while (helper_signal == 0) {
        nap();
      }
      ::_exit(128 + helper_signal);
    } else if (word == "await_stop_of_peer") {
      while (helper_signal == 0) {
        nap();
      }
    } else if (word == "deaf") {
      std::signal(SIGINT, SIG_IGN);
      std::signal(SIGTERM, SIG_IGN);
    } else if (word == "sleep") {
      sleep_forever();
    } else if (word == "raise") {
      ::raise(std::stoi(value));
    } else if (word == "exit") {
      ::_exit(std::stoi(value));
    } else {
      ::_exit(99);
    }
  }

  [[noreturn]] static void sleep_forever() {
    for (;;) {
      ::pause();
    }
  }
  [[noreturn]] void fail(ErrorCode code, const std::string& message) {
    const Error error = Error(code, message).at_rank(2 * process_);
    board_->set_failure(process_, error);
    ::_exit(exit_status_of(error));
  }

  WorldPlace place_;
  int process_;
  std::optional<JobBoard> board_;
};

int run_as_helper(int argc, char** argv) {
  Helper helper(find_world({}, [](const char* name) { return std::getenv(name); }));
  const std::string process = std::getenv(kProcessVariable);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string who = word.substr(0, word.find(':'));
    if (who == "*" || who == process) {
      helper.run(word.substr(who.size() + 1));
    }
  }
  return 0;
}

__attribute__((constructor)) void become_helper(int argc, char** argv) {
  if (std::getenv("MILLRACE_TEST_HELPER") != nullptr && std::getenv(kProcessVariable) != nullptr) {
    ::_exit(guarded(false, [&] { return run_as_helper(argc, argv); }));
  }
}

class LaunchTest : public ::testing::Test {
 protected:
  // So that what a killed launcher leaves is ours to reap and to look at.
  static void SetUpTestSuite() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::setenv("MILLRACE_TEST_HELPER", "1", 1);
  }
  static void TearDownTestSuite() { ::unsetenv("MILLRACE_TEST_HELPER"); }

  LaunchPlan plan_of(int num_processes, const std::vector<std::string>& words) const {
    LaunchPlan plan;
    plan.program = fs::read_symlink("/proc/self/exe");
    plan.argv = {"helper"};
    plan.argv.insert(plan.argv.end(), words.begin(), words.end());
    plan.num_processes = num_processes;
    return plan;
  }

  // The launcher in a process of its own, printing into files.
  void start(const LaunchPlan& plan, bool json = false) {
    launcher_ = ::fork();
    ASSERT_GE(launcher_, 0);
    if (launcher_ == 0) {
      for (const auto& [name, fd] : {std::pair("out", 1), std::pair("err", 2)}) {
        const int file =
            ::open(folder_.path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        ::dup2(file, fd);
      }
      ::_exit(guarded(json, [&] { return launch(plan); }));
    }
  }
  Printed finish() {
    Printed printed = result();
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a process stayed behind";
    EXPECT_EQ(errno, ECHILD);
    return printed;
  }
  // The same where processes may become ours, since they outlive the launcher by a moment.
  Printed finish_and_reap() {
    Printed printed = result();
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    return printed;
  }
  Printed run(const LaunchPlan& plan, bool json = false) {
    start(plan, json);
    return finish();
  }

  std::string ready() const { return "ready=" + folder_.path(); }
  int pid_of(const std::string& process) const {
    while (!fs::exists(folder_.path(process))) {
      nap();
    }
    return std::stoi(read_file(folder_.path(process)));
  }
  int pid_of(int process) const { return pid_of(std::to_string(process)); }
  void await_all(int num_processes) const {
    for (int process = 0; process < num_processes; ++process) {
      pid_of(process);
    }
  }
  Printed result() {
    int status = 0;
    EXPECT_EQ(::waitpid(launcher_, &status, 0), launcher_);
    Printed printed;
    printed.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    printed.out = read_file(folder_.path("out"));
    printed.err = read_file(folder_.path("err"));
    return printed;
  }
  static std::vector<int> children_of(int parent) {
    std::vector<int> children;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      std::ifstream file(entry.path() / "stat");
      std::string stat;
      std::getline(file, stat);
      const std::size_t end = stat.rfind(") ");
      if (end != std::string::npos && name.find_first_not_of("0123456789") == std::string::npos &&
          std::stoi(stat.substr(end + 4)) == parent) {
        children.push_back(std::stoi(name));
      }
    }
    return children;
  }
  // Ended and reaped by whom it belongs to.
  static bool gone(int pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

  TemporaryFolder folder_;
  pid_t launcher_ = 0;
};

TEST_F(LaunchTest, AllEndWellAndEachKnowsItsPlace) {
  const Printed printed = run(plan_of(3, {"*:place"}));
  EXPECT_EQ(printed.status, 0);
  EXPECT_EQ(printed.out, "0 of 3 local 0 store 127.0.0.1:0 engine gloo job 16\n");
  EXPECT_THAT(printed.err, HasSubstr("process 1: 1 of 3 local 1 store 127.0.0.1:0 engine gloo"));
  EXPECT_THAT(printed.err, HasSubstr("process 2: 2 of 3 local 2 store"));
  EXPECT_EQ(std::count(printed.err.begin(), printed.err.end(), '\n'), 2);
}

TEST_F(LaunchTest, OutputOfProcess0IsOursAndThatOfOthersHasTheirName) {
  const Printed printed =
      run(plan_of(2, {"*:err=one:out=two\nthree\n:out=no end", "0:err=zero", "1:exit=0"}));
  EXPECT_EQ(printed.status, 0);
  EXPECT_EQ(printed.out, "two\nthree\nno end");
  std::vector<std::string> lines = split(printed.err, '\n');
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines, ::testing::ElementsAre("", "one", "process 1: no end", "process 1: one",
                                            "process 1: three", "process 1: two", "zero"));
}

TEST_F(LaunchTest, LongOutputComesWhole) {
  const std::string line(1000, 'x');
  std::string words = "1";
  for (int i = 0; i < 60; ++i) {
    words += ":err=" + line;
  }
  const Printed printed = run(plan_of(2, {words}));
  EXPECT_EQ(printed.err.size(), 60 * (line.size() + std::string("process 1: \n").size()));
}

TEST_F(LaunchTest, ProcessesInheritTheBoardAndNothingElseInGroupsOfTheirOwn) {
  // Whoever started the tests may have left some open.
  std::string all = "fds ";
  for (int fd = 0; fd < 256; ++fd) {
    all += fd <= 2 || ::fcntl(fd, F_GETFD) == 0 ? std::to_string(fd) + " " : "";
  }
  const Printed printed = run(plan_of(2, {"*:fds"}));
  for (const std::string& text : {printed.out, printed.err.substr(printed.err.find("fds"))}) {
    std::string without_board = text.substr(0, text.find("board"));
    const std::size_t begin = text.find("board ") + 6;
    const std::string board = text.substr(begin, text.find(' ', begin) - begin);
    const std::size_t place = without_board.find(" " + board + " ");
    ASSERT_NE(place, std::string::npos) << text;
    without_board.erase(place, board.size() + 1);
    EXPECT_EQ(without_board, all) << text;
    EXPECT_THAT(text, HasSubstr("group 1"));
  }
}

TEST_F(LaunchTest, LeavesNoDescriptorAndNoSignalBlocked) {
  const auto open_now = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, nullptr, &before);
  const auto fds = open_now();
  printed_by([&] {
    EXPECT_EQ(launch(plan_of(3, {"*:exit=0"})), 0);
    EXPECT_THROW(launch(plan_of(3, {"1:exit=1"})), Error);
    LaunchPlan missing = plan_of(2, {});
    missing.program = folder_.path("nothing");
    EXPECT_THROW(launch(missing), Error);
    return 0;
  });
  EXPECT_EQ(open_now(), fds);
  sigset_t after;
  ::sigprocmask(SIG_BLOCK, nullptr, &after);
  for (int signal : {SIGINT, SIGTERM, SIGCHLD}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
  }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST_F(LaunchTest, AProgramThatCannotBeStartedIsNamed) {
  LaunchPlan plan = plan_of(2, {});
  plan.program = folder_.path("nothing");
  const Printed printed = run(plan);
  EXPECT_EQ(printed.status, 1);
  EXPECT_THAT(printed.err, HasSubstr("cannot start " + plan.program + ": No such file"));
}

TEST_F(LaunchTest, AKillAtAnyMomentNamesProcessRanksStageAndStep) {
  const unsigned seed = 20261;
  std::mt19937 random(seed);
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    start(plan_of(3, {"*:train=0:" + ready() + ":steps"}));
    await_all(3);
    const int victim = static_cast<int>(random() % 3);
    const int pid = pid_of(victim);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    const Printed printed = finish();
    EXPECT_EQ(printed.status, 1);
    EXPECT_EQ(printed.out, "");
    const std::string name = std::to_string(victim);
    EXPECT_THAT(printed.err,
                HasSubstr("millrace: process " + name + " (pid " + std::to_string(pid) +
                          ", ranks " + std::to_string(2 * victim) + " to " +
                          std::to_string(2 * victim + 1) + ", host "));
    EXPECT_THAT(printed.err, HasSubstr(", stage " + name + " of 3) was killed by signal 9 (KILL)"));
    EXPECT_THAT(printed.err, ContainsRegex("while training, after step [0-9]+;"));
    EXPECT_EQ(std::count(printed.err.begin(), printed.err.end(), '\n'), 1) << printed.err;
    for (int process = 0; process < 3; ++process) {
      EXPECT_TRUE(gone(pid_of(process)));
      fs::remove(folder_.path(std::to_string(process)));
    }
  }
}

// Between its start and the first thing that it tells, too.
TEST_F(LaunchTest, AKillWhileTheyStartIsSeenAsWell) {
  const unsigned seed = 20262;
  std::mt19937 random(seed);
  for (int round = 0; round < 15; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    start(plan_of(3, {"*:steps"}));
    std::vector<int> children;
    while (children.empty()) {
      children = children_of(launcher_);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    const int victim = children[random() % children.size()];
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    const Printed printed = finish();
    EXPECT_EQ(printed.status, 1);
    EXPECT_THAT(printed.err, HasSubstr("(pid " + std::to_string(victim) + ", host "));
    EXPECT_THAT(printed.err, HasSubstr(") was killed by signal 9 (KILL)"));
  }
}

TEST_F(LaunchTest, TheOthersAreToldWhatHappened) {
  const Printed printed = run(plan_of(2, {"0:await_stop:stop_text:lose", "1:train=7:raise=3"}));
  EXPECT_EQ(printed.status, 1);
  EXPECT_THAT(printed.out, HasSubstr("told: process 1 (pid "));
  EXPECT_THAT(printed.out, HasSubstr("was killed by signal 3 (QUIT) while training, after step 7"));
  EXPECT_THAT(printed.err, HasSubstr("millrace: process 1 "));
}

TEST_F(LaunchTest, WhoDoesNotListenIsKilled) {
  LaunchPlan plan = plan_of(3, {"0:deaf:sleep", "1:sleep", "2:exit=5"});
  plan.grace_s = 0.05;
  plan.term_s = 0.05;
  const Printed printed = run(plan);
  EXPECT_EQ(printed.status, 1);
  EXPECT_THAT(printed.err, HasSubstr("process 2 "));
  EXPECT_THAT(printed.err, HasSubstr("ended with status 5 while starting"));
}

TEST_F(LaunchTest, AStoppedProcessIsTheCauseOfThoseWhoLostIt) {
  // Process 0 loses its peer once it is told, by a signal, that this is stopped.
  LaunchPlan plan = plan_of(2, {"*:train=3", "0:drain:" + ready() + ":await_stop_of_peer:lose",
                                "1:" + ready() + ":sleep"});
  plan.grace_s = 0.05;
  plan.term_s = 0.05;
  start(plan);
  const int pid = pid_of(1);
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  ASSERT_EQ(::kill(pid_of(0), SIGTERM), 0);
  const Printed printed = finish();
  EXPECT_EQ(printed.status, 1);
  EXPECT_THAT(printed.err, HasSubstr("process 1 (pid " + std::to_string(pid) + ", ranks 2 to 3"));
  EXPECT_THAT(printed.err, HasSubstr("is stopped by a signal while training, after step 3"));
  EXPECT_TRUE(gone(pid));
}

TEST_F(LaunchTest, AFailureIsToldOnceWithItsStatusAndCoordinates) {
  const std::vector<std::string> words = {"*:train=9", "0:await_stop:lose", "1:fail=bad labels",
                                          "2:await_peer_failure=1:lose"};
  const Printed printed = run(plan_of(3, words));
  EXPECT_EQ(printed.status, 2);
  EXPECT_THAT(printed.err, HasSubstr("failed while training, after step 9: bad labels (rank 2)\n"));
  EXPECT_EQ(std::count(printed.err.begin(), printed.err.end(), '\n'), 1) << printed.err;

  const Printed as_json = run(plan_of(3, words), true);
  EXPECT_EQ(as_json.status, 2);
  EXPECT_EQ(as_json.err, "");
  const Document answer = parse_json(as_json.out, "stdout");
  Reader error = Reader(answer).object("error");
  EXPECT_EQ(error.text("code"), "invalid-argument");
  EXPECT_EQ(error.integer("rank"), 2);
  EXPECT_THAT(error.text("message"), HasSubstr("bad labels"));
}

TEST_F(LaunchTest, WhoTellsOfAFailureAndLingersIsEndedAsWell) {
  LaunchPlan plan = plan_of(2, {"0:await_stop:lose", "1:tell=stuck:sleep"});
  plan.grace_s = 0.05;
  const Printed printed = run(plan);
  EXPECT_EQ(printed.status, 1);
  EXPECT_THAT(printed.err, HasSubstr("process 1 "));
  EXPECT_THAT(printed.err, HasSubstr("failed while starting: stuck"));
}

TEST_F(LaunchTest, ASignalIsPassedOnAndAllDrain) {
  for (int signal : {SIGTERM, SIGINT}) {
    start(plan_of(3, {"*:drain:" + ready() + ":await_signal"}));
    await_all(3);
    ::kill(launcher_, signal);
    const Printed printed = finish();
    EXPECT_EQ(printed.status, 128 + signal);
    EXPECT_EQ(printed.err, "");
    for (int process = 0; process < 3; ++process) {
      fs::remove(folder_.path(std::to_string(process)));
    }
  }
}

TEST_F(LaunchTest, AnInterruptBeforeTheyListenEndsThemWithoutAParagraph) {
  start(plan_of(2, {"0:drain:" + ready() + ":await_signal", "1:" + ready() + ":sleep"}));
  await_all(2);
  ::kill(launcher_, SIGTERM);
  const Printed printed = finish();
  EXPECT_EQ(printed.status, 143);
  EXPECT_EQ(printed.err, "");
}

TEST_F(LaunchTest, ASecondSignalKillsAtOnce) {
  start(plan_of(3, {"*:deaf:" + ready() + ":sleep"}));
  await_all(3);
  ::kill(launcher_, SIGINT);
  ::kill(launcher_, SIGTERM);
  const Printed printed = finish();
  EXPECT_GE(printed.status, 130);
  EXPECT_EQ(printed.err, "");
}

TEST_F(LaunchTest, AKilledLauncherTakesAllWithIt) {
  start(plan_of(3, {"*:deaf:" + ready() + ":sleep"}));
  await_all(3);
  ::kill(launcher_, SIGKILL);
  EXPECT_EQ(result().status, -SIGKILL);
  for (int process = 0; process < 3; ++process) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_of(process), &status, 0), pid_of(process));
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
}

TEST_F(LaunchTest, WhatAProcessStartedGoesWithIt) {
  start(plan_of(2, {"1:fork=" + folder_.path() + ":" + ready() + ":exit=0"}));
  const int grandchild = pid_of("grandchild");
  int status = 0;
  EXPECT_EQ(::waitpid(launcher_, &status, 0), launcher_);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(::waitpid(grandchild, &status, 0), grandchild);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// A stand-in for ssh that runs the command here, in a session of its own as sshd would.
class LaunchOverSshTest : public LaunchTest {
 protected:
  LaunchPlan remote_plan(const std::vector<std::string>& words) {
    const std::string shell = folder_.write("ssh",
                                            "#!/bin/sh\n"
                                            "[ \"$1 $2\" = '-o BatchMode=yes' ] || exit 98\n"
                                            "[ \"$3\" != unreachable ] || exit 255\n"
                                            "unset MILLRACE_PROCESS\n"
                                            "echo \"on $3\" >> " +
                                                shell_quoted(folder_.path("log")) +
                                                "\n"
                                                "exec setsid -w sh -c \"$4\"\n");
    fs::permissions(shell, fs::perms::owner_all);
    LaunchPlan plan = plan_of(3, words);
    plan.hosts = {{"me@node1", 2}, {"node2", 1}};
    plan.remote_shell = shell;
    plan.store_port = 23456;
    plan.grace_s = 0.2;
    plan.term_s = 0.2;
    return plan;
  }
  Printed run_and_reap(const LaunchPlan& plan) {
    start(plan);
    return finish_and_reap();
  }
};

TEST_F(LaunchOverSshTest, ProcessesRunOnTheirHostsAndKnowTheStore) {
  const Printed printed = run_and_reap(remote_plan({"*:place", "*:out=it's $HOME\n"}));
  EXPECT_EQ(printed.status, 0) << printed.err;
  EXPECT_EQ(printed.out, "0 of 3 local 0 store node1:23456 engine gloo job 16\nit's $HOME\n");
  EXPECT_THAT(printed.err, HasSubstr("process 1: 1 of 3 local 1 store node1:23456"));
  EXPECT_THAT(printed.err, HasSubstr("process 2: 2 of 3 local 0 store node1:23456"));
  std::vector<std::string> log = split(read_file(folder_.path("log")), '\n');
  std::sort(log.begin(), log.end());
  EXPECT_THAT(log, ::testing::ElementsAre("", "on me@node1", "on me@node1", "on node2"));
}

TEST_F(LaunchOverSshTest, AFailureEndsAll) {
  start(remote_plan({"*:" + ready(), "0:sleep", "1:deaf:sleep", "2:raise=9"}));
  const Printed printed = finish_and_reap();
  EXPECT_EQ(printed.status, 1);
  EXPECT_THAT(printed.err, HasSubstr("process 2 (host node2) was killed by signal 9 (KILL)"));
  for (int process = 0; process < 3; ++process) {
    EXPECT_TRUE(gone(pid_of(process)));
  }
}

TEST_F(LaunchOverSshTest, AHostThatCannotBeReachedIsNamed) {
  LaunchPlan plan = remote_plan({"*:sleep"});
  plan.hosts[1].name = "unreachable";
  const Printed printed = run_and_reap(plan);
  EXPECT_EQ(printed.status, 1);
  EXPECT_THAT(printed.err, HasSubstr("process 2 (host unreachable) ended with status 255"));
  EXPECT_THAT(printed.err, HasSubstr("could not connect"));
}

TEST_F(LaunchOverSshTest, SignalsArePassedOn) {
  for (int signal : {SIGTERM, SIGINT}) {
    start(remote_plan({"*:drain:" + ready() + ":await_signal"}));
    await_all(3);
    ::kill(launcher_, signal);
    const Printed printed = finish_and_reap();
    EXPECT_EQ(printed.status, 128 + signal);
    for (int process = 0; process < 3; ++process) {
      fs::remove(folder_.path(std::to_string(process)));
    }
  }
}

TEST_F(LaunchOverSshTest, ProgramsEndWithTheConnection) {
  start(remote_plan({"*:deaf:" + ready() + ":sleep"}));
  await_all(3);
  ::kill(launcher_, SIGKILL);
  EXPECT_EQ(finish_and_reap().status, -SIGKILL);
  for (int process = 0; process < 3; ++process) {
    EXPECT_TRUE(gone(pid_of(process)));
  }
}

}  // namespace
}  // namespace millrace::cli
