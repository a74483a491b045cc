#include "millrace/transport/meeting.h"

#include <gmock/gmock.h>

#include <array>
#include <string>
#include <vector>

#include "millrace/base/random.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr double kLongS = 60;
constexpr double kShortS = 0.2;
const Fingerprint kFour{6, 1, {4}};

std::vector<int> first_ranks(int num) {
  std::vector<int> ranks;
  for (int rank = 0; rank < num; ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

// Each member writes a value of (rank, round), meets, and reads everybody's: a missing or early
// release shows as a wrong number, and a data race to the thread sanitizer.
TEST(Meeting, EveryRoundHandsEverybodyEverything) {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    for (const double spin_s : {kAutomaticSpin, 0.0, 0.001}) {
      SCOPED_TRACE(testing::Message() << "size " << size << " spin " << spin_s);
      AbortFlag abort;
      Meeting meeting(first_ranks(size), kLongS, abort, spin_s);
      const int num_rounds = spin_s > 0 && size > 2 ? 20 : 200;
      // Two alternating cells a member: the contract lets a cell be rewritten two rounds later.
      std::vector<std::array<int64_t, 2>> cells(static_cast<std::size_t>(size));
      const auto errors = run_ranks(size, [&](int rank) {
        for (int64_t round = 0; round < num_rounds; ++round) {
          int64_t& cell = cells[static_cast<std::size_t>(rank)][round % 2];
          cell = rank * 1000 + round;
          const auto& items = meeting.arrive(rank, static_cast<uint64_t>(round), kFour, &cell);
          ASSERT_EQ(items.size(), static_cast<std::size_t>(size));
          for (int member = 0; member < size; ++member) {
            EXPECT_EQ(*static_cast<int64_t*>(items[static_cast<std::size_t>(member)]),
                      member * 1000 + round);
          }
        }
      });
      EXPECT_EQ(thrown(errors), "");
    }
  }
}

TEST(Meeting, TheLastOneDoesNotWait) {
  AbortFlag abort;
  Meeting meeting({7}, kShortS, abort);
  double waited_s = -1;
  int item = 3;
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(meeting.arrive(0, i, kFour, &item, &waited_s), std::vector<void*>{&item});
    EXPECT_EQ(waited_s, 0);
  }
}

TEST(Meeting, UnlikeFingerprintsAreShownToAllWhoMayThenMeetAgain) {
  AbortFlag abort;
  Meeting meeting({2, 5, 6}, kLongS, abort);
  const std::vector<Fingerprint> brought = {kFour, {7, 1, {4}}, {6, 2, {2, 2}}};
  const auto errors = run_ranks(3, [&](int member) {
    meeting.arrive(member, 10, brought[static_cast<std::size_t>(member)], nullptr);
  });
  const std::vector<int> ranks = {2, 5, 6};
  for (std::size_t member = 0; member < 3; ++member) {
    ASSERT_TRUE(errors[member].has_value());
    EXPECT_EQ(errors[member]->code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(errors[member]->rank(), ranks[member]);
    for (const char* part : {"rank 2 float32 [4]", "rank 5 float64 [4]", "rank 6 float32 [2, 2]"}) {
      EXPECT_THAT(errors[member]->message(), HasSubstr(part));
    }
  }
  EXPECT_EQ(thrown(run_ranks(3, [&](int member) { meeting.arrive(member, 11, kFour, nullptr); })),
            "");
}

TEST(Meeting, UnlikeSequenceNumbersAreShownToAll) {
  AbortFlag abort;
  Meeting meeting({0, 1}, kLongS, abort);
  const auto errors = run_ranks(
      2, [&](int member) { meeting.arrive(member, member == 0 ? 5u : 6u, kFour, nullptr); });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error->message(), HasSubstr("rank 0 float32 [4] as number 5; rank 1 float32 [4] "
                                            "as number 6"));
  }
}

