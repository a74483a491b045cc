#include "millrace/cli/common/threads.h"

#include <cstdlib>
#include <initializer_list>

namespace millrace::cli {

bool set_thread_variables() {
  bool missing = false;
  const auto set = [&](const char* name, const char* value) {
    missing = missing || std::getenv(name) == nullptr;
    ::setenv(name, value, 0);
  };
  // Ranks are the parallelism: a BLAS that starts threads of its own in each of them, or threads
  // that spin while they wait, would take the cores from the other ranks.
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    set(name, "1");
  }
  set("OMP_WAIT_POLICY", "passive");
  return missing;
}

}  // namespace millrace::cli
