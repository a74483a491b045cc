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
#include "tests/transport/threads.h"

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

// Every rank's background thread reduces at a lane of its own while its worker reduces, with unlike
// sizes of the same ranks and stage, and passes messages round; some sums travel in large pieces.
inline void reduce_at_two_lanes(int rank, Communicator& comm) {
  constexpr int kRounds = 200;
  constexpr int64_t kSmall = 1000;
  constexpr int64_t kLarge = 200'000;  // beyond what travels with its frame
  const int num_ranks = comm.world_size();
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto sums = [&](Communicator& own, int factor, bool passes_messages) {
    const std::unique_ptr<Group> group = own.group(ranks, 3);
    for (int round = 0; round < kRounds; ++round) {
      const int64_t size = (round + factor) % 20 == 0 ? kLarge : kSmall;
      const MessageTag tag{.kind = kRuleMessage, .microbatch = round, .lane = 2};
      if (passes_messages) {
        own.send((rank + 1) % num_ranks, tag, at::full({size}, rank + round, at::kFloat));
      }
      at::Tensor sum = at::full({size + factor}, factor * (rank + round), at::kFloat);
      group->all_reduce_sum(sum);
      const int expected = factor * (num_ranks * (num_ranks - 1) / 2 + num_ranks * round);
      EXPECT_TRUE(at::equal(sum, at::full({size + factor}, expected, at::kFloat))) << round;
      if (passes_messages) {
        const int from = (rank + num_ranks - 1) % num_ranks;
        const at::Tensor got = own.receive(from, tag, nullptr, nullptr);
        EXPECT_TRUE(at::equal(got, at::full({size}, from + round, at::kFloat))) << round;
      }
    }
  };
  const auto errors = run_ranks(2, [&](int thread) {
    try {
      if (thread == 0) {
        sums(comm, 1, true);
      } else {
        sums(*comm.on_lane(1), 3, false);
      }
    } catch (const Error& error) {
      comm.abort(error);
      throw;
    }
  });
  EXPECT_EQ(thrown(errors), "");
}

// Rank 0 takes what all ranks, itself included, send to a lane of its: each sender's in order, and
// answers them.
inline void serve_whoever_comes(int rank, Communicator& comm) {
  constexpr int kEach = 100;
  const auto tag_of = [](int64_t number, int lane) {
    return MessageTag{kRuleMessage, 0, number, 0, 0, static_cast<uint16_t>(lane)};
  };
  const auto serve = [&] {
    const std::unique_ptr<Communicator> own = comm.on_lane(3);
    std::vector<int64_t> next(static_cast<std::size_t>(own->world_size()));
    for (int taken = 0; taken < kEach * own->world_size(); ++taken) {
      Arrived arrived;
      ASSERT_TRUE(own->receive_any(3, -1, arrived, nullptr));
      int64_t& number = next[static_cast<std::size_t>(arrived.from)];
      EXPECT_EQ(arrived.tag, tag_of(number, 3));
      const int64_t size = number % 50 == 0 ? 200'000 : 5;
      EXPECT_TRUE(at::equal(arrived.tensor, at::full({size}, arrived.from, at::kFloat)));
      own->send(arrived.from, tag_of(number++, 2), arrived.tensor.add(1));
    }
  };
  const auto ask = [&] {
    for (int64_t i = 0; i < kEach; ++i) {
      const int64_t size = i % 50 == 0 ? 200'000 : 5;
      comm.send(0, tag_of(i, 3), at::full({size}, rank, at::kFloat));
      const at::Tensor answer = comm.receive(0, tag_of(i, 2), nullptr, nullptr);
      EXPECT_TRUE(at::equal(answer, at::full({size}, rank + 1, at::kFloat)));
    }
  };
  const auto errors = run_ranks(rank == 0 ? 2 : 1, [&](int thread) {
    try {
      thread == 0 ? ask() : serve();
    } catch (const Error& error) {
      comm.abort(error);
      throw;
    }
  });
  EXPECT_EQ(thrown(errors), "");
}

inline std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const CollectiveEntry& entry : collectives()) {
    names.push_back(entry.name);
  }
  return names;
}

}  // namespace millrace
