// Messages and groups of the in-process engine, with ranks as threads.
#include "millrace/comm/inproc/inproc.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/random.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr double kLongS = 60;
constexpr double kShortS = 0.2;
constexpr uint8_t kBorder = 4;  // SEND_F

void expect_empty(const InprocWorld& world, int num_ranks) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    EXPECT_EQ(world.held(rank), 0u) << "rank " << rank;
  }
}

TEST(Inproc, HandsTheTensorItselfOver) {
  InprocWorld world(2, kLongS);
  const auto a = world.communicator(0);
  const auto b = world.communicator(1);
  EXPECT_EQ(b->rank(), 1);
  EXPECT_EQ(b->world_size(), 2);
  const at::Tensor sent = at::full({3, 5}, 2.5f);
  EXPECT_EQ(a->send(1, {kBorder, 0, 0}, sent).bytes, 60);
  EXPECT_EQ(world.held(1), 1u);
  const Fingerprint expected = fingerprint_of(sent);
  b->expect(0, {kBorder, 0, 0}, expected);
  Transfer transfer{-1, -1};
  const at::Tensor received = b->receive(0, {kBorder, 0, 0}, &expected, &transfer);
  EXPECT_EQ(received.data_ptr(), sent.data_ptr());
  EXPECT_EQ(received.use_count(), 2u);
  EXPECT_EQ(transfer.bytes, 60);
  EXPECT_EQ(transfer.wait_s, 0);
  expect_empty(world, 2);
}

// The same messages arrive whether or not anybody announces them, also those that never come.
TEST(Inproc, ExpectingDoesNothing) {
  InprocWorld world(1, kShortS);
  const auto own = world.communicator(0);
  own->expect(0, {kBorder, 0, 0}, {});
  own->expect(0, {kBorder, 0, 0}, fingerprint_of(at::Tensor()));
  own->send(0, {kBorder, 0, 0}, at::full({2}, 1.0f));
  EXPECT_TRUE(at::equal(own->receive(0, {kBorder, 0, 0}, nullptr, nullptr), at::full({2}, 1.0f)));
  expect_empty(world, 1);
}

TEST(Inproc, UndefinedTensorsAreMessages) {
  InprocWorld world(2, kLongS);
  const auto a = world.communicator(0);
  const auto b = world.communicator(1);
  EXPECT_EQ(a->send(1, {kBorder, 0, 0}, at::Tensor()).bytes, 0);
  const Fingerprint nothing = fingerprint_of(at::Tensor());
  Transfer transfer{-1, -1};
  EXPECT_FALSE(b->receive(0, {kBorder, 0, 0}, &nothing, &transfer).defined());
  EXPECT_EQ(transfer.bytes, 0);

  const Fingerprint something = fingerprint_of(at::full({2}, 1.0f));
  a->send(1, {kBorder, 0, 1}, at::Tensor());
  try {
    b->receive(0, {kBorder, 0, 1}, &something, nullptr);
    ADD_FAILURE() << "took nothing for something";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(error.microbatch(), 1);
    EXPECT_THAT(error.message(), HasSubstr("expected float32 [2]"));
    EXPECT_THAT(error.message(), HasSubstr("found no tensor"));
  }
}

TEST(Inproc, UnlikeShapesAndDtypesShowBoth) {
  InprocWorld world(3, kLongS);
  const auto from = world.communicator(0);
  const auto to = world.communicator(2);
  const Fingerprint expected = fingerprint_of(at::full({8, 15}, 1.0f));
  const std::vector<std::pair<at::Tensor, std::string>> cases = {
      {at::full({8, 16}, 1.0f), "float32 [8, 16]"},
      {at::full({8, 15}, 1.0, at::kDouble), "float64 [8, 15]"},
      {at::full({8, 15, 1}, 1.0f), "float32 [8, 15, 1]"},
  };
  for (const auto& [tensor, text] : cases) {
    from->send(2, {kBorder, 0, 3}, tensor);
    try {
      to->receive(0, {kBorder, 0, 3}, &expected, nullptr);
      ADD_FAILURE() << "took " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.message(),
                  HasSubstr("rank 2 expected float32 [8, 15] as SEND_F of stage 0, "
                            "microbatch 3 from rank 0, found " +
                            text));
    }
  }
  expect_empty(world, 3);
}

