// Reductions over in-process groups, with ranks as threads.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/random.h"
#include "millrace/comm/inproc/inproc.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr double kLongS = 60;
constexpr double kShortS = 0.2;

std::vector<int> all_ranks(int num) {
  std::vector<int> ranks;
  for (int rank = 0; rank < num; ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

at::Tensor numbered(int64_t size, at::ScalarType dtype, double scale, double shift) {
  return at::arange(size, at::TensorOptions().dtype(dtype)).mul_(scale).add_(shift);
}

using GroupBody = std::function<void(Group&)>;

// Every rank of a new world in one group.
std::vector<std::optional<Error>> run_group(int num_ranks, double timeout_s,
                                            const GroupBody& body) {
  InprocWorld world(num_ranks, timeout_s);
  return run_ranks(num_ranks, [&](int rank) {
    const auto communicator = world.communicator(rank);
    const auto group = communicator->group(all_ranks(num_ranks));
    body(*group);
  });
}

// Element i of rank r is r + 1 + i (P numbers whose sum is exact), so that a missing rank, a
// doubled one or a shifted element each give another number.
TEST(AllReduce, SumsEveryElementExactly) {
  for (const int num : {1, 2, 3, 4, 5, 8}) {
    for (const int64_t size : {0L, 1L, 7L, 1023L, 4096L, 4097L, 1L << 20}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        SCOPED_TRACE(testing::Message()
                     << num << " ranks, " << size << " " << c10::toString(dtype));
        std::vector<int64_t> bytes(static_cast<std::size_t>(num));
        const auto errors = run_group(num, kLongS, [&](Group& group) {
          at::Tensor tensor = numbered(size, dtype, 1, group.member() + 1);
          const void* data = tensor.data_ptr();
          const Transfer transfer = group.all_reduce_sum(tensor);
          bytes[static_cast<std::size_t>(group.member())] = transfer.bytes;
          EXPECT_EQ(tensor.data_ptr(), data);
          EXPECT_TRUE(at::equal(tensor, numbered(size, dtype, num, num * (num + 1) / 2)));
          EXPECT_GE(transfer.wait_s, 0);
        });
        EXPECT_EQ(thrown(errors), "");
        int64_t total = 0;
        for (const int64_t each : bytes) {
          total += each;
        }
        EXPECT_EQ(total, 2 * (num - 1) * size * static_cast<int64_t>(c10::elementSize(dtype)));
      }
    }
  }
}

// The sum of random floats depends on the order of adding: bits must equal those of the sum in
// member order, on every member, in every repetition, small and large.
TEST(AllReduce, IsBitForBitTheSumInMemberOrder) {
  for (const int num : {2, 3, 5}) {
    for (const int64_t size : {100L, 100003L}) {
      std::vector<at::Tensor> inputs;
      for (int rank = 0; rank < num; ++rank) {
        const RandomKey key = RandomKey(5).with(static_cast<uint64_t>(rank));
        at::Tensor input = at::empty({size});
        for (int64_t i = 0; i < size; ++i) {
          input.data_ptr<float>()[i] = static_cast<float>(key.normal(static_cast<uint64_t>(i)));
        }
        inputs.push_back(input);
      }
      at::Tensor expected = inputs[0].clone();
      at::Tensor backwards = inputs.back().clone();
      for (int k = 1; k < num; ++k) {
        expected.add_(inputs[static_cast<std::size_t>(k)]);
        backwards.add_(inputs[static_cast<std::size_t>(num - 1 - k)]);
      }
      EXPECT_EQ(at::equal(expected, backwards), num == 2) << "the values do not tell orders apart";
      const auto errors = run_group(num, kLongS, [&](Group& group) {
        for (int repetition = 0; repetition < 5; ++repetition) {
          at::Tensor tensor = inputs[static_cast<std::size_t>(group.member())].clone();
          group.all_reduce_sum(tensor);
          EXPECT_TRUE(at::equal(tensor, expected));
        }
      });
      EXPECT_EQ(thrown(errors), "");
    }
  }
}

// Small and large, sums and barriers in one stream with random pauses: rounds must not leak into
// one another.
TEST(AllReduce, RoundsWithRandomDelaysStayApart) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    constexpr int kNum = 4;
    const auto errors = run_group(kNum, kLongS, [&](Group& group) {
      const RandomKey own = RandomKey(seed).with(static_cast<uint64_t>(group.member()));
      const RandomKey common(seed);
      for (uint64_t round = 0; round < 60; ++round) {
        for (uint64_t i = own.below(round, 30); i > 0; --i) {
          std::this_thread::yield();
        }
        const int64_t size = common.below(round, 2) == 0 ? 9 : 5000;
        if (common.below(round, 5) == 4) {
          group.barrier();
        }
        const double step = static_cast<double>(round);
        at::Tensor tensor = numbered(size, at::kDouble, 1, 100 * group.member() + step);
        group.all_reduce_sum(tensor);
        EXPECT_TRUE(at::equal(tensor, numbered(size, at::kDouble, kNum, 600 + kNum * step)));
      }
    });
    EXPECT_EQ(thrown(errors), "");
  }
}

