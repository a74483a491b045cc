// Reads off the environment which process of which world this one is. Used by both programs before
// anything else of a `train`; the variables are those of our launcher, torchrun, mpirun and Slurm,
// looked for in that order (docs/processes.md lists them). Pure but for the function it is given.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "millrace/core/world_place.h"

namespace millrace::cli {

// What the command line says of the world: TrainArgs' options.
struct WorldRequest {
  std::string engine;  // --engine; empty: not given
  int processes = 0;   // --processes; 0: not given
};

// Our launcher's own variables.
inline constexpr const char* kProcessVariable = "MILLRACE_PROCESS";
inline constexpr const char* kProcessesVariable = "MILLRACE_PROCESSES";
inline constexpr const char* kLocalProcessVariable = "MILLRACE_LOCAL_PROCESS";
inline constexpr const char* kBoardVariable = "MILLRACE_BOARD_FD";
inline constexpr const char* kJobVariable = "MILLRACE_JOB";
inline constexpr const char* kStoreVariable = "MILLRACE_STORE";  // host:port
inline constexpr const char* kEngineVariable = "MILLRACE_ENGINE";

using GetVariable = std::function<const char*(const char*)>;  // std::getenv

// One process (num_processes 1, engine "") where no world is found or the world is of one process.
// Throws Error(kInvalidArgument) with the variable as key where variables are missing, not numbers,
// out of range, or contradict each other or the request.
WorldPlace find_world(const WorldRequest& request, const GetVariable& get);

// The engine's name, or Error(kInvalidArgument) with the nearest one.
void check_engine(const std::string& engine);

// The first host of a list in Slurm's notation: "node[01-04,7],gpu3" is node01. Throws
// Error(kInvalidArgument) when the list is empty or a bracket is not closed.
std::string first_host(std::string_view host_list);

}  // namespace millrace::cli
