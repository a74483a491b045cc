// Exchange rules: what replicas of a stage tell each other and when, as deterministic state
// machines over events and actions. Torch-free: `exchange` interprets the actions on tensors, `sim`
// on sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace millrace {

// Elements [begin, end) of a stage's flat gradient buffer.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Events: what happened on this replica.
struct GradientsReady {  // the sums of per-sample gradients over this range are final on this
                         // replica
  Range range;
  bool last = true;  // nothing of this update is still to come
};
struct AllReduced {  // an all-reduce that this machine asked for is complete
  Range range;
  bool last = true;
};
using RuleEvent = std::variant<GradientsReady, AllReduced>;

// Actions: what to do now, in order.
struct AllReduceSum {  // sum the range over the replica group, in rank order, in place
  Range range;
  bool last = true;  // copied into the AllReduced event that answers it
};
struct ApplyUpdate {};    // the optimizer's step: gradient sum / samples of the update
struct ReleaseWorker {};  // the worker may go on
using RuleAction = std::variant<AllReduceSum, ApplyUpdate, ReleaseWorker>;
using RuleActions = std::vector<RuleAction>;

// Makers, so that a rule reads like its formula.
inline RuleAction all_reduce_sum(Range range, bool last = true) {
  return AllReduceSum{range, last};
}
inline RuleAction apply_update() { return ApplyUpdate{}; }
inline RuleAction release_worker() { return ReleaseWorker{}; }

struct RuleConfig {
  int num_replicas = 1;
  int replica = 0;
};

// One machine a replica, used from that replica's thread. Deterministic: equal events in equal
// order give equal actions, whatever the clock.
class Rule {
 public:
  virtual ~Rule() = default;
  // What to do, in order, now that `event` happened. Throws Error(kInternal) for an event that this
  // rule cannot have caused or that comes out of order.
  virtual RuleActions on(const RuleEvent& event) = 0;
};

// The registry: one file a rule under builtin/, one line in builtin.def.
struct RuleEntry {
  std::string name;
  std::string text;
  std::string conserves;  // what stays invariant
  std::string sends;      // elements sent per replica and update, as a formula
  std::string staleness;
  // Throws Error(kInvalidArgument) for a config outside its bounds (see check_rule_config).
  std::unique_ptr<Rule> (*make)(const RuleConfig&);
};
const std::vector<RuleEntry>& rules();
// Throws Error(kInvalidArgument) that names the nearest rule, or lists them all.
const RuleEntry& find_rule(const std::string& name);

// For factories: throws Error(kInvalidArgument) unless 0 <= replica < num_replicas.
void check_rule_config(const RuleConfig& config);

}  // namespace millrace