// Two of four stay away: one of the others times out and names them, its companion hears of it, and
// the late ones do not complete a meeting that somebody has left.
TEST(Meeting, TimeoutNamesTheMissing) {
  for (const double spin_s : {0.0, 0.001}) {
    AbortFlag abort;
    Meeting meeting({3, 4, 5, 9}, kShortS, abort, spin_s);
    const double start_s = monotonic_s();
    std::vector<double> waited_s(4, 0.0);
    const auto arrive = [&](int member) {
      meeting.arrive(member, 7, kFour, nullptr, &waited_s[static_cast<std::size_t>(member)]);
    };
    const auto errors = run_ranks(4, [&](int member) {
      if (member == 0 || member == 2) {
        arrive(member);
      }
    });
    EXPECT_LT(monotonic_s() - start_s, 20 * kShortS);
    ASSERT_TRUE(errors[0].has_value() && errors[2].has_value());
    const bool first_was_0 = errors[0]->code() == ErrorCode::kTimeout;
    const Error& timeout = first_was_0 ? *errors[0] : *errors[2];
    const Error& other = first_was_0 ? *errors[2] : *errors[0];
    EXPECT_EQ(timeout.code(), ErrorCode::kTimeout);
    EXPECT_EQ(timeout.rank(), first_was_0 ? 3 : 5);
    EXPECT_THAT(timeout.message(),
                HasSubstr("waits for ranks 4, 9 in collective operation 7 (float32 [4]) of ranks "
                          "3, 4, 5, 9, nothing for 0.2 s"));
    EXPECT_GE(waited_s[first_was_0 ? 0 : 2], kShortS);
    EXPECT_EQ(other.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(other.message(), HasSubstr("waits for ranks 4, 9"));

    const auto late = run_ranks(4, [&](int member) {
      if (member == 1 || member == 3) {
        arrive(member);
      }
    });
    for (const std::size_t member : {1, 3}) {
      ASSERT_TRUE(late[member].has_value());
      EXPECT_EQ(late[member]->code(), ErrorCode::kPeerLost);
      EXPECT_THAT(late[member]->message(), HasSubstr(" failed: "));
    }
  }
}

TEST(Meeting, AbortEndsPresentAndFutureWaits) {
  for (const double spin_s : {0.0, 30.0}) {
    AbortFlag abort;
    Meeting meeting(first_ranks(3), kLongS, abort, spin_s);
    const double start_s = monotonic_s();
    const auto errors = run_ranks(3, [&](int member) {
      meeting.arrive(member, 0, kFour, nullptr);
      if (member == 1) {
        abort.raise(Error(ErrorCode::kOutOfMemory, "no memory").at_rank(1));
        meeting.wake();
        return;
      }
      meeting.arrive(member, 1, kFour, nullptr);
    });
    EXPECT_LT(monotonic_s() - start_s, 10);
    for (const std::size_t member : {0, 2}) {
      ASSERT_TRUE(errors[member].has_value());
      EXPECT_EQ(errors[member]->code(), ErrorCode::kPeerLost);
      EXPECT_THAT(errors[member]->message(), HasSubstr("rank 1 failed: no memory"));
    }
    EXPECT_FALSE(errors[1].has_value());
    EXPECT_EQ(thrown(run_ranks(1, [&](int) { meeting.arrive(1, 1, kFour, nullptr); })).empty(),
              false);
  }
}

// Members reach the meeting at random moments, with a mailbox's own traffic in between.
TEST(Meeting, RandomDelaysChangeNothing) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    constexpr int kSize = 4;
    Mailboxes<int64_t> boxes(kSize, kLongS);
    Meeting meeting(first_ranks(kSize), kLongS, boxes.abort_flag(), 0.0);
    const auto errors = run_ranks(kSize, [&](int rank) {
      const RandomKey key = RandomKey(seed).with(static_cast<uint64_t>(rank));
      for (int64_t round = 0; round < 50; ++round) {
        for (uint64_t i = key.below(static_cast<uint64_t>(round), 20); i > 0; --i) {
          std::this_thread::yield();
        }
        boxes.send(rank, (rank + 1) % kSize, {101, 0, round}, {}, rank + 100 * round);
        int64_t own = rank * 7 + round;
        const auto& items = meeting.arrive(rank, static_cast<uint64_t>(2 * round), kFour, &own);
        int64_t sum = 0;
        for (void* item : items) {
          sum += *static_cast<int64_t*>(item);
        }
        EXPECT_EQ(sum, 7 * 6 + 4 * round);
        meeting.arrive(rank, static_cast<uint64_t>(2 * round + 1), kFour, nullptr);
        const int from = (rank + kSize - 1) % kSize;
        EXPECT_EQ(boxes.receive(rank, from, {101, 0, round}, nullptr), from + 100 * round);
      }
    });
    EXPECT_EQ(thrown(errors), "");
  }
}

TEST(Meeting, RefusesWhatCannotWork) {
  AbortFlag abort;
  EXPECT_THROW(Meeting({}, 1.0, abort), Error);
  EXPECT_THROW(Meeting({0}, -1.0, abort), Error);
  Meeting meeting({0}, 1.0, abort);
  EXPECT_THROW(meeting.arrive(1, 0, kFour, nullptr), Error);
}

}  // namespace
}  // namespace millrace
