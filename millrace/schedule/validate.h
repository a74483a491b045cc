// Checks of action lists before anything is launched: all findings at once, each with the grid and
// the bad cell.
#pragma once

#include <string>
#include <vector>

#include "millrace/core/action.h"
#include "millrace/core/schedule.h"

namespace millrace {

struct Finding {
  std::string text;  // what is wrong, which rank, stage, microbatch, and what was expected
  int rank = 0;
  std::size_t index = 0;  // of the bad action in the rank's list
};

// Bare lists (F, B, I, W) of a schedule over `num_microbatches`: every (stage, microbatch) has
// exactly one F on a rank that holds the stage, and one B (or I then W) on the same rank after it;
// no action out of range; no deadlock when every send is held until taken (the replay names the
// cycle's waits).
std::vector<Finding> find_faults(const ActionLists& lists,
                                 const std::vector<std::vector<int>>& stage_ranks,
                                 int64_t num_microbatches);

// The same over a lowered schedule, one run of its lists: besides the above every SEND has its RECV
// on the peer and the reverse, both between the actions that make and use the tensor; STEP follows
// all backwards it applies and every gradient is applied once; versions read have been made and are
// those that the policy states; REDUCEs of a stage agree in number and order. Of a sharded stage:
// weights are whole (by a GATHER, before a FREE) where they are used, a REDUCE follows every
// backward before the STEP, and GATHERs and REDUCEs agree in number and order. A schedule with an
// empty policy (lower_evaluation) is forward-only: neither backwards nor updates nor versions.
std::vector<Finding> find_faults(const LoweredSchedule& lowered);

// Throws Error(kInvalidArgument) with all findings, each (beyond the first few: without it)
// followed by the grid with its cell marked; no-op when empty.
void throw_findings(const std::vector<Finding>& findings, const ActionLists& lists,
                    const std::string& name);

// Validates a schedule over 1 step (flush) or enough minibatches to show prologue, two periods and
// epilogue: its bare lists, and when these are right what lowering makes of them. Throws as
// throw_findings does, and what lower() throws for a placement that it does not offer.
void validate(const Schedule& schedule);
// The same as the plan's ranks, its update rule and these links make it.
void validate(const Schedule& schedule, const Plan& plan, const std::vector<StageLink>& links);

}  // namespace millrace
