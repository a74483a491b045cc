// millrace: the light program. Runs what needs no libtorch, in milliseconds; for the rest it checks
// the input, sets the thread variables and becomes `millrace-torch`.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "millrace/cli/commands.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/common/find_world.h"
#include "millrace/cli/common/launch.h"
#include "millrace/cli/common/plan_launch.h"
#include "millrace/cli/common/threads.h"

namespace {

namespace fs = std::filesystem;
using millrace::Error;
using millrace::ErrorCode;
using millrace::cli::Command;
using millrace::cli::Options;
using millrace::cli::Output;

constexpr const char* kTorchProgram = "millrace-torch";

// What can be refused without libtorch is refused before it is loaded.
void check_input(const Options& options) {
  switch (options.command) {
    case Command::kVerify:
      millrace::cli::read_run_config(options.verify.run.config, options.verify.run.set);
      break;
    case Command::kCompare:
      millrace::cli::read_run_config(options.compare.run.config, options.compare.run.set);
      break;
    case Command::kProfile:
      millrace::cli::read_run_config(options.profile.run.config, options.profile.run.set);
      break;
    case Command::kEval:
      if (!fs::exists(options.eval.dir)) {
        throw Error(ErrorCode::kBadFile,
                    "expected a run folder or a checkpoint, found nothing there")
            .in_file(options.eval.dir);
      }
      break;
    default:
      break;
  }
}

// Beside this program, or where a package puts programs that nobody starts by hand.
fs::path find_torch_program() {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& folder : {here, here / "../libexec", here / "../libexec/millrace"}) {
    fs::path program = folder / kTorchProgram;
    if (::access(program.c_str(), X_OK) == 0) {
      return program;
    }
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("this subcommand needs libtorch, and the program for it, {}, is not in "
                          "{}; build it: apt-get install libtorch-dev, then cmake --preset release "
                          "-DMILLRACE_TORCH=ON && cmake --build build/release",
                          kTorchProgram, here.string()));
}

int become_torch_program(char** argv) {
  const fs::path program = find_torch_program();
  millrace::cli::set_thread_variables();
  ::execv(program.c_str(), argv);
  throw Error(ErrorCode::kInternal, fmt::format("cannot start {}: {}", program.string(),
                                                std::generic_category().message(errno)));
}

// As this process's part of the world that it finds itself in, or in processes that it starts.
int train(const Options& options, int argc, char** argv) {
  const millrace::RunConfig config = millrace::cli::read_run_config(
      options.train.run.config, millrace::cli::all_settings(options.train));
  std::optional<millrace::cli::LaunchPlan> plan = millrace::cli::plan_launch(
      options.train, config.parallel.workers, [](const char* name) { return std::getenv(name); });
  if (!plan) {
    return become_torch_program(argv);
  }
  plan->program = fs::canonical(find_torch_program()).string();
  plan->argv.assign(argv, argv + argc);
  millrace::cli::set_thread_variables();
  return millrace::cli::launch(*plan);
}

// As two processes, which find here that they are.
int bench_collectives(const Options& options, int argc, char** argv) {
  if (millrace::cli::find_world({}, std::getenv).num_processes > 1) {
    return become_torch_program(argv);
  }
  millrace::cli::check_engine(options.bench.engine);
  millrace::cli::LaunchPlan plan;
  plan.program = fs::canonical(find_torch_program()).string();
  plan.argv.assign(argv, argv + argc);
  plan.num_processes = 2;
  plan.engine = options.bench.engine;
  millrace::cli::set_thread_variables();
  return millrace::cli::launch(plan);
}

int run(const Options& options, int argc, char** argv) {
  if (options.command == Command::kTrain) {
    return train(options, argc, argv);
  }
  if (options.command == Command::kBench && options.bench.what == "collectives") {
    return bench_collectives(options, argc, argv);
  }
  if (needs_torch(options)) {
    check_input(options);
    return become_torch_program(argv);
  }
  Output output(options.json);
  return millrace::cli::run_without_torch(options, output);
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<int> exit_status;
  const Options options = millrace::cli::parse(argc, argv, exit_status);
  if (exit_status) {
    return *exit_status;
  }
  return millrace::cli::guarded(options.json, [&] { return run(options, argc, argv); });
}
