// Split layers in predictions: what a layer's part costs, by what was measured of the whole, and
// what one part's simulation says of all. Pure functions.
#pragma once

#include "millrace/core/cluster.h"
#include "millrace/core/plan.h"
#include "millrace/core/profile.h"
#include "millrace/model/model.h"
#include "millrace/sim/simulate.h"

namespace millrace {

// The profile of one of `parts` parts. Of a layer that is split, compute, update and parameters are
// 1/parts of the whole's, and F and I last besides what its parts spend meeting, on devices
// 0..parts-1:
//
// F: n (latency + (output bytes / n) (parts-1)/parts / bandwidth), of their slowest link: each part
//    is sent the others' outputs
// I: an all-reduce of the input's bytes, and n - 1 of output bytes / n
//
// where n is 1, and the length of the sequence for a recurrent layer, whose parts meet at every
// position. Stashes stay the whole's: what they hold is mostly inputs, which every part keeps.
Profile profile_of_part(const Profile& profile, const Model& model, int parts,
                        const Cluster& cluster);

// The simulation of plan_of_part(plan, 0), told of all parts: they run in lockstep.
void spread_over_parts(Simulation& simulation, const Plan& plan);

}  // namespace millrace
