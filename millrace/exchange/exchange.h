// Exchange: runs the exchange rule of one replica of a stage on tensors: its tasks on the worker's
// thread, its server's, where the rule has one and this is replica 0, on a thread of its own.
//
// One object a replica, used from its rank's thread. Calls come in the order of Rule: begin(), for
// each update ready(), reduce() and step(), then finish(); settle() between segments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/exchange/tensor_port.h"
#include "millrace/rule/rule.h"

namespace millrace {

struct ExchangeSetup {
  std::string rule = "bsp";
  Value rule_options = Value::map();
  uint64_t seed = 1;
  int stage = 0;
  std::vector<int> replicas;  // world ranks, ascending, this one among them
  std::vector<int> nodes;     // of each; empty: all on one
  at::ScalarType dtype = at::kFloat;
  int64_t elements = 0;  // of weights and gradient
  RuleWork work{};       // of an emulated device; called by the server's thread, too
};

// The stage's flat buffers. In step() `target` becomes the next version; it may be `current`, the
// newest, itself. Elsewhere both are the newest.
struct StageTensors {
  at::Tensor gradient;
  at::Tensor current;
  at::Tensor target;
  // Of the update: mean over this replica's samples; NaN on stages that see none.
  double loss = std::numeric_limits<double>::quiet_NaN();
};

class Exchange {
 public:
  // Collective over the replicas. Throws what find_rule, settle_rule and the rule's factory throw.
  Exchange(const ExchangeSetup& setup, Communicator& communicator);
  // With a rule of one's own; for tests.
  Exchange(const ExchangeSetup& setup, const RuleTraits& traits, std::unique_ptr<Rule> rule,
           Communicator& communicator);
  ~Exchange();

  const RuleTraits& traits() const { return traits_; }
  bool announced() const { return announced_; }  // ready() was called for the update at hand

  // All of these block while the rule waits for others, and throw what the communicator's calls
  // throw. Add to `transfer` what was waited and moved.
  //
  // Of a segment, on the newest weights.
  void begin(const at::Tensor& weights);
  // Elements [range) of the gradient sums are final, and the update's others not all yet: during a
  // backward, for rules that overlap.
  void ready(const Update& update, const StageTensors& tensors, Range range, Transfer& transfer);
  // The schedule's REDUCE: all gradient sums are final. Throws kInternal when called again before
  // step(), which would sum the sums.
  void reduce(const Update& update, const StageTensors& tensors, Transfer& transfer);
  // The schedule's STEP. `optimizer` is called as the rule says, at most from inside this call.
  void step(const Update& update, const StageTensors& tensors, const OptimizerStep& optimizer,
            Transfer& transfer);
  // Of a segment: the newest version itself may change.
  void finish(const StageTensors& tensors, const OptimizerStep& optimizer, Transfer& transfer);
  // Background reductions that were awaited since the last call, in the order of asking.
  std::vector<BesideReduction> take_beside() { return port_.take_beside(); }
  // What the replicas agree on; undefined where their weights are equal anyway.
  at::Tensor settle(const at::Tensor& weights);

 private:
  void bind(const StageTensors& tensors);
  void run(Task task, Transfer& transfer);
  void start_server(const at::Tensor& weights);
  void stop_server();

  RuleTraits traits_;
  std::unique_ptr<Rule> rule_;
  Communicator& communicator_;
  PortPlace place_;
  // Ports outlive what runs on them.
  std::unique_ptr<Communicator> server_communicator_;
  std::unique_ptr<TensorPort> server_port_;  // of replica 0, where the rule serves
  TensorPort port_;
  std::thread server_;
  std::exception_ptr server_failure_;  // read after server_ was joined
  bool reduced_ = false;               // REDUCE ran and its STEP has not
  bool announced_ = false;             // parts of the gradient were announced before REDUCE
};

}  // namespace millrace
