#include "millrace/runtime/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "millrace/base/clock.h"
#include "millrace/comm/inproc/inproc.h"
#include "millrace/runtime/board.h"
#include "millrace/runtime/gate.h"

namespace millrace {
namespace {

TEST(Team, FirstCauseIsWhatTheCallerSees) {
  InprocWorld world(3, 30);
  const double start_s = monotonic_s();
  try {
    run_ranks(
        {0, 1, 2}, [&](const Error& cause) { world.abort(cause); },
        [&](int rank) {
          const auto comm = world.communicator(rank);
          if (rank == 1) {
            throw std::runtime_error("the device fell off");
          }
          comm->receive(1, {100, 0, 0}, nullptr, nullptr);  // never comes
        });
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.rank(), 1);
    EXPECT_NE(std::string(error.what()).find("the device fell off"), std::string::npos)
        << error.what();
  }
  EXPECT_LT(monotonic_s() - start_s, 10) << "others were woken, not left to their deadline";
}

TEST(Team, OutOfMemoryIsSaidAsSuch) {
  try {
    run_ranks(
        {0}, [](const Error&) {}, [](int) { throw std::bad_alloc(); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(error.rank(), 0);
  }
}

TEST(StepGate, AllRanksStopAtTheSameStep) {
  StepGate gate;
  EXPECT_TRUE(gate.enter(0));
  EXPECT_TRUE(gate.enter(1));  // one rank is ahead
  gate.request_stop();
  EXPECT_FALSE(gate.enter(2));
  EXPECT_TRUE(gate.enter(1)) << "the rank behind completes what the other began";
  gate.request_stop();
  EXPECT_FALSE(gate.enter(2));
}

// A stage of three replicas is in the middle of a round.
TEST(StepGate, StopsOnlyWhereAllRoundsEnd) {
  StepGate gate(3);
  EXPECT_TRUE(gate.enter(3));
  gate.request_stop();
  EXPECT_TRUE(gate.enter(4));
  EXPECT_TRUE(gate.enter(5));
  EXPECT_FALSE(gate.enter(6));
  StepGate before(3);
  before.request_stop();
  EXPECT_FALSE(before.enter(0));
}

TEST(StepBoard, SumsReportsAndKeepsOrder) {
  StepBoard board([](int64_t step) { return step == 0 ? 4 : 3; }, 2);
  board.report(1, 0, {.loss = 5, .correct = 1, .samples = 2});
  board.report(0, 0, {.loss = 1, .correct = 1, .samples = 2});
  EXPECT_FALSE(board.next(0.0)) << "2 of 4 samples";
  board.report(1, 1, {.loss = 6, .correct = 0, .samples = 1});
  EXPECT_FALSE(board.next(0.0)) << "step 0 comes first";
  board.report(0, 1, {.loss = 2, .correct = 1, .samples = 2});
  const auto first = board.next(0.0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->step, 0);
  EXPECT_EQ(first->sums.loss, 3);
  EXPECT_EQ(first->sums.samples, 4);
  const auto second = board.next(0.0);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->sums.correct, 1);
  EXPECT_EQ(second->sums.samples, 3);
  board.close();
  EXPECT_FALSE(board.next(5.0));
  EXPECT_TRUE(board.closed());
}

}  // namespace
}  // namespace millrace
