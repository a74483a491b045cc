#include "millrace/schedule/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

// Serves both `flush` and `latest`: under a flush no STEP falls between a step's first forward and
// its last backward, so the newest version is the one current at the step's start.
void annotate_newest_of(ActionList& list) {
  std::map<int32_t, int64_t> newest;  // of each stage; 0 before the first STEP
  for (Action& action : list) {
    if (is_compute(action.kind)) {
      action.version = newest[action.stage];
    } else if (action.kind == ActionKind::kStep) {
      action.version = ++newest[action.stage];
    }
  }
}

// A backward of several microbatches is cut where the versions of their forwards differ.
void annotate_stash_of(ActionList& list) {
  struct StageState {
    int64_t newest = 0;
    std::unordered_map<int64_t, int64_t>
        read_by;  // microbatch in flight -> version its forward read
    // A backward without its forward stays unannotated; find_faults reports it.
    int64_t read_for(int64_t microbatch) const {
      const auto found = read_by.find(microbatch);
      return found == read_by.end() ? kNone : found->second;
    }
  };
  std::map<int32_t, StageState> stages;
  ActionList annotated;
  annotated.reserve(list.size());
  for (Action action : list) {
    StageState& stage = stages[action.stage];
    if (action.kind == ActionKind::kForward) {
      action.version = stage.newest;
      for (int64_t m = action.first; m <= action.last; ++m) {
        stage.read_by[m] = stage.newest;
      }
    } else if (is_compute(action.kind)) {
      action.version = stage.read_for(action.first);
      for (int64_t m = action.first + 1; m <= action.last; ++m) {
        const int64_t version = stage.read_for(m);
        if (version != action.version) {
          Action part = action;
          part.last = m - 1;
          annotated.push_back(part);
          action.first = m;
          action.version = version;
        }
      }
    } else if (action.kind == ActionKind::kStep) {
      action.version = ++stage.newest;
    }
    annotated.push_back(action);
  }
  list = std::move(annotated);
}

void annotate_newest(ActionLists& lists) {
  std::for_each(lists.begin(), lists.end(), annotate_newest_of);
}

void annotate_stash(ActionLists& lists) {
  std::for_each(lists.begin(), lists.end(), annotate_stash_of);
}

// Stage 0 reads its newest version, and every other stage the one of the same number. It has been
// made there: an update of stage 0 follows backwards that have passed all stages before.
void annotate_vertical_sync(ActionLists& lists) {
  std::unordered_map<int64_t, int64_t> entered_on;  // microbatch -> version
  for (const ActionList& list : lists) {
    int64_t newest = 0;
    for (const Action& action : list) {
      if (action.kind == ActionKind::kStep) {
        ++newest;
      } else if (action.kind == ActionKind::kForward && action.stage == 0) {
        for (int64_t m = action.first; m <= action.last; ++m) {
          entered_on[m] = newest;
        }
      }
    }
  }
  for (ActionList& list : lists) {
    std::map<int32_t, int64_t> newest;
    for (Action& action : list) {
      if (is_compute(action.kind)) {
        const auto found = entered_on.find(action.first);
        action.version = found == entered_on.end() ? kNone : found->second;
      } else if (action.kind == ActionKind::kStep) {
        action.version = ++newest[action.stage];
      }
    }
  }
}

// Update that applies each microbatch of a stage, from 0: STEPs of a list stand in their order.
class Updates {
 public:
  explicit Updates(const ActionList& list) {
    for (const Action& action : list) {
      if (action.kind == ActionKind::kStep) {
        lasts_[action.stage].push_back(action.last);
      }
    }
  }

  int64_t of(int32_t stage, int64_t microbatch) const {
    const auto found = lasts_.find(stage);
    if (found == lasts_.end()) {
      return 0;
    }
    return std::lower_bound(found->second.begin(), found->second.end(), microbatch) -
           found->second.begin();
  }

 private:
  std::map<int32_t, std::vector<int64_t>> lasts_;  // last microbatch of each STEP
};

void annotate_double_buffer(ActionLists& lists) {
  for (ActionList& list : lists) {
    const Updates updates(list);
    std::map<int32_t, int64_t> newest;
    for (Action& action : list) {
      if (is_compute(action.kind)) {
        action.version = std::max<int64_t>(0, updates.of(action.stage, action.first) - 1);
      } else if (action.kind == ActionKind::kStep) {
        action.version = ++newest[action.stage];
      }
    }
  }
}

