// RuleWorld: the replicas of one stage under an exchange rule, on plain memory and in one thread,
// for tests of rules. Every task of every member, and the server's, is gone on with in an order
// that the test chooses: in turn, drawn from a seed, or by virtual time. So a rule meets timings
// that a machine shows once in a year, and the same ones again in the next run.
//
// The optimizer is SGD with momentum and decay: v = momentum v + g / samples + decay w, delta =
// -lr v, rounded, then added to w.
//
// Refuses, with an Error that says who and where: a deadlock (everybody's wait is named), messages
// or reductions left over at a segment's end, a step that leaves an element of the next version
// unset, writes to current(), a range touched while it is being reduced, members that disagree on
// a reduction.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/random.h"
#include "millrace/rule/rule.h"

namespace millrace {

using Values = std::vector<double>;

enum class Order {
  kLockStep,  // round and round, messages arrive at once
  kRandom,    // drawn; messages of unlike sender or kind may overtake each other
  kTimed,     // by virtual time: only gradients take any, `duration_s`
};

struct WorldConfig {
  int num_members = 2;
  int64_t num_elements = 4;
  bool is_double = true;
  std::vector<int> nodes{};  // of each member; empty: all on one
  Values initial{};          // weights; empty: zeros
  double lr = 0.1;
  double momentum = 0;
  double decay = 0;
  std::function<double(int64_t step)> lr_at{};  // in place of lr
  // The sum of per-sample gradients of `member`, whose weights are `weights`; not asked for where
  // it has no samples. Empty: normal draws keyed by member and step, the same in every world.
  std::function<Values(int member, int64_t step, const Values& weights)> gradient{};
  std::function<double(int member, int64_t step)> own_samples{};  // empty: 1
  std::function<double(int member, int64_t step)> loss{};         // per sample; empty: unknown
  std::function<double(int64_t step)> samples{};  // empty: the sum of own_samples over all members
  std::function<double(int member, int64_t step)> duration_s{};  // of a gradient; empty: 1
  Order order = Order::kLockStep;
  uint64_t seed = 1;                // of the order, and the rule's
  int num_ranges = 1;               // in which gradients become ready
  bool in_place = false;            // weights() and current() are the same memory in step()
  std::function<void()> observe{};  // called after every turn of a member or the server
};

// What a member, or the server, has sent and reduced so far.
struct Counts {
  int64_t messages = 0;
  int64_t elements = 0;  // of the vectors in messages
  int64_t bytes = 0;     // of the vectors in messages; numbers count nothing
  int64_t reductions = 0;
  int64_t reduced_elements = 0;
};

// A delta that the optimizer made.
struct Applied {
  int64_t step = 0;
  Values delta;
};

struct Packet {
  int from = 0;
  int to = 0;
  int kind = 0;
  Numbers numbers{};
  std::optional<Values> values;
  double sent_s = 0;
};

class RuleWorld;

class PlainPort final : public Port {
 public:
  PlainPort(RuleWorld& world, int member);

  int member() const override { return member_; }
  int num_members() const override;
  int node_of(int member) const override;
  int64_t num_elements() const override;
  const Update& update() const override;
  double loss() const override;
  Vector& gradient() override { return gradient_; }
  Vector& current() override { return current_; }
  Vector& weights() override { return weights_; }
  Vector& make_vector(int64_t size) override;
  void apply(Vector& gradient, double samples) override;
  void apply_to(Vector& delta, Vector& gradient, double samples) override;
  using Port::send;
  void send(int to, int kind, const Vector* vector, const Numbers& numbers) override;
  using Port::give;
  void give(int to, int kind, Vector& vector, const Numbers& numbers) override;
  int make_group(const std::vector<int>& members) override;
  using Port::start_all_reduce;
  int64_t start_all_reduce(Vector& vector, Range range, int group) override;
  void charge(int64_t elements) override { charged_ += elements; }
  double now_s() const override { return now_s_; }

  int64_t charged() const { return charged_; }
  // The rule's own vectors, in the order in which it made them.
  const Vector& own_vector(std::size_t index) const { return vectors_.at(index); }

 protected:
  bool ready() override;
  Message take() override;

 private:
  friend class RuleWorld;
  struct Buffer : Vector {
    std::vector<double> doubles;
    std::vector<float> floats;
  };
  struct Started {
    std::pair<int, int64_t> reduction;  // group, turn
    Vector* vector = nullptr;
    Range range;
    Values part;
  };
  enum class State { kIdle, kReady, kWaiting };

