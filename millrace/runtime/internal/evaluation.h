// The handler of evaluation: forwards alone, on the newest weights. See Worker.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "millrace/runtime/worker.h"

namespace millrace {

class Worker::Evaluation final : public ActionHandler {
 public:
  Evaluation(Worker& worker, const LoweredSchedule& lowered, const Feed& feed);

  const LossSums& sums() const { return sums_; }

  bool enter_step(int64_t /*step*/) override { return true; }
  void forward(const Action& action) override;
  void send(const Action& action) override;
  void receive(const Action& action) override;

  void backward(const Action& action) override { refuse(action); }
  void input_gradient(const Action& action) override { refuse(action); }
  void weight_gradient(const Action& action) override { refuse(action); }
  void reduce(const Action& action) override { refuse(action); }
  void norm(const Action& action) override { refuse(action); }
  void step(const Action& action) override { refuse(action); }
  void gather(const Action& action) override { refuse(action); }
  void free(const Action& action) override { refuse(action); }

 private:
  struct Lane {
    HeldStage* held;
    Neighbours neighbours;
    Tensors outputs;  // of the forward that ran last
  };
  [[noreturn]] static void refuse(const Action& action);
  Lane& lane(const Action& action) { return lanes_.at(action.stage); }
  // What a forward to come takes.
  Tensors& inputs(int stage, int64_t microbatch);

  Worker& worker_;
  const Feed& feed_;
  std::map<int, Lane> lanes_;                          // by stage
  std::set<std::pair<int, int64_t>> runs_;             // stages and microbatches of this rank
  std::map<std::pair<int, int64_t>, Tensors> inputs_;  // by stage and microbatch
  LossSums sums_;
};

}  // namespace millrace
