// What ranks and processes of any world do with each other, for the tests of every engine: all of
// them call these at the same time, and each checks what it gets.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "millrace/collective/program.h"
#include "millrace/comm/joined/joined.h"

namespace millrace {

inline constexpr uint8_t kBorder = 4;  // SEND_F

// Every rank sends tensors of many shapes to every rank, and takes them in the opposite order.
inline void pass_tensors_of_any_shape(int rank, Communicator& comm) {
  const std::vector<at::Tensor> sent = {
      at::Tensor(),
      at::full({3, 5}, 2.5F),
      at::full({0}, 1.0F),
      at::arange(100'000, at::kLong),
      at::arange(70'000, at::kDouble).view({7, 100, 100}).transpose(0, 1),
      at::full({}, 7.0)};
  const auto count = static_cast<int64_t>(sent.size());
  for (int to = 0; to < comm.world_size(); ++to) {
    for (int64_t i = 0; i < count; ++i) {
      comm.send(to, {kBorder, rank, i}, sent[static_cast<std::size_t>(i)]);
    }
  }
  for (int from = comm.world_size() - 1; from >= 0; --from) {
    for (int64_t i = count - 1; i >= 0; --i) {
      const at::Tensor& wanted = sent[static_cast<std::size_t>(i)];
      const Fingerprint expected = fingerprint_of(wanted);
      Transfer moved;
      const at::Tensor got = comm.receive(from, {kBorder, from, i}, &expected, &moved);
      ASSERT_EQ(got.defined(), wanted.defined());
      if (wanted.defined()) {
        EXPECT_TRUE(at::equal(got, wanted)) << from << ">" << rank << " number " << i;
        EXPECT_EQ(moved.bytes, static_cast<int64_t>(wanted.nbytes()));
      }
    }
  }
}

// Integers in floats: every order of additions gives the same sum, so all must be exact. By two
// groups of all ranks.
inline void sum_exactly(int rank, Communicator& comm) {
  const int num_ranks = comm.world_size();
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::unique_ptr<Group> group = comm.group(ranks, 3);
  const std::unique_ptr<Group> second = comm.group(ranks, 3);
  const double factor = num_ranks * (num_ranks + 1) / 2;
  for (const int64_t size : {0, 1, 2, 7, 1000, 100'001}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor base = at::arange(size, at::kDouble).remainder(97).to(type);
      at::Tensor mine = base.mul(rank + 1);
      at::Tensor other = base.mul(2 * rank);
      group->all_reduce_sum(mine);
      second->all_reduce_sum(other);
      EXPECT_TRUE(at::equal(mine, base.mul(factor))) << size;
      EXPECT_TRUE(at::equal(other, base.mul(2 * (factor - num_ranks)))) << size;
    }
  }
  group->barrier();
}

// The even ranks and the odd ones, each with a group of theirs.
inline void sum_in_halves(int rank, Communicator& comm) {
  std::vector<int> mine;
  for (int each = rank % 2; each < comm.world_size(); each += 2) {
    mine.push_back(each);
  }
  const auto members = static_cast<int>(mine.size());
  const std::unique_ptr<Group> group = comm.group(mine, rank % 2);
  EXPECT_EQ(group->member(), rank / 2);
  for (int round = 0; round < 20; ++round) {
    at::Tensor values = at::full({5000}, rank + round, at::kFloat);
    group->all_reduce_sum(values);
    const int sum = std::accumulate(mine.begin(), mine.end(), members * round);
    EXPECT_TRUE(at::equal(values, at::full({5000}, sum, at::kFloat)));
  }
}

// Every process exchanges short and long texts with all others and tells process 0 50 notes, which
// come in order, those that were sent before it listens, too.
inline void exchange_texts_and_notes(JoinedWorld& world) {
  const int num_processes = world.num_processes();
  const std::string longer(100'000, 'x');
  for (int round = 0; round < 5; ++round) {
    const auto text_of = [&](int process) {
      return std::to_string(process * 10 + round) + (round == 4 ? longer : "");
    };
    const std::vector<std::string> all = world.exchange(text_of(world.process()), 30);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(num_processes));
    for (int other = 0; other < num_processes; ++other) {
      EXPECT_EQ(all[static_cast<std::size_t>(other)], text_of(other));
    }
  }
  if (world.process() != 0) {
    for (int i = 0; i < 50; ++i) {
      world.tell(0, std::to_string(i));
    }
  }
  world.exchange("", 30);  // all notes were sent before, and frames keep their order
  if (world.process() != 0) {
    return;
  }
  std::mutex mutex;
  std::vector<std::pair<int, std::string>> heard;
  world.listen([&](int from, const std::string& text) {
    const std::lock_guard lock(mutex);
    heard.emplace_back(from, text);
  });
  world.tell(0, "own");
  world.listen({});
  ASSERT_EQ(heard.size(), static_cast<std::size_t>(1 + 50 * (num_processes - 1)));
  EXPECT_EQ(heard.back(), (std::pair<int, std::string>(0, "own")));
  std::vector<int> next(static_cast<std::size_t>(num_processes));
  heard.pop_back();
  for (const auto& [from, text] : heard) {
    EXPECT_EQ(text, std::to_string(next[static_cast<std::size_t>(from)]++)) << from;
  }
}

inline std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const CollectiveEntry& entry : collectives()) {
    names.push_back(entry.name);
  }
  return names;
}

}  // namespace millrace
