// GOSGD: gossip. Each replica holds weights x and a share alpha of the result, at first 1/M. After
// an update it takes in what has arrived, x <- (alpha x + alpha_s x_s) / (alpha + alpha_s),
// alpha <- alpha + alpha_s, and with probability p pushes x and half its share to another. Nobody
// waits. Conserved, what is in flight included: the sum of alpha, 1, and, but for the optimizers'
// steps, the sum of alpha x.
//
// Whoever finishes first hands x and its whole share to a replica that still runs, and nobody who
// knows of it pushes to it any more; what had been pushed before it keeps. When all have finished,
// finish() leaves the mean weighted by alpha on all of them, and the next segment starts from it
// with equal shares.
//
// Source: Blot et al., "Gossip training for deep learning", arXiv:1611.09726, as in Theano-MPI,
// arXiv:1605.08325. Finishing, and segments (which end where training is evaluated) that start from
// the mean, are our reading. Shares are float64: in float32 their sum drifts.
#include <algorithm>
#include <cstddef>

#include "millrace/base/random.h"
#include "millrace/rule/arithmetic.h"
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

constexpr int kPush = 0;     // weights; numbers: the share that goes with them
constexpr int kGoodbye = 1;  // numbers: how many pushes this member has sent to the receiver

class Gosgd final : public Rule {
 public:
  Gosgd(double probability, const RuleConfig& config)
      : probability_(probability),
        key_(RandomKey(config.seed).with("gosgd").with(static_cast<uint64_t>(config.member))),
        peers_(static_cast<std::size_t>(config.num_members)) {}

  Task begin(Port& port) override {
    if (received_ == nullptr) {
      received_ = &port.make_vector(port.num_elements());
    }
    alpha_ = 1.0 / port.num_members();
    std::fill(peers_.begin(), peers_.end(), Peer{});
    co_return;
  }

  Task step(Port& port) override {
    const Update& update = port.update();
    if (update.own_samples > 0) {
      port.apply(port.gradient(), update.own_samples);
    } else {
      copy(port, port.weights(), port.current());
    }
    co_await take_in_arrived(port);
    step_key_ = key_.with(static_cast<uint64_t>(update.step));
    if (step_key_.uniform(0) < probability_) {
      push(port, alpha_ / 2);
    }
  }

  Task finish(Port& port) override {
    co_await take_in_arrived(port);
    push(port, alpha_);
    for (int member = 0; member < port.num_members(); ++member) {
      if (member != port.member()) {
        const Numbers numbers{static_cast<double>(peer(member).num_sent)};
        port.send(member, kGoodbye, nullptr, numbers);
      }
    }
    while (!heard_all(port)) {
      const Message message = co_await port.receive_any(received_);
      take_in(port, message);
    }
    scale(port, port.weights(), alpha_);
    co_await port.all_reduce(port.weights());
  }

 private:
  struct Peer {
    int64_t num_sent = 0;
    int64_t num_received = 0;
    // Of the goodbye, which may overtake a push.
    bool running = true;
    int64_t num_promised = 0;
  };

  Peer& peer(int member) { return peers_[static_cast<std::size_t>(member)]; }

  Task take_in_arrived(Port& port) {
    while (true) {
      const Message message = co_await port.poll(received_);
      if (!message.here) {
        break;
      }
      take_in(port, message);
    }
  }

  void take_in(Port& port, const Message& message) {
    Peer& from = peer(message.from);
    if (message.kind == kGoodbye) {
      from.running = false;
      from.num_promised = static_cast<int64_t>(message.numbers[0]);
      return;
    }
    ++from.num_received;
    const double share = message.numbers[0];
    const double both = alpha_ + share;
    if (both > 0) {
      mix(port, port.weights(), alpha_ / both, share / both, *received_);
    }
    alpha_ = both;
  }

  // To a running member, if there is one.
  void push(Port& port, double share) {
    std::vector<int> targets;
    for (int member = 0; member < port.num_members(); ++member) {
      if (member != port.member() && peer(member).running) {
        targets.push_back(member);
      }
    }
    if (targets.empty()) {
      return;
    }
    const int to = targets[step_key_.below(1, targets.size())];
    const Numbers numbers{share};
    port.send(to, kPush, &port.weights(), numbers);
    ++peer(to).num_sent;
    alpha_ -= share;
  }

  bool heard_all(Port& port) {
    for (int member = 0; member < port.num_members(); ++member) {
      const Peer& other = peer(member);
      if (member != port.member() && (other.running || other.num_received < other.num_promised)) {
        return false;
      }
    }
    return true;
  }

  double probability_;
  RandomKey key_;
  RandomKey step_key_ = key_;  // of the last update
  std::vector<Peer> peers_;    // of this segment, by member
  double alpha_ = 0;
  Vector* received_ = nullptr;
};

}  // namespace

std::unique_ptr<Rule> gosgd(const RuleConfig& config) {
  check_rule_config(config);
  const double probability = config.options.number("probability");
  if (!(probability >= 0 && probability <= 1)) {
    refuse_option(config, "probability", "a number from 0 to 1");
  }
  return std::make_unique<Gosgd>(probability, config);
}

}  // namespace millrace::builtin_rules
