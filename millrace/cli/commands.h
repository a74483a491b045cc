// The subcommands that need no libtorch. Each returns an exit status; errors are thrown.
#pragma once

#include "millrace/cli/common/options.h"
#include "millrace/cli/common/output.h"

namespace millrace::cli {

int run_list(const ListArgs& args, Output& output);
int run_plan(const PlanArgs& args, Output& output);
int run_schedule(const ScheduleArgs& args, Output& output);
int run_search(const ScheduleArgs& args, Output& output);  // schedule --name auto
int run_simulate(const SimulateArgs& args, Output& output);
int run_import(const ProfileArgs& args, Output& output);  // profile --from
int run_report(const ReportArgs& args, Output& output);
int run_replay(const ReplayArgs& args, Output& output);

// The one of these that `options` name: !needs_torch(options).
int run_without_torch(const Options& options, Output& output);

}  // namespace millrace::cli
