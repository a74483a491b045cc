// Bulk-synchronous parallel: the sum of per-sample gradients over the replicas, range by range as
// they become final; divided once, by the update's samples, in the step. Nobody goes on before the
// update is made.
//
// Source: Theano-MPI: a Theano-based Distributed Training Framework, arXiv:1605.08325, its BSP
// rule. There the velocities are summed (or the weights averaged) and divided by the number of
// workers; here plain gradients are, by samples, which follows the same path when all hold equally
// many.
#include <fmt/format.h>

#include "millrace/base/error.h"
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

class Bsp final : public Rule {
 public:
  RuleActions on(const RuleEvent& event) override {
    return std::visit([this](const auto& e) { return handle(e); }, event);
  }

 private:
  RuleActions handle(const GradientsReady& event) {
    MILLRACE_CHECK(event.range.begin >= 0 && event.range.size() >= 0,
                   fmt::format("range [{}, {})", event.range.begin, event.range.end));
    MILLRACE_CHECK(!last_seen_, "gradients became ready after the last range of this update");
    last_seen_ = event.last;
    ++num_pending_;
    return {all_reduce_sum(event.range, event.last)};
  }

  // The update waits for every range: engines may complete the last one asked for before others.
  RuleActions handle(const AllReduced&) {
    MILLRACE_CHECK(num_pending_ > 0, "an all-reduce ended that was not asked for");
    --num_pending_;
    if (!last_seen_ || num_pending_ > 0) {
      return {};
    }
    last_seen_ = false;
    return {apply_update(), release_worker()};
  }

  int64_t num_pending_ = 0;
  bool last_seen_ = false;
};

}  // namespace

std::unique_ptr<Rule> bsp(const RuleConfig& config) {
  check_rule_config(config);
  return std::make_unique<Bsp>();
}

}  // namespace millrace::builtin_rules
