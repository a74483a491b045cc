// Starts the processes of a run, on this machine or over ssh, watches them, and ends all when one
// fails. Used by `millrace train` with --processes or --hosts; knows nothing of what the processes
// do. One thread, which must be the process's main one.
//
// Each process gets the variables of find_world.h and, on this machine, the JobBoard on which it
// tells its phase, step and error. Standard output of process 0 is ours and so is its standard
// error; what the others print goes to our standard error behind "process 2: ".
//
// Nothing stays behind: a process that ends takes along what it started within its process group;
// it dies with the launcher, however that ends; descriptors close on exec but for the board; there
// is no file.
#pragma once

#include <string>
#include <vector>

#include "millrace/cli/common/hosts.h"

namespace millrace::cli {

struct LaunchPlan {
  std::string program;            // a path
  std::vector<std::string> argv;  // with argv[0]; the same for every process
  int num_processes = 1;
  std::string engine = "gloo";
  // Where they run; empty: here. The program and the working folder have the same path everywhere.
  std::vector<Host> hosts;
  std::string remote_shell = "ssh";  // a program found by PATH; takes ssh's options
  int store_port = 0;  // with hosts: process 0's store listens there, on the first host
  double grace_s = 2;  // to end by themselves, after one failed
  double term_s = 1;   // more of it, after SIGTERM; then SIGKILL
};

// Returns when all processes have ended: 0, or 130 or 143 when they drained after SIGINT or
// SIGTERM, which is passed on to all once (a second one kills them). When a process ends badly, or
// tells of a failure, the others are told on the board, get the grace, SIGTERM, SIGKILL, and the
// first cause (first_cause.h) is thrown. Throws Error(kInternal) as well when a process cannot be
// started; none is running then.
int launch(const LaunchPlan& plan);

}  // namespace millrace::cli
