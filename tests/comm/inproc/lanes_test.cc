// Lanes of the in-process engine: several threads of a rank receive and reduce at once.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/comm/inproc/inproc.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr double kLongS = 60;

MessageTag at_lane(uint16_t lane, int64_t number) {
  return {.kind = kRuleMessage, .microbatch = number, .lane = lane};
}

TEST(InprocLanes, WhateverComesFirstIsTheTensorItself) {
  InprocWorld world(3, kLongS);
  const auto own = world.communicator(2);
  const at::Tensor sent = at::full({3}, 1.0F);
  world.communicator(1)->send(2, at_lane(4, 7), sent);
  world.communicator(0)->send(2, at_lane(4, 6), at::Tensor());
  EXPECT_EQ(world.held(2), 2U);
  Arrived arrived;
  Transfer transfer{1, 100};  // is added to
  ASSERT_TRUE(own->receive_any(4, 0, arrived, &transfer));
  EXPECT_EQ(arrived.from, 1);
  EXPECT_EQ(arrived.tag, at_lane(4, 7));
  EXPECT_EQ(arrived.tensor.data_ptr(), sent.data_ptr());
  EXPECT_EQ(transfer.wait_s, 1);
  EXPECT_EQ(transfer.bytes, 112);
  ASSERT_TRUE(own->receive_any(4, -1, arrived, &transfer));
  EXPECT_EQ(arrived.from, 0);
  EXPECT_FALSE(arrived.tensor.defined());
  EXPECT_EQ(transfer.bytes, 112);
  EXPECT_FALSE(own->receive_any(4, 0.02, arrived, &transfer));
  EXPECT_GE(transfer.wait_s, 1.02);
}

// Of each rank a worker and a background thread reduce and send at the same time, over groups of
// the same ranks and stage, with tensors of unlike sizes: none meets one of the other lane.
TEST(InprocLanes, GroupsAndMessagesOfALaneKeepToThemselves) {
  constexpr int kRanks = 3;
  constexpr int kRounds = 100;
  InprocWorld world(kRanks, kLongS);
  // Which lane's group a rank asks for first must not matter.
  std::vector<std::unique_ptr<Communicator>> comms(2 * kRanks);
  std::vector<std::unique_ptr<Group>> groups(2 * kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const int second : {0, 1}) {
      const auto thread = static_cast<std::size_t>(2 * rank + (rank + second) % 2);
      comms[thread] = world.communicator(rank);
      if (thread % 2 == 1) {
        comms[thread] = comms[thread]->on_lane(5);
      }
      groups[thread] = comms[thread]->group({0, 1, 2}, 1);
    }
  }
  const auto errors = run_ranks(2 * kRanks, [&](int thread) {
    const int rank = thread / 2;
    const auto lane = static_cast<uint16_t>(thread % 2 == 0 ? 0 : 5);
    const auto& comm = comms[static_cast<std::size_t>(thread)];
    const auto& group = groups[static_cast<std::size_t>(thread)];
    EXPECT_EQ(comm->rank(), rank);
    const int64_t size = lane == 0 ? 10'000 : 3;
    for (int i = 0; i < kRounds; ++i) {
      const int next = (rank + 1) % kRanks;
      const int last = (rank + 2) % kRanks;
      comm->send(next, at_lane(lane, i), at::full({size}, rank + i, at::kFloat));
      at::Tensor sum = at::full({size}, rank * (lane + 1) + i, at::kFloat);
      group->all_reduce_sum(sum);
      EXPECT_TRUE(at::equal(sum, at::full({size}, 3 * (lane + 1) + 3 * i, at::kFloat)));
      const at::Tensor got = comm->receive(last, at_lane(lane, i), nullptr, nullptr);
      EXPECT_TRUE(at::equal(got, at::full({size}, last + i, at::kFloat)));
    }
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(InprocLanes, AnAbortEndsWaitsAndMeetingsOfEveryLane) {
  InprocWorld world(2, kLongS);
  const double start_s = monotonic_s();
  const auto errors = run_ranks(4, [&](int thread) {
    const auto comm = world.communicator(thread % 2);
    if (thread == 0) {
      Arrived arrived;
      while (!comm->receive_any(0, 0.01, arrived, nullptr)) {
      }
      world.abort(Error(ErrorCode::kNoSpace, "disk full").at_rank(0));
    } else if (thread == 1) {
      comm->send(0, at_lane(0, 0), at::Tensor());
      Arrived arrived;
      comm->receive_any(3, -1, arrived, nullptr);
    } else if (thread == 2) {
      comm->on_lane(2)->group({0, 1})->barrier();
    } else {
      comm->receive(0, at_lane(1, 0), nullptr, nullptr);
    }
  });
  EXPECT_LT(monotonic_s() - start_s, kLongS / 2);
  for (const std::size_t thread : {1U, 2U, 3U}) {
    ASSERT_TRUE(errors[thread].has_value()) << thread;
    EXPECT_EQ(errors[thread]->code(), ErrorCode::kPeerLost);
    EXPECT_THAT(errors[thread]->message(), HasSubstr("disk full"));
  }
}

// Who waits for a certain rank is told of, by lane; who takes whatever comes waits for nobody.
TEST(InprocLanes, WaitsAreToldByLane) {
  InprocWorld world(2, kLongS);
  const auto errors = run_ranks(3, [&](int thread) {
    const auto comm = world.communicator(1);
    Arrived arrived;
    if (thread == 0) {
      comm->receive(0, at_lane(6, 3), nullptr, nullptr);
    } else if (thread == 1) {
      comm->receive_any(7, -1, arrived, nullptr);
    } else {
      std::vector<RankWait> waits;
      while (waits.empty()) {
        waits = world.waits();
      }
      ASSERT_EQ(waits.size(), 1U);
      EXPECT_EQ(waits[0].rank, 1);
      EXPECT_EQ(waits[0].from, 0);
      EXPECT_EQ(waits[0].tag, at_lane(6, 3));
      world.communicator(0)->send(1, at_lane(6, 3), at::Tensor());
      world.communicator(0)->send(1, at_lane(7, 3), at::Tensor());
    }
  });
  EXPECT_EQ(thrown(errors), "");
}

}  // namespace
}  // namespace millrace
