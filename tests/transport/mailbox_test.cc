#include "millrace/transport/mailbox.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "millrace/base/random.h"
#include "millrace/core/action.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr uint8_t kSendF = static_cast<uint8_t>(ActionKind::kSendForward);
constexpr uint8_t kSendB = static_cast<uint8_t>(ActionKind::kSendBackward);
constexpr double kLongS = 60;
constexpr double kShortS = 0.2;

Fingerprint float32_of(int64_t rows, int64_t columns) { return {6, 2, {rows, columns}}; }

template <class Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

TEST(MessageTag, TextNamesKindStageAndMicrobatch) {
  EXPECT_EQ(to_string(MessageTag{kSendF, 1, 7}), "SEND_F of stage 1, microbatch 7");
  EXPECT_EQ(to_string(MessageTag{kSendF, 1, 7, 2}), "SEND_F of stage 1, microbatch 7, tensor 2");
  EXPECT_EQ(to_string(MessageTag{101, 0, 12}), "message kind 101, stage 0, number 12");
  EXPECT_EQ(to_string(MessageTag{kRuleMessage, 1, 7, 3, 1, 2}),
            "exchange rule message 3 of stage 1");
}

TEST(Fingerprint, TextShowsDtypeAndSizes) {
  EXPECT_EQ(to_string(float32_of(4, 3)), "float32 [4, 3]");
  EXPECT_EQ(to_string(Fingerprint{7, 0, {}}), "float64 []");
  EXPECT_EQ(to_string(Fingerprint{4, 1, {0}}), "int64 [0]");
  EXPECT_EQ(to_string(Fingerprint{Fingerprint::kNoTensor, 0, {}}), "no tensor");
  EXPECT_EQ(to_string(Fingerprint{Fingerprint::kBarrier, 0, {}}), "a barrier");
  EXPECT_EQ(to_string(Fingerprint{6, 8, {1, 2, 3, 4, 5, 336}}),
            "float32 [1, 2, 3, 4, 5, 336 in 3 dimensions]");
  EXPECT_EQ(to_string(Fingerprint{77, 1, {2}}), "dtype 77 [2]");
}

