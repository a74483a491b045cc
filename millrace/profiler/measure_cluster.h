// Measures what ranks cost each other: hand-over latency and bandwidth inside a process and between
// processes, and all-reduce speed inside one. The result is a Cluster for `[parallel] cluster =
// "auto"` and `millrace doctor --measure`.
#pragma once

#include <string>

#include "millrace/comm/world.h"
#include "millrace/core/cluster.h"

namespace millrace {

// `workers` ranks as threads of this process. `machine` is recorded. Takes well under a second for
// two.
Cluster measure_cluster(int workers, const std::string& machine);

// The ranks of a world of several processes: their engine's hand-over between processes is the
// outer level, as the slowest of process 0 with each other one; inside a process as above.
// Collective over the processes; the leading one's answer holds, the others' are their own views of
// it. Where processes hold unequal numbers of ranks, all ranks stand on one level, the outer one.
// Reductions between processes are not measured: their programs are timed by this.
Cluster measure_cluster(World& world, const std::string& machine);

// Processor name, cores and memory of this machine: "AMD EPYC 7763, 2 cores".
std::string machine_name();
double machine_memory_bytes();

}  // namespace millrace
