// TensorPort: a rule's port on tensors and a Communicator. Waits block, so a rule's tasks never
// stop half-way here. Used by Exchange only, from one thread: the worker's for a replica, the
// server's for a server.
//
// A message is one tensor: the vector's elements and, behind them, room for the numbers. A vector
// of the rule's own has that room too, so give() and receive() hand memory over without a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/comm/communicator.h"
#include "millrace/exchange/background.h"
#include "millrace/rule/port.h"

namespace millrace {

// The boxes of a rank at which threads of a stage's exchange receive.
enum class RuleLane { kReplica, kServer, kBackground };
inline uint16_t rule_lane(int stage, RuleLane lane) {
  return static_cast<uint16_t>(1 + 3 * stage + static_cast<int>(lane));
}

// Who meets, and where. `member`: among `replicas`, or Port::kServer.
struct PortPlace {
  int stage = 0;
  int member = 0;
  std::vector<int> replicas;  // world ranks of the stage, ascending
  std::vector<int> nodes;     // of each, numbered from 0
  at::ScalarType dtype = at::kFloat;
  int64_t elements = 0;  // of weights and gradient
};

// A reduction in the background, for the trace: from when the rule asked for it until it was done;
// by monotonic_s().
struct BesideReduction {
  double start_s = 0;
  double end_s = 0;
  Transfer transfer{};
};

// The optimizer's step on a flat gradient sum: `target` = `current` + delta, or the delta alone.
using OptimizerStep = std::function<void(const at::Tensor& current, at::Tensor& target,
                                         at::Tensor& gradient, double samples, bool delta_only)>;

// What a rule's own work takes on an emulated device: returns when so many times an update's
// seconds have passed since `start_s`. Empty: it takes what it takes.
using RuleWork = std::function<void(double start_s, double updates)>;

class TensorPort final : public Port {
 public:
  // `communicator` is the thread's own; one that receives at the lanes of the stage's rules.
  TensorPort(PortPlace place, Communicator& communicator);

  // Elements of a message that are its vector's.
  static int64_t vector_elements(const at::Tensor& message);

  // What the tasks see from now on. Undefined tensors: not there.
  void bind(const at::Tensor& gradient, const at::Tensor& current, const at::Tensor& target);
  void bind(const Update& update) { update_ = update; }
  void bind(double loss) { loss_ = loss; }
  void bind(OptimizerStep optimizer) { optimizer_ = std::move(optimizer); }
  void bind(RuleWork work) { work_ = std::move(work); }
  // Waits until the work since the last message, reduction or end of a task is done; does nothing
  // where no RuleWork is bound.
  void finish_work();
  // A tensor of the caller's as a vector, until the next call.
  Vector& wrap(const at::Tensor& tensor) {
    set(wrapped_, tensor);
    return wrapped_;
  }
  // What was waited and moved since the last call.
  Transfer take_transfer() { return std::exchange(transfer_, Transfer{}); }
  // The background reductions that were awaited since the last call, in the order of asking.
  std::vector<BesideReduction> take_beside() { return std::exchange(awaited_, {}); }

  int member() const override { return place_.member; }
  int num_members() const override { return static_cast<int>(place_.replicas.size()); }
  int node_of(int member) const override {
    return place_.nodes.at(static_cast<std::size_t>(member));
  }
  int64_t num_elements() const override { return place_.elements; }
  const Update& update() const override { return update_; }
  Vector& gradient() override;
  Vector& current() override;
  Vector& weights() override;
  Vector& make_vector(int64_t size) override;
  void apply(Vector& gradient, double samples) override;
  void apply_to(Vector& delta, Vector& gradient, double samples) override;
  void send(int to, int kind, const Vector* vector, const Numbers& numbers) override;
  void give(int to, int kind, Vector& vector, const Numbers& numbers) override;
  int make_group(const std::vector<int>& members) override;
  int64_t start_all_reduce(Vector& vector, Range range, int group) override;
  double now_s() const override { return monotonic_s(); }
  double loss() const override { return loss_; }
  void charge(int64_t elements) override;

 protected:
  bool ready() override;
  Message take() override { return taken_; }

 private:
  // A vector and the memory behind it: `size` elements, and the tail where it is the rule's own.
  struct TensorVector final : Vector {
    at::Tensor tensor;  // 1-D; undefined: no data
    bool has_tail = false;
  };
  struct Meeting {
    std::vector<int> ranks;
    std::unique_ptr<Group> group;       // of the thread's own
    std::unique_ptr<Group> background;  // of the background's; made there
  };

  static TensorVector& own(Vector& vector) { return static_cast<TensorVector&>(vector); }
  void add_work(double updates);
  void set(TensorVector& vector, const at::Tensor& tensor);
  at::Tensor new_memory(int64_t size) const;
  at::Tensor elements(Vector& vector) const;  // without the tail
  MessageTag tag(int to, int from, int kind) const;
  int rank_of(int member) const;
  void post(int to, int kind, at::Tensor message, int64_t size, const Numbers& numbers);
  void adopt(at::Tensor message, Vector* into);
  static void reduce(Group& group, const at::Tensor& tensor, Range range, Transfer& transfer);

  const PortPlace place_;
  Communicator& communicator_;
  Update update_;
  double loss_ = 0;
  OptimizerStep optimizer_;
  RuleWork work_;
  double work_began_s_ = 0;
  double work_updates_ = 0;  // to be waited for, from work_began_s_ on
  TensorVector gradient_;
  TensorVector current_;
  TensorVector target_;
  TensorVector wrapped_;
  std::vector<std::unique_ptr<TensorVector>> vectors_;
  std::deque<Meeting> meetings_;  // by group; places stay
  Message taken_;
  Transfer transfer_;
  std::unique_ptr<Communicator> beside_;  // the background's
  int64_t num_started_ = 0;
  std::map<int64_t, BesideReduction> started_;  // background reductions that are done, by number
  std::vector<BesideReduction> awaited_;
  std::mutex started_mutex_;
  Background background_;  // ends before what its work uses
};

}  // namespace millrace