// All to all, sends and receives in orders drawn per rank, with random pauses; values encode both
// ends and the number.
TEST(Inproc, AllToAllInAnyOrderLosesNothing) {
  for (const int num : {1, 2, 3, 4, 5, 8}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      SCOPED_TRACE(testing::Message() << num << " ranks, seed " << seed);
      InprocWorld world(num, kLongS);
      constexpr int kEach = 6;
      const auto value = [](int from, int to, int64_t i) { return 1000.0 * from + 10.0 * to + i; };
      const auto errors = run_ranks(num, [&](int rank) {
        const auto communicator = world.communicator(rank);
        const RandomKey key = RandomKey(seed).with(static_cast<uint64_t>(rank));
        for (const int64_t item : permutation(key.with("send"), kEach * num)) {
          const int to = static_cast<int>(item % num);
          for (uint64_t i = key.below(static_cast<uint64_t>(item), 5); i > 0; --i) {
            std::this_thread::yield();
          }
          communicator->send(to, {kBorder, rank, item / num},
                             at::full({rank + 1}, value(rank, to, item / num), at::kDouble));
        }
        for (const int64_t item : permutation(key.with("receive"), kEach * num)) {
          const int from = static_cast<int>(item % num);
          const at::Tensor tensor =
              communicator->receive(from, {kBorder, from, item / num}, nullptr, nullptr);
          EXPECT_TRUE(
              at::equal(tensor, at::full({from + 1}, value(from, rank, item / num), at::kDouble)));
        }
      });
      EXPECT_EQ(thrown(errors), "");
      expect_empty(world, num);
    }
  }
}

TEST(Inproc, DeadlineNamesTheRanksAndMeasuresTheWait) {
  InprocWorld world(4, kShortS);
  const auto waiting = world.communicator(3);
  const double start_s = monotonic_s();
  try {
    waiting->receive(2, {kBorder, 1, 7}, nullptr, nullptr);
    ADD_FAILURE() << "received from nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_EQ(error.rank(), 3);
    EXPECT_THAT(error.message(), HasSubstr("rank 3 waits for SEND_F of stage 1, microbatch 7 from "
                                           "rank 2, nothing for 0.2 s"));
  }
  EXPECT_GE(monotonic_s() - start_s, kShortS);
  EXPECT_LT(monotonic_s() - start_s, 20 * kShortS);
}

// What the runtime does: the first failure aborts the world, everybody else reports that cause.
TEST(Inproc, OneTimeoutEndsTheWorldWithItsCause) {
  InprocWorld world(3, kShortS);
  const auto errors = run_ranks(3, [&](int rank) {
    const auto communicator = world.communicator(rank);
    try {
      if (rank == 0) {
        communicator->receive(1, {kBorder, 0, 0}, nullptr, nullptr);
      }
      communicator->group({0, 1, 2})->barrier();
    } catch (const Error& error) {
      communicator->abort(error);
      throw;
    }
  });
  ASSERT_TRUE(world.first_cause().has_value());
  EXPECT_EQ(world.first_cause()->code(), ErrorCode::kTimeout)
      << "whoever was told of a timeout and aborted first gives way to it";
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_TRUE(error->code() == ErrorCode::kTimeout || error->code() == ErrorCode::kPeerLost);
  }
}

TEST(Inproc, AbortEndsReceivesSendsAndNewGroups) {
  InprocWorld world(3, kLongS);
  const double start_s = monotonic_s();
  const auto errors = run_ranks(3, [&](int rank) {
    const auto communicator = world.communicator(rank);
    if (rank == 0) {
      communicator->receive(1, {kBorder, 0, 0}, nullptr, nullptr);
      communicator->receive(2, {kBorder, 0, 0}, nullptr, nullptr);
      communicator->abort(Error(ErrorCode::kBadFile, "data.bin: gone").at_rank(0));
      communicator->abort(Error(ErrorCode::kInternal, "later"));
      return;
    }
    communicator->send(0, {kBorder, 0, 0}, at::Tensor());
    communicator->receive(0, {kBorder, 0, 0}, nullptr, nullptr);
  });
  EXPECT_LT(monotonic_s() - start_s, 10);
  for (const std::size_t rank : {1, 2}) {
    ASSERT_TRUE(errors[rank].has_value());
    EXPECT_EQ(errors[rank]->code(), ErrorCode::kPeerLost);
    EXPECT_THAT(errors[rank]->message(), HasSubstr("rank 0 failed: data.bin: gone"));
  }
  EXPECT_EQ(world.first_cause()->message(), "data.bin: gone");
  const auto late = world.communicator(1);
  EXPECT_THROW(late->send(0, {kBorder, 0, 1}, at::Tensor()), Error);
  const auto group = late->group({0, 1});
  EXPECT_THROW(group->barrier(), Error);
}

