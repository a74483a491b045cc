#include "millrace/exchange/exchange.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/comm/inproc/inproc.h"
#include "millrace/rule/arithmetic.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr double kLongS = 60;

std::vector<int> all_ranks(int num) {
  std::vector<int> ranks;
  for (int rank = 0; rank < num; ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

ExchangeSetup setup_of(int num, int64_t elements, at::ScalarType dtype = at::kDouble) {
  ExchangeSetup setup;
  setup.replicas = all_ranks(num);
  setup.dtype = dtype;
  setup.elements = elements;
  return setup;
}

StageTensors tensors_of(const at::Tensor& gradient, const at::Tensor& weights) {
  return {gradient, weights, weights};
}

// Plain descent at rate 1 on the sum; the gradient is zeroed, as optimizers do.
OptimizerStep descent() {
  return [](const at::Tensor& current, at::Tensor& target, at::Tensor& gradient, double samples,
            bool delta_only) {
    const at::Tensor delta = gradient.div(-samples);
    target.copy_(delta_only ? delta : current.add(delta));
    gradient.zero_();
  };
}

template <class Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kTimeout, "nothing was thrown");
}

// Gradients that encode rank, element and update; every replica must apply the same exact sum, once
// an update.
TEST(Exchange, BspSumsOverTheReplicasAndUpdatesOnce) {
  for (const int num : {1, 2, 3, 4, 5, 8}) {
    for (const int64_t size : {0L, 1L, 7L, 1023L, 1L << 20}) {
      SCOPED_TRACE(testing::Message() << num << " replicas of " << size);
      InprocWorld world(num, kLongS);
      std::vector<int64_t> bytes(static_cast<std::size_t>(num));
      const int num_updates = size > 10000 ? 2 : 10;
      const auto errors = run_ranks(num, [&](int rank) {
        const auto communicator = world.communicator(rank);
        Exchange exchange(setup_of(num, size), *communicator);
        const at::Tensor weights = at::full({size}, 0.0, at::kDouble);
        Transfer transfer;
        exchange.begin(weights);
        for (int update = 1; update <= num_updates; ++update) {
          const at::Tensor gradient = at::arange(size, at::kDouble).mul_(rank + 1).add_(update);
          const Update now{update, 1, 1.0 / num, 1};
          exchange.reduce(now, tensors_of(gradient, weights), transfer);
          EXPECT_TRUE(at::equal(
              gradient,
              at::arange(size, at::kDouble).mul_(num * (num + 1) / 2).add_(num * update)));
          exchange.step(now, tensors_of(gradient, weights), descent(), transfer);
        }
        exchange.finish(tensors_of({}, weights), descent(), transfer);
        EXPECT_FALSE(exchange.settle(weights).defined());
        const double slope = -num_updates * num * (num + 1) / 2.0;
        const double shift = -num * num_updates * (num_updates + 1) / 2.0;
        EXPECT_TRUE(at::equal(weights, at::arange(size, at::kDouble).mul_(slope).add_(shift)));
        bytes[static_cast<std::size_t>(rank)] = transfer.bytes;
        EXPECT_GE(transfer.wait_s, 0);
      });
      EXPECT_EQ(thrown(errors), "");
      // The registry's formula, 2(r-1)/r x parameters a replica, over all replicas and updates.
      int64_t total = 0;
      for (const int64_t each : bytes) {
        total += each;
      }
      EXPECT_EQ(total, 2 * (num - 1) * size * 8 * num_updates);
    }
  }
}

