// Shaped links over the in-process engine. A wait has a lower bound only: how late it ends is the
// machine's affair.
#include "millrace/comm/shaped/shaped.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "millrace/base/clock.h"
#include "millrace/comm/inproc/inproc.h"
#include "millrace/transport/pause.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

constexpr double kLongS = 60;
constexpr MessageTag kForward{4, 0, 0};

// Links of 1000 bytes/s between `size` devices.
ShapedNetwork slow_network(int size, double latency_s = 0) {
  Cluster cluster = free_cluster(size);
  cluster.levels[0].bandwidth_bytes_per_s = 1000;
  cluster.levels[0].latency_s = latency_s;
  return ShapedNetwork(cluster);
}

// Three devices of which one link costs something.
Cluster free_cluster_with(const LinkOverride& link) {
  Cluster cluster = free_cluster(3);
  cluster.links.push_back(link);
  return cluster;
}

// Ranks of one process whose links are shaped.
class World {
 public:
  World(int num_ranks, ShapedNetwork network)
      : engine_(num_ranks, kLongS), network_(std::move(network)) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      members_.push_back(shape_links(engine_.communicator(rank), network_, abort_));
    }
  }
  Communicator& operator[](int rank) { return *members_[static_cast<std::size_t>(rank)]; }
  InprocWorld& engine() { return engine_; }
  AbortFlag& abort() { return abort_; }

 private:
  InprocWorld engine_;
  ShapedNetwork network_;
  AbortFlag abort_;
  std::vector<std::unique_ptr<Communicator>> members_;
};

TEST(Shaped, AMessageArrivesNoEarlierThanItsLinkAllows) {
  World world(2, slow_network(2, 0.02));
  const at::Tensor tensor = at::full({5}, 2.0f);  // 20 bytes: 20 ms on the wire
  const double start_s = monotonic_s();
  EXPECT_EQ(world[0].send(1, kForward, tensor).bytes, 20);
  Transfer transfer{-1, -1};
  const Fingerprint expected = fingerprint_of(tensor);
  const at::Tensor received = world[1].receive(0, kForward, &expected, &transfer);
  EXPECT_GE(monotonic_s(), start_s + 0.04);
  EXPECT_EQ(received.data_ptr(), tensor.data_ptr());
  EXPECT_EQ(transfer.bytes, 20);
  EXPECT_GT(transfer.wait_s, 0);
  EXPECT_EQ(world.engine().held(1), 0u);
}

TEST(Shaped, ALinkCarriesOneMessageAtATime) {
  World world(2, slow_network(2, 0.01));
  const double start_s = monotonic_s();
  for (int64_t m = 0; m < 4; ++m) {
    world[0].send(1, {4, 0, m}, at::full({5}, static_cast<float>(m)));
  }
  // Taken in another order, and each only when the ones sent before it have passed.
  for (const int64_t m : {0, 3, 1, 2}) {
    const at::Tensor tensor = world[1].receive(0, {4, 0, m}, nullptr, nullptr);
    EXPECT_GE(monotonic_s(), start_s + 0.02 * static_cast<double>(m + 1) + 0.01) << m;
    EXPECT_TRUE(at::equal(tensor, at::full({5}, static_cast<float>(m))));
  }
}

TEST(Shaped, TimeScaleStretchesLatencyAndBandwidth) {
  ShapedNetwork network = slow_network(2, 0.01);
  network.time_scale = 3;
  World world(2, std::move(network));
  const double start_s = monotonic_s();
  world[0].send(1, kForward, at::full({5}, 1.0f));
  world[1].receive(0, kForward, nullptr, nullptr);
  EXPECT_GE(monotonic_s(), start_s + 3 * 0.03);
}

