// Decentralized training: no server and no reduction. In update t replica i computes its gradient
// at its own weights while those of its neighbours are on their way, then
//   x_i <- sum over j of W_ij(t) x_j + optimizer's step on the gradient at x_i,
// W being doubly stochastic: complete, ring, exponential or alternating (rule/internal/mixing.h).
// Weights are sent as soon as they are made, so a message has one update's time to travel.
//
// A replica that finishes takes part in the round whose weights it has sent already, then says
// goodbye to all; from there on others give its share in W to their own weights. Pairs keep the
// mean of the weights by this; the directed exponential topology keeps it only while all run.
// finish() takes in what is under way, so that a segment of T updates mixes T + 1 times. Weights
// stay unequal after it; settle() gives their mean.
//
// Source: Wang et al., "From Promise to Practice: Realizing High-performance Decentralized
// Training", arXiv:2410.11998. Goodbyes are ours.
#include <algorithm>
#include <cstddef>

#include "millrace/rule/arithmetic.h"
#include "millrace/rule/internal/mixing.h"
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

constexpr int kWeights = 0;
// In numbers[0] of messages of that kind, which keep their order: weights follow, or none ever.
constexpr double kMore = 0;
constexpr double kGoodbye = 1;  // numbers[1]: rounds of its sender until now

struct NamedTopology {
  const char* name;
  Topology topology;
};
constexpr NamedTopology kTopologies[] = {{"complete", Topology::kComplete},
                                         {"ring", Topology::kRing},
                                         {"exponential", Topology::kExponential},
                                         {"alternating", Topology::kAlternating}};

Mixing make_mixing(const RuleConfig& config, Topology topology, std::vector<int> nodes) {
  Mixing mixing(topology, std::move(nodes));
  if (const std::string needs = mixing.needs(); !needs.empty()) {
    refuse_option(config, "topology", needs);
  }
  return mixing;
}

class Decentralized final : public Rule {
 public:
  Decentralized(Topology topology, const RuleConfig& config)
      : config_(config),
        topology_(topology),
        node_size_(static_cast<int>(config.options.integer("node_size"))) {}

  Task begin(Port& port) override {
    if (received_ == nullptr) {
      std::vector<int> nodes;
      for (int member = 0; member < port.num_members(); ++member) {
        nodes.push_back(node_size_ == 0 ? port.node_of(member) : member / node_size_);
      }
      mixing_ = make_mixing(config_, topology_, std::move(nodes));
      received_ = &port.make_vector(port.num_elements());
      mixed_ = &port.make_vector(port.num_elements());
      delta_ = &port.make_vector(port.num_elements());
    }
    running_.assign(static_cast<std::size_t>(port.num_members()), true);
    send_weights(port);
    co_return;
  }

  Task step(Port& port) override {
    const bool moves = port.update().own_samples > 0;
    if (moves) {
      port.apply_to(*delta_, port.gradient(), port.update().own_samples);
    }
    copy(port, port.weights(), port.current());
    co_await take_in(port);
    if (moves) {
      add(port, port.weights(), *delta_);
    }
    ++round_;
    send_weights(port);
  }

  Task finish(Port& port) override {
    co_await take_in(port);
    ++round_;
    int64_t last_round = round_;
    for (int member = 0; member < port.num_members(); ++member) {
      if (member != port.member()) {
        const Numbers numbers{kGoodbye, static_cast<double>(round_)};
        port.send(member, kWeights, nullptr, numbers);
      }
    }
    // Weights that come now were sent before their sender knew: they count for nobody, and their
    // sender keeps its share.
    for (int member = 0; member < port.num_members(); ++member) {
      while (member != port.member() && runs(member)) {
        const Message message = co_await port.receive(member, kWeights, received_);
        if (message.numbers[0] == kGoodbye) {
          say_gone(message);
        }
      }
    }
    for (const int64_t round : goodbye_rounds_) {
      last_round = std::max(last_round, round);
    }
    goodbye_rounds_.clear();
    round_ = last_round;
  }

  Task settle(Port& port, Vector& result) override {
    copy(port, result, port.weights());
    scale(port, result, 1.0 / port.num_members());
    co_await port.all_reduce(result);
  }

 private:
  bool runs(int member) const { return running_[static_cast<std::size_t>(member)]; }

  void say_gone(const Message& goodbye) {
    running_[static_cast<std::size_t>(goodbye.from)] = false;
    goodbye_rounds_.push_back(static_cast<int64_t>(goodbye.numbers[1]));
  }

  // To those who take them in this round.
  void send_weights(Port& port) {
    for (int member = 0; member < port.num_members(); ++member) {
      if (member != port.member() && runs(member) &&
          mixing_.weight(round_, member, port.member()) > 0) {
        const Numbers numbers{kMore};
        port.send(member, kWeights, &port.weights(), numbers);
      }
    }
  }

  // weights() becomes this round's mean of it and of the neighbours'.
  Task take_in(Port& port) {
    double own = mixing_.weight(round_, port.member(), port.member());
    bool alone = true;
    for (int member = 0; member < port.num_members(); ++member) {
      const double share = mixing_.weight(round_, port.member(), member);
      if (member == port.member() || share == 0) {
        continue;
      }
      if (runs(member)) {
        const Message message = co_await port.receive(member, kWeights, received_);
        if (message.numbers[0] == kGoodbye) {
          say_gone(message);
        }
      }
      if (!runs(member)) {
        own += share;
      } else if (alone) {
        copy(port, *mixed_, *received_);
        scale(port, *mixed_, share);
        alone = false;
      } else {
        add_scaled(port, *mixed_, share, *received_);
      }
    }
    if (!alone) {
      mix(port, port.weights(), own, 1, *mixed_);
    }
  }

  RuleConfig config_;
  Topology topology_;
  int node_size_;  // 0: as the port says
  Mixing mixing_{topology_, {}};
  int64_t round_ = 0;  // of the run; equal on all members where a segment begins
  std::vector<bool> running_;
  std::vector<int64_t> goodbye_rounds_;
  Vector* received_ = nullptr;
  Vector* mixed_ = nullptr;
  Vector* delta_ = nullptr;
};

}  // namespace

std::unique_ptr<Rule> decentralized(const RuleConfig& config) {
  check_rule_config(config);
  const int64_t node_size = config.options.integer("node_size");
  if (node_size < 0 || (node_size > 0 && config.num_members % node_size != 0)) {
    refuse_option(config, "node_size", "0, or a divisor of the number of replicas");
  }
  for (const auto& [name, topology] : kTopologies) {
    if (config.options.word("topology") == name) {
      if (topology != Topology::kAlternating) {
        // Nodes do not matter, so it can be said now.
        make_mixing(config, topology,
                    std::vector<int>(static_cast<std::size_t>(config.num_members)));
      }
      return std::make_unique<Decentralized>(topology, config);
    }
  }
  refuse_option(config, "topology", "complete, ring, exponential or alternating");
}

}  // namespace millrace::builtin_rules
