#include "millrace/profiler/internal/busy_ranks.h"

#include <ATen/Parallel.h>

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::internal {

void run_among_busy(int ranks, const std::function<void()>& measure,
                    const std::function<void()>& keep_busy, const std::function<void()>& give_up) {
  std::exception_ptr failure;
  std::mutex mutex;
  const auto guarded = [&](const std::function<void()>& work) {
    try {
      at::set_num_threads(1);
      work();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!failure) {
        failure = std::current_exception();
      }
      give_up();
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back(guarded, measure);
  for (int i = 1; i < ranks; ++i) {
    threads.emplace_back(guarded, keep_busy);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace millrace::internal