// Minibatches behind that a backward's weights are, in unit slots: see policy.h. Each copy of the
// pipeline has its share of a minibatch.
int64_t backward_lag(const ActionLists& lists) {
  int64_t num_stages = 1;
  int64_t size = 1;    // microbatches of a minibatch
  int64_t copies = 0;  // ranks that hold stage 0
  for (const ActionList& list : lists) {
    bool is_first = false;
    for (const Action& action : list) {
      num_stages = std::max<int64_t>(num_stages, action.stage + 1);
      is_first = is_first || (action.stage == 0 && action.kind == ActionKind::kForward);
      if (action.kind == ActionKind::kStep) {
        size = std::max(size, action.num_microbatches());
      }
    }
    copies += is_first ? 1 : 0;
  }
  size = std::max<int64_t>(1, size / std::max<int64_t>(1, copies));
  return (num_stages + size) / (size + 1);
}

void annotate_vertical_newest(ActionLists& lists) {
  const int64_t lag = backward_lag(lists);
  std::unordered_map<int64_t, int64_t> entered_on;  // minibatch -> version at stage 0's first F
  for (const ActionList& list : lists) {
    const Updates updates(list);
    int64_t newest = 0;
    for (const Action& action : list) {
      if (action.stage == 0 && action.kind == ActionKind::kStep) {
        ++newest;
      } else if (action.stage == 0 && action.kind == ActionKind::kForward) {
        entered_on.try_emplace(updates.of(0, action.first), newest);
      }
    }
  }
  for (ActionList& list : lists) {
    const Updates updates(list);
    std::map<int32_t, int64_t> newest;
    for (Action& action : list) {
      if (action.kind == ActionKind::kStep) {
        action.version = ++newest[action.stage];
      } else if (is_compute(action.kind)) {
        const int64_t minibatch = updates.of(action.stage, action.first);
        const auto found = entered_on.find(minibatch);
        action.version = action.kind != ActionKind::kForward
                             ? std::max<int64_t>(0, minibatch + 1 - lag)
                         : found == entered_on.end() ? kNone
                                                     : found->second;
      }
    }
  }
}

}  // namespace

const std::vector<PolicyEntry>& policies() {
  static const std::vector<PolicyEntry> entries = {
      {"flush", "one version a step: read by all its forwards and backwards, then updated", true,
       false, true, annotate_newest},
      {"stash", "forward reads the newest version, backward the one its forward read", false, false,
       true, annotate_stash},
      {"vertical_sync", "all stages read the version that stage 0 read for the minibatch", false,
       true, true, annotate_vertical_sync},
      {"double_buffer", "forward and backward of update t read version t-1 on every stage", false,
       true, true, annotate_double_buffer},
      {"vertical_newest",
       "forwards read the version that stage 0 read, a backward the newest that all stages have",
       false, true, false, annotate_vertical_newest},
      {"latest", "forward and backward each read the newest version, whatever the other read",
       false, false, false, annotate_newest},
      {"blend", "a backward reads a mix of the version its forward read and the newest", false,
       false, false, annotate_stash},
  };
  return entries;
}

const PolicyEntry& find_policy(const std::string& name) {
  std::vector<std::string> names;
  for (const PolicyEntry& entry : policies()) {
    if (entry.name == name) {
      return entry;
    }
    names.push_back(entry.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown weight policy `{}`{}; there are {}", name,
                          did_you_mean(name, names), join(names, ", ")));
}

int peak_weight_versions(const ActionList& annotated) {
  struct StageState {
    bool seen = false;
    int64_t newest = 0;
    int live = 1;
    int peak = 1;
    std::unordered_map<int64_t, std::size_t> last_read;  // version -> index of its last reader
  };
  std::map<int32_t, StageState> stages;
  for (std::size_t i = 0; i < annotated.size(); ++i) {
    const Action& action = annotated[i];
    if (is_compute(action.kind) && action.version != kNone) {
      stages[action.stage].last_read[action.version] = i;
    }
  }
  for (std::size_t i = 0; i < annotated.size(); ++i) {
    const Action& action = annotated[i];
    const bool makes = action.kind == ActionKind::kStep;
    if (action.version == kNone || !(makes || is_compute(action.kind))) {
      continue;
    }
    StageState& stage = stages[action.stage];
    if (!stage.seen) {
      stage.seen = true;
      stage.newest = makes ? action.version - 1 : action.version;
    }
    const auto still_read = [&stage, i](int64_t version) {
      const auto found = stage.last_read.find(version);
      return found != stage.last_read.end() && found->second > i;
    };
    if (makes) {
      // Updated in place when nobody reads the old version any more.
      stage.live += still_read(stage.newest) ? 1 : 0;
      stage.newest = action.version;
      stage.peak = std::max(stage.peak, stage.live);
    } else if (action.version != stage.newest && !still_read(action.version)) {
      --stage.live;
    }
  }
  int peak = 1;
  for (const auto& [index, stage] : stages) {
    peak = std::max(peak, stage.peak);
  }
  return peak;
}

}  // namespace millrace
