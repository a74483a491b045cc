// Lanes of mailboxes, and receives of whatever comes first.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <vector>

#include "millrace/base/random.h"
#include "millrace/transport/mailbox.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr double kLongS = 60;
constexpr double kShortS = 0.2;
constexpr uint8_t kBorder = 4;  // SEND_F

MessageTag at_lane(int lane, int64_t number) {
  return {.kind = kRuleMessage, .microbatch = number, .lane = static_cast<uint16_t>(lane)};
}

template <class Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "nothing was thrown"};
}

// Until `rank` has as many sleepers as that. A test that waits in vain ends by its own time limit.
void await_sleepers(const Mailboxes<int>& boxes, int rank, std::size_t count) {
  while (boxes.waiting(rank).size() < count) {
    std::this_thread::yield();
  }
}

TEST(Lanes, AMessageIsInTheBoxOfItsLaneOnly) {
  Mailboxes<int> boxes(2, kLongS);
  for (const int lane : {0, 7, 65535}) {
    boxes.send(0, 1, at_lane(lane, 1), {}, lane);
  }
  EXPECT_EQ(boxes.held(1), 3U);
  EXPECT_EQ(boxes.held(0), 0U);
  Mailboxes<int>::Arrival arrival;
  EXPECT_FALSE(boxes.receive_any(1, 6, 0, arrival));
  EXPECT_EQ(boxes.receive(1, 0, at_lane(65535, 1), nullptr), 65535);
  EXPECT_TRUE(boxes.receive_any(1, 7, 0, arrival));
  EXPECT_EQ(arrival.payload, 7);
  EXPECT_EQ(arrival.tag, at_lane(7, 1));
  EXPECT_FALSE(boxes.receive_any(1, 7, 0, arrival));
  EXPECT_EQ(boxes.receive(1, 0, at_lane(0, 1), nullptr), 0);
  EXPECT_EQ(boxes.held(1), 0U);
}

// Each rank's two threads send to both lanes of the other rank and receive at their own: messages
// of both lanes cross, and which lane's come first differs from round to round.
TEST(Lanes, ThreadsOfARankWaitIndependently) {
  constexpr int kRounds = 300;
  Mailboxes<int> boxes(2, kLongS);
  const auto errors = run_ranks(4, [&](int thread) {
    const int rank = thread / 2;
    const int lane = thread % 2;
    for (int i = 0; i < kRounds; ++i) {
      for (uint64_t n = RandomKey(3).with(static_cast<uint64_t>(thread)).below(i, 3); n > 0; --n) {
        std::this_thread::yield();
      }
      boxes.send(rank, 1 - rank, at_lane(lane, i), {}, 1000 * thread + i);
      const int other = 2 * (1 - rank) + lane;
      EXPECT_EQ(boxes.receive(rank, 1 - rank, at_lane(lane, i), nullptr), 1000 * other + i);
    }
  });
  EXPECT_EQ(thrown(errors), "");
  EXPECT_EQ(boxes.held(0) + boxes.held(1), 0U);
}

TEST(Lanes, ASleeperIsWokenByItsOwnLaneAlone) {
  Mailboxes<int> boxes(1, kLongS, 100, 0);
  std::atomic<bool> woken{false};
  std::thread sleeper([&] {
    EXPECT_EQ(boxes.receive(0, 0, at_lane(2, 5), nullptr), 25);
    woken = true;
  });
  await_sleepers(boxes, 0, 1);
  const auto waits = boxes.waiting(0);
  EXPECT_EQ(waits[0].from, 0);
  EXPECT_EQ(waits[0].tag, at_lane(2, 5));
  boxes.send(0, 0, at_lane(1, 5), {}, 15);
  boxes.send(0, 0, at_lane(0, 5), {}, 5);
  EXPECT_EQ(boxes.receive(0, 0, at_lane(1, 5), nullptr), 15);
  EXPECT_FALSE(woken);
  boxes.send(0, 0, at_lane(2, 5), {}, 25);
  sleeper.join();
  EXPECT_EQ(boxes.held(0), 1U);
}

