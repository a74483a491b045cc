// Messages of rules on the simulator's ports: sizes, times and ways of taking them drawn at random,
// and every time held against links and inboxes worked out afterwards, by brute force, from when
// messages were sent and asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "millrace/base/random.h"
#include "tests/sim/rule_testing.h"

namespace millrace {
namespace {

using testing::error_of;
using testing::flat;
using ::testing::HasSubstr;
using testing::network;
using testing::own_rule;
using testing::Parts;
using testing::unit_cost;

// So many that times drawn are never equal by chance; all of them take 1 s to pass over.
constexpr int kElements = 1000000;

struct Sent {
  int round = 0;
  int from = 0;  // member, or kServer
  int to = 0;
  int kind = 0;
  int64_t size = 0;  // 0: numbers only
  double sent_s = 0;
  int64_t number = 0;  // in the order of sending, over all
  double arrival_s = 0;
};

enum class How { kFrom, kAny, kPoll };

struct Taken {
  How how = How::kFrom;
  int from = 0;  // of kFrom
  int kind = 0;
  double asked_s = 0;
  double taken_s = 0;
  int64_t sent = -1;  // index; -1: nothing was there
};

// What one stage's replicas (and its server) say to each other, round by round: begin(), each
// step(), finish(). A party sends all of its messages of a round, polling now and then, before it
// waits for those of the round that are for it, so nobody waits for ever. With a fast sender those
// of later rounds come in between.
struct Scene {
  RandomKey key{0};
  bool looks = false;  // receive_any and poll
  int num_rounds = 0;
  int64_t* num_sent = nullptr;  // over all stages
  std::vector<Sent> messages{};
  std::map<int, std::vector<Taken>> taken{};      // of each party
  std::map<int, std::vector<int64_t>> to_come{};  // messages that each has not taken
  std::map<int, uint64_t> num_draws{};