// Two hosts of two ranks, 1000 bytes/s between them.
TEST(Shaped, RanksOfAHostShareItsLink) {
  Cluster cluster = free_cluster(2);
  cluster.levels.push_back(slow_network(2).cluster.levels[0]);
  World world(4, ShapedNetwork(cluster));
  const double start_s = monotonic_s();
  world[0].send(2, kForward, at::full({5}, 1.0f));  // 20 ms on the wire
  world[1].send(3, kForward, at::full({5}, 1.0f));
  world[1].send(0, kForward, at::full({500}, 1.0f));  // inside the host
  world[3].receive(1, kForward, nullptr, nullptr);
  EXPECT_GE(monotonic_s(), start_s + 0.04);
  // Two pairs at once, 20 ms each; which is the first is open.
  std::vector<double> ended_s(4);
  const double reduce_s = monotonic_s();
  const auto errors = run_ranks(4, [&](int rank) {
    at::Tensor tensor = at::full({5}, 1.0f);
    world[rank].group({rank % 2, rank % 2 + 2}, 0)->all_reduce_sum(tensor);
    ended_s[static_cast<std::size_t>(rank)] = monotonic_s();
  });
  EXPECT_EQ(thrown(errors), "");
  EXPECT_GE(*std::max_element(ended_s.begin(), ended_s.end()), reduce_s + 0.04);
}

// The link from 0 to 1 is busy for years; neither the sender, nor the way back, nor another pair,
// nor a message to oneself waits for it.
TEST(Shaped, ABusyLinkHoldsUpNobodyElse) {
  ShapedNetwork network = slow_network(3);
  network.message_bytes = [](int /*from*/, int to, const MessageTag& /*tag*/,
                             const at::Tensor& /*tensor*/) { return to == 1 ? 1e12 : 0.0; };
  World world(3, std::move(network));
  const at::Tensor tensor = at::full({1}, 1.0f);
  const Transfer sent = world[0].send(1, kForward, tensor);
  EXPECT_EQ(sent.wait_s, 0);
  EXPECT_EQ(sent.bytes, 1'000'000'000'000);
  world[1].send(0, {4, 0, 1}, tensor);
  world[0].receive(1, {4, 0, 1}, nullptr, nullptr);
  world[0].send(2, {4, 0, 1}, tensor);
  world[2].receive(0, {4, 0, 1}, nullptr, nullptr);
  world[1].send(1, kForward, tensor);
  Transfer own{-1, -1};
  world[1].receive(1, kForward, nullptr, &own);
  EXPECT_EQ(own.bytes, 1'000'000'000'000);
}

TEST(Shaped, UndefinedTensorsAreMessages) {
  World world(2, slow_network(2, 0.001));
  EXPECT_EQ(world[0].send(1, kForward, at::Tensor()).bytes, 0);
  const Fingerprint nothing = fingerprint_of(at::Tensor());
  EXPECT_FALSE(world[1].receive(0, kForward, &nothing, nullptr).defined());
}

TEST(Shaped, AnUnlikeMessageIsToldAsTheEngineTellsIt) {
  World world(2, slow_network(2));
  world[0].send(1, kForward, at::full({2}, 1.0f));
  const Fingerprint expected = fingerprint_of(at::full({3}, 1.0f));
  try {
    world[1].receive(0, kForward, &expected, nullptr);
    ADD_FAILURE() << "took two for three";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), testing::HasSubstr("SEND_F of stage 0, microbatch 0"));
  }
}

TEST(Shaped, OnlyOverriddenLinksOfAFreeNetworkTakeTime) {
  ShapedNetwork network(free_cluster_with({0, 1, 1000, 0.01}));
  World world(3, std::move(network));
  for (const auto& [from, to] : {std::pair{0, 1}, std::pair{1, 0}}) {
    const double start_s = monotonic_s();
    world[from].send(to, kForward, at::full({5}, 1.0f));
    world[to].receive(from, kForward, nullptr, nullptr);
    EXPECT_GE(monotonic_s(), start_s + 0.03);
  }
  Transfer transfer{-1, -1};
  world[0].send(2, kForward, at::full({5}, 1.0f));
  world[2].receive(0, kForward, nullptr, &transfer);
  EXPECT_EQ(transfer.bytes, 20);
}

MessageTag rule_message(int64_t number, uint16_t lane = 1) {
  return {.kind = kRuleMessage, .microbatch = number, .lane = lane};
}

