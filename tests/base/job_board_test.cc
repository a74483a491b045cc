#include "millrace/base/job_board.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>  // kill
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Runs `body` in a forked process that ends with status 0 when it returns true.
template <typename Body>
pid_t fork_and(const Body& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::_exit(body() ? 0 : 1);
  }
  return pid;
}

int status_of(pid_t pid) {
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

std::string refusal(int fd) {
  try {
    JobBoard::attach(fd);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(JobBoardTest, StartsEmpty) {
  const JobBoard board = JobBoard::create(3);
  EXPECT_EQ(board.num_processes(), 3);
  EXPECT_EQ(board.port(), 0);
  EXPECT_FALSE(board.stop_requested());
  EXPECT_EQ(board.stop_text(), "");
  for (int process = 0; process < 3; ++process) {
    EXPECT_EQ(board.pid(process), 0);
    EXPECT_EQ(board.phase(process), JobPhase::kStarting);
    EXPECT_FALSE(board.ranks(process).has_value());
    EXPECT_FALSE(board.step(process).has_value());
    EXPECT_EQ(board.stages(process), "");
    EXPECT_FALSE(board.failure(process).has_value());
  }
}

TEST(JobBoardTest, AnotherProcessIsReadAndReads) {
  JobBoard board = JobBoard::create(2);
  board.set_stop("process 0 was killed");
  const pid_t child = fork_and([&] {
    JobBoard mine = JobBoard::attach(::dup(board.fd()));
    mine.set_pid(1, ::getpid());
    mine.set_phase(1, JobPhase::kTraining);
    mine.set_ranks(1, 0, 0);
    mine.set_step(1, 0);
    mine.set_stages(1, "stages 1 and 3 of 4");
    mine.set_port(4711);
    return mine.num_processes() == 2 && mine.stop_requested() &&
           mine.stop_text() == "process 0 was killed";
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(board.pid(1), child);
  EXPECT_EQ(board.phase(1), JobPhase::kTraining);
  EXPECT_EQ(board.ranks(1), std::pair(0, 0));
  EXPECT_EQ(board.step(1), 0);
  EXPECT_EQ(board.stages(1), "stages 1 and 3 of 4");
  EXPECT_EQ(board.port(), 4711);
  EXPECT_EQ(board.pid(0), 0);  // nothing of it went to its neighbour
  EXPECT_EQ(board.stages(0), "");
  board.set_ranks(0, 3, 1000000);
  EXPECT_EQ(board.ranks(0), std::pair(3, 1000000));
}

TEST(JobBoardTest, AFailureKeepsItsCoordinatesAndItsPlaceInTheOrder) {
  JobBoard board = JobBoard::create(3);
  board.set_failure(
      2, Error(ErrorCode::kTimeout, "waited for \"x\"").at_rank(5).at_stage(2).at_microbatch(7));
  board.set_failure(0, Error(ErrorCode::kPeerLost, "gone").at_action("0RECV_F7<1"));
  board.set_failure(0, Error(ErrorCode::kInternal, "later"));
  const JobFailure first = board.failure(2).value();
  const JobFailure second = board.failure(0).value();
  EXPECT_LT(first.order, second.order);
  EXPECT_EQ(first.error.code(), ErrorCode::kTimeout);
  EXPECT_STREQ(first.error.what(), "waited for \"x\" (rank 5, stage 2, microbatch 7)");
  EXPECT_EQ(second.error.message(), "gone");
  EXPECT_EQ(second.error.action(), "0RECV_F7<1");
  EXPECT_FALSE(board.failure(1).has_value());
  EXPECT_EQ(board.phase(2), JobPhase::kStarting);

  board.set_failure(1, Error(ErrorCode::kBadFile, "bad").in_file("a/b.json", 12).at_key("x.y"));
  EXPECT_STREQ(board.failure(1)->error.what(), "a/b.json:12: x.y: bad");
}

TEST(JobBoardTest, LongTextsAreCutAndStayReadable) {
  JobBoard board = JobBoard::create(2);
  board.set_stages(0, std::string(1000, 's'));
  EXPECT_EQ(board.stages(0), std::string(JobBoard::kMaxStagesBytes, 's'));
  board.set_stop(std::string(5000, 'w'));
  EXPECT_EQ(board.stop_text(), std::string(JobBoard::kMaxStopBytes, 'w'));
  // Quotes double in JSON, so the cut is not where the message's own bytes end.
  board.set_failure(0, Error(ErrorCode::kNoSpace, std::string(3000, '"')).at_rank(4));
  const JobFailure failure = board.failure(0).value();
  EXPECT_EQ(failure.error.code(), ErrorCode::kNoSpace);
  EXPECT_GT(failure.error.message().size(), 500U);
  EXPECT_EQ(failure.error.message().find_first_not_of('"'), std::string::npos);
  EXPECT_EQ(failure.error.rank(), 4);
  board.set_failure(1, Error(ErrorCode::kBadFile, "short").in_file(std::string(3000, 'f')));
  EXPECT_EQ(board.failure(1)->error.message(), "short");
}

// Writers of several processes and threads race for one text; readers see nothing or all of one.
TEST(JobBoardTest, NoReaderSeesHalfAText) {
  for (int round = 0; round < 50; ++round) {
    JobBoard board = JobBoard::create(1);
    std::vector<pid_t> writers;
    for (char letter : {'a', 'b', 'c'}) {
      writers.push_back(fork_and([&board, letter] {
        board.set_stages(0, std::string(JobBoard::kMaxStagesBytes, letter));
        return true;
      }));
    }
    std::atomic<bool> done{false};
    std::string bad;
    std::thread reader([&] {
      while (!done.load()) {
        const std::string text = board.stages(0);
        if (!text.empty() && text != std::string(JobBoard::kMaxStagesBytes, text[0])) {
          bad = text;
        }
      }
    });
    for (pid_t writer : writers) {
      EXPECT_EQ(status_of(writer), 0);
    }
    done = true;
    reader.join();
    EXPECT_EQ(bad, "");
    EXPECT_EQ(board.stages(0).size(), JobBoard::kMaxStagesBytes);
  }
}

TEST(JobBoardTest, OrdersAreDistinctOverProcesses) {
  constexpr int kProcesses = 8;
  JobBoard board = JobBoard::create(kProcesses);
  std::vector<pid_t> writers;
  for (int process = 0; process < kProcesses; ++process) {
    writers.push_back(fork_and([&board, process] {
      board.set_failure(process, Error(ErrorCode::kInternal, "x"));
      return true;
    }));
  }
  std::vector<bool> seen(kProcesses + 1);
  for (int process = 0; process < kProcesses; ++process) {
    EXPECT_EQ(status_of(writers[process]), 0);
    const uint32_t order = board.failure(process)->order;
    ASSERT_GE(order, 1U);
    ASSERT_LE(order, static_cast<uint32_t>(kProcesses));
    EXPECT_FALSE(seen[order]);
    seen[order] = true;
  }
}

TEST(JobBoardTest, AttachRefusesWhatIsNoBoardOfThisVersion) {
  EXPECT_THAT(refusal(9999), HasSubstr("descriptor 9999"));

  const JobBoard board = JobBoard::create(2);
  const std::size_t bytes = static_cast<std::size_t>(::lseek(board.fd(), 0, SEEK_END));
  std::string good(bytes, '\0');
  ASSERT_EQ(::pread(board.fd(), good.data(), bytes, 0), static_cast<ssize_t>(bytes));

  const auto refusal_of = [](const std::string& content) {
    const int fd = ::memfd_create("test", MFD_CLOEXEC);
    EXPECT_EQ(::write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
    std::string text = refusal(fd);
    EXPECT_EQ(::close(fd), 0);  // a refused descriptor stays the caller's
    return text;
  };
  EXPECT_THAT(refusal_of("short"), HasSubstr("5 bytes of something else"));
  EXPECT_THAT(refusal_of(std::string(bytes, '\0')), HasSubstr("something else"));
  std::string other = good;
  other[8] = 99;  // the version
  EXPECT_THAT(refusal_of(other), HasSubstr("version 99"));
  other = good;
  other[12] = 3;  // the number of processes
  EXPECT_THAT(refusal_of(other), HasSubstr("for 3 processes"));
  EXPECT_THAT(refusal_of(good + good), HasSubstr("for 2 processes"));

  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_THAT(refusal(ends[0]), HasSubstr("something else"));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(JobBoardTest, DescriptorsCloseOnExecAndWithTheBoard) {
  int fd = -1;
  {
    JobBoard board = JobBoard::create(1);
    fd = board.fd();
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
    const int inherited = ::dup(fd);
    EXPECT_EQ(::fcntl(inherited, F_GETFD), 0);
    JobBoard other = JobBoard::attach(inherited);
    EXPECT_EQ(::fcntl(inherited, F_GETFD), FD_CLOEXEC);
    JobBoard moved = std::move(other);
    moved.set_port(5);
    EXPECT_EQ(board.port(), 5);
    moved = JobBoard::create(2);
    EXPECT_EQ(::fcntl(inherited, F_GETFD), -1);
    // Nobody can shrink it under another process.
    EXPECT_NE(::ftruncate(fd, 0), 0);
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

// The board outlives a process that is killed while it writes.
TEST(JobBoardTest, AKilledWriterBlocksNobody) {
  for (int round = 0; round < 20; ++round) {
    JobBoard board = JobBoard::create(2);
    const pid_t writer = fork_and([&board] {
      for (int64_t step = 0;; ++step) {
        board.set_step(0, step);
        board.set_failure(0, Error(ErrorCode::kInternal, "x"));
      }
      return true;
    });
    while (!board.step(0).has_value()) {
      std::this_thread::yield();
    }
    ::kill(writer, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(status_of(writer)));
    board.set_failure(1, Error(ErrorCode::kInternal, "mine"));
    EXPECT_EQ(board.failure(1)->error.message(), "mine");
    EXPECT_GE(board.step(0).value(), 0);
  }
}

}  // namespace
}  // namespace millrace