  uint64_t draw(int party, uint64_t bound) {
    const auto number = static_cast<uint64_t>(party) + 1;  // the server's is 0
    return key.with("play").with(number).below(num_draws[party]++, bound);
  }
};

Scene scene_of(const RandomKey& key, int num_members, int num_rounds, bool serves, bool looks) {
  Scene scene{.key = key, .looks = looks, .num_rounds = num_rounds};
  uint64_t draw = 0;
  const auto below = [&](int bound) {
    return static_cast<int>(key.with("scene").below(draw++, static_cast<uint64_t>(bound)));
  };
  const int parties = num_members + (serves ? 1 : 0);
  const auto party = [&](int number) { return number == num_members ? Port::kServer : number; };
  for (int round = 0; round < num_rounds; ++round) {
    for (int left = below(4 * parties); left > 0; --left) {
      const int from = below(parties);
      const int to = (from + 1 + below(parties - 1)) % parties;
      scene.messages.push_back({.round = round, .from = party(from), .to = party(to)});
      scene.messages.back().kind = below(3);
      scene.messages.back().size = below(4) == 0 ? 0 : 1 + below(3 * kElements / 2);
    }
  }
  for (std::size_t i = 0; i < scene.messages.size(); ++i) {
    scene.to_come[scene.messages[i].to].push_back(static_cast<int64_t>(i));
  }
  return scene;
}

void note(Scene& scene, int party, Taken taken, const Message& message, double now_s) {
  taken.taken_s = now_s;
  if (message.here) {
    taken.sent = static_cast<int64_t>(message.numbers[0]);
    EXPECT_EQ(std::erase(scene.to_come[party], taken.sent), 1U) << "taken twice, or not its own";
    const Sent& sent = scene.messages[static_cast<std::size_t>(taken.sent)];
    EXPECT_EQ(message.from, sent.from);
    EXPECT_EQ(message.kind, sent.kind);
  }
  scene.taken[party].push_back(taken);
}

Task take(Scene& scene, Port& port, Vector& into, Taken taken) {
  const int party = port.member();
  taken.asked_s = port.now_s();
  if (taken.how == How::kFrom) {
    const Message message = co_await port.receive(taken.from, taken.kind, &into);
    note(scene, party, taken, message, port.now_s());
  } else if (taken.how == How::kAny) {
    const Message message = co_await port.receive_any(&into);
    note(scene, party, taken, message, port.now_s());
  } else {
    const Message message = co_await port.poll(&into);
    note(scene, party, taken, message, port.now_s());
  }
}

Task play(Scene& scene, Port& port, int round) {
  const int party = port.member();
  Vector& into = port.make_vector(1);
  Vector& out = port.make_vector(1);
  for (std::size_t i = 0; i < scene.messages.size(); ++i) {
    Sent& sent = scene.messages[i];
    if (sent.from != party || sent.round != round) {
      continue;
    }
    port.charge(static_cast<int64_t>(scene.draw(party, 3) * scene.draw(party, kElements)));
    if (scene.looks && scene.draw(party, 3) == 0) {
      const Taken poll{.how = How::kPoll};
      co_await take(scene, port, into, poll);
    }
    sent.sent_s = port.now_s();
    sent.number = (*scene.num_sent)++;
    out.size = sent.size;
    const Numbers numbers{static_cast<double>(i), 0, 0, 0};
    port.send(sent.to, sent.kind, sent.size > 0 ? &out : nullptr, numbers);
  }
  while (true) {
    const std::vector<int64_t>& to_come = scene.to_come[party];  // in the order of rounds
    if (to_come.empty() || scene.messages[static_cast<std::size_t>(to_come[0])].round > round) {
      break;
    }
    std::vector<int64_t> due;
    std::copy_if(to_come.begin(), to_come.end(), std::back_inserter(due), [&](int64_t i) {
      return scene.messages[static_cast<std::size_t>(i)].round <= round;
    });
    const Sent& next = scene.messages[static_cast<std::size_t>(due[scene.draw(party, due.size())])];
    Taken taken{.how = How::kFrom, .from = next.from, .kind = next.kind};
    if (scene.looks) {
      const How hows[] = {How::kFrom, How::kAny, How::kPoll};
      taken.how = hows[scene.draw(party, 3)];
    }
    if (scene.draw(party, 3) == 0) {
      port.charge(static_cast<int64_t>(scene.draw(party, kElements / 2)));
    }
    co_await take(scene, port, into, taken);
  }
}

OwnRule player(std::vector<Scene>& scenes, bool serves) {
  auto made = std::make_shared<int>(0);
  return own_rule(
      [&scenes, made](const RuleConfig& config) {
        Scene& scene = scenes[static_cast<std::size_t>((*made)++ / config.num_members)];
        Parts parts;
        parts.begin = [&scene](Port& port) { return play(scene, port, 0); };
        parts.step = [&scene](Port& port) {
          return play(scene, port, static_cast<int>(port.update().step) + 1);
        };
        parts.finish = [&scene](Port& port) { return play(scene, port, scene.num_rounds - 1); };
        parts.serve = [&scene](Port& port) -> Task {
          for (int round = 0; round < scene.num_rounds; ++round) {
            co_await play(scene, port, round);
          }
        };
        return parts;
      },
      RuleTraits{.serves = serves, .ordered = scenes.front().looks});
}

// A link takes one message at a time, in the order in which they were sent; those of one rank's
// stages and of the server beside it share it.
void put_on_links(std::vector<Scene>& scenes, const Cluster& cluster) {
  std::map<std::pair<int, int>, std::map<std::pair<double, int64_t>, Sent*>> links;
  for (Scene& scene : scenes) {
    for (Sent& sent : scene.messages) {
      const int from = std::max(sent.from, 0);  // the server's rank is member 0's
      const int to = std::max(sent.to, 0);
      sent.arrival_s = sent.sent_s;
      if (from != to) {
        links[std::pair(from, to)][std::pair(sent.sent_s, sent.number)] = &sent;
      }
    }
  }
  for (const auto& [link, queue] : links) {
    double free_s = 0;
    for (const auto& [place, sent] : queue) {
      const auto bytes = static_cast<double>(4 * sent->size);
      free_s = std::max(free_s, sent->sent_s) +
               bytes / cluster.bandwidth_between(link.first, link.second);
      sent->arrival_s = free_s + cluster.latency_between(link.first, link.second);
    }
  }
}

// What a party must have taken, each time that it asked.
void expect_taken_in_order(const Scene& scene) {
  const auto arrival_s = [&scene](int64_t i) {
    return scene.messages[static_cast<std::size_t>(i)].arrival_s;
  };
  for (const auto& [party, all] : scene.taken) {
    std::set<int64_t> inbox;
    for (std::size_t i = 0; i < scene.messages.size(); ++i) {
      if (scene.messages[i].to == party) {
        inbox.insert(static_cast<int64_t>(i));
      }
    }
    for (const Taken& taken : all) {
      const auto place = [&](int64_t i) {
        const Sent& sent = scene.messages[static_cast<std::size_t>(i)];
        return taken.how == How::kFrom ? std::tuple(0.0, 0, sent.number)
                                       : std::tuple(sent.arrival_s, sent.from, sent.number);
      };
      int64_t expected = -1;
      for (const int64_t i : inbox) {
        const Sent& sent = scene.messages[static_cast<std::size_t>(i)];
        const bool fits = taken.how == How::kFrom
                              ? sent.from == taken.from && sent.kind == taken.kind
                          : taken.how == How::kPoll ? sent.arrival_s <= taken.asked_s
                                                    : true;
        if (fits && (expected < 0 || place(i) < place(expected))) {
          expected = i;
        }
      }
      // Where messages take no time, some may be sent at the very moment, and because of what was
      // sent then.
      const bool at_once =
          taken.sent != expected && expected >= 0 && arrival_s(expected) >= taken.asked_s &&
          (taken.sent < 0 ? taken.how == How::kPoll : arrival_s(taken.sent) == arrival_s(expected));
      if (at_once) {
        expected = taken.sent;
      }
      ASSERT_EQ(taken.sent, expected);
      double expected_s = taken.asked_s;
      if (expected >= 0) {
        expected_s = std::max(expected_s, arrival_s(expected));
      }
      ASSERT_EQ(taken.taken_s, expected_s);
      inbox.erase(taken.sent);
    }
    EXPECT_TRUE(inbox.empty());
  }
}

TEST(RuleMessages, AreTakenOnceAndWhenTheyHaveArrivedByAnyWayOfTakingThem) {
  std::map<How, int> num_taken;
  int num_empty = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomKey key = RandomKey(seed).with("messages");
    const int members = 2 + static_cast<int>(key.below(0, 7));
    const int stages = 1 + static_cast<int>(key.below(1, 2));
    const int steps = 1 + static_cast<int>(key.below(2, 4));
    const bool looks = key.below(3, 5) > 0;
    const bool serves = looks && key.below(4, 2) == 0;
    const double bandwidths[] = {4e5, 1.3e6, 1e7, std::numeric_limits<double>::infinity()};
    const double latencies[] = {0, 0.125, key.uniform(7)};
    const Cluster cluster =
        network(members, bandwidths[key.below(5, 4)], latencies[key.below(6, 3)]);
    const std::string list = stages == 1 ? "0F0 0B0 0STEP" : "0F0 1F0 1B0 0B0 0STEP 1STEP";
    const LoweredSchedule lowered =
        testing::program(std::vector<std::string>(members, list),
                         std::vector<std::vector<int>>(
                             members, stages == 1 ? std::vector<int>{0} : std::vector<int>{0, 1}));
    int64_t num_sent = 0;
    std::vector<Scene> scenes;
    for (int stage = 0; stage < stages; ++stage) {
      scenes.push_back(
          scene_of(key.with(static_cast<uint64_t>(stage)), members, steps + 2, serves, looks));
      scenes.back().num_sent = &num_sent;
    }
    StageCost cost = testing::stage(1, 2, 0, 4 * kElements);
    cost.update_s = 4;
    SimulationInput input{.lowered = lowered,
                          .costs = std::vector<StageCost>(stages, cost),
                          .cluster = cluster,
                          .num_steps = steps};
    input.slowdown = [&key](int rank, int64_t step) {
      return 2 * key.with("slow").uniform(8 * rank + step);
    };
    input.own_rule = player(scenes, serves);
    ASSERT_NO_THROW(simulate(input)) << seed;
    put_on_links(scenes, cluster);
    for (const Scene& scene : scenes) {
      expect_taken_in_order(scene);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
      for (const auto& [party, all] : scene.taken) {
        for (const Taken& taken : all) {
          num_taken[taken.how] += taken.sent >= 0 ? 1 : 0;
          num_empty += taken.sent < 0 ? 1 : 0;
        }
      }
    }
  }
  for (const How how : {How::kFrom, How::kAny, How::kPoll}) {
    EXPECT_GT(num_taken[how], 1000);
  }
  EXPECT_GT(num_empty, 1000);
}

TEST(RuleMessages, ThatNobodyTookAreAnError) {
  const LoweredSchedule lowered = flat(3);
  const Cluster cluster = network(3, 100, 0);
  for (const RuleTraits traits : {RuleTraits{}, RuleTraits{.ordered = true}}) {
    SimulationInput input{.lowered = lowered, .costs = {unit_cost()}, .cluster = cluster};
    input.own_rule = own_rule(
        [](const RuleConfig& config) {
          const int member = config.member;
          Parts parts;
          parts.step = [=](Port& port) -> Task {
            const Numbers none{};
            port.send((member + 1) % 3, 4, nullptr, none);
            port.send((member + 1) % 3, 5, nullptr, none);
            if (member != 2) {
              co_await port.receive((member + 2) % 3, 5, nullptr);
            }
            co_await port.receive((member + 2) % 3, 4, nullptr);
          };
          return parts;
        },
        traits);
    const Error error = error_of([&] { simulate(input); });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.message(), HasSubstr("in stage 0 that nobody took"));
    EXPECT_THAT(error.message(), HasSubstr("end: of kind 5 from member 1 to member 2;"));
  }
}

}  // namespace
}  // namespace millrace
