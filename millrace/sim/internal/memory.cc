#include "millrace/sim/internal/memory.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "millrace/schedule/shard.h"

namespace millrace::internal {
namespace {

// A change of what a rank holds. At equal times the order of the rank's program decides, so that an
// action of no duration still holds what it uses.
struct Change {
  double time_s = 0;
  int64_t order = 0;
  MemoryUse bytes;  // differences
  int in_flight = 0;
  int stage = 0;
  int versions = 0;  // of the stage
};

class Ledger {
 public:
  Ledger(const RankRun& run, const LoweredSchedule& lowered, const std::vector<StageCost>& costs,
         int optimizer_buffers)
      : run_(run), lowered_(lowered), costs_(costs), optimizer_buffers_(optimizer_buffers) {}

  std::vector<Change> changes() {
    changes_.reserve(3 * run_.actions.size());
    read_ahead();
    for (std::size_t i = 0; i < run_.actions.size(); ++i) {
      const Action& action = run_.actions[i].action;
      if (is_compute(action.kind)) {
        compute(i);
      } else if (action.kind == ActionKind::kStep) {
        make_version(i);
      } else if (is_send(action.kind)) {
        send(i);
      } else if (is_receive(action.kind)) {
        receive(i);
      } else if (is_sharded(lowered_, action.stage)) {
        move_shards(i);
      }
    }
    std::stable_sort(changes_.begin(), changes_.end(), [](const Change& a, const Change& b) {
      return std::pair(a.time_s, a.order) < std::pair(b.time_s, b.order);
    });
    return std::move(changes_);
  }

 private:
  struct Versions {
    int64_t newest = kNone;  // kNone: not annotated so far
    std::unordered_map<int64_t, std::size_t> last_reader;
    bool has_sums = false;  // all of the gradient, where only a shard of it stays
  };

  double start_s(std::size_t i) const { return run_.trace.events[i].start_s; }
  double end_s(std::size_t i) const { return run_.trace.events[i].end_s; }

  Change& at_start(std::size_t i) {
    changes_.push_back(
        {start_s(i), 2 * static_cast<int64_t>(i), {}, 0, run_.actions[i].action.stage, 0});
    return changes_.back();
  }
  Change& at_end(std::size_t i) {
    changes_.push_back(
        {end_s(i), 2 * static_cast<int64_t>(i) + 1, {}, 0, run_.actions[i].action.stage, 0});
    return changes_.back();
  }

  // What the rank lacks of something of the stage's size that is divided from `from` on.
  int64_t sharded_bytes(int stage, Shard from) const {
    if (!is_sharded(lowered_, stage) || lowered_.shard < from) {
      return 0;
    }
    const auto replicas = static_cast<int64_t>(lowered_.stage_ranks[stage].size());
    const int64_t bytes = costs_[stage].parameter_bytes;
    return bytes - (bytes + replicas - 1) / replicas;
  }

  // Besides the shard of a gradient all of it is there while it is computed.
  void add_sums(std::size_t i) {
    const Action& action = run_.actions[i].action;
    Versions& stage = stages_[action.stage];
    if (!stage.has_sums && sharded_bytes(action.stage, Shard::kZero2) > 0) {
      at_start(i).bytes.gradient_bytes = costs_[action.stage].parameter_bytes;
      stage.has_sums = true;
    }
  }

  // Besides the shard of the weights all of them are there while they are used.
  void move_shards(std::size_t i) {
    const Action& action = run_.actions[i].action;
    const bool divides_weights = sharded_bytes(action.stage, Shard::kZero3) > 0;
    if (action.kind == ActionKind::kGather && divides_weights) {
      at_start(i).bytes.weight_bytes = costs_[action.stage].parameter_bytes;
    } else if (action.kind == ActionKind::kFree && divides_weights) {
      at_end(i).bytes.weight_bytes = -costs_[action.stage].parameter_bytes;
    } else if (action.kind == ActionKind::kReduce && stages_[action.stage].has_sums) {
      at_end(i).bytes.gradient_bytes = -costs_[action.stage].parameter_bytes;
      stages_[action.stage].has_sums = false;
    }
  }

  // What is there before the first action, and who reads each version last.
  void read_ahead() {
    for (std::size_t i = 0; i < run_.actions.size(); ++i) {
      const Action& action = run_.actions[i].action;
      if (!stages_.contains(action.stage)) {
        const int64_t parameters = costs_[action.stage].parameter_bytes;
        Change change{start_s(0), -1, {}, 0, action.stage, 1};
        change.bytes.weight_bytes = parameters - sharded_bytes(action.stage, Shard::kZero3);
        change.bytes.gradient_bytes = parameters - sharded_bytes(action.stage, Shard::kZero2);
        change.bytes.optimizer_bytes =
            optimizer_buffers_ * (parameters - sharded_bytes(action.stage, Shard::kZero1));
        changes_.push_back(change);
      }
      Versions& versions = stages_[action.stage];
      const bool counts = is_compute(action.kind) || action.kind == ActionKind::kStep;
      if (counts && action.version != kNone && versions.newest == kNone) {
        versions.newest = action.kind == ActionKind::kStep ? action.version - 1 : action.version;
      }
      if (is_compute(action.kind)) {
        versions.last_reader[action.version] = i;
        has_backward_ = has_backward_ || action.kind != ActionKind::kForward;
      }
    }
  }

