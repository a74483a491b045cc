// Measures how long the collectives of a world of several processes take, for "auto" to choose by
// and for predictions: a network under traffic in both directions at once is not what messages one
// way alone tell of it.
#pragma once

#include <string>
#include <vector>

#include "millrace/comm/joined/joined.h"
#include "millrace/sim/reductions.h"

namespace millrace {

// Over one rank of each process. `collective`: the one to measure, or "auto": all that are offered
// for so many members. `bandwidth`: bytes a second between processes, so that a slow link is not
// kept busy for minutes. Collective over the processes, from their main threads; the leading one's
// answer holds.
std::vector<CollectiveFit> measure_collectives(JoinedWorld& world, const std::string& collective,
                                               double bandwidth_bytes_per_s);

}  // namespace millrace
