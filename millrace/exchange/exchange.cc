#include "millrace/exchange/exchange.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "millrace/base/error.h"

namespace millrace {

Exchange::Exchange(std::unique_ptr<Rule> rule, std::unique_ptr<Group> group)
    : rule_(std::move(rule)), group_(std::move(group)) {
  MILLRACE_CHECK(rule_ != nullptr && group_ != nullptr);
}

void Exchange::reduce(at::Tensor& gradient, Transfer& transfer) {
  MILLRACE_CHECK(gradient.defined() && gradient.dim() == 1 && gradient.is_contiguous(),
                 "gradient sums must be one flat buffer");
  MILLRACE_CHECK(!update_due_ && !released_, "REDUCE again before STEP");
  execute(rule_->on(GradientsReady{{0, gradient.numel()}, true}), gradient, transfer);
}

void Exchange::step(const std::function<void()>& update) {
  MILLRACE_CHECK(released_, "STEP, but the exchange rule has not released the worker");
  released_ = false;
  if (std::exchange(update_due_, false)) {
    update();
  }
}

void Exchange::execute(const RuleActions& actions, at::Tensor& gradient, Transfer& transfer) {
  for (const RuleAction& action : actions) {
    if (const auto* reduce = std::get_if<AllReduceSum>(&action)) {
      const Range range = reduce->range;
      MILLRACE_CHECK(
          0 <= range.begin && range.begin <= range.end && range.end <= gradient.numel(),
          fmt::format("range [{}, {}) of {} elements", range.begin, range.end, gradient.numel()));
      at::Tensor part = gradient.narrow(0, range.begin, range.size());
      const Transfer moved = group_->all_reduce_sum(part);
      transfer.wait_s += moved.wait_s;
      transfer.bytes += moved.bytes;
      execute(rule_->on(AllReduced{range, reduce->last}), gradient, transfer);
    } else if (std::holds_alternative<ApplyUpdate>(action)) {
      MILLRACE_CHECK(!update_due_, "the exchange rule asked for two updates at once");
      update_due_ = true;
    } else {
      released_ = true;
    }
  }
}

std::unique_ptr<Exchange> make_exchange(const std::string& rule, int stage,
                                        const std::vector<int>& replicas,
                                        Communicator& communicator) {
  const RuleEntry& entry = find_rule(rule);
  std::unique_ptr<Group> group = communicator.group(replicas, stage);
  const RuleConfig config{.num_replicas = static_cast<int>(replicas.size()),
                          .replica = group->member()};
  return std::make_unique<Exchange>(entry.make(config), std::move(group));
}

}  // namespace millrace
