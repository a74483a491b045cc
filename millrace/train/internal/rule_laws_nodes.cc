// Laws of rules that know nodes or neighbours: replays by their formulas.
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "millrace/train/internal/rule_laws.h"

namespace millrace::internal {
namespace {

// In one process all replicas are on one node, unless the rule is told otherwise.
int size_of_node(const StageRun& run) {
  const auto given = static_cast<int>(run.options.integer("node_size"));
  return given == 0 ? run.num_replicas() : given;
}

at::Tensor mean_of(const std::vector<at::Tensor>& all) {
  at::Tensor mean = at::zeros_like(all.front());
  for (const at::Tensor& each : all) {
    mean.add_(each, 1.0 / static_cast<double>(all.size()));
  }
  return mean;
}

void expect_end(const StageRun& run, Judge& judge, const std::vector<at::Tensor>& weights) {
  for (int replica = 0; replica < run.num_replicas(); ++replica) {
    judge.expect_last(replica, weights[static_cast<std::size_t>(replica)]);
  }
  judge.expect_settled(mean_of(weights));
}

// Who takes whose weights in a round, besides its own; all that a replica takes weigh alike.
std::vector<int> taken_by(const StageRun& run, int64_t round, int replica) {
  const int replicas = run.num_replicas();
  const std::string& topology = run.options.word("topology");
  std::vector<int> taken;
  if (topology == "complete") {
    for (int other = 0; other < replicas; ++other) {
      taken.push_back(other);
    }
    std::erase(taken, replica);
    return taken;
  }
  if (topology == "ring") {
    // Neighbours pair up, to the right and to the left in turn.
    const bool right = (replica % 2 == 0) == (round % 2 == 0);
    return {(replica + (right ? 1 : replicas - 1)) % replicas};
  }
  if (topology == "exponential") {
    const auto distances = std::bit_width(static_cast<unsigned>(replicas - 1));
    const int distance = 1 << static_cast<int>(round % distances);
    return {std::has_single_bit(static_cast<unsigned>(replicas))
                ? replica ^ distance
                : (replica - distance % replicas + replicas) % replicas};
  }
  // alternating: half of the pairs of nodes meet in a round, the others stay among themselves.
  const int node_size = size_of_node(run);
  const int nodes = replicas / node_size;
  const int node = replica / node_size;
  if (nodes > 1) {
    const auto distances = std::bit_width(static_cast<unsigned>(nodes - 1));
    const int distance = 1 << static_cast<int>((round / 2) % distances);
    if (std::popcount(static_cast<unsigned>(node & ~distance)) % 2 == round % 2) {
      return {(node ^ distance) * node_size + replica % node_size};
    }
  }
  for (int other = node * node_size; other < (node + 1) * node_size; ++other) {
    taken.push_back(other);
  }
  std::erase(taken, replica);
  return taken;
}

// DASO's intervals: B updates from one sum over nodes to the next, S from its start to the merge.
class Intervals {
 public:
  explicit Intervals(const RuleOptions& options)
      : skip(options.integer("skip")), wait(options.integer("wait")), options_(options) {}

  // At a plateau: halves, and from one back to the longest.
  void tell(double loss) {
    if (loss < best_ * (1 - options_.number("threshold"))) {
      best_ = loss;
      worse_ = 0;
    } else if (++worse_ > options_.integer("patience")) {
      worse_ = 0;
      const int64_t longest = options_.integer("max_skip");
      const bool restart = skip == 1;
      const int64_t quarter = std::max<int64_t>(1, longest / 4);
      wait = skip == 0 ? wait : restart ? quarter : std::max<int64_t>(1, wait - 1);
      local_skip = skip == 0 ? local_skip
                   : restart ? quarter
                             : std::max<int64_t>(1, local_skip / 2);
      skip = skip == 0 ? 0 : restart ? longest : skip / 2;
    }
  }

  int64_t skip;
  int64_t wait;
  int64_t local_skip = 1;

 private:
  const RuleOptions& options_;
  double best_ = std::numeric_limits<double>::infinity();
  int64_t worse_ = 0;
};

class DasoReplay {
 public:
  DasoReplay(const StageRun& run, Judge& judge)
      : run_(run),
        judge_(judge),
        intervals_(run.options),
        node_size_(size_of_node(run)),
        num_nodes_(run.num_replicas() / node_size_),
        since_equal_(static_cast<std::size_t>(run.num_replicas()), 0) {
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      weights_.push_back(run.initial.clone());
    }
  }

  void check() {
    for (int64_t step = 0; step < run_.num_steps(); ++step) {
      update(step);
      judge_.expect_all_after(step, weights_);
    }
    if (under_way_) {
      merge();
    }
    expect_end(run_, judge_, weights_);
  }

 private:
  struct UnderWay {
    at::Tensor sum;
    int64_t wait;
    int64_t updates = 0;
  };

  void update(int64_t step) {
    const int64_t number = run_.first_step + step;
    const int64_t cooldown = run_.options.integer("cooldown");
    const bool blocks = intervals_.skip == 0 || number < run_.options.integer("warmup") ||
                        (cooldown > 0 && number >= cooldown);
    make_steps(step, blocks || step % intervals_.local_skip == 0);
    if (under_way_ && (++under_way_->updates >= under_way_->wait || blocks)) {
      merge();
    }
    if (blocks) {
      since_sent_ = 0;
      average(step);
      return;
    }
    if (++since_sent_ >= intervals_.skip) {
      since_sent_ = 0;
      send();
    }
    if (const int64_t period = run_.options.integer("period"); period > 0) {
      observe(step, period);
    }
  }

