// What the files under builtin/ share: their declarations, drawn from builtin.def, and the
// pieces that pipelines (stages one after the other, each on one rank or round robin on several)
// are made of. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "millrace/core/schedule.h"
#include "millrace/schedule/internal/list_schedule.h"
#include "millrace/schedule/registry.h"

namespace millrace {

// A namespace of their own, because other kinds have entries of the same name (the planner
// `pipedream`).
namespace schedule_builtin {
#define SCHEDULE(name, symbol, text) extern const ScheduleBuiltin symbol;
#include "millrace/schedule/builtin.def"
#undef SCHEDULE
}  // namespace schedule_builtin

namespace internal {

// Positions that hold each stage, as Schedule has them.
using Placement = std::vector<std::vector<int>>;

// Stage s of P*chunks on rank s mod P: one stage a rank, or loops over all ranks.
Placement looped_placement(int num_ranks, int chunks);
// Two stages a rank: from rank 0 to the last and back.
Placement v_placement(int num_ranks);
// Each stage (of one position so far) also on the mirrored rank, for microbatches that go up.
Placement both_ways(Placement down);

// V of the config, or the schedule's own when the config leaves it open.
int chunks_of(const ScheduleConfig& config, int by_default);
// "with chunks = 3; set chunks = 2 or leave it out" or nothing: for schedules that take only one V.
std::optional<std::string> refused_chunks(const ScheduleConfig& config, int chunks);

// Name, sizes and placement of one copy that updates every config.num_microbatches; all action
// lists are there and empty.
Schedule placed_schedule(const char* name, const ScheduleConfig& config, Placement placement,
                         bool flush);

// Of a step in which every rank works for `busy` slots and waits for `idle`.
SlotFormula slots_of_rank(const ScheduleConfig& config, double busy, double idle,
                          bool exact = true);

// The same of a looped placement that waits only to fill and drain, and, with fewer microbatches
// than ranks, once more for every further chunk.
SlotFormula slots_of_loops(const ScheduleConfig& config, int chunks, double f, double b);

// Writes one rank's list: every kind of action of every stage takes its microbatches in order.
class RankOrder {
 public:
  explicit RankOrder(ActionList& list) : list_(list) {}
  // The action of the next microbatch of this kind and stage, the first one being `from`.
  void next(ActionKind kind, int stage, int64_t from = 0);
  // How many there are so far.
  int64_t num(ActionKind kind, int stage) const;

 private:
  ActionList& list_;
  std::map<std::pair<ActionKind, int>, int64_t> nums_;
};

// The two routes of a placement made by both_ways: the first half of the microbatches goes down
// and the second up.
std::vector<Route> two_routes(const Placement& placement, int64_t num_microbatches);

// Name, sizes and placement of a pipeline whose stage s stands on the next replicas_of(s) ranks;
// all action lists are there and empty. With a flush a step has num_parts() microbatches.
Schedule pipeline_schedule(const char* name, const ScheduleConfig& config, bool flush);

// One rank of such a pipeline: replica `replica` of `replicas` of its stage, to which every
// replicas-th microbatch goes, from `replica` on (round robin: PipeDream, SOSP'19, section 3.2).
struct Position {
  int rank = 0;
  int stage = 0;
  int replica = 0;
  int replicas = 1;

  // Microbatches of its own among the first `num_microbatches`.
  int64_t num_own(int64_t num_microbatches) const;
  // F or B of its `index`-th own microbatch.
  Action action(ActionKind kind, int64_t index) const;
};
std::vector<Position> positions_of(const ScheduleConfig& config);

// Forwards that a replica of a stage runs before its first backward under 1F1B: as many own
// microbatches as keep all ranks from this stage on busy, less the one it then works on.
// ceil(ranks from this stage on / replicas) - 1; S-1-s without replicas.
int one_f_one_b_warm_up(const ScheduleConfig& config, int stage);

// The order of one position that runs `ahead` own forwards before its first backward and then one
// backward after each forward, so that ahead = 0 is one microbatch at a time and
// ahead = num_microbatches all forwards first. Microbatches 0..num_microbatches-1 of the step.
ActionList staggered_order(const Position& position, int64_t num_microbatches, int64_t ahead);

}  // namespace internal
}  // namespace millrace
