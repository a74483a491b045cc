// What two processes of this machine cost each other, engine by engine, for `millrace doctor
// --measure`: it starts them itself, as this very program, which finds by its environment that it
// is one of two. From the main thread, before others are started.
#pragma once

#include <string>
#include <vector>

#include "millrace/cli/common/options.h"
#include "millrace/cli/common/output.h"
#include "millrace/core/cluster.h"
#include "millrace/core/world_place.h"

namespace millrace::cli {

struct EngineLink {
  std::string engine;
  NetworkLevel level;   // latency and bandwidth of messages
  std::string failure;  // why it could not be measured; empty: it was
};

// One entry for each engine of this build that joins processes. A failure of an engine is an entry,
// not an error; Ctrl-C is Error(kInterrupted).
std::vector<EngineLink> measure_links_between_processes();

// In a process of a world of several: measures that world's links. The leading process writes the
// cluster to args.output and says so, unless it was started by the function above. Returns an exit
// status; throws what joining and measuring do where no launcher prints it.
int measure_this_world(const DoctorArgs& args, const WorldPlace& place, Output& output);

}  // namespace millrace::cli
