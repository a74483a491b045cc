#include "tests/rule/rule_world.h"

#include <gmock/gmock.h>

#include <set>

#include "millrace/rule/arithmetic.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// A rule made of two functions, for what no proper rule does.
class Made final : public Rule {
 public:
  using Body = std::function<Task(Port&)>;
  Made(Body step, Body finish) : step_(std::move(step)), finish_(std::move(finish)) {}
  Task step(Port& port) override { return step_(port); }
  Task finish(Port& port) override { return finish_(port); }

 private:
  Body step_;
  Body finish_;
};

Task nothing(Port& /*port*/) { co_return; }

Task plain(Port& port) {
  port.apply(port.gradient(), port.update().samples);
  co_return;
}

std::string failure_of(const Made::Body& step, const Made::Body& finish, WorldConfig config = {}) {
  RuleWorld world([&](const RuleConfig&) { return std::make_unique<Made>(step, finish); }, false,
                  std::move(config));
  return caught([&] { world.run(1); }).message();
}

Task waits_for_one(Port& port) {
  plain(port).start();
  if (port.member() == 0) {
    co_await port.receive(1, 3, nullptr);
  }
}

TEST(RuleWorld, ADeadlockSaysWhoWaitsForWhat) {
  const std::string text = failure_of(waits_for_one, nothing);
  EXPECT_THAT(text, HasSubstr("deadlock: member 0 (update 0, step) waits for a message of kind 3 "
                              "from member 1"));
}

Task reduces_alone(Port& port) {
  plain(port).start();
  if (port.member() == 1) {
    co_await port.all_reduce(port.weights());
  }
}

TEST(RuleWorld, AReductionThatOthersDoNotJoinIsADeadlock) {
  EXPECT_THAT(failure_of(reduces_alone, nothing),
              HasSubstr("member 1 (update 0, step) waits for a reduction"));
}

Task says_something(Port& port) {
  port.send(1 - port.member(), 2, nullptr, {});
  co_return;
}

TEST(RuleWorld, MessagesLeftOverAreRefused) {
  EXPECT_THAT(failure_of(plain, says_something), HasSubstr("kind 2 from member 1 to member 0"));
}

Task touches(Port& port) {
  plain(port).start();
  const int64_t number = port.start_all_reduce(port.gradient());
  fill(port, port.gradient(), 5);
  co_await port.reduced(number);
}

Task starts_only(Port& port) {
  port.start_all_reduce(port.gradient());
  co_return;
}

Task disagrees(Port& port) {
  plain(port).start();
  const Range range{port.member(), 4};
  co_await port.all_reduce(port.gradient(), range);
}

TEST(RuleWorld, BadReductionsAreRefused) {
  EXPECT_THAT(failure_of(touches, nothing), HasSubstr("touched a range"));
  EXPECT_THAT(failure_of(plain, starts_only), HasSubstr("left a reduction under way"));
  EXPECT_THAT(failure_of(disagrees, nothing), HasSubstr("where others reduce"));
}

Task writes_current(Port& port) {
  plain(port).start();
  fill(port, port.current(), 5);
  co_return;
}

TEST(RuleWorld, StepsThatSpoilVersionsAreRefused) {
  EXPECT_THAT(failure_of(nothing, nothing), HasSubstr("left weights unset"));
  EXPECT_THAT(failure_of(writes_current, nothing), HasSubstr("wrote to current()"));
}

Task background(Port& port) {
  const int64_t number = port.start_all_reduce(port.gradient(), {1, 3}, Port::kEverybody);
  co_await port.reduced(number);
  plain(port).start();
}

// Sums in the order of members, of the range alone; SGD with momentum and decay by hand.
TEST(RuleWorld, ReducesAndApplies) {
  WorldConfig config;
  config.num_members = 3;
  config.initial = {1, 1, 1, 1};
  config.lr = 0.5;
  config.momentum = 0.5;
  config.decay = 0.25;
  config.gradient = [](int member, int64_t, const Values&) { return Values(4, member + 1); };
  config.order = Order::kRandom;
  RuleWorld world([](const RuleConfig&) { return std::make_unique<Made>(background, nothing); },
                  false, config);
  world.run(2);
  // v = g / 3 + w / 4, w -= v / 2; twice.
  const auto twice = [](double gradient) {
    double w = 1;
    double v = 0;
    for (int i = 0; i < 2; ++i) {
      v = 0.5 * v + gradient / 3 + 0.25 * w;
      w += -0.5 * v;
    }
    return w;
  };
  EXPECT_EQ(world.weights(1), (Values{twice(2), twice(6), twice(6), twice(2)}));
  EXPECT_EQ(world.applied(1).size(), 2U);
  EXPECT_EQ(world.applied(1)[1].step, 1);
  EXPECT_EQ(world.counts(1).reduced_elements, 4);
}

// Members of a group of two reduce among themselves, whatever their numbers for it.
Task by_pairs(Port& port) {
  const int me = port.member();
  const std::vector<int> mine = me < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
  const int group = port.make_group(mine);
  plain(port).start();
  fill(port, port.weights(), me);
  co_await port.all_reduce(port.weights(), group);
}

TEST(RuleWorld, Groups) {
  WorldConfig config;
  config.num_members = 4;
  config.order = Order::kRandom;
  RuleWorld world([](const RuleConfig&) { return std::make_unique<Made>(by_pairs, nothing); },
                  false, config);
  world.run(2);
  EXPECT_EQ(world.weights(0), Values(4, 1));
  EXPECT_EQ(world.weights(3), Values(4, 5));
}

// What member 0 hears first differs with the seed, but not between runs of one.
TEST(RuleWorld, OrdersAreDrawnFromTheSeed) {
  std::set<std::vector<int>> seen;
  const auto heard = [](Order order, uint64_t seed) {
    std::vector<int> from;
    const auto tells = [&from](Port& port) -> Task {
      plain(port).start();
      if (port.member() != 0) {
        port.send(0, 1, nullptr, {});
        co_return;
      }
      for (int i = 1; i < 4; ++i) {
        const Message message = co_await port.receive_any(nullptr);
        from.push_back(message.from);
      }
    };
    WorldConfig config;
    config.num_members = 4;
    config.order = order;
    config.seed = seed;
    config.duration_s = [](int member, int64_t) { return 10.0 - member; };
    RuleWorld world([&](const RuleConfig&) { return std::make_unique<Made>(tells, nothing); },
                    false, config);
    world.run(1);
    return from;
  };
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    seen.insert(heard(Order::kRandom, seed));
    EXPECT_EQ(heard(Order::kRandom, seed), heard(Order::kRandom, seed));
  }
  EXPECT_EQ(seen.size(), 6U);
  EXPECT_EQ(heard(Order::kLockStep, 1), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(heard(Order::kTimed, 1), (std::vector<int>{3, 2, 1}));
}

// A clock follows those that it waits for.
TEST(RuleWorld, TimeIsThatOfTheSlowest) {
  WorldConfig config;
  config.num_members = 3;
  config.duration_s = [](int member, int64_t step) { return member == step ? 5.0 : 1.0; };
  config.order = Order::kTimed;
  RuleWorld world("bsp", Value::map(), config);
  world.run(4);
  EXPECT_EQ(world.now_s(0), 5 + 5 + 5 + 1);
}

}  // namespace
}  // namespace millrace