TEST(AbortFlag, KeepsTheFirstCauseAndQuotesIt) {
  AbortFlag flag;
  EXPECT_FALSE(flag.raised());
  EXPECT_FALSE(flag.cause().has_value());
  EXPECT_TRUE(flag.raise(Error(ErrorCode::kOutOfMemory, "no memory").at_rank(1)));
  EXPECT_FALSE(flag.raise(Error(ErrorCode::kTimeout, "later").at_rank(2)));
  ASSERT_TRUE(flag.raised());
  EXPECT_EQ(flag.cause()->code(), ErrorCode::kOutOfMemory);
  const Error quoted = error_of([&] { flag.rethrow(); });
  EXPECT_EQ(quoted.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(quoted.what(), HasSubstr("rank 1 failed: no memory"));
  EXPECT_THAT(quoted.what(), Not(HasSubstr("later")));
}

TEST(AbortFlag, WhatWasToldSecondHandGivesWayToTheFailureItself) {
  AbortFlag flag;
  EXPECT_TRUE(flag.raise(Error(ErrorCode::kPeerLost, "rank 1 failed: nothing came")));
  EXPECT_FALSE(flag.raise(Error(ErrorCode::kTimeout, "nothing came")));
  EXPECT_EQ(flag.cause()->code(), ErrorCode::kTimeout);
  EXPECT_FALSE(flag.raise(Error(ErrorCode::kInternal, "later")));
  EXPECT_FALSE(flag.raise(Error(ErrorCode::kPeerLost, "later still")));
  EXPECT_EQ(flag.cause()->message(), "nothing came");
}

TEST(AbortFlag, CauseWithoutRankSpeaksOfTheRun) {
  AbortFlag flag;
  flag.raise(Error(ErrorCode::kInterrupted, "Ctrl-C"));
  EXPECT_THAT(error_of([&] { flag.rethrow(); }).what(), HasSubstr("the run failed: Ctrl-C"));
}

TEST(Mailboxes, TakesInAnyOrderAndKeepsTheRest) {
  Mailboxes<int> boxes(3, kLongS);
  for (int microbatch = 0; microbatch < 5; ++microbatch) {
    for (int from = 0; from < 3; ++from) {
      boxes.send(from, 2, {kSendF, from, microbatch}, {}, 100 * from + microbatch);
    }
  }
  EXPECT_EQ(boxes.held(2), 15u);
  EXPECT_EQ(boxes.held(0), 0u);
  for (int microbatch = 4; microbatch >= 0; --microbatch) {
    for (int from : {1, 0, 2}) {
      double waited_s = -1;
      EXPECT_EQ(boxes.receive(2, from, {kSendF, from, microbatch}, nullptr, &waited_s),
                100 * from + microbatch);
      EXPECT_EQ(waited_s, 0);
    }
  }
  EXPECT_EQ(boxes.held(2), 0u);
}

TEST(Mailboxes, EveryPartOfATagDistinguishes) {
  Mailboxes<int> boxes(2, kLongS);
  boxes.send(0, 1, {kSendF, 1, 1}, {}, 1);
  boxes.send(0, 1, {kSendB, 1, 1}, {}, 2);
  boxes.send(0, 1, {kSendF, 2, 1}, {}, 3);
  boxes.send(0, 1, {kSendF, 1, 2}, {}, 4);
  boxes.send(1, 1, {kSendF, 1, 1}, {}, 5);
  EXPECT_EQ(boxes.receive(1, 1, {kSendF, 1, 1}, nullptr), 5);
  EXPECT_EQ(boxes.receive(1, 0, {kSendF, 1, 2}, nullptr), 4);
  EXPECT_EQ(boxes.receive(1, 0, {kSendF, 2, 1}, nullptr), 3);
  EXPECT_EQ(boxes.receive(1, 0, {kSendB, 1, 1}, nullptr), 2);
  EXPECT_EQ(boxes.receive(1, 0, {kSendF, 1, 1}, nullptr), 1);
}

TEST(Mailboxes, EqualTagsComeInTheOrderSent) {
  Mailboxes<int> boxes(2, kLongS);
  for (int value = 0; value < 10; ++value) {
    boxes.send(0, 1, {kSendF, 0, 0}, {}, value);
    boxes.send(0, 1, {kSendF, 0, 1}, {}, -value);
  }
  for (int value = 0; value < 10; ++value) {
    EXPECT_EQ(boxes.receive(1, 0, {kSendF, 0, 0}, nullptr), value);
  }
  for (int value = 0; value < 10; ++value) {
    EXPECT_EQ(boxes.receive(1, 0, {kSendF, 0, 1}, nullptr), -value);
  }
  EXPECT_EQ(boxes.held(1), 0u);
}

TEST(Mailboxes, MovesPayloadsAndKeepsNothingOfThem) {
  Mailboxes<std::shared_ptr<int>> boxes(1, kLongS);
  auto sent = std::make_shared<int>(5);
  const std::weak_ptr<int> watched = sent;
  boxes.send(0, 0, {101, 0, 0}, {}, std::move(sent));
  std::shared_ptr<int> received = boxes.receive(0, 0, {101, 0, 0}, nullptr);
  EXPECT_EQ(*received, 5);
  EXPECT_EQ(received.use_count(), 1);
  received.reset();
  EXPECT_TRUE(watched.expired());
}

// Two ranks in turn, with spinning, without, and with a spin longer than any wait.
TEST(Mailboxes, PingPongUnderEverySpinPolicy) {
  for (const double spin_s : {kAutomaticSpin, 0.0, 1e-6, 0.01}) {
    Mailboxes<int> boxes(2, kLongS, 4, spin_s);
    constexpr int kRounds = 500;
    const auto errors = run_ranks(2, [&](int rank) {
      for (int i = 0; i < kRounds; ++i) {
        if (rank == 0) {
          boxes.send(0, 1, {101, 0, i}, {}, i);
          EXPECT_EQ(boxes.receive(0, 1, {102, 0, i}, nullptr), -i);
        } else {
          EXPECT_EQ(boxes.receive(1, 0, {101, 0, i}, nullptr), i);
          boxes.send(1, 0, {102, 0, i}, {}, -i);
        }
      }
    });
    EXPECT_EQ(thrown(errors), "") << "spin " << spin_s;
    EXPECT_EQ(boxes.held(0) + boxes.held(1), 0u);
  }
}

// Everybody sends to everybody, in an order and with pauses drawn per rank, and receives in another
// order.
TEST(Mailboxes, RandomOrdersAndDelaysLoseNothing) {
  for (const int num_ranks : {1, 2, 3, 4, 5, 8}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(testing::Message() << "ranks " << num_ranks << " seed " << seed);
      constexpr int kEach = 20;
      Mailboxes<int64_t> boxes(num_ranks, kLongS);
      const auto errors = run_ranks(num_ranks, [&](int rank) {
        const RandomKey key = RandomKey(seed).with(static_cast<uint64_t>(rank));
        const auto pause = [&](const RandomKey& pauses, int64_t step) {
          for (uint64_t i = pauses.below(static_cast<uint64_t>(step), 4); i > 0; --i) {
            std::this_thread::yield();
          }
        };
        for (const int64_t item : permutation(key.with("send"), kEach * num_ranks)) {
          const int to = static_cast<int>(item % num_ranks);
          pause(key.with("pause"), item);
          boxes.send(rank, to, {kSendF, rank, item / num_ranks}, float32_of(rank + 1, to),
                     rank * 1000000 + to * 1000 + item / num_ranks);
        }
        for (const int64_t item : permutation(key.with("receive"), kEach * num_ranks)) {
          const int from = static_cast<int>(item % num_ranks);
          pause(key.with("wait"), item);
          const Fingerprint expected = float32_of(from + 1, rank);
          EXPECT_EQ(boxes.receive(rank, from, {kSendF, from, item / num_ranks}, &expected),
                    from * 1000000 + rank * 1000 + item / num_ranks);
        }
      });
      EXPECT_EQ(thrown(errors), "");
      for (int rank = 0; rank < num_ranks; ++rank) {
        EXPECT_EQ(boxes.held(rank), 0u);
      }
    }
  }
}

