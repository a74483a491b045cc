// MPI's own all-reduce over some of its processes. Used by the wire.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "millrace/comm/mpi/session.h"
#include "millrace/comm/wire.h"

namespace millrace {

// See Wire::native(). `comm` is of all processes; `failed` outlives the reduction's calls and ends
// them with kPeerLost. Its communicator ends with MPI.
std::unique_ptr<NativeReduction> make_mpi_reduction(MPI_Comm comm, const std::atomic<bool>& failed,
                                                    const std::vector<int>& processes,
                                                    const std::string& name, double timeout_s);

}  // namespace millrace