TEST(Exchange, MadeByNameOverSomeRanks) {
  InprocWorld world(3, kLongS);
  const auto errors = run_ranks(3, [&](int rank) {
    const auto communicator = world.communicator(rank);
    ExchangeSetup setup = setup_of(1, 5);
    setup.replicas = rank == 1 ? std::vector<int>{1} : std::vector<int>{0, 2};
    Exchange exchange(setup, *communicator);
    const at::Tensor gradient = at::full({5}, 1 + rank, at::kDouble);
    const at::Tensor weights = at::zeros({5}, at::kDouble);
    Transfer transfer;
    exchange.begin(weights);
    exchange.reduce({}, tensors_of(gradient, weights), transfer);
    EXPECT_TRUE(at::equal(gradient, at::full({5}, rank == 1 ? 2 : 4, at::kDouble)));
    setup.rule = "bps";
    const Error unknown = error_of([&] { Exchange(setup, *communicator); });
    EXPECT_EQ(unknown.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(unknown.message(), HasSubstr("bsp"));
    setup.rule = "bsp";
    setup.rule_options.set("tau", Value::of(3));
    EXPECT_EQ(error_of([&] { Exchange(setup, *communicator); }).key(), "rule.tau");
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(Exchange, ReplicasOfUnlikeSizeAllHearIt) {
  InprocWorld world(2, kLongS);
  const auto errors = run_ranks(2, [&](int rank) {
    const auto communicator = world.communicator(rank);
    Exchange exchange(setup_of(2, 4 + rank, at::kFloat), *communicator);
    const at::Tensor gradient = at::full({4 + rank}, 1.0f);
    Transfer transfer;
    exchange.reduce({}, tensors_of(gradient, gradient), transfer);
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error->message(), HasSubstr("rank 0 float32 [4]"));
    EXPECT_THAT(error->message(), HasSubstr("rank 1 float32 [5]"));
  }
}

TEST(Exchange, CallsOutOfOrderAreBugs) {
  InprocWorld world(1, kLongS);
  const auto communicator = world.communicator(0);
  Exchange bsp(setup_of(1, 4, at::kFloat), *communicator);
  const at::Tensor flat = at::full({4}, 1.0f);
  Transfer transfer;
  EXPECT_EQ(error_of([&] { bsp.step({}, tensors_of(flat, flat), descent(), transfer); }).code(),
            ErrorCode::kInternal);
  bsp.reduce({}, tensors_of(flat, flat), transfer);
  EXPECT_THAT(error_of([&] { bsp.reduce({}, tensors_of(flat, flat), transfer); }).message(),
              HasSubstr("REDUCE again before STEP"));
}

TEST(Exchange, RefusesTensorsThatAreNotFlat) {
  InprocWorld world(1, kLongS);
  const auto communicator = world.communicator(0);
  Exchange bsp(setup_of(1, 4, at::kFloat), *communicator);
  Transfer transfer;
  const at::Tensor flat = at::full({4}, 1.0f);
  for (const at::Tensor& other : {at::full({2, 2}, 1.0f), at::full({4, 2}, 1.0f).select(1, 0),
                                  at::full({4}, 1.0, at::kDouble)}) {
    EXPECT_EQ(error_of([&] { bsp.reduce({}, tensors_of(other, flat), transfer); }).code(),
              ErrorCode::kInternal);
  }
}

// What no builtin does: everything that a port offers, in one update.
class Everything final : public Rule {
 public:
  Task begin(Port& port) override {
    own_ = &port.make_vector(port.num_elements());
    got_ = &port.make_vector(port.num_elements());
    std::vector<int> pair = {port.member() / 2 * 2, port.member() / 2 * 2 + 1};
    pair_ = port.make_group(pair);
    co_return;
  }
  Task gradients_ready(Port& port, Range range, bool last) override {
    if (!last) {
      started_.push_back(port.start_all_reduce(port.gradient(), range, Port::kEverybody));
    }
    for (std::size_t i = 0; last && i < started_.size(); ++i) {
      co_await port.reduced(started_[i]);
    }
  }
  Task step(Port& port) override {
    // The delta to the next member, whole, and a number; its own comes from the one before.
    const int next = (port.member() + 1) % port.num_members();
    const int before = (port.member() + port.num_members() - 1) % port.num_members();
    port.apply_to(*own_, port.gradient(), 1);
    Numbers numbers{};
    numbers[0] = port.member();
    port.give(next, 3, *own_, numbers);
    const Message message = co_await port.receive(before, 3, got_);
    heard_ = message.numbers[0];
    sum(port, port.weights(), port.current(), *got_);
    // To the server, and its answer.
    port.send(Port::kServer, 1, port.weights());
    co_await port.receive(Port::kServer, 2, got_);
    co_await port.all_reduce(*got_, pair_);
    copy(port, port.weights(), *got_);
    const Message none = co_await port.poll(got_);
    EXPECT_FALSE(none.here);
  }
  Task serve(Port& port) override {
    Vector& sums = port.make_vector(port.num_elements());
    Vector& one = port.make_vector(port.num_elements());
    copy(port, sums, port.weights());
    for (int i = 0; i < port.num_members(); ++i) {
      co_await port.receive_any(&one);
      add(port, sums, one);
    }
    for (int member = 0; member < port.num_members(); ++member) {
      port.send(member, 2, sums);
    }
  }
  double heard() const { return heard_; }

 private:
  Vector* own_ = nullptr;
  Vector* got_ = nullptr;
  int pair_ = 0;
  std::vector<int64_t> started_;
  double heard_ = -1;
};

TEST(Exchange, AllThatAPortOffers) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    constexpr int kNum = 4;
    constexpr int64_t kSize = 1001;
    InprocWorld world(kNum, kLongS);
    const auto errors = run_ranks(kNum, [&](int rank) {
      const auto communicator = world.communicator(rank);
      auto rule = std::make_unique<Everything>();
      const Everything& seen = *rule;
      RuleTraits traits;
      traits.serves = traits.overlaps = true;
      Exchange exchange(setup_of(kNum, kSize, dtype), traits, std::move(rule), *communicator);
      const at::Tensor weights = at::full({kSize}, 100.0, dtype);
      const at::Tensor gradient = at::full({kSize}, 1.0 + rank, dtype);
      Transfer transfer;
      exchange.begin(weights);
      exchange.ready({}, tensors_of(gradient, weights), {1000, 1001}, transfer);
      exchange.ready({}, tensors_of(gradient, weights), {0, 1000}, transfer);
      exchange.reduce({}, tensors_of(gradient, weights), transfer);
      EXPECT_TRUE(at::equal(gradient, at::full({kSize}, 10.0, dtype)));
      exchange.step({}, tensors_of(gradient, weights), descent(), transfer);
      // Everybody: 100 - 10; the server: 100 + 4 x 90, twice that over a pair.
      EXPECT_TRUE(at::equal(weights, at::full({kSize}, 2 * 460.0, dtype)));
      EXPECT_EQ(seen.heard(), (rank + 3) % 4);
      exchange.finish(tensors_of(gradient, weights), descent(), transfer);
      EXPECT_GT(transfer.bytes, 2 * kSize * 4);
    });
    EXPECT_EQ(thrown(errors), "");
  }
}

// Half a pass before it tells the other, a whole one and the update after.
class WorkingRule final : public Rule {
 public:
  Task step(Port& port) override {
    port.charge(port.num_elements() / 4);
    port.charge(port.num_elements() / 4);
    port.send(1 - port.member(), 3, nullptr, {});
    co_await port.receive(1 - port.member(), 3, nullptr);
    port.charge(port.num_elements());
    port.apply(port.gradient(), 1);
  }
};

TEST(Exchange, EmulatedWorkIsWaitedForBeforeOthersHearOfItAndAtTheEnd) {
  InprocWorld world(2, kLongS);
  const auto errors = run_ranks(2, [&](int rank) {
    const auto communicator = world.communicator(rank);
    std::vector<double> updates;
    ExchangeSetup setup = setup_of(2, 8);
    setup.work = [&updates](double start_s, double count) {
      EXPECT_LE(start_s, monotonic_s());
      updates.push_back(count);
    };
    Exchange exchange(setup, RuleTraits{}, std::make_unique<WorkingRule>(), *communicator);
    const at::Tensor weights = at::zeros({8}, at::kDouble);
    Transfer transfer;
    exchange.begin(weights);
    exchange.reduce({}, tensors_of(at::zeros({8}, at::kDouble), weights), transfer);
    exchange.step({}, tensors_of(at::zeros({8}, at::kDouble), weights), descent(), transfer);
    EXPECT_EQ(updates, (std::vector<double>{0.125, 1.25}));
  });
  EXPECT_EQ(thrown(errors), "");
}

class FailingServer final : public Rule {
 public:
  Task step(Port& port) override { co_await port.receive(Port::kServer, 0, nullptr); }
  Task serve(Port& port) override {
    co_await port.receive_any(nullptr);
    throw Error(ErrorCode::kNoSpace, "the server has no room");
  }
};

// The others hear what happened to the server, at once.
TEST(Exchange, AServerThatFailsEndsEveryWait) {
  InprocWorld world(3, kLongS);
  const auto errors = run_ranks(3, [&](int rank) {
    const auto communicator = world.communicator(rank);
    RuleTraits traits;
    traits.serves = true;
    Exchange exchange(setup_of(3, 4, at::kFloat), traits, std::make_unique<FailingServer>(),
                      *communicator);
    const at::Tensor flat = at::full({4}, 1.0f);
    Transfer transfer;
    exchange.begin(flat);
    exchange.reduce({}, tensors_of(flat, flat), transfer);
    if (rank == 1) {
      communicator->send(0, {.kind = kRuleMessage, .lane = rule_lane(0, RuleLane::kServer)},
                         at::zeros({8}, at::kFloat));
    }
    exchange.step({}, tensors_of(flat, flat), descent(), transfer);
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::kPeerLost);
    EXPECT_THAT(error->message(), HasSubstr("the server has no room"));
  }
}

}  // namespace
}  // namespace millrace
