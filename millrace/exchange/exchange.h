// Exchange: the one interpreter of rules on tensors. Feeds a rule's state machine with events and
// executes its actions on the stage's flat gradient buffer. One object a rank, used from that
// rank's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/rule/rule.h"

namespace millrace {

class Exchange {
 public:
  // `group` are the replicas of one stage.
  Exchange(std::unique_ptr<Rule> rule, std::unique_ptr<Group> group);

  // The schedule's REDUCE: the gradient sums in `gradient` (1-D, contiguous) are final on this
  // replica. Executes what the rule asks for. Adds to `transfer` what was waited and moved. Throws
  // what Group::all_reduce_sum throws; kInternal when called again before step(), which would sum
  // the sums.
  void reduce(at::Tensor& gradient, Transfer& transfer);

  // The schedule's STEP: calls `update` exactly once when the rule says so. Throws kInternal when
  // the rule has not released the worker, since then the schedule and the rule disagree.
  void step(const std::function<void()>& update);

 private:
  void execute(const RuleActions& actions, at::Tensor& gradient, Transfer& transfer);

  std::unique_ptr<Rule> rule_;
  std::unique_ptr<Group> group_;
  bool update_due_ = false;
  bool released_ = false;
};

// The exchange of one replica by the rule's name. Collective over `replicas` (world ranks of the
// stage, ascending).
std::unique_ptr<Exchange> make_exchange(const std::string& rule, int stage,
                                        const std::vector<int>& replicas,
                                        Communicator& communicator);

}  // namespace millrace