  void resize(Buffer& buffer, int64_t size) const;
  Buffer& own(Vector& vector);
  bool possible() const;
  std::string waits_for() const;
  std::deque<Packet>::const_iterator find_packet() const;

  RuleWorld* world_;
  int member_;
  Buffer gradient_, current_, weights_, next_, velocity_, result_;
  std::deque<Buffer> vectors_;
  Update update_;
  bool in_update_ = false;
  bool in_step_ = false;
  int64_t charged_ = 0;
  double now_s_ = 0;
  int64_t steps_done_ = 0;

  State state_ = State::kIdle;
  std::string doing_;
  std::optional<Task> task_;
  bool started_ = false;

  std::deque<Packet> inbox_;  // in order of arrival
  std::vector<int> groups_;   // the world's number of each of this port's
  std::map<std::vector<int>, int> made_;
  std::map<int, int64_t> turns_;  // reductions called so far, by the world's number of the group
  std::map<int64_t, Started> under_way_;
  int64_t num_started_ = 0;
  std::pair<int, int64_t> blocking_;  // the reduction waited for

  Counts counts_;
  std::vector<Applied> applied_;
};

class RuleWorld {
 public:
  using Factory = std::function<std::unique_ptr<Rule>(const RuleConfig&)>;

  RuleWorld(const std::string& rule, const Value& options, WorldConfig config);
  // A rule of the test's own.
  RuleWorld(const Factory& make, bool serves, WorldConfig config);
  RuleWorld(const RuleWorld&) = delete;
  RuleWorld& operator=(const RuleWorld&) = delete;

  // One segment, of so many updates for each member.
  void run(const std::vector<int64_t>& steps);
  void run(int64_t steps) { run(std::vector<int64_t>(ports_.size(), steps)); }
  // What settle() gives on each member.
  std::vector<Values> settle();
  // The same, which must be equal on all members.
  Values settled();

  Values weights(int member) const;
  void set_weights(int member, const Values& values);
  PlainPort& port(int member);  // or Port::kServer
  Rule& rule(int member) { return *rules_[static_cast<std::size_t>(member)]; }
  const Counts& counts(int member) { return port(member).counts_; }
  const std::vector<Applied>& applied(int member) { return port(member).applied_; }
  // When the member's, or the server's, last turn was.
  double now_s(int member) { return port(member).now_s_; }
  // Messages sent and not yet taken.
  std::vector<Packet> in_flight() const;
  const WorldConfig& config() const { return config_; }

 private:
  friend class PlainPort;
  struct Reduction {
    std::vector<int> members;
    Range range;
    std::map<int, Values> parts;
    double complete_s = 0;
    std::size_t num_taken = 0;
  };

  void build(const Factory& make, bool serves, uint64_t seed);
  Task work(int member, int64_t steps);
  Task update(int member, int64_t step);
  void go_on(const std::vector<PlainPort*>& ports);
  void resume(PlainPort& port);
  void post(Packet packet);
  void check_ended();
  std::pair<int, int64_t> join(PlainPort& port, const Vector& vector, Range range, int group);
  bool complete(const std::pair<int, int64_t>& reduction) const;
  void take_sum(PlainPort& port, const std::pair<int, int64_t>& reduction, Vector& vector);
  double samples_of(int member, int64_t step) const;
  uint64_t draw(uint64_t bound);

  WorldConfig config_;
  RuleOptions options_;
  std::vector<std::unique_ptr<Rule>> rules_;
  std::vector<std::unique_ptr<PlainPort>> ports_;
  std::unique_ptr<PlainPort> server_;                              // null: the rule has none
  std::map<std::tuple<int, int, int>, std::deque<Packet>> links_;  // kRandom: not yet arrived
  std::vector<std::vector<int>> groups_;
  std::map<std::pair<std::vector<int>, int>, int> group_numbers_;  // by members and how many before
  std::map<std::pair<int, int64_t>, Reduction> reductions_;
  RandomKey key_;
  uint64_t num_draws_ = 0;
  std::size_t turn_ = 0;
};

std::string name_of_member(int member);  // "member 2", "server"
Error world_failure(const std::string& text);

Values values_of(const Vector& vector);
Values values_of(const Vector& vector, Range range);
void set_values(Vector& vector, int64_t begin, const Values& values);
// The largest absolute difference; infinite where sizes differ.
double distance(const Values& a, const Values& b);

}  // namespace millrace
