// Bulk-synchronous parallel: the sum of per-sample gradients over the replicas, range by range as
// they become final; divided once, by the update's samples, in the step. Nobody goes on before the
// update is made.
//
// Source: Theano-MPI: a Theano-based Distributed Training Framework, arXiv:1605.08325, its BSP
// rule. There the velocities are summed (or the weights averaged) and divided by the number of
// workers; here plain gradients are, by samples, which follows the same path when all hold equally
// many.
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

class Bsp final : public Rule {
 public:
  Task gradients_ready(Port& port, Range range, bool /*last*/) override {
    co_await port.all_reduce(port.gradient(), range);
  }

  Task step(Port& port) override {
    port.apply(port.gradient(), port.update().samples);
    co_return;
  }
};

}  // namespace

std::unique_ptr<Rule> bsp(const RuleConfig& config) {
  check_rule_config(config);
  return std::make_unique<Bsp>();
}

}  // namespace millrace::builtin_rules
