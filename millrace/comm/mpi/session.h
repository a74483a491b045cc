// MPI in this process: its start, its errors as ours, waits with a deadline. Used by the wire.
#pragma once

// Before any mpi.h: the bindings of C++ that Open MPI still ships are not ours.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "millrace/core/world_place.h"

namespace millrace {

struct MpiSession {
  MPI_Comm comm = MPI_COMM_NULL;   // of all processes, our own; errors are returned
  std::vector<std::string> hosts;  // by process
};

// See join_mpi().
MpiSession start_mpi(const WorldPlace& place, double timeout_s);

// What MPI says of an error, one line.
std::string mpi_error_text(int error);
// Throws kPeerLost that names `call` when it failed.
void check_mpi(int error, const char* call);

// Tests until all requests are done, at first at once again and again, then at growing distances;
// false when the deadline passed or `give_up` (may be empty) said so. Throws kPeerLost, naming
// `call`.
bool complete_mpi(std::vector<MPI_Request>& requests, double deadline_s,
                  const std::function<bool()>& give_up, const char* call);

// MPI may read and write what it was given as long as the process lives, unless the call ended:
// keeps it as long.
void keep_for_mpi(std::vector<at::Tensor> tensors);

// How long to sleep after so many seconds without an event; 0: yield the core only. Short waits are
// met at once, and a process that waits for long leaves the cores to those who compute.
double mpi_pause_s(double idle_s);

}  // namespace millrace
