#include "millrace/cli/common/first_cause.h"

#include <gmock/gmock.h>

#include <csignal>

namespace millrace::cli {
namespace {

using How = ProcessEnd::How;
using ::testing::HasSubstr;
using ::testing::Not;

// Processes 0, 1, 2 of ranks 0 to 1, 2 to 3, 4 to 5, all drained by the launcher's SIGTERM.
std::vector<ProcessEnd> three() {
  std::vector<ProcessEnd> ends(3);
  for (int process = 0; process < 3; ++process) {
    ProcessEnd& end = ends[process];
    end.process = process;
    end.pid = 100 + process;
    end.host = "node1";
    end.how = How::kStatus;
    end.value = 1;
    end.order = process;
    end.phase = JobPhase::kTraining;
    end.ranks = std::pair(2 * process, 2 * process + 1);
    end.step = 40 + process;
    end.stages = "stage 1 of 3";
  }
  return ends;
}

ProcessEnd& tells(ProcessEnd& end, uint32_t order, ErrorCode code, const std::string& message) {
  end.failure = JobFailure{order, Error(code, message)};
  return end;
}

ProcessEnd& killed(ProcessEnd& end, int signal) {
  end.how = How::kSignal;
  end.value = signal;
  return end;
}

std::string text_of(const std::vector<ProcessEnd>& ends) {
  const std::optional<Error> error = first_cause(ends);
  return error ? error->what() : "";
}

TEST(FirstCauseTest, NothingBadIsNoCause) {
  std::vector<ProcessEnd> ends = three();
  ends[0].value = 0;
  ends[1].value = 143;
  ends[2].how = How::kRunning;
  EXPECT_FALSE(first_cause(ends).has_value());
  killed(ends[2], SIGKILL).ended_by_us = true;
  EXPECT_FALSE(first_cause(ends).has_value());
  ends[1].how = How::kStopped;  // nobody waited for it in vain
  EXPECT_FALSE(first_cause(ends).has_value());
}

TEST(FirstCauseTest, AKillComesBeforeErrorsOfThoseWhoLostTheirPeer) {
  std::vector<ProcessEnd> ends = three();
  tells(ends[0], 1, ErrorCode::kPeerLost, "lost rank 4");
  tells(ends[1], 2, ErrorCode::kInternal, "connection reset").order = 1;
  killed(ends[2], SIGKILL);
  const Error error = first_cause(ends).value();
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_STREQ(error.what(),
               "process 2 (pid 102, ranks 4 to 5, host node1, stage 1 of 3) was killed by signal 9 "
               "(KILL), by hand or by the system for want of memory while training, after step 42; "
               "go on from the last checkpoint with --resume");
}

TEST(FirstCauseTest, OfTwoKillsTheOneSeenFirst) {
  std::vector<ProcessEnd> ends = three();
  killed(ends[0], SIGSEGV).order = 2;
  killed(ends[1], SIGKILL).order = 1;
  EXPECT_THAT(text_of(ends), HasSubstr("process 1 "));
  ends[1].ended_by_us = true;
  EXPECT_THAT(text_of(ends), HasSubstr("killed by signal 11 (SEGV) while"));
}

TEST(FirstCauseTest, AnAbortAfterAFailureIsItsConsequence) {
  std::vector<ProcessEnd> ends = three();
  tells(ends[2], 1, ErrorCode::kOutOfMemory, "out of memory");
  killed(ends[0], SIGABRT).after_a_failure = true;
  EXPECT_THAT(text_of(ends), HasSubstr("process 2 "));
  ends[0].after_a_failure = false;
  EXPECT_THAT(text_of(ends), HasSubstr("process 0 "));
  // An abort after one's own error is that error.
  tells(ends[0], 2, ErrorCode::kInternal, "mine");
  ends[2].failure.reset();
  EXPECT_THAT(text_of(ends), HasSubstr("mine"));
}

TEST(FirstCauseTest, TheFirstErrorThatIsNotAboutOthersWithItsCoordinates) {
  std::vector<ProcessEnd> ends = three();
  tells(ends[0], 1, ErrorCode::kPeerLost, "lost");
  tells(ends[1], 3, ErrorCode::kInternal, "later");
  tells(ends[2], 2, ErrorCode::kInvalidArgument, "bad labels");
  ends[2].failure->error.at_rank(5).at_stage(1).at_microbatch(7).at_action("1F7");
  const Error error = first_cause(ends).value();
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.rank(), 5);
  EXPECT_EQ(error.stage(), 1);
  EXPECT_EQ(error.microbatch(), 7);
  EXPECT_EQ(error.action(), "1F7");
  EXPECT_THAT(error.message(), HasSubstr("process 2 (pid 102"));
  EXPECT_THAT(error.message(), HasSubstr("failed while training, after step 42: bad labels"));