TEST(Mailboxes, TimeoutSaysWhoWaitsForWhatAndWhatTheBoxHolds) {
  Mailboxes<int> boxes(4, kShortS);
  boxes.send(2, 3, {kSendF, 1, 6}, {}, 0);
  double waited_s = 0;
  const double start_s = monotonic_s();
  const Error error = error_of([&] { boxes.receive(3, 2, {kSendF, 1, 7}, nullptr, &waited_s); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_THAT(error.message(), HasSubstr("rank 3 waits for SEND_F of stage 1, microbatch 7 from "
                                         "rank 2, nothing for 0.2 s"));
  EXPECT_THAT(error.message(), HasSubstr("SEND_F of stage 1, microbatch 6 from rank 2"));
  EXPECT_EQ(error.rank(), 3);
  EXPECT_EQ(error.microbatch(), 7);
  EXPECT_GE(waited_s, kShortS);
  EXPECT_LT(monotonic_s() - start_s, 20 * kShortS);
  EXPECT_EQ(boxes.held(3), 1u);
  EXPECT_EQ(boxes.receive(3, 2, {kSendF, 1, 6}, nullptr), 0);
}

TEST(Mailboxes, TimeoutListsOnlyTheFirstOfManyMessages) {
  Mailboxes<int> boxes(2, 0.01);
  for (int i = 0; i < 9; ++i) {
    boxes.send(0, 1, {101, 0, i}, {}, i);
  }
  const Error error = error_of([&] { boxes.receive(1, 0, {101, 0, 9}, nullptr); });
  EXPECT_THAT(error.message(), HasSubstr("its box holds 9: "));
  EXPECT_THAT(error.message(), HasSubstr("number 3"));
  EXPECT_THAT(error.message(), Not(HasSubstr("number 4 ")));
  EXPECT_FALSE(error.microbatch().has_value());
}

// Unrelated messages keep arriving: they must neither satisfy the wait nor push its deadline out.
TEST(Mailboxes, OtherMessagesDoNotProlongADeadline) {
  Mailboxes<int> boxes(2, kShortS);
  std::atomic<bool> ended{false};
  const auto errors = run_ranks(2, [&](int rank) {
    if (rank == 0) {
      const double start_s = monotonic_s();
      const Error error = error_of([&] { boxes.receive(0, 1, {101, 0, -1}, nullptr); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      EXPECT_LT(monotonic_s() - start_s, 20 * kShortS);
      ended = true;
      return;
    }
    for (int i = 0; !ended && i < 60000; ++i) {
      boxes.send(1, 0, {101, 0, i}, {}, i);
      std::this_thread::yield();
    }
    EXPECT_EQ(error_of([&] {
                boxes.receive(1, 0, {102, 0, 0}, nullptr);
              }).code(),
              ErrorCode::kTimeout);
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(Mailboxes, UnlikeFingerprintsShowBoth) {
  const Fingerprint expected = float32_of(4, 3);
  const std::map<std::string, Fingerprint> unlike = {
      {"float64 [4, 3]", {7, 2, {4, 3}}},
      {"float32 [4]", {6, 1, {4}}},
      {"float32 [4, 1]", {6, 2, {4, 1}}},
      {"no tensor", {Fingerprint::kNoTensor, 0, {}}},
  };
  Mailboxes<int> boxes(4, kLongS);
  for (const auto& [text, found] : unlike) {
    boxes.send(2, 3, {kSendF, 1, 7}, found, 0);
    const Error error = error_of([&] { boxes.receive(3, 2, {kSendF, 1, 7}, &expected); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(),
                HasSubstr("rank 3 expected float32 [4, 3] as SEND_F of stage 1, microbatch 7 "
                          "from rank 2, found " +
                          text + ";"));
    EXPECT_EQ(error.rank(), 3);
    EXPECT_EQ(boxes.held(3), 0u);
  }
  boxes.send(2, 3, {kSendF, 1, 8}, expected, 88);
  EXPECT_EQ(boxes.receive(3, 2, {kSendF, 1, 8}, &expected), 88);
  boxes.send(2, 3, {kSendF, 1, 9}, {7, 1, {5}}, 99);
  EXPECT_EQ(boxes.receive(3, 2, {kSendF, 1, 9}, nullptr), 99);
}

// Waiters asleep, spinning and not yet there all end with the first cause, long before their
// deadline.
TEST(Mailboxes, AbortEndsEveryWait) {
  for (const double spin_s : {0.0, 30.0}) {
    Mailboxes<int> boxes(5, kLongS, 16, spin_s);
    const double start_s = monotonic_s();
    const auto errors = run_ranks(5, [&](int rank) {
      if (rank == 4) {
        for (int from = 0; from < 4; ++from) {
          boxes.receive(4, from, {101, 0, 0}, nullptr);
        }
        boxes.abort(Error(ErrorCode::kBadFile, "the disk is gone").at_rank(4));
        boxes.abort(Error(ErrorCode::kTimeout, "a consequence").at_rank(0));
        return;
      }
      boxes.send(rank, 4, {101, 0, 0}, {}, rank);
      boxes.receive(rank, 4, {102, 0, 0}, nullptr);
    });
    EXPECT_LT(monotonic_s() - start_s, 10);
    for (int rank = 0; rank < 4; ++rank) {
      const auto& error = errors[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->code(), ErrorCode::kPeerLost);
      EXPECT_THAT(error->message(), HasSubstr("rank 4 failed: the disk is gone"));
    }
    EXPECT_FALSE(errors[4].has_value());
    EXPECT_EQ(boxes.abort_flag().cause()->code(), ErrorCode::kBadFile);
    EXPECT_EQ(error_of([&] {
                boxes.receive(0, 1, {101, 0, 0}, nullptr);
              }).code(),
              ErrorCode::kPeerLost);
    EXPECT_EQ(error_of([&] { boxes.send(0, 1, {101, 0, 0}, {}, 0); }).code(), ErrorCode::kPeerLost);
  }
}

TEST(Mailboxes, FullBoxIsNamed) {
  Mailboxes<int> boxes(2, kLongS, 3);
  for (int i = 0; i < 3; ++i) {
    boxes.send(0, 1, {kSendF, 0, i}, {}, i);
  }
  const Error error = error_of([&] { boxes.send(0, 1, {kSendF, 0, 3}, {}, 3); });
  EXPECT_EQ(error.code(), ErrorCode::kInternal);
  EXPECT_THAT(error.message(), HasSubstr("the box of rank 1 holds 3 messages"));
  EXPECT_EQ(boxes.receive(1, 0, {kSendF, 0, 1}, nullptr), 1);
  boxes.send(0, 1, {kSendF, 0, 3}, {}, 3);
  for (int i : {3, 0, 2}) {
    EXPECT_EQ(boxes.receive(1, 0, {kSendF, 0, i}, nullptr), i);
  }
}

TEST(Mailboxes, RefusesWhatCannotWork) {
  EXPECT_EQ(error_of([] { Mailboxes<int>(0, 1.0); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] { Mailboxes<int>(1, 0.0); }).code(), ErrorCode::kInvalidArgument);
  Mailboxes<int> boxes(2, kLongS);
  EXPECT_EQ(error_of([&] { boxes.send(0, 2, {}, {}, 0); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(error_of([&] { boxes.send(-1, 1, {}, {}, 0); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(error_of([&] { boxes.receive(0, 2, {}, nullptr); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(error_of([&] { static_cast<void>(boxes.held(2)); }).code(), ErrorCode::kInternal);
}

// The budget shows as the time of a spin that never succeeds: the shortest of several, since a busy
// machine may lengthen any of them.
TEST(AdaptiveSpin, ShrinksWhenInVainAndRecovers) {
  constexpr double kMostS = 0.002;
  const auto spun_s = [](internal::AdaptiveSpin& spin) {
    double shortest_s = 1;
    for (int i = 0; i < 20; ++i) {
      const double start_s = monotonic_s();
      EXPECT_FALSE(spin.until(start_s, [] { return false; }));
      shortest_s = std::min(shortest_s, monotonic_s() - start_s);
    }
    return shortest_s;
  };
  internal::AdaptiveSpin spin(kMostS);
  EXPECT_GE(spun_s(spin), kMostS);
  for (int i = 0; i < 10; ++i) {
    spin.learn(false);
  }
  const double shrunk_s = spun_s(spin);
  EXPECT_GE(shrunk_s, kMostS / 16);
  EXPECT_LT(shrunk_s, kMostS);
  for (int i = 0; i < 4; ++i) {
    spin.learn(true);
  }
  EXPECT_GE(spun_s(spin), kMostS);
  // However often it is in vain, the longest is tried again.
  int num_trials = 0;
  for (int i = 0; i < 200; ++i) {
    spin.learn(false);
    const double start_s = monotonic_s();
    bool long_enough = false;
    spin.until(start_s, [&] { return long_enough = monotonic_s() - start_s > kMostS / 2; });
    num_trials += long_enough ? 1 : 0;
  }
  EXPECT_GE(num_trials, 3);
}

TEST(AdaptiveSpin, AsksOnceWhenItMayNotSpin) {
  internal::AdaptiveSpin spin(0);
  int num_asked = 0;
  EXPECT_TRUE(spin.until(0, [&] { return ++num_asked == 1; }));
  EXPECT_FALSE(spin.until(0, [&] { return ++num_asked == 1; }));
  EXPECT_EQ(num_asked, 2);
}

}  // namespace
}  // namespace millrace
