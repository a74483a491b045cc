#include "millrace/schedule/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>

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

void annotate_stash_of(ActionList& list) {
  struct StageState {
    int64_t newest = 0;
    std::unordered_map<int64_t, int64_t>
        read_by;  // microbatch in flight -> version its forward read
  };
  std::map<int32_t, StageState> stages;
  for (Action& action : list) {
    StageState& stage = stages[action.stage];
    if (action.kind == ActionKind::kForward) {
      action.version = stage.newest;
      for (int64_t m = action.first; m <= action.last; ++m) {
        stage.read_by[m] = stage.newest;
      }
    } else if (is_compute(action.kind)) {
      // A backward without its forward stays unannotated; find_faults reports it.
      const auto found = stage.read_by.find(action.first);
      action.version = found == stage.read_by.end() ? kNone : found->second;
    } else if (action.kind == ActionKind::kStep) {
      action.version = ++stage.newest;
    }
  }
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

}  // namespace

const std::vector<PolicyEntry>& policies() {
  static const std::vector<PolicyEntry> entries = {
      {"flush", "one version a step: read by all its forwards and backwards, then updated", true,
       annotate_newest},
      {"stash", "forward reads the newest version, backward the one its forward read", false,
       annotate_stash},
      {"vertical_sync", "all stages read the version that stage 0 read for the minibatch", false,
       annotate_vertical_sync},
      {"latest", "forward and backward each read the newest version: the error that stash avoids",
       false, annotate_newest},
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