// The first is sent over a slow link, the others over fast ones.
TEST(Shaped, WhateverComesIsTakenInTheOrderOfArrival) {
  constexpr double kSlowS = 0.3;
  ShapedNetwork network(free_cluster_with({0, 2, 1000, 0}));
  World world(3, std::move(network));
  const double start_s = monotonic_s();
  world[0].send(2, rule_message(1), at::full({75}, 1.0F));
  world[1].send(2, rule_message(2), at::full({5}, 2.0F));
  world[2].send(2, rule_message(3), at::full({5}, 3.0F));
  if (monotonic_s() >= start_s + kSlowS) {
    GTEST_SKIP() << "the machine stood still";
  }
  std::vector<int> order;
  Transfer transfer;
  for (int i = 0; i < 3; ++i) {
    Arrived arrived;
    ASSERT_TRUE(world[2].receive_any(1, -1, arrived, &transfer));
    order.push_back(arrived.from);
    EXPECT_EQ(arrived.tensor[0].item<int>(), arrived.from + 1);
    EXPECT_EQ(arrived.tag, rule_message(arrived.from + 1));
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 0}));
  EXPECT_GE(monotonic_s(), start_s + kSlowS);
  EXPECT_GT(transfer.wait_s, 0);
  EXPECT_EQ(transfer.bytes, 4 * 85);
  EXPECT_EQ(world.engine().held(2), 0U);
}

// What is under way for years is neither there by now nor at a deadline, and another message that
// is sent while it is awaited comes first.
TEST(Shaped, AnEarlierArrivalIsNoticedWhileALaterOneIsAwaited) {
  ShapedNetwork network(free_cluster_with({0, 2, 1e-9, 0}));
  World world(3, std::move(network));
  world[0].send(2, rule_message(1), at::full({75}, 1.0F));
  const auto errors = run_ranks(2, [&](int thread) {
    if (thread == 0) {
      // Until the receiver has taken what there is from the engine.
      while (world.engine().held(2) > 0) {
      }
      world[1].send(2, rule_message(2), at::full({5}, 2.0F));
      return;
    }
    Arrived arrived;
    ASSERT_TRUE(world[2].receive_any(1, -1, arrived, nullptr));
    EXPECT_EQ(arrived.from, 1);
    Transfer transfer;
    EXPECT_FALSE(world[2].receive_any(1, 0, arrived, &transfer));
    EXPECT_EQ(transfer.wait_s, 0);
    EXPECT_FALSE(world[2].receive_any(1, 0.02, arrived, &transfer));
    EXPECT_GE(transfer.wait_s, 0.02);
    EXPECT_EQ(transfer.bytes, 0);
  });
  EXPECT_EQ(thrown(errors), "");
}

// A certain message may be among those that were looked at already.
TEST(Shaped, ReceivesOfBothKindsShareALane) {
  World world(2, slow_network(2));
  const double start_s = monotonic_s();
  for (int64_t i = 0; i < 3; ++i) {
    world[0].send(1, rule_message(i), at::full({5}, static_cast<float>(i)));  // 0.02 s each
  }
  world[0].send(1, rule_message(2), at::full({5}, 7.0F));
  Arrived arrived;
  ASSERT_TRUE(world[1].receive_any(1, -1, arrived, nullptr));
  EXPECT_EQ(arrived.tag, rule_message(0));
  const Fingerprint expected = fingerprint_of(arrived.tensor);
  EXPECT_EQ(world[1].receive(0, rule_message(2), &expected, nullptr)[0].item<int>(), 2);
  EXPECT_GE(monotonic_s(), start_s + 0.06);
  ASSERT_TRUE(world[1].receive_any(1, 0, arrived, nullptr));
  EXPECT_EQ(arrived.tag, rule_message(1));
  const Fingerprint other = fingerprint_of(at::full({6}, 1.0F));
  EXPECT_THAT([&] { world[1].receive(0, rule_message(2), &other, nullptr); },
              testing::Throws<Error>(testing::Property(&Error::code, ErrorCode::kInvalidArgument)));
  EXPECT_FALSE(world[1].receive_any(1, 0, arrived, nullptr));
}

// What two threads of a rank send to one rank goes one after the other; another lane's receiver
// takes only its own.
TEST(Shaped, ThreadsOfARankShareItsLinks) {
  World world(2, slow_network(2));
  const double start_s = monotonic_s();
  const auto errors = run_ranks(4, [&](int thread) {
    const auto lane = static_cast<uint16_t>(1 + thread % 2);
    const auto comm = world[thread / 2].on_lane(lane);
    if (thread < 2) {
      comm->send(1, rule_message(thread, lane), at::full({10}, static_cast<float>(lane)));
      return;
    }
    Arrived arrived;
    ASSERT_TRUE(comm->receive_any(lane, -1, arrived, nullptr));
    EXPECT_EQ(arrived.tag.lane, lane);
    EXPECT_TRUE(at::equal(arrived.tensor, at::full({10}, static_cast<float>(lane))));
  });
  EXPECT_EQ(thrown(errors), "");
  EXPECT_GE(monotonic_s(), start_s + 0.08);  // 0.04 s each
}

