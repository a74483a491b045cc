// The processes of the engine `mpi`, which only mpirun can start: its command line, and the board
// that they find although mpirun stands between them and the launcher. Used by launch, and by a
// process that joins its world.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/base/job_board.h"
#include "millrace/cli/common/find_world.h"
#include "millrace/cli/common/first_cause.h"
#include "millrace/cli/common/hosts.h"

namespace millrace::cli {

// A path under /proc, by which the processes of this machine open the launcher's board.
inline constexpr const char* kBoardPathVariable = "MILLRACE_BOARD_PATH";

struct MpirunPlan {
  int num_processes = 1;
  std::vector<Host> hosts;             // empty: this one
  std::string remote_shell = "ssh";    // starts mpirun's daemons there
  bool as_root = false;                // mpirun refuses root unless told
  std::vector<std::string> variables;  // names, passed on to processes on every host
  std::string program;
  std::vector<std::string> arguments;  // of the program, without its name
};
// With argv[0]. Processes share all cores and may be more than there are.
std::vector<std::string> mpirun_command(const MpirunPlan& plan);

// What is known of each process from the end of mpirun, the board, and which process was gone first
// without a word (-1: none was seen to be).
std::vector<ProcessEnd> ends_under_mpirun(const ProcessEnd& mpirun, const JobBoard& board,
                                          int gone);

// The board of whoever started this process: the descriptor of `place`, or the one that
// kBoardPathVariable names; none when nobody did. A process under mpirun dies with mpirun from then
// on. Throws Error(kInvalidArgument).
std::optional<JobBoard> open_board(const WorldPlace& place, const GetVariable& get);

}  // namespace millrace::cli
