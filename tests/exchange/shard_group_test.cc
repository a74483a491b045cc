// Reduce-scatter and all-gather of a sharded stage: bit for bit the sum in member order, which is
// what an all-reduce in one process gives, there and over Gloo, for any size and number of members.
#include "millrace/exchange/shard_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "millrace/base/random.h"
#include "millrace/comm/inproc/inproc.h"
#include "tests/comm/joined/joined_testing.h"

namespace millrace {
namespace {

std::vector<int> all_ranks(int num) {
  std::vector<int> ranks(static_cast<std::size_t>(num));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Of one rank and call; sums of these depend on the order of adding.
at::Tensor draws(int rank, int call, int64_t size, at::ScalarType dtype) {
  const RandomKey key = RandomKey(3).with("shards").with(static_cast<uint64_t>(rank * 100 + call));
  at::Tensor values = at::empty({size}, at::kDouble);
  for (int64_t i = 0; i < size; ++i) {
    values.data_ptr<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return values.to(dtype);
}

// What a rank sends in two reduce-scatters and two all-gathers.
int64_t check_rank(Communicator& communicator, int num, int64_t size, at::ScalarType dtype) {
  const int rank = communicator.rank();
  ShardGroup group(communicator, 5, all_ranks(num), size);
  EXPECT_EQ(group.member(), rank);
  const ShardRange own = group.own();
  at::Tensor adding = at::zeros({own.size()}, dtype);
  at::Tensor total = at::zeros({size}, dtype);
  int64_t bytes = 0;
  for (int call = 0; call < 2; ++call) {
    at::Tensor whole = draws(rank, call, size, dtype);
    at::Tensor expected = draws(0, call, size, dtype);
    for (int other = 1; other < num; ++other) {
      expected.add_(draws(other, call, size, dtype));
    }
    total.add_(expected);
    bytes += group.reduce_scatter(whole, adding, true).bytes;
    at::Tensor in_place = draws(rank, call, size, dtype);
    at::Tensor slice = in_place.narrow(0, own.begin, own.size());
    group.reduce_scatter(in_place, slice, false);
    bytes += group.all_gather(slice, in_place).bytes;
    EXPECT_TRUE(at::equal(in_place, expected)) << num << " members, " << size << " elements";
  }
  const at::Tensor joined = group.join(adding);
  EXPECT_TRUE(at::equal(joined, total));
  const int root = num / 2;
  const at::Tensor at_root = group.join_at(root, adding);
  EXPECT_EQ(at_root.defined(), rank == root);
  EXPECT_TRUE(rank != root || at::equal(at_root, total));
  const at::Tensor number = at::full({1}, static_cast<double>(rank), at::kDouble);
  const std::vector<at::Tensor> numbers = group.collect(root, number);
  EXPECT_EQ(numbers.size(), rank == root ? static_cast<std::size_t>(num) : 0U);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(*numbers[i].data_ptr<double>(), static_cast<double>(i));
  }
  return bytes;
}

TEST(ShardGroup, EqualsAnAllReduceBitForBitInOneProcess) {
  for (const int num : {1, 2, 3, 4, 5, 8}) {
    for (const int64_t size : {0L, 1L, 16L, 37L, 5001L}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        InprocWorld world(num, 60);
        std::vector<int64_t> bytes(static_cast<std::size_t>(num));
        const auto errors = run_ranks(num, [&](int rank) {
          const std::unique_ptr<Communicator> own = world.communicator(rank);
          bytes[static_cast<std::size_t>(rank)] = check_rank(*own, num, size, dtype);
          at::Tensor reduced = draws(rank, 0, size, dtype);
          at::Tensor parts = reduced.clone();
          own->group(all_ranks(num))->all_reduce_sum(reduced);
          ShardGroup shards(*own, 6, all_ranks(num), size);
          at::Tensor slice = parts.narrow(0, shards.own().begin, shards.own().size());
          shards.reduce_scatter(parts, slice, false);
          shards.all_gather(slice, parts);
          EXPECT_TRUE(at::equal(parts, reduced));
        });
        EXPECT_EQ(thrown(errors), "");
        // Over all members, (P-1) N in each call.
        const int64_t element = dtype == at::kDouble ? 8 : 4;
        EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}),
                  4 * (num - 1) * size * element);
      }
    }
  }
}

TEST(ShardGroup, AddsInMemberOrderBetweenProcesses) {
  for (const int num : {2, 3}) {
    for (const int64_t size : {1L, 37L, 5001L}) {
      Worlds worlds = joined_worlds(num, num, 60);
      const auto errors = on_all_ranks(worlds, [&](int /*rank*/, Communicator& communicator) {
        check_rank(communicator, num, size, at::kFloat);
      });
      EXPECT_EQ(thrown(errors), "");
      close_all(worlds);
    }
  }
}

}  // namespace
}  // namespace millrace