TEST(Lanes, WaitingTellsOfEveryLane) {
  Mailboxes<int> boxes(2, kLongS, 100, 0);
  const auto errors = run_ranks(4, [&](int thread) {
    if (thread == 3) {
      await_sleepers(boxes, 1, 3);
      const auto waits = boxes.waiting(1);
      EXPECT_EQ(waits[0].tag.lane, 0);
      EXPECT_EQ(waits[1].tag.lane, 1);
      EXPECT_EQ(waits[2].tag.lane, 2);
      EXPECT_EQ(waits[0].from, 0);
      EXPECT_EQ(waits[2].from, Mailboxes<int>::kAnybody);
      EXPECT_GE(waits[2].waited_s, 0);
      EXPECT_TRUE(boxes.waiting(0).empty());
      for (int lane = 0; lane < 3; ++lane) {
        boxes.send(0, 1, at_lane(lane, 0), {}, lane);
      }
    } else if (thread == 2) {
      Mailboxes<int>::Arrival arrival;
      EXPECT_TRUE(boxes.receive_any(1, 2, -1, arrival));
    } else {
      EXPECT_EQ(boxes.receive(1, 0, at_lane(thread, 0), nullptr), thread);
    }
  });
  EXPECT_EQ(thrown(errors), "");
  EXPECT_TRUE(boxes.waiting(1).empty());
}

TEST(Lanes, EachBoxHasItsOwnBound) {
  Mailboxes<int> boxes(2, kLongS, 2);
  for (const int lane : {0, 1}) {
    boxes.send(0, 1, at_lane(lane, 0), {}, 0);
    boxes.send(0, 1, at_lane(lane, 1), {}, 1);
  }
  const Error error = error_of([&] { boxes.send(0, 1, at_lane(1, 2), {}, 2); });
  EXPECT_EQ(error.code(), ErrorCode::kInternal);
  EXPECT_THAT(error.message(), HasSubstr("the box of rank 1, lane 1, holds 2 messages"));
  EXPECT_EQ(boxes.held(1), 4U);
  boxes.send(0, 1, at_lane(2, 0), {}, 0);
  EXPECT_EQ(boxes.held(1), 5U);
}

TEST(ReceiveAny, TakesInTheOrderOfArrivalWhoeverSent) {
  Mailboxes<int> boxes(4, kLongS);
  const std::vector<int> senders = {2, 0, 3, 3, 1, 0, 2};
  for (std::size_t i = 0; i < senders.size(); ++i) {
    const MessageTag tag{.kind = i % 2 == 0 ? kRuleMessage : kBorder, .microbatch = 9, .lane = 1};
    boxes.send(senders[i], 0, tag, {6, 1, {static_cast<int64_t>(i)}}, static_cast<int>(i));
  }
  // One out of the middle goes its own way.
  EXPECT_EQ(boxes.receive(0, 1, {.kind = kRuleMessage, .microbatch = 9, .lane = 1}, nullptr), 4);
  for (const std::size_t i : {0U, 1U, 2U, 3U, 5U, 6U}) {
    Mailboxes<int>::Arrival arrival;
    double waited_s = -1;
    ASSERT_TRUE(boxes.receive_any(0, 1, 0, arrival, &waited_s));
    EXPECT_EQ(arrival.from, senders[i]);
    EXPECT_EQ(arrival.payload, static_cast<int>(i));
    EXPECT_EQ(arrival.tag.kind, i % 2 == 0 ? kRuleMessage : kBorder);
    EXPECT_EQ(arrival.fingerprint.sizes[0], static_cast<int64_t>(i));
    EXPECT_EQ(waited_s, 0);
  }
  EXPECT_EQ(boxes.held(0), 0U);
}

