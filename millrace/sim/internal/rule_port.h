// Ports of sizes and virtual time, on which the simulator runs rules: one a replica of a stage, one
// for the stage's server. A vector has no data; what is done with it costs time on the port's own
// clock. Whatever concerns others - a message that leaves, a task that may go on - the port tells
// the engine, its PortHost.
//
// Costs: apply() and apply_to() last as long as the stage's update; a pass over so many elements,
// charge(), a quarter of that in proportion, since an update (SGD with momentum) is about four
// passes over all elements. That is the one assumption about rules' own work; what is no plain pass
// is charged as so many (rule/internal/choose.h).
//
// Used by the engine alone; single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/rule/port.h"
#include "millrace/rule/task.h"

namespace millrace::internal {

class SimPort;
class StagePorts;

// A message between ports of one stage.
struct Letter {
  SimPort* from = nullptr;
  SimPort* to = nullptr;
  double sent_s = 0;
  double arrival_s = 0;
  int64_t number = 0;  // in the order of sending, over the stage
  int64_t bytes = 0;
  std::optional<int64_t> size{};  // of its vector, in elements
  Message message;
};

// What ports need of the engine.
class PortHost {
 public:
  virtual ~PortHost() = default;
  // Deliver it to its port with the time of its arrival: at once, or, where the order of arrival
  // counts, when everything before `sent_s` has happened.
  virtual void dispatch(const Letter& letter) = 0;
  // `port` waited and may go on at `at_s`; `looks`: it looks at its messages, so only after
  // everything else of that time, and after look_at().
  virtual void wake(SimPort& port, double at_s, bool looks) = 0;
  virtual bool keeps_order() const = 0;  // whether ports may look at all
  // When a reduction over `ranks` that could begin at `at_s` ends.
  virtual double reduce(const std::vector<int>& ranks, double at_s, double bytes) = 0;
};

struct ReductionGroup;

// A reduction of a group.
struct Meeting {
  ReductionGroup* group = nullptr;
  Range range;
  bool in_background = false;
  int num_asked = 0;
  double asked_s = 0;             // when the last so far asked
  std::optional<double> end_s{};  // once known
  // In the background: its place in the lane of each member that asked.
  std::vector<std::pair<SimPort*, std::size_t>> lanes{};
};

struct ReductionGroup {
  std::vector<int> members;
  std::vector<int> ranks;
  std::deque<Meeting> meetings;  // in the order that all members ask for them
};

class SimPort final : public Port {
 public:
  SimPort(StagePorts& stage, int member, int rank, double update_s);

  // --- for the engine
  int rank() const { return rank_; }
  int stage() const;
  void set_update(const Update& update) { update_ = update; }
  // A task of the rule, from `at_s` on; go_on() then runs it as far as it comes and says whether it
  // ended. Throws what it throws.
  void begin_task(Task task, double at_s);
  bool go_on();
  bool has_task() const { return task_.has_value(); }
  // A task beside the device's computing: takes no time. Throws Error(kInternal) when it waits.
  void run_aside(Task task, double at_s);
  // Blocked on others, and bytes sent or reduced, since the last call.
  double take_wait_s() { return std::exchange(wait_s_, 0.0); }
  int64_t take_bytes() { return std::exchange(bytes_, 0); }
  void deliver(const Letter& letter);
  // Its turn to look has come: false when it does not wait for one.
  bool look_at(double time_s);
  // "for a message of kind 2 from member 1"
  std::string describe_wait() const;

  // --- Port
  int member() const override { return member_; }
  int num_members() const override;
  int node_of(int member) const override;
  int64_t num_elements() const override;
  const Update& update() const override { return update_; }
  double loss() const override { return std::numeric_limits<double>::quiet_NaN(); }
  Vector& gradient() override { return gradient_; }
  Vector& current() override { return current_; }
  Vector& weights() override { return weights_; }
  Vector& make_vector(int64_t size) override;
  void apply(Vector& gradient, double samples) override;
  void apply_to(Vector& delta, Vector& gradient, double samples) override;
  using Port::give;
  using Port::send;
  void send(int to, int kind, const Vector* vector, const Numbers& numbers) override;
  void give(int to, int kind, Vector& vector, const Numbers& numbers) override;
  int make_group(const std::vector<int>& members) override;
  using Port::start_all_reduce;
  int64_t start_all_reduce(Vector& vector, Range range, int group) override;
  double now_s() const override { return now_s_; }
  void charge(int64_t elements) override;

 protected:
  bool ready() override;
  Message take() override;

 private:
  friend class StagePorts;
  using Inbox = std::deque<Letter>;

  bool begin_waiting();
  void look_when_first_is_here();
  Meeting& ask(Range range, int group, bool in_background);
  Inbox::iterator wanted_letter();
  Message open(const Inbox::iterator& letter);
  void expect_order() const;

  StagePorts& stage_;
  const int member_;
  const int rank_;
  const double update_s_;  // on this device
  double now_s_ = 0;
  double wait_s_ = 0;
  int64_t bytes_ = 0;
  bool aside_ = false;  // a task runs beside the device's computing
  std::optional<Task> task_;
  bool started_ = false;
  // What is wanted was asked for, at asked_s_, and has not been taken.
  bool waits_ = false;
  double asked_s_ = 0;
  bool woken_ = false;
  std::optional<double> look_s_;
  Meeting* wanted_ = nullptr;
  Update update_{.step = 0, .samples = 0, .own_samples = 0, .lr = 0};
  Vector gradient_;
  Vector current_;
  Vector weights_;
  std::deque<Vector> vectors_;
  Inbox inbox_;
  struct Membership {
    ReductionGroup* group = nullptr;
    std::size_t num_asked = 0;
  };
  std::vector<Membership> groups_;
  std::vector<Meeting*> lane_;  // reductions in the background, one after another
};

// The ports of one stage's replicas, and what they share.
class StagePorts {
 public:
  struct Member {
    int rank = 0;
    int node = 0;         // any number that members of one node share
    double update_s = 0;  // on its device
  };
  StagePorts(PortHost& host, int stage, const std::vector<Member>& members, int64_t parameter_bytes,
             bool serves);

  int stage() const { return stage_; }
  int num_members() const { return static_cast<int>(ports_.size()); }
  SimPort& port(int member);  // or Port::kServer
  bool serves() const { return server_ != nullptr; }
  // "of kind 2 from member 1 to the server", for each message that was delivered and not taken.
  std::vector<std::string> untaken() const;

 private:
  friend class SimPort;
  double bytes_of(int64_t elements) const;
  ReductionGroup& group(const std::vector<int>& members, int nth);
  void meet(Meeting& meeting);

  PortHost& host_;
  const int stage_;
  const int64_t parameter_bytes_;
  const int64_t num_elements_;
  std::vector<int> nodes_;
  std::vector<std::unique_ptr<SimPort>> ports_;
  std::unique_ptr<SimPort> server_;
  // By members, and how many groups of the same members were made before.
  std::map<std::pair<std::vector<int>, int>, ReductionGroup> groups_;
  int64_t num_letters_ = 0;
};

}  // namespace millrace::internal
