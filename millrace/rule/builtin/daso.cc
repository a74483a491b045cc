// DASO: members of a node sum their gradients every update, nodes average weights B updates apart
// and without waiting. After every B-th update the i-th members of all nodes start the sum of their
// weights, i going round; S updates later every member merges it into its own,
//   w <- (f w + sum of the P nodes' weights sent) / (f + P),  f = 2 S, 1 for S = 0,
// the others of a node being told the sum by their i-th. B, S and how often a node sums its
// gradients follow the loss (rule/internal/daso_intervals.h). B = 0, the warm-up and the cool-down
// average over the nodes after every update and wait for it, nodes weighing by their samples (by
// the formula they would only draw nearer). A single node averages with nobody.
//
// Where a node skips sums, its members make their own steps; their weights are averaged, by the
// samples since they were last equal, before the next sum over nodes is started. So no member's
// steps are lost. A sum under way is merged before the next one starts, before updates that block
// and in finish(), S then being the updates that have passed. Weights differ between nodes after
// it; settle() gives their mean.
//
// `warmup` steps of the run block, as do those from step `cooldown` on (0: never; a rule does not
// know where the run ends); the paper takes the first and the last 4 epochs. `period` is the number
// of updates, outside those, from one test of the loss to the next (0: never, and intervals stay);
// the paper takes an epoch. The loss is the mean over all replicas and the period; where none is
// known, as in the simulator and in stages before the last, intervals stay.
//
// Source: Coquelin et al., "Accelerating neural network training with distributed asynchronous and
// selective optimization (DASO)", arXiv:2104.05588, sections 3.2 and 3.3, and its code in Heat.
// Nodes weigh alike in the merge, as there. The members' average, forced merges' S and the weights
// by samples are ours; blocking averages are not shortened to bfloat16 here: a codec can do that.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "millrace/rule/arithmetic.h"
#include "millrace/rule/internal/daso_intervals.h"
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

constexpr int kSum = 0;

double value_or(const Vector& vector, int64_t at, double unknown) {
  double value = unknown;
  visit(vector, [&](auto values) { value = values[static_cast<std::size_t>(at)]; });
  return value;
}

void set(const Vector& vector, int64_t at, double value) {
  visit(vector, [&](auto values) {
    values[static_cast<std::size_t>(at)] =
        static_cast<typename decltype(values)::element_type>(value);
  });
}

class Daso final : public Rule {
 public:
  Daso(const DasoIntervals& start, const DasoPlateau& plateau, const RuleConfig& config)
      : config_(config),
        schedule_(start, plateau),
        node_size_(static_cast<int>(config.options.integer("node_size"))),
        warmup_(config.options.integer("warmup")),
        cooldown_(config.options.integer("cooldown")),
        period_(config.options.integer("period")) {}

  Task begin(Port& port) override {
    if (counts_ == nullptr) {
      find_places(port);
      node_group_ = port.make_group(node_);
      across_group_ = port.make_group(across_);
      counts_ = &port.make_vector(1);
      losses_ = &port.make_vector(2);
      sum_ = &port.make_vector(port.num_elements());
    }
    num_updates_ = 0;
    since_sent_ = 0;
    co_return;
  }

  Task gradients_ready(Port& port, Range range, bool /*last*/) override {
    if (sums_in_node(port)) {
      co_await port.all_reduce(port.gradient(), range, node_group_);
    }
  }

  Task step(Port& port) override {
    const bool blocks = is_blocking(port);
    co_await make_local_step(port);
    ++num_updates_;
    if (under_way_) {
      ++under_way_->num_updates;
      if (blocks || under_way_->num_updates >= under_way_->wait) {
        co_await merge(port);
      }
    }
    if (blocks) {
      since_sent_ = 0;
      co_await average_and_wait(port);
      co_return;
    }
    ++since_sent_;
    if (since_sent_ >= schedule_.now().skip) {
      since_sent_ = 0;
      co_await start_sum(port);
    }
    if (period_ > 0) {
      co_await observe_loss(port);
    }
  }

  Task finish(Port& port) override {
    if (under_way_) {
      co_await merge(port);
    }
  }

