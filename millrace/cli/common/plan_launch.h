// Whether a `train` starts processes of its own, and which. Used by the light program, before it
// starts or becomes the one with libtorch.
#pragma once

#include <optional>

#include "millrace/cli/common/find_world.h"
#include "millrace/cli/common/launch.h"
#include "millrace/cli/common/options.h"

namespace millrace::cli {

// Nothing where this process is to train itself: alone, or as part of a world that it finds. Else
// the plan, but for the program and its arguments. Reads the file of hosts; throws what find_world
// and parse_hosts do, and Error(kInvalidArgument) for fewer workers than processes, an engine
// without processes, hosts within a world, and mpi without mpirun.
std::optional<LaunchPlan> plan_launch(const TrainArgs& args, int num_workers,
                                      const GetVariable& get);

}  // namespace millrace::cli
