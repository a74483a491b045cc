// Elastic averaging: replicas train apart and every `tau` updates of its own each exchanges weights
// with the server's centre. Both move towards what the other was before the exchange, by the same
// share, so their sum stays. The server takes one at a time: all at once would be stable only while
// alpha (replicas + 1) < 2.
//
// Source: Theano-MPI: a Theano-based Distributed Training Framework, arXiv:1605.08325, its EASGD
// rule; after Zhang, Choromanska, LeCun, arXiv:1412.6651. There one worker validates and takes over
// the centre for it, which breaks the sum; here settle() copies.
#include "millrace/rule/arithmetic.h"
#include "millrace/rule/internal/first_come.h"

namespace millrace::builtin_rules {
namespace {

class Easgd final : public FirstCome<ServerRule> {
 public:
  Easgd(int64_t tau, double alpha) : tau_(tau), alpha_(alpha) {}

  Task step(Port& port) override {
    if (port.update().own_samples > 0) {
      port.apply(port.gradient(), port.update().own_samples);
    } else {
      copy(port, port.weights(), port.current());
    }
    if (++num_updates_ % tau_ == 0) {
      request(port, kAdds | kAsks, &port.weights());
      co_await reply_from(port);
      move_towards(port, port.weights(), reply(), alpha_);
    }
  }

 private:
  void on_request(Port& port, const Message& request) override {
    port.send(request.from, kReply, shared());
    move_towards(port, shared(), incoming(), alpha_);
  }

  int64_t tau_;
  double alpha_;
  int64_t num_updates_ = 0;
};

}  // namespace

std::unique_ptr<Rule> easgd(const RuleConfig& config) {
  check_rule_config(config);
  const int64_t tau = config.options.integer("tau");
  const double alpha = config.options.number("alpha");
  if (tau < 1) {
    refuse_option(config, "tau", "a whole number of at least 1");
  }
  if (!(alpha >= 0 && alpha <= 1)) {
    refuse_option(config, "alpha", "a number from 0 to 1");
  }
  return std::make_unique<Easgd>(tau, alpha);
}

}  // namespace millrace::builtin_rules