  Task settle(Port& port, Vector& result) override {
    copy(port, result, port.weights());
    scale(port, result, 1.0 / port.num_members());
    co_await port.all_reduce(result);
  }

 private:
  struct UnderWay {
    int turn = 0;
    int64_t reduction = 0;  // where this member takes part
    int64_t wait = 0;
    int64_t num_updates = 0;  // since its start
  };

  void find_places(Port& port) {
    std::vector<std::vector<int>> nodes;
    for (int member = 0; member < port.num_members(); ++member) {
      const auto node =
          static_cast<std::size_t>(node_size_ == 0 ? port.node_of(member) : member / node_size_);
      nodes.resize(std::max(nodes.size(), node + 1));
      nodes[node].push_back(member);
      if (member == port.member()) {
        place_ = static_cast<int>(nodes[node].size()) - 1;
        node_.push_back(static_cast<int>(node));
      }
    }
    for (const std::vector<int>& node : nodes) {
      if (node.size() != nodes[0].size()) {
        refuse_option(config_, "node_size", "equally many replicas in every node");
      }
      across_.push_back(node[static_cast<std::size_t>(place_)]);
    }
    node_ = nodes[static_cast<std::size_t>(node_[0])];
  }

  bool is_blocking(Port& port) const {
    const int64_t step = port.update().step;
    return schedule_.now().skip == 0 || step < warmup_ || (cooldown_ > 0 && step >= cooldown_);
  }

  bool sums_in_node(Port& port) const {
    return node_.size() > 1 &&
           (is_blocking(port) || num_updates_ % schedule_.now().local_skip == 0);
  }

  // node_samples_: of the samples given on each member of this node, the sum.
  Task count_in_node(Port& port, double samples) {
    node_samples_ = samples;
    if (node_.size() > 1) {
      set(*counts_, 0, samples);
      co_await port.all_reduce(*counts_, node_group_);
      node_samples_ = value_or(*counts_, 0, samples * static_cast<double>(node_.size()));
    }
  }

  Task make_local_step(Port& port) {
    const double own_samples = port.update().own_samples;
    double samples = own_samples;
    if (node_.size() == 1 || sums_in_node(port)) {
      co_await count_in_node(port, own_samples);
      samples = node_samples_;
    } else {
      node_differs_ = true;
    }
    if (samples > 0) {
      port.apply(port.gradient(), samples);
    } else {
      copy(port, port.weights(), port.current());
    }
    own_samples_ += node_differs_ ? own_samples : 0;
  }

  // Members' weights become their mean by samples since the last one.
  Task average_in_node(Port& port) {
    if (node_differs_) {
      co_await count_in_node(port, own_samples_);
      if (node_samples_ > 0) {
        scale(port, port.weights(), own_samples_ / node_samples_);
        co_await port.all_reduce(port.weights(), node_group_);
      }
      own_samples_ = 0;
    }
  }

  bool takes_part() const { return place_ == turn_; }
  void next_turn() { turn_ = (turn_ + 1) % static_cast<int>(node_.size()); }

  // From the member of this node whose turn it was to the others.
  Task tell_node(Port& port, int turn) {
    const int teller = node_[static_cast<std::size_t>(turn)];
    if (teller != port.member()) {
      co_await port.receive(teller, kSum, sum_);
      co_return;
    }
    for (const int member : node_) {
      if (member != teller) {
        port.send(member, kSum, *sum_);
      }
    }
  }

  Task average_and_wait(Port& port) {
    const double samples = port.update().samples;
    const double share = samples > 0 ? node_samples_ / samples : 0;
    co_await average_in_node(port);
    if (across_.size() == 1 || samples == 0) {
      co_return;
    }
    if (takes_part()) {
      copy(port, *sum_, port.weights());
      scale(port, *sum_, share);
      co_await port.all_reduce(*sum_, across_group_);
    }
    co_await tell_node(port, turn_);
    next_turn();
    copy(port, port.weights(), *sum_);
  }

