// Downpour SGD: a replica takes steps of its own, adds the sum of its deltas to the server's vector
// every `n_push` updates and takes over the server's vector every `n_fetch` updates; a push that is
// due at the same time goes first. A fetch in between leaves what is gathered for the next push.
// A warm start, which its source asks for, is a run of one replica that this one resumes.
//
// Source: GPU Asynchronous Stochastic Gradient Descent to Speed Up Neural Network Training,
// arXiv:1312.6186; after Dean et al., Large Scale Distributed Deep Networks, NIPS 2012.
#include "millrace/rule/arithmetic.h"
#include "millrace/rule/internal/delta_rule.h"

namespace millrace::builtin_rules {
namespace {

class Downpour final : public DeltaRule {
 public:
  Downpour(int64_t n_fetch, int64_t n_push)
      : DeltaRule(n_push), n_fetch_(n_fetch), n_push_(n_push) {}

  Task step(Port& port) override {
    Vector& delta = update_locally(port);
    ++num_updates_;
    const bool pushes = num_updates_ % n_push_ == 0;
    const bool fetches = num_updates_ % n_fetch_ == 0;
    if (!fetches) {
      sum(port, port.weights(), port.current(), delta);
    }
    if (pushes || fetches) {
      request(port, (pushes ? kAdds : 0) | (fetches ? kAsks : 0), pushes ? &gathered() : nullptr);
    }
    if (pushes) {
      clear();
    }
    if (fetches) {
      co_await reply_from(port);
      copy(port, port.weights(), reply());
    }
  }

 private:
  int64_t n_fetch_;
  int64_t n_push_;
  int64_t num_updates_ = 0;
};

}  // namespace

std::unique_ptr<Rule> downpour(const RuleConfig& config) {
  check_rule_config(config);
  const int64_t n_fetch = config.options.integer("n_fetch");
  const int64_t n_push = config.options.integer("n_push");
  if (n_fetch < 1) {
    refuse_option(config, "n_fetch", "a whole number of at least 1");
  }
  if (n_push < 1) {
    refuse_option(config, "n_push", "a whole number of at least 1");
  }
  return std::make_unique<Downpour>(n_fetch, n_push);
}

}  // namespace millrace::builtin_rules
