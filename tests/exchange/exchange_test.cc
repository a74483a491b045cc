#include "millrace/exchange/exchange.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/comm/inproc/inproc.h"
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

// A rule from a function, for what no builtin does.
class Scripted final : public Rule {
 public:
  explicit Scripted(std::function<RuleActions(const RuleEvent&)> script)
      : script_(std::move(script)) {}
  RuleActions on(const RuleEvent& event) override { return script_(event); }

 private:
  std::function<RuleActions(const RuleEvent&)> script_;
};

Exchange alone(InprocWorld& world, std::function<RuleActions(const RuleEvent&)> script) {
  return Exchange(std::make_unique<Scripted>(std::move(script)), world.communicator(0)->group({0}));
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
        Exchange exchange(find_rule("bsp").make({num, rank}), communicator->group(all_ranks(num)));
        at::Tensor weights = at::full({size}, 0.0, at::kDouble);
        Transfer transfer;
        for (int update = 1; update <= num_updates; ++update) {
          at::Tensor gradient = at::arange(size, at::kDouble).mul_(rank + 1).add_(update);
          exchange.reduce(gradient, transfer);
          int num_calls = 0;
          exchange.step([&] {
            ++num_calls;
            weights.sub_(gradient);
          });
          EXPECT_EQ(num_calls, 1);
          EXPECT_TRUE(at::equal(
              gradient,
              at::arange(size, at::kDouble).mul_(num * (num + 1) / 2).add_(num * update)));
        }
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
    const std::vector<int> replicas = rank == 1 ? std::vector<int>{1} : std::vector<int>{0, 2};
    const auto exchange = make_exchange("bsp", 0, replicas, *communicator);
    at::Tensor gradient = at::full({5}, 1 + rank, at::kDouble);
    Transfer transfer;
    exchange->reduce(gradient, transfer);
    exchange->step([] {});
    EXPECT_TRUE(at::equal(gradient, at::full({5}, rank == 1 ? 2 : 4, at::kDouble)));
    const Error unknown = error_of([&] { make_exchange("bps", 0, {rank}, *communicator); });
    EXPECT_EQ(unknown.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(unknown.message(), HasSubstr("bsp"));
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(Exchange, ReplicasOfUnlikeSizeAllHearIt) {
  InprocWorld world(2, kLongS);
  const auto errors = run_ranks(2, [&](int rank) {
    const auto communicator = world.communicator(rank);
    Exchange exchange(find_rule("bsp").make({2, rank}), communicator->group({0, 1}));
    at::Tensor gradient = at::full({4 + rank}, 1.0f);
    Transfer transfer;
    exchange.reduce(gradient, transfer);
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error->message(), HasSubstr("rank 0 float32 [4]"));
    EXPECT_THAT(error->message(), HasSubstr("rank 1 float32 [5]"));
  }
}

// A rule that asks for parts, and for more once the first has come back: only these parts are
// summed.
TEST(Exchange, ExecutesPartsInTheOrderAsked) {
  InprocWorld world(2, kLongS);
  const auto errors = run_ranks(2, [&](int rank) {
    const auto communicator = world.communicator(rank);
    std::vector<Range> answered;
    Exchange exchange(
        std::make_unique<Scripted>([&](const RuleEvent& event) -> RuleActions {
          if (const auto* ready = std::get_if<GradientsReady>(&event)) {
            EXPECT_EQ(ready->range, (Range{0, 10}));
            EXPECT_TRUE(ready->last);
            return {all_reduce_sum({6, 9}, false), apply_update(), release_worker()};
          }
          const AllReduced& done = std::get<AllReduced>(event);
          answered.push_back(done.range);
          return done.last ? RuleActions{} : RuleActions{all_reduce_sum({0, 2}, true)};
        }),
        communicator->group({0, 1}));
    at::Tensor gradient = at::arange(10, at::kFloat).add_(100 * rank);
    const at::Tensor before = gradient.clone();
    Transfer transfer;
    exchange.reduce(gradient, transfer);
    int num_calls = 0;
    exchange.step([&] { ++num_calls; });
    EXPECT_EQ(num_calls, 1);
    EXPECT_EQ(answered, (std::vector<Range>{{6, 9}, {0, 2}}));
    for (int64_t i = 0; i < 10; ++i) {
      const bool summed = i < 2 || (i >= 6 && i < 9);
      const float expected = summed ? static_cast<float>(2 * i + 100) : before.data_ptr<float>()[i];
      EXPECT_EQ(gradient.data_ptr<float>()[i], expected) << i;
    }
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(Exchange, StepBeforeReleaseIsABugAndDoesNotUpdate) {
  InprocWorld world(1, kLongS);
  int num_calls = 0;
  const auto count = [&] { ++num_calls; };
  Exchange never = alone(world, [](const RuleEvent&) { return RuleActions{apply_update()}; });
  at::Tensor gradient = at::full({4}, 1.0f);
  Transfer transfer;
  never.reduce(gradient, transfer);
  const Error held = error_of([&] { never.step(count); });
  EXPECT_EQ(held.code(), ErrorCode::kInternal);
  EXPECT_THAT(held.message(), HasSubstr("has not released"));

  Exchange bsp(find_rule("bsp").make({1, 0}), world.communicator(0)->group({0}));
  EXPECT_EQ(error_of([&] { bsp.step(count); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(num_calls, 0);
  bsp.reduce(gradient, transfer);
  bsp.step(count);
  EXPECT_EQ(error_of([&] { bsp.step(count); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(num_calls, 1);
}

TEST(Exchange, RuleThatReleasesWithoutUpdateGetsNone) {
  InprocWorld world(1, kLongS);
  Exchange skips = alone(world, [](const RuleEvent&) { return RuleActions{release_worker()}; });
  at::Tensor gradient = at::full({4}, 1.0f);
  Transfer transfer;
  for (int i = 0; i < 2; ++i) {
    skips.reduce(gradient, transfer);
    skips.step([] { ADD_FAILURE() << "updated"; });
  }
  EXPECT_EQ(transfer.bytes, 0);
}

TEST(Exchange, RefusesWhatWouldSumWrong) {
  InprocWorld world(1, kLongS);
  Transfer transfer;
  Exchange bsp(find_rule("bsp").make({1, 0}), world.communicator(0)->group({0}));
  at::Tensor square = at::full({2, 2}, 1.0f);
  EXPECT_EQ(error_of([&] { bsp.reduce(square, transfer); }).code(), ErrorCode::kInternal);
  at::Tensor flat = at::full({4}, 1.0f);
  at::Tensor strided = at::full({4, 2}, 1.0f).select(1, 0);
  EXPECT_EQ(error_of([&] { bsp.reduce(strided, transfer); }).code(), ErrorCode::kInternal);
  bsp.reduce(flat, transfer);
  EXPECT_THAT(error_of([&] { bsp.reduce(flat, transfer); }).message(),
              HasSubstr("REDUCE again before STEP"));

  for (const Range& range : {Range{-1, 2}, Range{3, 5}, Range{3, 2}}) {
    Exchange wild =
        alone(world, [&](const RuleEvent&) { return RuleActions{all_reduce_sum(range)}; });
    EXPECT_EQ(error_of([&] { wild.reduce(flat, transfer); }).code(), ErrorCode::kInternal);
  }
  EXPECT_EQ(error_of([&] { Exchange(nullptr, world.communicator(0)->group({0})); }).code(),
            ErrorCode::kInternal);
}

}  // namespace
}  // namespace millrace