// Overlapping groups side by side: each sums over its own members only.
TEST(Groups, OverlappingOnesDoNotMix) {
  InprocWorld world(4, kLongS);
  const auto errors = run_ranks(4, [&](int rank) {
    const auto communicator = world.communicator(rank);
    const auto all = communicator->group({0, 1, 2, 3});
    const auto half =
        communicator->group(rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
    const auto stride =
        communicator->group(rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3});
    EXPECT_EQ(all->member(), rank);
    EXPECT_EQ(half->member(), rank % 2);
    EXPECT_EQ(stride->ranks(), (std::vector<int>{rank % 2, rank % 2 + 2}));
    const float own = static_cast<float>(1 << rank);
    for (int i = 0; i < 20; ++i) {
      for (const int64_t size : {3L, 6000L}) {
        at::Tensor a = at::full({size}, own);
        at::Tensor b = at::full({size}, own);
        at::Tensor c = at::full({size}, own);
        stride->all_reduce_sum(c);
        all->all_reduce_sum(a);
        half->all_reduce_sum(b);
        EXPECT_TRUE(at::equal(a, at::full({size}, 15.0f)));
        EXPECT_TRUE(at::equal(b, at::full({size}, rank < 2 ? 3.0f : 12.0f)));
        EXPECT_TRUE(at::equal(c, at::full({size}, rank % 2 == 0 ? 5.0f : 10.0f)));
      }
    }
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(Groups, AskingTwiceGivesTwo) {
  InprocWorld world(2, kLongS);
  const auto errors = run_ranks(2, [&](int rank) {
    const auto communicator = world.communicator(rank);
    const auto first = communicator->group({0, 1});
    const auto second = communicator->group({0, 1});
    // A member that is ahead in one group must not be taken for one of the other.
    at::Tensor a = at::full({2}, 1.0f + static_cast<float>(rank));
    at::Tensor b = at::full({2}, 10.0f + static_cast<float>(rank));
    first->all_reduce_sum(a);
    second->all_reduce_sum(b);
    first->barrier();
    EXPECT_TRUE(at::equal(a, at::full({2}, 3.0f)));
    EXPECT_TRUE(at::equal(b, at::full({2}, 21.0f)));
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(Groups, BarrierHoldsUntilAllCame) {
  InprocWorld world(4, kLongS);
  std::vector<std::atomic<int>> rounds(4);
  const auto errors = run_ranks(4, [&](int rank) {
    const auto communicator = world.communicator(rank);
    const auto group = communicator->group({0, 1, 2, 3});
    for (int round = 1; round <= 50; ++round) {
      rounds[static_cast<std::size_t>(rank)] = round;
      EXPECT_EQ(group->barrier().bytes, 0);
      for (const auto& other : rounds) {
        EXPECT_GE(other, round);
        EXPECT_LE(other, round + 1);
      }
    }
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(Groups, BarrierAgainstSumIsAnErrorOnBoth) {
  InprocWorld world(2, kLongS);
  const auto errors = run_ranks(2, [&](int rank) {
    const auto communicator = world.communicator(rank);
    const auto group = communicator->group({0, 1});
    at::Tensor tensor = at::full({4}, 1.0f);
    rank == 0 ? group->barrier() : group->all_reduce_sum(tensor);
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error->message(), HasSubstr("rank 0 a barrier"));
    EXPECT_THAT(error->message(), HasSubstr("rank 1 float32 [4]"));
  }
}

TEST(Groups, ImpossibleRanksAreRefused) {
  InprocWorld world(4, kLongS);
  const auto communicator = world.communicator(1);
  for (const std::vector<int>& ranks :
       {std::vector<int>{}, {0, 2}, {1, 0}, {0, 1, 1}, {1, 4}, {-1, 1}}) {
    try {
      communicator->group(ranks);
      ADD_FAILURE() << "took a group of " << ranks.size();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(error.rank(), 1);
      EXPECT_THAT(error.message(), HasSubstr("ascending ranks from 0 to 3 with rank 1"));
    }
  }
  EXPECT_THROW(world.communicator(4), Error);
  EXPECT_THROW(InprocWorld(0, kLongS), Error);
  EXPECT_THROW(InprocWorld(1, 0), Error);
}

}  // namespace
}  // namespace millrace
