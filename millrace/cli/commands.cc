#include "millrace/cli/commands.h"

#include "millrace/base/error.h"

namespace millrace::cli {

int run_without_torch(const Options& options, Output& output) {
  switch (options.command) {
    case Command::kList:
      return run_list(options.list, output);
    case Command::kPlan:
      return run_plan(options.plan, output);
    case Command::kSchedule:
      return run_schedule(options.schedule, output);
    case Command::kSimulate:
      return run_simulate(options.simulate, output);
    case Command::kProfile:
      return run_import(options.profile, output);
    case Command::kReport:
      return run_report(options.report, output);
    case Command::kReplay:
      return run_replay(options.replay, output);
    default:
      throw Error(ErrorCode::kInternal, "a subcommand that nobody runs");
  }
}

}  // namespace millrace::cli
