#include "millrace/runtime/team.h"

#include <ATen/Parallel.h>

#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

namespace millrace {
namespace {

Error as_error(const std::exception_ptr& exception, int rank) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    Error copy = error;
    return copy.rank() ? copy : copy.at_rank(rank);
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOutOfMemory, "out of memory; use a smaller batch or more microbatches")
        .at_rank(rank);
  } catch (const std::exception& other) {
    return Error(ErrorCode::kInternal, other.what()).at_rank(rank);
  }
}

}  // namespace

void run_ranks(const std::vector<int>& ranks, const std::function<void(const Error&)>& abort,
               const std::function<void(int)>& work) {
  std::mutex mutex;
  std::optional<Error> first_cause;
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  const auto run = [&](int rank) {
    try {
      // Ranks are the parallelism; threads inside an operation would fight over the same cores.
      at::set_num_threads(1);
      work(rank);
    } catch (...) {
      const Error error = as_error(std::current_exception(), rank);
      {
        const std::lock_guard<std::mutex> lock(mutex);
        // What a rank was told of another's failure gives way to the failure itself.
        if (!first_cause ||
            (first_cause->code() == ErrorCode::kPeerLost && error.code() != ErrorCode::kPeerLost)) {
          first_cause = error;
        }
      }
      abort(error);
    }
  };
  for (const int rank : ranks) {
    threads.emplace_back(run, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first_cause) {
    throw Error(*first_cause);
  }
}

}  // namespace millrace
