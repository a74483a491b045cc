// millrace-torch: the subcommands that need libtorch. Started by `millrace`, which has checked the
// input and set the thread variables; parses the same command line.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include "millrace/cli/common/options.h"
#include "millrace/cli/common/output.h"
#include "millrace/cli/torch/commands.h"

namespace {

// libtorch says so in the words of its allocator.
template <typename Command>
int with_clear_memory_error(const Command& command) {
  try {
    return command();
  } catch (const c10::Error& error) {
    const std::string text = error.what();
    if (text.find("allocate memory") == std::string::npos &&
        text.find("not enough memory") == std::string::npos) {
      throw;
    }
    throw millrace::Error(millrace::ErrorCode::kOutOfMemory,
                          "out of memory; use a smaller batch, model or schedule");
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace millrace::cli;
  std::optional<int> exit_status;
  const Options options = parse(argc, argv, exit_status);
  if (exit_status) {
    return *exit_status;
  }
  return guarded(options.json, [&] {
    at::set_num_threads(1);
    Output output(options.json);
    return with_clear_memory_error([&] {
      switch (options.command) {
        case Command::kTrain:
          return run_train(options.train, output);
        case Command::kVerify:
          return run_verify(options.verify, output);
        case Command::kProfile:
          return run_profile(options.profile, output);
        case Command::kEval:
          return run_eval(options.eval, output);
        case Command::kDoctor:
          return run_doctor(options.doctor, output);
        case Command::kBench:
          return run_bench(options.bench, output);
        default:
          throw millrace::Error(millrace::ErrorCode::kInvalidArgument,
                                "this subcommand belongs to `millrace`; start that program");
      }
    });
  });
}