TEST(AllReduce, WorksOnViewsWithoutTouchingTheirNeighbours) {
  const auto errors = run_group(3, kLongS, [](Group& group) {
    for (const int64_t size : {5L, 20001L}) {
      at::Tensor whole = at::full({size + 10}, group.member() + 1.0);
      at::Tensor part = whole.narrow(0, 3, size);
      group.all_reduce_sum(part);
      EXPECT_TRUE(at::equal(whole.narrow(0, 3, size), at::full({size}, 6.0)));
      EXPECT_TRUE(at::equal(whole.narrow(0, 0, 3), at::full({3}, group.member() + 1.0)));
      EXPECT_TRUE(at::equal(whole.narrow(0, size + 3, 7), at::full({7}, group.member() + 1.0)));
    }
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(AllReduce, LeavesNobodyHoldingTheTensor) {
  const auto errors = run_group(2, kLongS, [](Group& group) {
    for (const int64_t size : {5L, 100000L}) {
      at::Tensor tensor = at::full({size}, 1.0);
      group.all_reduce_sum(tensor);
      EXPECT_EQ(tensor.use_count(), 1u);
    }
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(AllReduce, UnlikeTensorsAreAnErrorOnAllThatShowsEach) {
  const auto errors = run_group(3, kLongS, [](Group& group) {
    const int member = group.member();
    at::Tensor tensor = member == 0   ? at::full({4}, 1.0f)
                        : member == 1 ? at::full({4}, 1.0, at::kDouble)
                                      : at::full({9000}, 1.0f);
    const at::Tensor before = tensor.clone();
    try {
      group.all_reduce_sum(tensor);
    } catch (const Error& error) {
      EXPECT_TRUE(at::equal(tensor, before));
      // Nobody has left, so the group still works.
      at::Tensor again = at::full({2}, 1.0f);
      group.all_reduce_sum(again);
      EXPECT_TRUE(at::equal(again, at::full({2}, 3.0f)));
      throw;
    }
  });
  for (int rank = 0; rank < 3; ++rank) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error->rank(), rank);
    for (const char* part : {"rank 0 float32 [4]", "rank 1 float64 [4]", "rank 2 float32 [9000]"}) {
      EXPECT_THAT(error->message(), HasSubstr(part));
    }
  }
}

// Each case hands rank 1 of 2 something that cannot be summed, with a fingerprint like rank 0's
// where that is possible.
TEST(AllReduce, WhatCannotBeSummedIsRefusedOnAllBeforeAnythingChanged) {
  struct Case {
    at::Tensor good;
    at::Tensor bad;
    std::string what;
  };
  const std::vector<Case> cases = {
      {at::full({3, 2}, 1.0f), at::full({2, 3}, 1.0f).t(), "that of rank 1 is not contiguous"},
      {at::full({300, 200}, 1.0f), at::full({200, 300}, 1.0f).t(),
       "that of rank 1 is not contiguous"},
      {at::full({4}, 1, at::kLong), at::full({4}, 1, at::kLong),
       "that of rank 1 is of another dtype"},
      {at::full({4}, 1.0f), at::Tensor(), "no tensor"},
      {at::Tensor(), at::Tensor(), "that of rank 0 is undefined; that of rank 1 is undefined"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    const auto errors = run_group(2, kLongS, [&](Group& group) {
      at::Tensor tensor = group.member() == 0 ? each.good : each.bad;
      group.all_reduce_sum(tensor);
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error->message(), HasSubstr(each.what));
    }
    if (each.good.defined()) {
      EXPECT_TRUE(at::equal(each.good, at::full(each.good.sizes(), 1, each.good.options())));
    }
  }
}

// One rank leaves out an all-reduce: whoever waits ends within the limit, and one error names the
// rank.
TEST(AllReduce, SkippedCallEndsOnAllRanks) {
  const double start_s = monotonic_s();
  const auto errors = run_group(3, kShortS, [](Group& group) {
    at::Tensor first = at::full({5000}, 1.0f);
    group.all_reduce_sum(first);
    if (group.member() != 2) {
      at::Tensor second = at::full({6000}, 1.0f);
      group.all_reduce_sum(second);
    }
  });
  EXPECT_LT(monotonic_s() - start_s, 20 * kShortS);
  EXPECT_FALSE(errors[2].has_value());
  int num_timeouts = 0;
  for (const std::size_t rank : {0, 1}) {
    ASSERT_TRUE(errors[rank].has_value());
    EXPECT_THAT(errors[rank]->message(), HasSubstr("waits for rank 2 in collective operation 2"));
    num_timeouts += errors[rank]->code() == ErrorCode::kTimeout ? 1 : 0;
  }
  EXPECT_GE(num_timeouts, 1);
}

// A skipped call with others after it shows as unlike tensors at once; the rank that ends up alone
// runs into its limit.
TEST(AllReduce, SkippedCallAmongOthersEndsOnAllRanks) {
  const double start_s = monotonic_s();
  const auto errors = run_group(2, kShortS, [](Group& group) {
    for (const int64_t size : {10L, 20L, 30L}) {
      if (group.member() == 1 && size == 20) {
        continue;
      }
      at::Tensor tensor = at::full({size}, 1.0f);
      group.all_reduce_sum(tensor);
    }
  });
  EXPECT_LT(monotonic_s() - start_s, 20 * kShortS);
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_THAT(error->message(),
                HasSubstr("rank 0 float32 [20] as number 1; rank 1 float32 [30]"));
  }
}

// Two groups of the same ranks called in swapped order: a deadlock in most systems.
TEST(AllReduce, SwappedGroupsEndOnAllRanks) {
  InprocWorld world(2, kShortS);
  const double start_s = monotonic_s();
  const auto errors = run_ranks(2, [&](int rank) {
    const auto communicator = world.communicator(rank);
    const auto a = communicator->group({0, 1});
    const auto b = communicator->group({0, 1});
    at::Tensor tensor = at::full({4}, 1.0f);
    (rank == 0 ? a : b)->all_reduce_sum(tensor);
    (rank == 0 ? b : a)->all_reduce_sum(tensor);
  });
  EXPECT_LT(monotonic_s() - start_s, 20 * kShortS);
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_TRUE(error->code() == ErrorCode::kTimeout || error->code() == ErrorCode::kPeerLost);
    EXPECT_THAT(error->message(), HasSubstr("in collective operation 0"));
  }
}

TEST(AllReduce, AbortEndsItOnAllRanks) {
  InprocWorld world(4, kLongS);
  const double start_s = monotonic_s();
  const auto errors = run_ranks(4, [&](int rank) {
    const auto communicator = world.communicator(rank);
    const auto group = communicator->group(all_ranks(4));
    at::Tensor tensor = at::full({9000}, 1.0f);
    group->all_reduce_sum(tensor);
    if (rank == 3) {
      communicator->abort(Error(ErrorCode::kOutOfMemory, "no memory").at_rank(3));
      return;
    }
    group->all_reduce_sum(tensor);
  });
  EXPECT_LT(monotonic_s() - start_s, 10);
  for (const std::size_t rank : {0, 1, 2}) {
    ASSERT_TRUE(errors[rank].has_value());
    EXPECT_EQ(errors[rank]->code(), ErrorCode::kPeerLost);
    EXPECT_THAT(errors[rank]->message(), HasSubstr("rank 3 failed: no memory"));
  }
  EXPECT_EQ(world.first_cause()->code(), ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace millrace
