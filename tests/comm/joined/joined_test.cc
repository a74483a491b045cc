// Ranks of several processes: messages, reductions by every collective, notes, failures.
#include "millrace/comm/joined/joined.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "millrace/base/clock.h"
#include "tests/comm/joined/joined_bodies.h"
#include "tests/comm/joined/joined_testing.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr double kLongS = 60;

TEST(Joined, MessagesOfAnyShapeCrossProcessesInAnyOrder) {
  Worlds worlds = joined_worlds(4, 2, kLongS);
  EXPECT_EQ(thrown(on_all_ranks(worlds, pass_tensors_of_any_shape)), "");
  close_all(worlds);
}

TEST(Joined, UnlikeShapesShowBoth) {
  Worlds worlds = joined_worlds(2, 2, kLongS);
  const auto errors = on_all_ranks(worlds, [&](int rank, Communicator& comm) {
    if (rank == 0) {
      comm.send(1, {kBorder, 0, 7}, at::full({4, 3}, 1.0F));
      comm.receive(1, {kBorder, 1, 0}, nullptr, nullptr);
    } else {
      const Fingerprint expected = fingerprint_of(at::full({4, 2}, 1.0F));
      comm.receive(0, {kBorder, 0, 7}, &expected, nullptr);
    }
  });
  ASSERT_TRUE(errors[1].has_value());
  EXPECT_EQ(errors[1]->code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(errors[1]->what(), HasSubstr("float32 [4, 3]"));
  ASSERT_TRUE(errors[0].has_value());  // told of it, with its cause
  EXPECT_EQ(errors[0]->code(), ErrorCode::kPeerLost);
  EXPECT_THAT(errors[0]->what(), HasSubstr("float32 [4, 2]"));
  close_all(worlds);
}

class EveryCollective : public testing::TestWithParam<std::string> {};

TEST_P(EveryCollective, SumsExactlyOnEveryRank) {
  struct Layout {
    int num_ranks;
    int num_processes;
  };
  for (const Layout& layout : {Layout{2, 2}, Layout{3, 3}, Layout{5, 2}, Layout{4, 4}, Layout{8, 3},
                               Layout{5, 5}, Layout{8, 8}}) {
    Worlds worlds =
        joined_worlds(layout.num_ranks, layout.num_processes, kLongS,
                      [](const auto&, int64_t, int64_t) { return ChosenCollective{GetParam()}; });
    EXPECT_EQ(thrown(on_all_ranks(worlds, sum_exactly)), "")
        << layout.num_ranks << " on " << layout.num_processes;
    close_all(worlds);
  }
}

INSTANTIATE_TEST_SUITE_P(Joined, EveryCollective, testing::ValuesIn(collective_names()),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::erase(name, '-');
                           return name;
                         });

// A lossy codec: every rank ends with the same bits, near the sum.
TEST(Joined, EncodedGradientsAreEqualOnEveryRank) {
  for (const std::string algorithm : {"ring", "halving-doubling", "tree", "asa"}) {
    for (const CodecEntry& codec : codecs()) {
      Worlds worlds = joined_worlds(3, 3, kLongS);
      std::vector<at::Tensor> sums(3);
      for (const auto& world : worlds) {
        world->reduce_by(
            [&](const auto&, int64_t, int64_t) {
              return ChosenCollective{algorithm, {}};
            },
            codec.make({}));
      }
      const auto errors = on_all_ranks(worlds, [&](int rank, Communicator& comm) {
        const std::unique_ptr<Group> group = comm.group({0, 1, 2}, 0);
        at::Tensor values = at::arange(1001, at::kFloat).sub(500).mul(0.01 * (rank + 1));
        group->all_reduce_sum(values);
        sums[static_cast<std::size_t>(rank)] = values;
        const std::unique_ptr<Group> plain = comm.group({0, 1, 2});
        at::Tensor exact = at::full({1000}, 0.1F);  // of no stage: not encoded
        plain->all_reduce_sum(exact);
        EXPECT_TRUE(at::equal(exact, at::full({1000}, 0.1F + 0.1F + 0.1F)));
      });
      EXPECT_EQ(thrown(errors), "");
      const std::string what = algorithm + " " + codec.name;
      EXPECT_TRUE(at::equal(sums[0], sums[1])) << what;
      EXPECT_TRUE(at::equal(sums[0], sums[2])) << what;
      const at::Tensor expected = at::arange(1001, at::kFloat).sub(500).mul(0.06);
      const double largest = sums[0].sub(expected).abs().max().item<double>();
      EXPECT_LT(largest, codec.name == "none" ? 1e-4 : 0.35 * 30) << what;
      close_all(worlds);
    }
  }
}