TEST(Shaped, AnAbortWakesWhoWaitsForAnyMessage) {
  World world(2, slow_network(2, 1e9));
  world[0].send(1, rule_message(0, 2), at::full({1}, 1.0F));  // arrives in years
  const auto errors = run_ranks(3, [&](int thread) {
    Arrived arrived;
    if (thread < 2) {
      world[1].on_lane(7)->receive_any(static_cast<uint16_t>(1 + thread), -1, arrived, nullptr);
    } else {
      while (world.engine().held(1) > 0) {  // the second has taken what there is
      }
      world[0].abort(Error(ErrorCode::kNoSpace, "disk full").at_rank(0));
    }
  });
  for (const std::size_t thread : {0U, 1U}) {
    ASSERT_TRUE(errors[thread].has_value());
    EXPECT_EQ(errors[thread]->code(), ErrorCode::kPeerLost);
    EXPECT_THAT(errors[thread]->message(), testing::HasSubstr("disk full"));
  }
}

TEST(Shaped, AReductionLastsFromItsLastMemberOn) {
  constexpr int kRanks = 3;
  constexpr double kLateS = 0.05;  // the last member
  ShapedNetwork network = slow_network(kRanks, 0.001);
  network.reduction_bytes = [](int stage, const at::Tensor& tensor) {
    EXPECT_EQ(stage, 5);
    return static_cast<double>(tensor.numel());  // a byte an element
  };
  const double seconds = network.cluster.all_reduce_s({0, 1, 2}, 30);
  ASSERT_NEAR(seconds, 4.0 / 3.0 * 0.03 + 4 * 0.001, 1e-12);
  World world(kRanks, std::move(network));
  const double start_s = monotonic_s();
  std::vector<Transfer> transfers(kRanks);
  const auto errors = run_ranks(kRanks, [&](int rank) {
    const auto group = world[rank].group({0, 1, 2}, 5);
    EXPECT_EQ(group->member(), rank);
    group->barrier();
    if (rank == 2) {
      pause_until(start_s + kLateS, world.abort());
    }
    const double asked_s = monotonic_s();
    at::Tensor tensor = at::full({30}, static_cast<float>(rank + 1));
    transfers[static_cast<std::size_t>(rank)] = group->all_reduce_sum(tensor);
    EXPECT_GE(monotonic_s(), asked_s + seconds);
    EXPECT_GE(monotonic_s(), start_s + kLateS + seconds);
    EXPECT_TRUE(at::equal(tensor, at::full({30}, 6.0f)));
  });
  EXPECT_EQ(thrown(errors), "");
  // The last member waits for nobody; what it sends is its share of 30 bytes and not of 120.
  EXPECT_EQ(transfers[2].wait_s, 0);
  EXPECT_GT(transfers[0].wait_s, 0);
  int64_t bytes = 0;
  for (const Transfer& transfer : transfers) {
    bytes += transfer.bytes;
  }
  EXPECT_NEAR(static_cast<double>(bytes), 2.0 * 2 * 30, 3);
}

TEST(Shaped, AnAbortEndsEveryWait) {
  World world(3, slow_network(3, 1e9));
  const auto errors = run_ranks(3, [&](int rank) {
    if (rank == 0) {
      world[0].send(1, kForward, at::full({1}, 1.0f));
      world[0].abort(Error(ErrorCode::kNoSpace, "disk full").at_rank(0));
    } else if (rank == 1) {
      world[1].receive(0, kForward, nullptr, nullptr);
    } else {
      at::Tensor tensor = at::full({1}, 1.0f);
      world[2].group({2})->all_reduce_sum(tensor);  // nobody else: costs nothing
      world[2].receive(1, kForward, nullptr, nullptr);
    }
  });
  EXPECT_FALSE(errors[0].has_value());
  for (const std::size_t rank : {1, 2}) {
    ASSERT_TRUE(errors[rank].has_value());
    EXPECT_EQ(errors[rank]->code(), ErrorCode::kPeerLost);
    EXPECT_THAT(errors[rank]->message(), testing::HasSubstr("disk full"));
  }
  EXPECT_TRUE(world.abort().raised());
}

}  // namespace
}  // namespace millrace
