// Exchange rules: what replicas of a stage tell each other and when. A rule is written as tasks
// over a Port, torch-free: `exchange` runs them on tensors, `sim` on sizes and virtual time.
//
// Rules act where the schedule updates a stage: REDUCE calls gradients_ready(), STEP calls step(),
// which makes the next version of the weights. So they compose with pipelines: a rule knows only
// the replicas of one stage.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/rule/port.h"
#include "millrace/rule/task.h"

namespace millrace {

// A rule's options with every key set, as settle_rule() gives them: numbers, true or false, words.
class RuleOptions {
 public:
  RuleOptions() = default;
  explicit RuleOptions(Value values) : values_(std::move(values)) {}
  // Throw kInternal for a key that the rule's line in builtin.def lacks, or one of another type.
  double number(std::string_view key) const;
  int64_t integer(std::string_view key) const;
  bool flag(std::string_view key) const;
  const std::string& word(std::string_view key) const;
  const Value& values() const { return values_; }

 private:
  const Value& at(std::string_view key) const;
  Value values_ = Value::map();
};

struct RuleConfig {
  int num_members = 1;  // replicas of the stage
  int member = 0;
  RuleOptions options{};
  uint64_t seed = 1;  // keys random draws, with the member and the step
};

// One object a replica; that of member 0 also serves, where the rule has a server: serve() runs
// beside the replica's own tasks, on a thread of its own, and touches only members of the object
// that are the server's. Deterministic: equal messages in equal order give equal actions, whatever
// the clock.
//
// A segment (an epoch, mostly) is begin(), then for each update gradients_ready() and step(), then
// finish(); serve() spans it. settle() comes between segments.
class Rule {
 public:
  virtual ~Rule() = default;

  // Before the first update of a segment. The first time, weights are equal on all replicas.
  virtual Task begin(Port& port);
  // The gradient sums over `range` are final on this replica; `last`: nothing of this update is
  // still to come. Ranges come in any order, each element once.
  virtual Task gradients_ready(Port& port, Range range, bool last);
  // Makes the next version: fills port.weights().
  virtual Task step(Port& port) = 0;
  // After the last update of a segment: takes in what is under way and says goodbye. May change
  // port.weights().
  virtual Task finish(Port& port);
  // The weights that the replicas agree on, for evaluation and checkpoints: into `result`, equal
  // on all members. Collective; changes nothing else. Here: port.weights(), which rules of equal
  // replicas leave as it is.
  virtual Task settle(Port& port, Vector& result);
  // The server's life in a segment: ends when all members have said goodbye. `port` is the
  // server's own; weights() are member 0's at the beginning of the segment, not to be written.
  virtual Task serve(Port& port);
};

// What the other parts need to know of a rule before it runs.
struct RuleTraits {
  bool equal_replicas = false;  // weights are equal on all replicas after every update
  bool sums_gradients = false;  // gradient() is the sum over all replicas between gradients_ready
                                // and step: what clipping needs
  bool serves = false;          // serve() runs
  bool ordered = false;         // goes by the order of arrival: receive_any, poll
  bool any_pace = false;        // replicas may do unequal numbers of updates in a segment
  bool overlaps = false;        // takes gradients range by range, while the backward goes on
};

// The registry: one file a rule under builtin/, one line in builtin.def.
struct RuleEntry {
  std::string name;
  RuleTraits traits;
  std::string text;
  std::string conserves;  // what stays invariant
  std::string sends;      // elements sent per replica and update, as a formula
  std::string staleness;
  std::string keys;  // of [rule], with defaults: "tau=10 alpha=0.5 topology=ring"
  // Throws Error(kInvalidArgument) for a config outside its bounds (see check_rule_config), at key
  // rule.<key> for an option.
  std::unique_ptr<Rule> (*make)(const RuleConfig&);
};
const std::vector<RuleEntry>& rules();
// Throws Error(kInvalidArgument) that names the nearest rule, or lists them all.
const RuleEntry& find_rule(const std::string& name);

// Every key of the rule, with what `given` (an object) sets in place of the default. A key's type
// is its default's. Throws Error(kInvalidArgument) at key rule.<key> for one that the rule lacks,
// naming those that it has, and for one of another type.
RuleOptions settle_rule(const RuleEntry& rule, const Value& given);

// For factories: throws Error(kInvalidArgument) unless 0 <= member < num_members.
void check_rule_config(const RuleConfig& config);
// For factories: throws Error(kInvalidArgument) at key rule.<key> that says what was `expected` and
// shows the value.
[[noreturn]] void refuse_option(const RuleConfig& config, std::string_view key,
                                const std::string& expected);

}  // namespace millrace