// Above 16 MB a reduction goes in pieces, of which a fast rank may begin one before a slow one has
// ended the last.
TEST(Joined, LargeReductionsGoPieceByPiece) {
  for (const std::string algorithm : {"ring", "tree"}) {
    Worlds worlds = joined_worlds(2, 2, kLongS, [&](const auto&, int64_t, int64_t) {
      return ChosenCollective{algorithm, {}};
    });
    const auto errors = on_all_ranks(worlds, [&](int rank, Communicator& comm) {
      const std::unique_ptr<Group> group = comm.group({0, 1});
      const at::Tensor base = at::arange(9'000'001, at::kFloat).remainder(1009);
      for (int round = 1; round <= 2; ++round) {
        at::Tensor values = base.mul(rank + round);
        group->all_reduce_sum(values);
        EXPECT_TRUE(at::equal(values, base.mul(1 + 2 * round))) << algorithm;
      }
    });
    EXPECT_EQ(thrown(errors), "");
    close_all(worlds);
  }
}

TEST(Joined, GroupsOfSomeRanksReduceAtOnce) {
  Worlds worlds = joined_worlds(6, 3, kLongS);
  EXPECT_EQ(thrown(on_all_ranks(worlds, sum_in_halves)), "");
  close_all(worlds);
}

TEST(Joined, LanesReduceAndPassMessagesAtOnce) {
  for (const auto& [num_ranks, algorithm] : {std::pair<int, std::string>{2, "ring"},
                                             {2, "native"},
                                             {4, "halving-doubling"},
                                             {3, "native"}}) {
    Worlds worlds = joined_worlds(num_ranks, 2, kLongS, [&](const auto&, int64_t, int64_t) {
      return ChosenCollective{algorithm, {}};
    });
    EXPECT_EQ(thrown(on_all_ranks(worlds, reduce_at_two_lanes)), "") << algorithm;
    close_all(worlds);
  }
}

TEST(Joined, WhateverComesFirstCrossesProcesses) {
  Worlds worlds = joined_worlds(5, 2, kLongS);
  EXPECT_EQ(thrown(on_all_ranks(worlds, serve_whoever_comes)), "");
  close_all(worlds);
}

TEST(Joined, AnAbortWakesEveryLaneOfEveryProcess) {
  Worlds worlds = joined_worlds(2, 2, kLongS);
  const double start_s = monotonic_s();
  const auto errors = run_ranks(4, [&](int thread) {
    const auto comm = worlds[static_cast<std::size_t>(thread % 2)]->communicator(thread % 2);
    Arrived arrived;
    if (thread == 0) {
      EXPECT_TRUE(comm->receive_any(4, -1, arrived, nullptr));
      worlds[0]->abort(Error(ErrorCode::kNoSpace, "disk full").at_rank(0));
    } else if (thread == 1) {
      comm->send(0, {.kind = kRuleMessage, .lane = 4}, at::Tensor());
      comm->receive_any(9, -1, arrived, nullptr);
    } else {
      comm->on_lane(2)->group({0, 1})->barrier();  // of process 0's and 1's, which end, too
      comm->receive((thread + 1) % 2, {.kind = kRuleMessage, .lane = 5}, nullptr, nullptr);
    }
  });
  EXPECT_LT(monotonic_s() - start_s, kLongS / 2);
  for (const std::size_t thread : {1U, 2U, 3U}) {
    ASSERT_TRUE(errors[thread].has_value()) << thread;
    EXPECT_EQ(errors[thread]->code(), ErrorCode::kPeerLost);
    EXPECT_THAT(errors[thread]->what(), HasSubstr("disk full"));
  }
  close_all(worlds);
}

TEST(Joined, ARankThatFailsIsNamedInEveryProcess) {
  Worlds worlds = joined_worlds(4, 2, kLongS);
  const auto errors = on_all_ranks(worlds, [&](int rank, Communicator& comm) {
    if (rank == 2) {
      throw Error(ErrorCode::kOutOfMemory, "no room").at_rank(2).at_stage(1);
    }
    comm.receive((rank + 1) % 4, {kBorder, 0, 0}, nullptr, nullptr);
  });
  for (const int rank : {0, 1, 3}) {
    ASSERT_TRUE(errors[static_cast<std::size_t>(rank)].has_value());
    EXPECT_EQ(errors[static_cast<std::size_t>(rank)]->code(), ErrorCode::kPeerLost);
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)]->what(), HasSubstr("no room"));
  }
  for (const auto& world : worlds) {
    ASSERT_TRUE(world->first_cause().has_value());
    EXPECT_EQ(world->first_cause()->code(), ErrorCode::kOutOfMemory);
  }
  close_all(worlds);
}

// A process that goes without a word: its connections close, and all waits on it end at once.
TEST(Joined, ALostProcessEndsEveryWait) {
  Worlds worlds = joined_worlds(3, 3, kLongS);
  const double start_s = monotonic_s();
  std::thread dies([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    worlds[2].reset();
  });
  for (const int rank : {0, 1}) {
    const auto comm = worlds[static_cast<std::size_t>(rank)]->communicator(rank);
    try {
      comm->receive(2, {kBorder, 0, 0}, nullptr, nullptr);
      ADD_FAILURE() << "nothing was sent";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(error.what(), HasSubstr("process 2 (rank 2)"));
    }
  }
  dies.join();
  EXPECT_LT(monotonic_s() - start_s, kLongS / 2);
  worlds.pop_back();
  close_all(worlds);
}

