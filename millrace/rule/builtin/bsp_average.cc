// Bulk-synchronous parallel by averaged weights (AWAGD): every replica's optimizer makes its own
// step on the gradient of its own samples, then weights are averaged, each replica weighing by its
// samples of this update. Each keeps its own optimizer state.
//
// One worker with the joined batch, and so `bsp`, follow the same path to rounding if the optimizer
// is linear in the gradient (SGD, momentum, decay) and the replicas' shares of the samples stay the
// same; Adam does not. In the names of the paper, AWAGD with k times the learning rate on k workers
// is SUBGD of undivided sums at that rate: both are `bsp` at k times the rate.
//
// Source: Theano-MPI: a Theano-based Distributed Training Framework, arXiv:1605.08325, its BSP
// rule, sync type `avg`. Weighing by samples is ours: there all workers hold equally many.
#include "millrace/rule/arithmetic.h"
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

class BspAverage final : public Rule {
 public:
  Task step(Port& port) override {
    const Update& update = port.update();
    if (update.own_samples > 0) {
      port.apply(port.gradient(), update.own_samples);
    } else {
      copy(port, port.weights(), port.current());
    }
    if (update.samples > 0) {
      scale(port, port.weights(), update.own_samples / update.samples);
      co_await port.all_reduce(port.weights());
    }
  }
};

}  // namespace

std::unique_ptr<Rule> bsp_average(const RuleConfig& config) {
  check_rule_config(config);
  return std::make_unique<BspAverage>();
}

}  // namespace millrace::builtin_rules
