// Asynchronous SGD: every `tau` updates a replica sends the sum of its deltas since the last time
// and gets the server's vector as it was before, so both can be under way at once; both add the
// sum. So the replica then has exactly what the server had right after its push. Replicas never
// wait for each other.
//
// Source: Theano-MPI: a Theano-based Distributed Training Framework, arXiv:1605.08325, its ASGD
// rule, there meant for every update (tau = 1).
#include "millrace/rule/arithmetic.h"
#include "millrace/rule/internal/delta_rule.h"

namespace millrace::builtin_rules {
namespace {

class Asgd final : public DeltaRule {
 public:
  explicit Asgd(int64_t tau) : DeltaRule(tau), tau_(tau) {}

  Task step(Port& port) override {
    Vector& delta = update_locally(port);
    if (++num_updates_ % tau_ != 0) {
      sum(port, port.weights(), port.current(), delta);
      co_return;
    }
    request(port, kAdds | kAsks, &gathered());
    co_await reply_from(port);
    sum(port, port.weights(), reply(), gathered());
    clear();
  }

 private:
  bool replies_before_adding() const override { return true; }

  int64_t tau_;
  int64_t num_updates_ = 0;
};

}  // namespace

std::unique_ptr<Rule> asgd(const RuleConfig& config) {
  check_rule_config(config);
  const int64_t tau = config.options.integer("tau");
  if (tau < 1) {
    refuse_option(config, "tau", "a whole number of at least 1");
  }
  return std::make_unique<Asgd>(tau);
}

}  // namespace millrace::builtin_rules