// Who only sends learns it, too, and as the loss of that process, whichever thread meets it first.
TEST(Joined, ALostProcessEndsWhoeverSendsToIt) {
  for (const int64_t elements : {1, 100'000, 1'000'000}) {
    Worlds worlds = joined_worlds(2, 2, kLongS);
    worlds[1].reset();
    const auto comm = worlds[0]->communicator(0);
    const double start_s = monotonic_s();
    try {
      for (int64_t i = 0; monotonic_s() - start_s < kLongS / 2; ++i) {
        comm->send(1, {kBorder, 0, i}, at::full({elements}, 1.0F));
      }
      ADD_FAILURE() << "nobody is there";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(error.what(), HasSubstr("process 1 (rank 1)"));
    }
    worlds.pop_back();
    close_all(worlds);
  }
}

TEST(Joined, ASilentPeerIsNamedAtTheDeadline) {
  Worlds worlds = joined_worlds(2, 2, 0.4);
  std::vector<RankWait> seen;
  std::thread watcher([&] {
    for (int i = 0; i < 40 && seen.empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      seen = worlds[0]->waits();
    }
  });
  const auto comm = worlds[0]->communicator(0);
  EXPECT_THAT(
      [&] {
        comm->receive(1, {kBorder, 1, 9}, nullptr, nullptr);
      },
      testing::Throws<Error>(testing::Property(&Error::code, ErrorCode::kTimeout)));
  watcher.join();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].rank, 0);
  EXPECT_EQ(seen[0].from, 1);
  EXPECT_EQ(seen[0].tag.microbatch, 9);
  EXPECT_GE(seen[0].last_heard_s, 0);
  close_all(worlds);
}

TEST(Joined, TextsAreExchangedAndNotesComeInOrder) {
  Worlds worlds = joined_worlds(3, 3, kLongS);
  const auto errors = run_ranks(3, [&](int process) {
    exchange_texts_and_notes(*worlds[static_cast<std::size_t>(process)]);
  });
  EXPECT_EQ(thrown(errors), "");
  close_all(worlds);
}

TEST(Joined, AnExchangeNamesWhoIsMissing) {
  Worlds worlds = joined_worlds(4, 2, kLongS);
  try {
    worlds[0]->exchange("here", 0.2);
    ADD_FAILURE() << "process 1 never called";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("process 1 (ranks 2, 3)"));
  }
  // What process 0 still said is there; afterwards it is known that it gave up.
  EXPECT_EQ(worlds[1]->exchange("here", kLongS), (std::vector<std::string>{"here", "here"}));
  EXPECT_THAT([&] { worlds[1]->exchange("here", kLongS); },
              testing::Throws<Error>(testing::Property(&Error::code, ErrorCode::kPeerLost)));
  close_all(worlds);
}

TEST(Rendezvous, AnotherJobOnThePortIsRefused) {
  std::atomic<int> port{0};
  std::atomic<bool> done{false};
  const auto errors = run_ranks(2, [&](int process) {
    WorldPlace place;
    place.process = process;
    place.num_processes = 2;
    place.store_host = "127.0.0.1";
    place.job_id = process == 0 ? "mine" : "yours";
    const PortExchange ports{[&](int found) { port = found; }, [&] { return port.load(); }};
    try {
      join_gloo(place, ports, process == 0 ? 2 : 30);
    } catch (...) {
      done = true;
      throw;
    }
  });
  ASSERT_TRUE(errors[0].has_value());
  EXPECT_EQ(errors[0]->code(), ErrorCode::kTimeout);
  EXPECT_THAT(errors[0]->what(), HasSubstr("process 1 has not joined"));
  ASSERT_TRUE(errors[1].has_value());
  EXPECT_EQ(errors[1]->code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(errors[1]->what(), HasSubstr("another job"));
  EXPECT_TRUE(done);
}

TEST(Rendezvous, ABusyPortIsSaidAtOnce) {
  std::vector<std::unique_ptr<Wire>> first = gloo_wires(1);
  std::atomic<int> port{0};
  WorldPlace place;
  place.store_host = "127.0.0.1";
  const PortExchange ports{[&](int found) { port = found; }, {}};
  const std::unique_ptr<Wire> taken = join_gloo(place, ports, 10);
  place.store_port = port;
  const double start_s = monotonic_s();
  try {
    join_gloo(place, ports, 30);
    ADD_FAILURE() << "the port is in use";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("in use"));
  }
  EXPECT_LT(monotonic_s() - start_s, 20);
}

}  // namespace
}  // namespace millrace
