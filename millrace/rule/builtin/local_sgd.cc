// Local SGD: replicas train on their own and average their weights every `tau` updates and at the
// end of a segment, each weighing by its samples since the last average. Optimizer state stays
// with its replica. tau = 1 is `bsp-average`.
//
// The common baseline of the field: Stich, "Local SGD Converges Fast and Communicates Little",
// arXiv:1805.09767, algorithm 1; weighing by samples and momentum kept through averages are our
// choices.
#include "millrace/rule/arithmetic.h"
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

class LocalSgd final : public Rule {
 public:
  explicit LocalSgd(int64_t tau) : tau_(tau) {}

  Task step(Port& port) override {
    const Update& update = port.update();
    if (update.own_samples > 0) {
      port.apply(port.gradient(), update.own_samples);
    } else {
      copy(port, port.weights(), port.current());
    }
    own_samples_ += update.own_samples;
    samples_ += update.samples;
    ++num_updates_;
    if (num_updates_ == tau_) {
      co_await average(port);
    }
  }

  Task finish(Port& port) override { co_await average(port); }

 private:
  Task average(Port& port) {
    // Without samples nobody has moved since the last average, and all know it.
    if (samples_ > 0) {
      scale(port, port.weights(), own_samples_ / samples_);
      co_await port.all_reduce(port.weights());
    }
    own_samples_ = 0;
    samples_ = 0;
    num_updates_ = 0;
  }

  int64_t tau_;
  // Since the last average; the second is the same on all replicas.
  double own_samples_ = 0;
  double samples_ = 0;
  int64_t num_updates_ = 0;
};

}  // namespace

std::unique_ptr<Rule> local_sgd(const RuleConfig& config) {
  check_rule_config(config);
  const int64_t tau = config.options.integer("tau");
  if (tau < 1) {
    refuse_option(config, "tau", "a number of updates of at least 1");
  }
  return std::make_unique<LocalSgd>(tau);
}

}  // namespace millrace::builtin_rules