TEST(ReceiveAny, WaitsNoLongerThanAllowed) {
  Mailboxes<int> boxes(2, kShortS);
  Mailboxes<int>::Arrival arrival;
  arrival.payload = 77;
  double waited_s = 0;
  EXPECT_FALSE(boxes.receive_any(1, 3, 0.05, arrival, &waited_s));
  EXPECT_GE(waited_s, 0.05);
  EXPECT_EQ(arrival.payload, 77);
  boxes.send(0, 1, at_lane(2, 0), {}, 0);  // another lane's
  const Error error = error_of([&] { boxes.receive_any(1, 3, -1, arrival, &waited_s); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_GE(waited_s, kShortS);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_FALSE(error.microbatch().has_value());
  EXPECT_THAT(error.message(), HasSubstr("rank 1 waits at lane 3 for a message from anybody, "
                                         "nothing for 0.2 s"));
}

// Every sender's messages come in the order it sent them, and none is lost or taken twice, while
// the receiver looks, waits a little and waits long in turn.
TEST(ReceiveAny, ManySendersAtOnce) {
  constexpr int kSenders = 6;
  constexpr int kEach = 400;
  constexpr int kLanes = 2;  // of rank 0, with a receiver each
  Mailboxes<int> boxes(kSenders + 1, kLongS);
  const auto errors = run_ranks(kSenders + kLanes, [&](int thread) {
    if (thread >= kLanes) {
      const int rank = thread - kLanes + 1;
      for (int i = 0; i < kEach * kLanes; ++i) {
        boxes.send(rank, 0, at_lane(1 + i % kLanes, i), {}, i);
        if (RandomKey(5).with(static_cast<uint64_t>(rank)).below(i, 8) == 0) {
          std::this_thread::yield();
        }
      }
      return;
    }
    const auto lane = static_cast<uint16_t>(1 + thread);
    std::vector<int> next(kSenders + 1, thread);
    const std::vector<double> waits_s = {0, 1e-5, -1};
    for (int taken = 0, turn = 0; taken < kSenders * kEach; ++turn) {
      Mailboxes<int>::Arrival arrival;
      if (boxes.receive_any(0, lane, waits_s[static_cast<std::size_t>(turn % 3)], arrival)) {
        int& expected = next[static_cast<std::size_t>(arrival.from)];
        EXPECT_EQ(arrival.payload, expected);
        EXPECT_EQ(arrival.tag, at_lane(lane, expected));
        expected += kLanes;
        ++taken;
      }
    }
  });
  EXPECT_EQ(thrown(errors), "");
  EXPECT_EQ(boxes.held(0), 0U);
}

// Asleep at lanes of all kinds, or not yet there: all end with the cause, also at a lane that
// nobody had used before.
TEST(ReceiveAny, AbortWakesEveryLane) {
  for (const double spin_s : {0.0, 30.0}) {
    Mailboxes<int> boxes(2, kLongS, 16, spin_s);
    const double start_s = monotonic_s();
    const auto errors = run_ranks(5, [&](int thread) {
      if (thread == 4) {
        await_sleepers(boxes, 1, 2);  // those in receive_any(), which do not spin
        boxes.abort(Error(ErrorCode::kBadFile, "the disk is gone").at_rank(0));
      } else if (thread < 2) {
        boxes.receive(1, 0, at_lane(thread, 0), nullptr);
      } else {
        Mailboxes<int>::Arrival arrival;
        boxes.receive_any(1, static_cast<uint16_t>(thread), thread == 2 ? -1 : kLongS, arrival);
      }
    });
    EXPECT_LT(monotonic_s() - start_s, kLongS / 2);
    for (std::size_t thread = 0; thread < 4; ++thread) {
      ASSERT_TRUE(errors[thread].has_value()) << thread;
      EXPECT_EQ(errors[thread]->code(), ErrorCode::kPeerLost);
      EXPECT_THAT(errors[thread]->message(), HasSubstr("the disk is gone"));
    }
    Mailboxes<int>::Arrival arrival;
    EXPECT_EQ(error_of([&] { boxes.receive_any(1, 9, 0, arrival); }).code(), ErrorCode::kPeerLost);
    EXPECT_EQ(error_of([&] { boxes.send(0, 1, at_lane(8, 0), {}, 0); }).code(),
              ErrorCode::kPeerLost);
  }
}

// Boxes of new lanes appear while an abort goes through the old ones.
TEST(ReceiveAny, AnAbortMissesNoLaneThatIsMadeMeanwhile) {
  constexpr int kLanes = 8;
  for (int round = 0; round < 50; ++round) {
    Mailboxes<int> boxes(1, kLongS, 16, 0);
    std::atomic<int> num_begun{0};
    const auto errors = run_ranks(kLanes + 1, [&](int thread) {
      if (thread == kLanes) {
        while (num_begun < round % kLanes) {
          std::this_thread::yield();
        }
        boxes.abort(Error(ErrorCode::kInterrupted, "enough"));
        return;
      }
      ++num_begun;
      Mailboxes<int>::Arrival arrival;
      boxes.receive_any(0, static_cast<uint16_t>(thread), -1, arrival);
    });
    for (int thread = 0; thread < kLanes; ++thread) {
      const auto& error = errors[static_cast<std::size_t>(thread)];
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->code(), ErrorCode::kPeerLost) << error->what();
    }
  }
}

}  // namespace
}  // namespace millrace
