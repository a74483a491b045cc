// A world over MPI. mpirun runs this in every process of 2 and of 4 (see
// cmake/MillraceTests.cmake): all run the same tests in the same order, on one world, since MPI
// starts once a process.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "millrace/comm/mpi/mpi_wire.h"
#include "millrace/comm/mpi/session.h"
#include "tests/comm/joined/joined_bodies.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr double kTimeoutS = 60;

int variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? -1 : std::atoi(text);
}

WorldPlace own_place() {
  WorldPlace place;
  place.process = variable("OMPI_COMM_WORLD_RANK");
  place.num_processes = variable("OMPI_COMM_WORLD_SIZE");
  place.engine = "mpi";
  place.job_id = "a test";
  return place;
}

// Of two processes one has more ranks than the other; of four each has one.
std::unique_ptr<JoinedWorld> join() {
  JoinedOptions options;
  options.num_ranks = own_place().num_processes == 2 ? 5 : 4;
  options.timeout_s = kTimeoutS;
  return std::make_unique<JoinedWorld>(join_mpi(own_place(), kTimeoutS), options);
}

// `body` on a thread for each rank of this process; "" or what they threw.
template <typename Body>
std::string on_local_ranks(JoinedWorld& world, const Body& body) {
  const std::vector<int>& ranks = world.local_ranks();
  return thrown(run_ranks(static_cast<int>(ranks.size()), [&](int i) {
    const int rank = ranks[static_cast<std::size_t>(i)];
    const std::unique_ptr<Communicator> communicator = world.communicator(rank);
    try {
      body(rank, *communicator);
    } catch (const Error& error) {
      world.abort(error);
      throw;
    }
  }));
}

class MpiWorld : public testing::Test {
 protected:
  static void SetUpTestSuite() { world = join(); }
  static void TearDownTestSuite() {
    world->close(kTimeoutS);
    EXPECT_FALSE(world->first_cause().has_value());
    world.reset();
  }

  static std::unique_ptr<JoinedWorld> world;
};
std::unique_ptr<JoinedWorld> MpiWorld::world;

TEST_F(MpiWorld, MessagesOfAnyShapeCrossProcessesInAnyOrder) {
  EXPECT_EQ(on_local_ranks(*world, pass_tensors_of_any_shape), "");
}

TEST_F(MpiWorld, EveryCollectiveSumsExactlyOnEveryRank) {
  for (const std::string& name : collective_names()) {
    world->reduce_by([&](const auto&, int64_t, int64_t) { return ChosenCollective{name}; });
    EXPECT_EQ(on_local_ranks(*world, sum_exactly), "") << name;
  }
}

TEST_F(MpiWorld, GroupsOfSomeRanksReduceAtOnce) {
  for (const std::string name : {"ring", "native"}) {
    world->reduce_by([&](const auto&, int64_t, int64_t) { return ChosenCollective{name}; });
    EXPECT_EQ(on_local_ranks(*world, sum_in_halves), "") << name;
  }
}

TEST_F(MpiWorld, LanesReduceAndPassMessagesAtOnce) {
  for (const std::string name : {"ring", "native"}) {
    world->reduce_by([&](const auto&, int64_t, int64_t) { return ChosenCollective{name}; });
    EXPECT_EQ(on_local_ranks(*world, reduce_at_two_lanes), "") << name;
  }
}

TEST_F(MpiWorld, WhateverComesFirstCrossesProcesses) {
  EXPECT_EQ(on_local_ranks(*world, serve_whoever_comes), "");
}

TEST_F(MpiWorld, LargeTensorsCrossBothWaysAtOnce) {
  constexpr int64_t kElements = 1'500'000;
  const std::string problem = on_local_ranks(*world, [](int rank, Communicator& comm) {
    const int to = (rank + 1) % comm.world_size();
    const int from = (rank + comm.world_size() - 1) % comm.world_size();
    for (int64_t i = 0; i < 3; ++i) {
      comm.send(to, {kBorder, rank, i}, at::arange(kElements, at::kInt).add_(rank));
    }
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor got = comm.receive(from, {kBorder, from, i}, nullptr, nullptr);
      EXPECT_TRUE(at::equal(got, at::arange(kElements, at::kInt).add_(from)));
    }
  });
  EXPECT_EQ(problem, "");
}

TEST_F(MpiWorld, TextsAreExchangedAndNotesComeInOrder) { exchange_texts_and_notes(*world); }

TEST_F(MpiWorld, ASecondOneIsRefused) {
  try {
    join_mpi(own_place(), kTimeoutS);
    ADD_FAILURE() << "MPI starts once";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("once"));
  }
}

// Each of these ends a world. It is a job of its own, in which MPI can end, since all processes
// still live: for mpirun all ended well when all tests passed.
class MpiFailure : public testing::Test {
 protected:
  void TearDown() override {
    world.reset();
    MPI_Finalize();
  }

  std::unique_ptr<JoinedWorld> world = join();
};

TEST_F(MpiFailure, UnlikeShapesShowBothInEveryProcess) {
  const int last = world->num_ranks() - 1;
  const std::string problem = on_local_ranks(*world, [last](int rank, Communicator& comm) {
    if (rank == 0) {
      comm.send(last, {kBorder, 0, 7}, at::full({4, 3}, 1.0F));
    }
    const Fingerprint expected = fingerprint_of(at::full({4, 2}, 1.0F));
    comm.receive(0, {kBorder, 0, rank == last ? 7 : 8}, &expected, nullptr);
  });
  EXPECT_THAT(problem, HasSubstr("float32 [4, 3]"));
  EXPECT_THAT(problem, HasSubstr("float32 [4, 2]"));
  world->close(kTimeoutS);
}

TEST_F(MpiFailure, AProcessThatLeavesWithoutAWordEndsEveryWait) {
  if (world->process() == 1) {
    world.reset();
    return;
  }
  EXPECT_THAT(
      on_local_ranks(*world,
                     [](int, Communicator& comm) {
                       comm.receive(comm.world_size() - 1, {kBorder, 0, 0}, nullptr, nullptr);
                     }),
      HasSubstr("process 1 (rank"));
}

}  // namespace
}  // namespace millrace
