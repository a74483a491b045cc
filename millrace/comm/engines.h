// Joins the world of processes that a WorldPlace describes, by the engine it names. The one place
// that knows which engines this build has.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/comm/joined/joined.h"
#include "millrace/core/world_place.h"

namespace millrace {

// How process 0's store tells its port to the processes of its machine, where none was fixed. Both
// may be empty.
struct PortExchange {
  std::function<void(int)> publish_port;  // called by process 0 once its store listens
  std::function<int()> find_port;         // asked by the others; 0: not known yet
};

// Blocks until all processes have joined, at most options.timeout_s. Throws kUnsupported for an
// engine that this build lacks, saying what to install; kInvalidArgument, kTimeout or kPeerLost
// when the processes do not find each other.
std::unique_ptr<JoinedWorld> join_world(const WorldPlace& place, const PortExchange& ports,
                                        JoinedOptions options);

// Those that this build has, "gloo" and "mpi" of them; for `doctor`.
std::vector<std::string> built_engines();

}  // namespace millrace