  void compute(std::size_t i) {
    const Action& action = run_.actions[i].action;
    const int parts = static_cast<int>(action.num_microbatches());
    const StageCost& cost = costs_[action.stage];
    const int64_t stash = parts * cost.stash_bytes;
    if (action.kind == ActionKind::kForward) {
      Change& change = at_start(i);
      change.bytes.stash_bytes = stash;
      change.in_flight = parts;
    } else if (action.kind != ActionKind::kWeightGradient && cost.recomputed_bytes > 0) {
      // Of one microbatch at a time.
      at_start(i).bytes.stash_bytes = cost.recomputed_bytes;
      at_end(i).bytes.stash_bytes = -cost.recomputed_bytes;
    }
    if (action.kind == ActionKind::kInputGradient) {
      at_end(i).bytes.stash_bytes = parts * cost.kept_bytes - stash;
    }
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient) {
      add_sums(i);
    }
    // A program of forwards alone (evaluation) keeps no stash for later.
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient ||
        !has_backward_) {
      Change& change = at_end(i);
      change.bytes.stash_bytes =
          action.kind == ActionKind::kWeightGradient ? -parts * cost.kept_bytes : -stash;
      change.in_flight = -parts;
    }
    if (action.kind != ActionKind::kWeightGradient) {
      consume(i, action.kind == ActionKind::kForward);
    }
    const Versions& versions = stages_[action.stage];
    if (action.version != kNone && action.version != versions.newest &&
        versions.last_reader.at(action.version) == i) {
      Change& change = at_end(i);
      change.bytes.weight_bytes = -costs_[action.stage].parameter_bytes;
      change.versions = -1;
    }
  }

  void make_version(std::size_t i) {
    const Action& action = run_.actions[i].action;
    if (action.version == kNone) {
      return;  // not annotated: updated in place
    }
    Versions& versions = stages_[action.stage];
    const auto reader = versions.last_reader.find(versions.newest);
    versions.newest = action.version;
    if (reader != versions.last_reader.end() && reader->second > i) {
      Change& change = at_start(i);
      change.bytes.weight_bytes = costs_[action.stage].parameter_bytes;
      change.versions = 1;
    }
  }

  void send(std::size_t i) {
    const int64_t bytes = run_.trace.events[i].bytes;
    at_start(i).bytes.border_bytes = bytes;
    // Ordered right behind the send: taken at once, it still has been there.
    Change& taken = at_end(i);
    taken.time_s = std::max(run_.taken_s[i], end_s(i));
    taken.bytes.border_bytes = -bytes;
  }

  void receive(std::size_t i) {
    const Action& action = run_.actions[i].action;
    const int64_t bytes = run_.trace.events[i].bytes;
    const bool forward = action.kind == ActionKind::kReceiveForward;
    at_end(i).bytes.border_bytes = bytes;
    std::unordered_map<int64_t, int64_t>& received = received_[{forward, action.stage}];
    for (int64_t m = action.first; m <= action.last; ++m) {
      received[m] += bytes / action.num_microbatches();
    }
  }

  void consume(std::size_t i, bool forward) {
    const Action& action = run_.actions[i].action;
    int64_t bytes = 0;
    std::unordered_map<int64_t, int64_t>& received = received_[{forward, action.stage}];
    for (int64_t m = action.first; m <= action.last; ++m) {
      const auto found = received.find(m);
      if (found != received.end()) {
        bytes += found->second;
        received.erase(found);
      }
    }
    if (bytes > 0) {
      at_end(i).bytes.border_bytes = -bytes;
    }
  }

  const RankRun& run_;
  const LoweredSchedule& lowered_;
  const std::vector<StageCost>& costs_;
  const int optimizer_buffers_;
  bool has_backward_ = false;
  std::map<int, Versions> stages_;
  // Bytes by forward or backward and stage, then microbatch.
  std::map<std::pair<bool, int>, std::unordered_map<int64_t, int64_t>> received_;
  std::vector<Change> changes_;
};

void raise(int64_t& peak, int64_t value) { peak = std::max(peak, value); }

}  // namespace

RankMemory memory_of(const RankRun& run, const LoweredSchedule& lowered,
                     const std::vector<StageCost>& costs, int optimizer_buffers) {
  RankMemory memory;
  MemoryUse now;
  int in_flight = 0;
  std::map<int, int> versions;  // of each stage
  for (const Change& change : Ledger(run, lowered, costs, optimizer_buffers).changes()) {
    now.weight_bytes += change.bytes.weight_bytes;
    now.gradient_bytes += change.bytes.gradient_bytes;
    now.optimizer_bytes += change.bytes.optimizer_bytes;
    now.stash_bytes += change.bytes.stash_bytes;
    now.border_bytes += change.bytes.border_bytes;
    in_flight += change.in_flight;
    int& of_stage = versions[change.stage];
    of_stage += change.versions;
    raise(memory.peak.weight_bytes, now.weight_bytes);
    raise(memory.peak.gradient_bytes, now.gradient_bytes);
    raise(memory.peak.optimizer_bytes, now.optimizer_bytes);
    raise(memory.peak.stash_bytes, now.stash_bytes);
    raise(memory.peak.border_bytes, now.border_bytes);
    memory.peak_in_flight = std::max(memory.peak_in_flight, in_flight);
    memory.peak_weight_versions = std::max(memory.peak_weight_versions, of_stage);
    if (memory.curve.empty() || memory.curve.back().bytes != now.total()) {
      memory.curve.push_back({change.time_s, now.total()});
    }
  }
  return memory;
}

}  // namespace millrace::internal
