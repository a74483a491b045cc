// The order that the three TiMePReSt schedules share (nF1B): the forwards of a minibatch's N
// microbatches, then one backward of the whole minibatch. Sources, of which only notes of others
// could be read: TiMePReSt (Dutta, Chaki, De, FGCS 2026) and "V-TiMePReSt: Memory Efficient and
// Staleness Free Pipeline Parallel DNN Training Framework with Improved Convergence Speed" (the
// same authors, 2025). Pure functions.
#pragma once

#include "millrace/core/schedule.h"
#include "millrace/schedule/registry.h"

namespace millrace::internal {

// The order in which equal slots (one a forward, one a whole backward) fill when a backward goes
// first as soon as it can run: it reaches the last stage every N+1 slots and passes up without a
// wait, so that a stage has run 2 forwards more than N for every stage behind it when its first
// backward comes, and N between two of them.
Schedule nf1b(const char* name, const ScheduleConfig& config);
std::optional<std::string> nf1b_offers(const ScheduleConfig& config);
// Of the steady period, where it has no idle: with two microbatches or fewer, or as long as the
// backward of a minibatch takes no longer than one forward, as it does in the slots of the order.
// Else a stage waits for backwards that its lead does not cover.
std::optional<SlotFormula> nf1b_formula(const ScheduleConfig& config, double f, double b);
StashFormula nf1b_stash(const ScheduleConfig& config);

}  // namespace millrace::internal