  ends[2].failure = JobFailure{2, Error(ErrorCode::kBadFile, "short").in_file("a.png", 3)};
  EXPECT_EQ(first_cause(ends)->file(), "a.png");
  EXPECT_EQ(first_cause(ends)->line(), 3);
}

TEST(FirstCauseTest, AStoppedProcessComesBeforeThoseWhoWaitedForIt) {
  std::vector<ProcessEnd> ends = three();
  tells(ends[0], 1, ErrorCode::kTimeout, "waited 60 s");
  tells(ends[1], 2, ErrorCode::kPeerLost, "lost");
  ends[2].how = How::kStopped;
  EXPECT_THAT(text_of(ends), HasSubstr("process 2 (pid 102, ranks 4 to 5, host node1, stage 1 of "
                                       "3) is stopped by a signal while training"));
  tells(ends[0], 1, ErrorCode::kInternal, "a bug");
  EXPECT_THAT(text_of(ends), HasSubstr("a bug"));
}

TEST(FirstCauseTest, ASilentEndComesBeforeThoseWhoWaitedForIt) {
  std::vector<ProcessEnd> ends = three();
  tells(ends[0], 1, ErrorCode::kTimeout, "waited");
  tells(ends[1], 2, ErrorCode::kPeerLost, "lost");
  ends[2].value = 3;
  EXPECT_THAT(text_of(ends), HasSubstr("process 2 "));
  EXPECT_THAT(text_of(ends), HasSubstr("ended with status 3 while training"));
  EXPECT_EQ(first_cause(ends)->code(), ErrorCode::kInternal);
  ends[2].value = 2;
  EXPECT_EQ(first_cause(ends)->code(), ErrorCode::kInvalidArgument);
  ends[2].value = 0;
  EXPECT_THAT(text_of(ends), HasSubstr("waited"));
  ends[0].failure.reset();
  ends[0].value = 0;
  EXPECT_THAT(text_of(ends), HasSubstr("lost"));
}

TEST(FirstCauseTest, WhatWasNotToldIsLeftOut) {
  std::vector<ProcessEnd> ends(1);
  ends[0].process = 3;
  ends[0].pid = 7;
  ends[0].host = "h";
  killed(ends[0], SIGBUS);
  EXPECT_EQ(text_of(ends), "process 3 (pid 7, host h) was killed by signal 7 (BUS) while starting");
  ends[0].ranks = std::pair(6, 6);
  EXPECT_EQ(first_cause(ends)->rank(), 6);
  ends[0].how = How::kStatus;
  ends[0].value = 255;
  ends[0].by_ssh = true;
  EXPECT_THAT(text_of(ends), HasSubstr("process 3 (rank 6, host h) ended with status 255"));
  EXPECT_THAT(text_of(ends), HasSubstr("could not connect"));
}

// Whatever ended badly, there is a cause to print.
TEST(FirstCauseTest, EveryBadEndHasACause) {
  std::vector<ProcessEnd> ends = three();
  ends.resize(1);
  tells(ends[0], 1, ErrorCode::kInterrupted, "interrupted");
  EXPECT_THAT(text_of(ends), HasSubstr("status 1"));
  killed(ends[0], SIGABRT);
  EXPECT_THAT(text_of(ends), HasSubstr("signal 6 (ABRT)"));
  EXPECT_THAT(text_of(ends), Not(HasSubstr("memory")));
}

}  // namespace
}  // namespace millrace::cli
