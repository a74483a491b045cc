#include "millrace/cli/torch/program.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/cli/commands.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/common/options.h"
#include "millrace/cli/common/output.h"
#include "millrace/cli/common/threads.h"
#include "millrace/cli/torch/commands.h"

namespace millrace {
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
    throw Error(ErrorCode::kOutOfMemory, "out of memory; use a smaller batch, model or schedule");
  }
}

// The catalog knows the builtins' texts only; the registries know what the program added, too.
template <typename Entries>
void list_all(const std::string& kind, const Entries& entries) {
  std::vector<cli::CatalogItem> items;
  for (const auto& entry : entries) {
    items.push_back({entry.name, entry.text, {{"options", entry.options}}});
  }
  cli::set_catalog_items(kind, std::move(items));
}

// Activations come and go by the hundred megabytes, every step the same. glibc would give their
// memory back to the system each time and have it faulted in again, page by page, which costs more
// than a small model's arithmetic. What the process once needed it keeps.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargestThreshold = 32 << 20;  // glibc takes no more
  ::mallopt(M_MMAP_THRESHOLD, kLargestThreshold);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  ::mallopt(M_TOP_PAD, 64 << 20);
#endif
}

int run_with_torch(const cli::Options& options, cli::Output& output) {
  using cli::Command;
  switch (options.command) {
    case Command::kTrain:
      return run_train(options.train, output);
    case Command::kVerify:
      return run_verify(options.verify, output);
    case Command::kCompare:
      return run_compare(options.compare, output);
    case Command::kProfile:
      return run_profile(options.profile, output);
    case Command::kEval:
      return run_eval(options.eval, output);
    case Command::kDoctor:
      return run_doctor(options.doctor, output);
    case Command::kBench:
      return run_bench(options.bench, output);
    default:
      throw Error(ErrorCode::kInternal, "a subcommand that nobody runs");
  }
}

}  // namespace

int run_program(int argc, char** argv) {
  std::optional<int> exit_status;
  const cli::Options options = cli::parse(argc, argv, exit_status);
  if (exit_status) {
    return *exit_status;
  }
  return cli::guarded(options.json, [&] {
    list_all("models", models());
    list_all("datasets", datasets());
    cli::Output output(options.json);
    if (!needs_torch(options)) {
      return run_without_torch(options, output);
    }
    if (cli::set_thread_variables()) {
      ::execv("/proc/self/exe", argv);  // where this fails the run is slower, not wrong
    }
    keep_freed_memory();
    at::set_num_threads(1);
    return with_clear_memory_error([&] { return run_with_torch(options, output); });
  });
}

}  // namespace millrace
