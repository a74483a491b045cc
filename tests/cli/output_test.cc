#include "millrace/cli/common/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>

#include <new>
#include <stdexcept>

#include "tests/cli/cli_testing.h"

namespace millrace::cli {
namespace {

using ::testing::HasSubstr;

Value small_value() {
  Value value = Value::map();
  value.set("step", Value::of(3));
  return value;
}

TEST(OutputTest, HumanTextGoesToStdoutAndJsonIsSilent) {
  const Printed printed = printed_by([] {
    Output output(false);
    output.text("hello\n");
    output.line(small_value());
    output.document(small_value());
    return 0;
  });
  EXPECT_EQ(printed.out, "hello\n");
  EXPECT_EQ(printed.err, "");
}

TEST(OutputTest, WithJsonStdoutHoldsJsonOnly) {
  const Printed printed = printed_by([] {
    Output output(true);
    output.text("hello\n");
    output.line(small_value());
    output.line(small_value());
    return 0;
  });
  EXPECT_EQ(printed.err, "hello\n");
  EXPECT_EQ(printed.out, "{\"step\": 3}\n{\"step\": 3}\n");
}

TEST(OutputTest, ADocumentParsesBack) {
  const Printed printed = printed_by([] {
    Output(true).document(small_value());
    return 0;
  });
  EXPECT_EQ(parse_json(printed.out, "stdout").root, small_value());
}

TEST(OutputTest, AnAnswerIsOnStdoutInBothModes) {
  for (const bool json : {false, true}) {
    const Printed printed = printed_by([&] {
      Output(json).answer("drawing\n");
      return 0;
    });
    EXPECT_EQ(printed.out, "drawing\n");
  }
}

TEST(OutputTest, ProgressOffATerminalIsAtMostALineEveryFewSeconds) {
  const Printed printed = printed_by([] {
    Output output(false);
    EXPECT_FALSE(output.terminal());
    for (int i = 0; i < 1000; ++i) {
      output.progress("step");
    }
    output.end_progress();
    return 0;
  });
  EXPECT_EQ(printed.out, "step\n");
}

// Runs `call` with standard output on `fd`.
template <typename Call>
void with_stdout(int fd, const Call& call) {
  const int kept = ::dup(STDOUT_FILENO);
  ASSERT_GE(kept, 0);
  ASSERT_GE(::dup2(fd, STDOUT_FILENO), 0);
  call();
  ::dup2(kept, STDOUT_FILENO);
  ::close(kept);
}

TEST(OutputTest, ProgressOnATerminalReplacesItselfAndEndsBeforeOtherText) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) {
    GTEST_SKIP() << "this machine has no pseudo-terminals";
  }
  const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  ASSERT_GE(slave, 0);
  with_stdout(slave, [] {
    Output output(false);
    EXPECT_TRUE(output.terminal());
    output.progress("10%");
    output.progress("20%");
    output.progress("20%");
    output.text("done\n");
    output.text("more\n");
  });
  // The kernel hands it over piece by piece.
  std::string seen;
  pollfd ready = {master, POLLIN, 0};
  while (seen.find("more\r\n") == std::string::npos && ::poll(&ready, 1, 10'000) == 1) {
    char piece[256];
    const ssize_t count = ::read(master, piece, sizeof piece);
    ASSERT_GT(count, 0);
    seen.append(piece, static_cast<std::size_t>(count));
  }
  ::close(slave);
  ::close(master);
  EXPECT_EQ(seen, "\r10%\x1b[K\r20%\x1b[K\r\ndone\r\nmore\r\n");
}

TEST(OutputTest, AFullDiskIsStatus1) {
  const int full = ::open("/dev/full", O_WRONLY);
  if (full < 0) {
    GTEST_SKIP() << "this machine has no /dev/full";
  }
  ::testing::internal::CaptureStderr();
  int status = 0;
  with_stdout(full, [&] {
    status = guarded(false, [] {
      Output(false).text("hello\n");
      return 0;
    });
  });
  ::close(full);
  EXPECT_EQ(status, 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("standard output"));
}

TEST(OutputTest, AReaderThatWentAwayEndsThePrintingQuietly) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  ::testing::internal::CaptureStderr();
  int status = 1;
  bool reached = false;
  with_stdout(ends[1], [&] {
    status = guarded(false, [&] {
      Output(false).text("hello\n");
      reached = true;
      return 0;
    });
  });
  ::close(ends[1]);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(reached);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(OutputTest, ErrorsHaveTheirFieldsAndNoOthers) {
  Error error(ErrorCode::kTimeout, "waited too long");
  EXPECT_EQ(to_json(to_value(error), -1),
            R"({"error": {"code": "timeout", "message": "waited too long"}})");
  error.in_file("f.json", 7).at_key("a.b").at_rank(1).at_stage(2).at_microbatch(3).at_action("2F3");
  EXPECT_EQ(
      to_json(to_value(error), -1),
      R"({"error": {"code": "timeout", "message": "waited too long", "file": "f.json", )"
      R"("line": 7, "key": "a.b", "rank": 1, "stage": 2, "microbatch": 3, "action": "2F3"}})");
}

TEST(OutputTest, StatusTellsWhoseFaultItWas) {
  const auto status = [](ErrorCode code) { return exit_status_of(Error(code, "")); };
  EXPECT_EQ(status(ErrorCode::kInvalidArgument), 2);
  EXPECT_EQ(status(ErrorCode::kBadFile), 2);
  EXPECT_EQ(status(ErrorCode::kUnsupported), 2);
  EXPECT_EQ(status(ErrorCode::kNoSpace), 1);
  EXPECT_EQ(status(ErrorCode::kTimeout), 1);
  EXPECT_EQ(status(ErrorCode::kPeerLost), 1);
  EXPECT_EQ(status(ErrorCode::kOutOfMemory), 1);
  EXPECT_EQ(status(ErrorCode::kInternal), 1);
  EXPECT_EQ(status(ErrorCode::kInterrupted), 130);
}

TEST(OutputTest, GuardedTurnsEveryExceptionIntoOneLineAndAStatus) {
  const auto run = [](const std::function<int()>& command) {
    return printed_by([&] { return guarded(false, command); });
  };
  EXPECT_EQ(run([] { return 130; }).status, 130);
  const Printed wrong =
      run([]() -> int { throw Error(ErrorCode::kBadFile, "expected b").in_file("a.json", 4); });
  EXPECT_EQ(wrong.status, 2);
  EXPECT_EQ(wrong.err, "millrace: a.json:4: expected b\n");
  const Printed memory = run([]() -> int { throw std::bad_alloc(); });
  EXPECT_EQ(memory.status, 1);
  EXPECT_THAT(memory.err, HasSubstr("out of memory"));
  const Printed other = run([]() -> int { throw std::runtime_error("first\nstack dump"); });
  EXPECT_EQ(other.status, 1);
  EXPECT_EQ(other.err, "millrace: first\n");
}

TEST(OutputTest, GuardedWithJsonKeepsStderrEmpty) {
  const Printed printed = printed_by([] {
    return guarded(true, []() -> int { throw Error(ErrorCode::kUnsupported, "no").at_key("k"); });
  });
  EXPECT_EQ(printed.status, 2);
  EXPECT_EQ(printed.err, "");
  EXPECT_EQ(printed.out, R"({"error": {"code": "unsupported", "message": "no", "key": "k"}})"
                         "\n");
}

}  // namespace
}  // namespace millrace::cli