  Task start_sum(Port& port) {
    if (under_way_) {
      co_await merge(port);
    }
    co_await average_in_node(port);
    if (across_.size() == 1) {
      co_return;
    }
    under_way_ = UnderWay{.turn = turn_, .wait = schedule_.now().wait};
    if (takes_part()) {
      copy(port, *sum_, port.weights());
      under_way_->reduction = port.start_all_reduce(*sum_, {0, sum_->size}, across_group_);
    }
    next_turn();
    if (under_way_->wait == 0) {
      co_await merge(port);
    }
  }

  Task merge(Port& port) {
    const UnderWay sum = *under_way_;
    under_way_.reset();
    if (place_ == sum.turn) {
      co_await port.reduced(sum.reduction);
    }
    co_await tell_node(port, sum.turn);
    const double own = sum.num_updates == 0 ? 1 : 2 * static_cast<double>(sum.num_updates);
    const double all = own + static_cast<double>(across_.size());
    mix(port, port.weights(), own / all, 1 / all, *sum_);
  }

  Task observe_loss(Port& port) {
    const double loss = port.loss();
    if (port.update().own_samples > 0 && !std::isnan(loss)) {
      loss_sum_ += loss * port.update().own_samples;
      loss_samples_ += port.update().own_samples;
    }
    ++num_losses_;
    if (num_losses_ < period_) {
      co_return;
    }
    set(*losses_, 0, loss_sum_);
    set(*losses_, 1, loss_samples_);
    loss_sum_ = 0;
    loss_samples_ = 0;
    num_losses_ = 0;
    co_await port.all_reduce(*losses_);
    if (const double samples = value_or(*losses_, 1, 0); samples > 0) {
      schedule_.observe(value_or(*losses_, 0, 0) / samples);
    }
  }

  RuleConfig config_;
  DasoSchedule schedule_;
  int node_size_;  // 0: as the port says
  int64_t warmup_;
  int64_t cooldown_;
  int64_t period_;

  // Members, ascending: of this node, and of equal place in all nodes.
  std::vector<int> node_;
  std::vector<int> across_;
  int place_ = 0;
  int node_group_ = 0;
  int across_group_ = 0;

  int64_t num_updates_ = 0;  // of this segment
  int64_t since_sent_ = 0;
  int turn_ = 0;  // the place whose members make the next sum over nodes
  std::optional<UnderWay> under_way_;
  Vector* sum_ = nullptr;

  bool node_differs_ = false;  // members' weights or optimizer states may, from the first time on
  double own_samples_ = 0;     // since they were averaged
  double node_samples_ = 0;
  Vector* counts_ = nullptr;

  double loss_sum_ = 0;
  double loss_samples_ = 0;
  int64_t num_losses_ = 0;
  Vector* losses_ = nullptr;
};

}  // namespace

std::unique_ptr<Rule> daso(const RuleConfig& config) {
  check_rule_config(config);
  const RuleOptions& options = config.options;
  const DasoIntervals start{.skip = options.integer("skip"), .wait = options.integer("wait")};
  const DasoPlateau plateau{.max_skip = options.integer("max_skip"),
                            .threshold = options.number("threshold"),
                            .patience = options.integer("patience")};
  if (start.skip < 0) {
    refuse_option(config, "skip", "a number of updates, or 0 for blocking");
  }
  if (start.wait < 0 || (start.skip > 0 && start.wait > start.skip)) {
    refuse_option(config, "wait", "a number of updates from 0 to that of `skip`");
  }
  if (plateau.max_skip < 1) {
    refuse_option(config, "max_skip", "a number of updates of at least 1");
  }
  if (!(plateau.threshold >= 0 && plateau.threshold < 1)) {
    refuse_option(config, "threshold", "a number of at least 0 and below 1");
  }
  for (const char* key : {"patience", "warmup", "cooldown", "period"}) {
    if (options.integer(key) < 0) {
      refuse_option(config, key, "a number of at least 0");
    }
  }
  const int64_t node_size = options.integer("node_size");
  if (node_size < 0 || (node_size > 0 && config.num_members % node_size != 0)) {
    refuse_option(config, "node_size", "0, or a divisor of the number of replicas");
  }
  return std::make_unique<Daso>(start, plateau, config);
}

}  // namespace millrace::builtin_rules
