// Where one process stands in a world of processes, and which ranks it hosts. Found by `cli` (the
// only folder that reads the environment), used by whoever joins the world. Plain values and pure
// functions.
#pragma once

#include <string>
#include <vector>

namespace millrace {

struct WorldPlace {
  int process = 0;
  int num_processes = 1;
  int local_process = 0;  // among the processes of this host
  std::string engine;     // "gloo", "nccl", "mpi"; empty: one process, ranks are its threads
  // Where process 0's store listens; empty with an engine that needs none (mpi). Port 0: any that
  // is free, which process 0 publishes on the JobBoard.
  std::string store_host;
  int store_port = 0;
  // Somebody serves the store already (torchrun's agent does): process 0 joins it as all others do.
  bool store_served = false;
  std::string job_id;      // two jobs never talk to each other: compared at join
  std::string started_by;  // "millrace", "torchrun", "mpirun", "slurm"; "": by hand. For messages
  int board_fd = -1;       // the launcher's JobBoard, see base/job_board.h; -1: there is none
};

// Which ranks a process hosts: blocks as even as possible, in order, the larger ones first (10
// ranks, 4 processes: 3 3 2 2). Throw Error(kInvalidArgument) where there are more processes than
// ranks; a process or rank out of range is a bug of ours.
std::vector<int> ranks_of_process(int num_ranks, int num_processes, int process);
int process_of_rank(int rank, int num_ranks, int num_processes);

}  // namespace millrace