  double node_samples(int node, int64_t step) const {
    double samples = 0;
    for (int place = 0; place < node_size_; ++place) {
      samples += run_.own(step, node * node_size_ + place);
    }
    return samples;
  }

  void make_steps(int64_t step, bool sums) {
    differs_ = differs_ || (node_size_ > 1 && !sums);
    for (int replica = 0; replica < run_.num_replicas(); ++replica) {
      const int node = replica / node_size_;
      at::Tensor gradient = run_.gradient(step, replica).clone();
      double samples = run_.own(step, replica);
      if (sums) {
        gradient.zero_();
        for (int place = 0; place < node_size_; ++place) {
          gradient.add_(run_.gradient(step, node * node_size_ + place));
        }
        samples = node_samples(node, step);
      }
      if (samples > 0) {
        weights(replica).add_(judge_.optimize(replica, step, run_.weights_before(step, replica),
                                              gradient, samples, run_.rate(step)));
      }
      since_equal_[static_cast<std::size_t>(replica)] += differs_ ? run_.own(step, replica) : 0;
    }
  }

  at::Tensor& weights(int replica) { return weights_[static_cast<std::size_t>(replica)]; }

  // Within nodes, by samples since they were last equal.
  void average_nodes() {
    for (int node = 0; node < num_nodes_ && differs_; ++node) {
      const auto first = static_cast<std::size_t>(node) * static_cast<std::size_t>(node_size_);
      double samples = 0;
      for (std::size_t r = first; r < first + static_cast<std::size_t>(node_size_); ++r) {
        samples += since_equal_[r];
      }
      at::Tensor mean = at::zeros_like(run_.initial);
      for (std::size_t r = first; r < first + static_cast<std::size_t>(node_size_); ++r) {
        mean.add_(weights_[r], samples > 0 ? since_equal_[r] / samples : 0);
      }
      for (std::size_t r = first; r < first + static_cast<std::size_t>(node_size_); ++r) {
        weights_[r] = samples > 0 ? mean.clone() : weights_[r];
        since_equal_[r] = 0;
      }
    }
  }

  void average(int64_t step) {
    average_nodes();
    if (num_nodes_ == 1) {
      return;
    }
    at::Tensor mean = at::zeros_like(run_.initial);
    for (int node = 0; node < num_nodes_; ++node) {
      mean.add_(weights(node * node_size_ + turn_), node_samples(node, step) / run_.all(step));
    }
    std::generate(weights_.begin(), weights_.end(), [&] { return mean.clone(); });
    turn_ = (turn_ + 1) % node_size_;
  }

  void send() {
    if (under_way_) {
      merge();
    }
    average_nodes();
    if (num_nodes_ == 1) {
      return;
    }
    under_way_ = UnderWay{at::zeros_like(run_.initial), intervals_.wait};
    for (int node = 0; node < num_nodes_; ++node) {
      under_way_->sum.add_(weights(node * node_size_ + turn_));
    }
    turn_ = (turn_ + 1) % node_size_;
    if (under_way_->wait == 0) {
      merge();
    }
  }

  // w = (f w + sum) / (f + nodes), f = twice the updates since the sum was started, 1 at once.
  void merge() {
    const double f = under_way_->updates == 0 ? 1 : 2 * static_cast<double>(under_way_->updates);
    for (at::Tensor& own : weights_) {
      own.mul_(f).add_(under_way_->sum).div_(f + num_nodes_);
    }
    under_way_.reset();
  }

  void observe(int64_t step, int64_t period) {
    for (int replica = 0; replica < run_.num_replicas(); ++replica) {
      const double loss =
          run_.own_losses[static_cast<std::size_t>(step)][static_cast<std::size_t>(replica)];
      if (!std::isnan(loss)) {
        loss_ += loss;
        loss_samples_ += run_.own(step, replica);
      }
    }
    if (++num_observed_ == period) {
      if (loss_samples_ > 0) {
        intervals_.tell(loss_ / loss_samples_);
      }
      loss_ = loss_samples_ = 0;
      num_observed_ = 0;
    }
  }

  const StageRun& run_;
  Judge& judge_;
  Intervals intervals_;
  int node_size_;
  int num_nodes_;
  std::vector<at::Tensor> weights_;
  std::vector<double> since_equal_;  // samples, by replica
  bool differs_ = false;
  std::optional<UnderWay> under_way_;
  int64_t since_sent_ = 0;
  int turn_ = 0;
  double loss_ = 0;
  double loss_samples_ = 0;
  int64_t num_observed_ = 0;
};

}  // namespace

void check_daso(const StageRun& run, Judge& judge) { DasoReplay(run, judge).check(); }

void check_decentralized(const StageRun& run, Judge& judge) {
  const auto replicas = static_cast<std::size_t>(run.num_replicas());
  std::vector<at::Tensor> weights(replicas, run.initial);
  const auto mix = [&](int64_t round) {
    std::vector<at::Tensor> mixed(replicas);
    for (std::size_t r = 0; r < replicas; ++r) {
      const std::vector<int> taken = taken_by(run, round, static_cast<int>(r));
      mixed[r] = weights[r].clone();
      for (const int other : taken) {
        mixed[r].add_(weights[static_cast<std::size_t>(other)]);
      }
      mixed[r].div_(static_cast<double>(taken.size() + 1));
    }
    weights = mixed;
  };
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    mix(step);
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      weights[static_cast<std::size_t>(replica)].add_(judge.optimize_own(replica, step));
    }
    judge.expect_all_after(step, weights);
  }
  mix(run.num_steps());
  expect_end(run, judge, weights);
}

}  // namespace millrace::internal
