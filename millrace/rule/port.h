// Port: what an exchange rule sees of the replica that it works for, and all that it can do: flat
// vectors, the optimizer, messages, reductions. `exchange` makes one of tensors and a Communicator,
// `sim` one of sizes and virtual time, tests one of plain memory.
//
// Source of the split between rule (when), exchanger (what) and strategy (how): Theano-MPI,
// arXiv:1605.08325, section 3.
//
// One object a replica, another for the server where the rule has one; each is used from one thread
// at a time.
#pragma once

#include <array>
#include <coroutine>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

// Elements [begin, end) of a stage's flat buffers.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// A flat array of a replica, float32 or float64. `data` is null where only sizes are simulated:
// arithmetic goes through rule/arithmetic.h, which knows.
struct Vector {
  void* data = nullptr;
  int64_t size = 0;
  bool is_double = false;
  int64_t bytes() const { return size * (is_double ? 8 : 4); }
};

// A few numbers beside a message's vector.
using Numbers = std::array<double, 4>;

struct Message {
  bool here = true;  // false: poll() found none
  int from = 0;      // member, or kServer
  int kind = 0;      // as the rule numbers them, 0 to 15
  Numbers numbers{};
};

// The update at hand.
struct Update {
  int64_t step = 0;        // the run's number of the last step that it applies
  double samples = 0;      // of all replicas
  double own_samples = 0;  // of this one; may be 0
  double lr = 0;
};

class Port;

// What a rule awaits: `const Message m = co_await port.receive(...)`. One at a time.
class [[nodiscard]] Wait {
 public:
  explicit Wait(Port& port) : port_(&port) {}
  bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter) const;
  Message await_resume() const;

 private:
  Port* port_;
};

class Port {
 public:
  static constexpr int kServer = -1;
  static constexpr int kEverybody = 0;  // the group of all members

  virtual ~Port() = default;

  // --- who
  virtual int member() const = 0;  // 0 to num_members() - 1, or kServer
  virtual int num_members() const = 0;
  // Members of one node have fast links between them: here, one process. Numbered from 0 in the
  // order of members.
  virtual int node_of(int member) const = 0;

  // --- vectors; references stay valid as long as the port
  virtual int64_t num_elements() const = 0;  // of weights and gradient
  virtual const Update& update() const = 0;  // valid in gradients_ready() and step()
  // In step(): this replica's mean loss over its samples of the update; NaN where it is unknown, as
  // in stages before the last and in the simulator.
  virtual double loss() const = 0;
  // Sums of per-sample gradients over this replica's samples. The optimizer zeroes what it applied.
  virtual Vector& gradient() = 0;
  virtual Vector& current() = 0;  // newest weights: not to be written
  // In step(): the version being made, undefined until apply() or a copy filled it; may be the same
  // memory as current(). Elsewhere: the newest weights.
  virtual Vector& weights() = 0;
  // A vector of the rule's own, of zeros; kept as long as the port. `size` of num_elements() or
  // any.
  virtual Vector& make_vector(int64_t size) = 0;

  // --- the optimizer's step on `gradient` (gradient() or a vector like it, zeroed afterwards), a
  // sum over `samples` (> 0)
  // weights() = current() + delta. The delta is rounded before it is added.
  virtual void apply(Vector& gradient, double samples) = 0;
  // The same, but only the delta, into a vector of the rule's own; weights() stays as it is.
  virtual void apply_to(Vector& delta, Vector& gradient, double samples) = 0;

  // --- messages to one member or kServer. Sends never block; messages of equal sender, receiver
  // and kind are taken in the order of sending. `vector` null: numbers only.
  virtual void send(int to, int kind, const Vector* vector, const Numbers& numbers) = 0;
  void send(int to, int kind, const Vector& vector) { send(to, kind, &vector, {}); }
  // The same without a copy: `vector`, of the rule's own, has undefined values of the same size
  // afterwards.
  virtual void give(int to, int kind, Vector& vector, const Numbers& numbers) = 0;
  void give(int to, int kind, Vector& vector) { give(to, kind, vector, {}); }
  // `into`: a vector of the rule's own that the message's takes the place of, size included; null
  // where none is expected.
  Wait receive(int from, int kind, Vector* into) {
    want({Want::kFrom, from, kind, into, {}, 0, 0});
    return Wait(*this);
  }
  // The next message in order of arrival, from anybody and of any kind.
  Wait receive_any(Vector* into) {
    want({Want::kAny, 0, 0, into, {}, 0, 0});
    return Wait(*this);
  }
  // The same if one has arrived by now; else `here` is false.
  Wait poll(Vector* into) {
    want({Want::kPoll, 0, 0, into, {}, 0, 0});
    return Wait(*this);
  }

  // --- reductions: sums over a group's members, in place; all members call them in the same order
  // Collective over `members` (ascending, this one among them), in begin(); gives the group's
  // number.
  virtual int make_group(const std::vector<int>& members) = 0;
  Wait all_reduce(Vector& vector, int group = kEverybody) {
    return all_reduce(vector, {0, vector.size}, group);
  }
  Wait all_reduce(Vector& vector, Range range, int group = kEverybody) {
    want({Want::kReduction, 0, 0, &vector, range, group, 0});
    return Wait(*this);
  }
  // Begins one that goes on beside the worker: `range` must not be touched until `co_await
  // reduced(number)`. Gives the number.
  virtual int64_t start_all_reduce(Vector& vector, Range range, int group) = 0;
  int64_t start_all_reduce(Vector& vector) {
    return start_all_reduce(vector, {0, vector.size}, kEverybody);
  }
  Wait reduced(int64_t number) {
    want({Want::kStarted, 0, 0, nullptr, {}, 0, number});
    return Wait(*this);
  }

  // --- time
  // Seconds on a clock of the port's own, from any beginning; never goes back. Virtual where time
  // is simulated. Only for rules that weigh how long replicas take.
  virtual double now_s() const = 0;
  // Tells of one pass over so many elements, for time that is simulated or emulated; arithmetic.h
  // does it. Passes over as many elements as the stage has last a quarter of its update.
  virtual void charge(int64_t elements) = 0;
  static constexpr double kPassesOfAnUpdate = 4;

 protected:
  struct Want {
    enum Kind { kFrom, kAny, kPoll, kReduction, kStarted };
    Kind kind = kFrom;
    int from = 0;
    int message_kind = 0;
    Vector* vector = nullptr;
    Range range{};
    int group = 0;
    int64_t number = 0;
  };
  friend class Wait;

  void want(const Want& want) { want_ = want; }
  // Whether what is wanted is there; the runtime blocks here until it is.
  virtual bool ready() = 0;
  // Takes what was wanted and is there.
  virtual Message take() = 0;

  Want want_;
  std::coroutine_handle<> waiter_;  // to resume when ready(), where ready() said no
};

inline bool Wait::await_ready() const { return port_->ready(); }
inline void Wait::await_suspend(std::coroutine_handle<> waiter) const { port_->waiter_ = waiter; }
inline Message Wait::await_resume() const { return port_->take(); }

}  // namespace millrace
