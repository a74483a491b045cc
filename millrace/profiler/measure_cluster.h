// Measures what ranks of this process cost each other: hand-over latency and bandwidth, all-reduce
// speed, and the runtime's own cost per action. The result is a Cluster for `[parallel] cluster =
// "auto"` and `millrace doctor --measure`.
#pragma once

#include <string>

#include "millrace/core/cluster.h"

namespace millrace {

// `workers` ranks as threads of this process. `machine` is recorded. Takes well under a second for
// two.
Cluster measure_cluster(int workers, const std::string& machine);

// Processor name, cores and memory of this machine: "AMD EPYC 7763, 2 cores".
std::string machine_name();
double machine_memory_bytes();

}  // namespace millrace
