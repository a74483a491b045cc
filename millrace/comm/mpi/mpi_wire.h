// The engine `mpi`: a wire over an MPI library. One a process, since MPI starts and ends once.
#pragma once

#include <memory>

#include "millrace/comm/wire.h"
#include "millrace/core/world_place.h"

namespace millrace {

// Starts MPI and meets all processes of `place`, which mpirun must have started: blocks at most
// `timeout_s` after MPI's own start, which has no deadline. Must be called, and the wire closed, on
// the process's main thread. A close() that ends well finalises MPI and then waits for the others
// to do so. Throws kInvalidArgument for processes that mpirun did not start as `place` says, of
// different jobs, and when called again; kUnsupported for an MPI without threads or processes of
// unlike builds; kTimeout, kPeerLost.
std::unique_ptr<Wire> join_mpi(const WorldPlace& place, double timeout_s);

}  // namespace millrace
