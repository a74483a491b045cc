// Background: work of one replica that goes on beside its worker, in the order given: reductions
// that a rule starts and awaits later. One thread, made with the first piece of work.
//
// start() and wait() from the worker's thread only.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace millrace {

class Background {
 public:
  Background() = default;
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  // Waits for the piece at hand, which ends by its own deadline or an abort; drops the others.
  ~Background();

  // Numbers the work from 0.
  int64_t start(std::function<void()> work);
  // Blocks until that piece is done. Throws what it threw; after that nothing more is done.
  void wait(int64_t number);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> todo_;
  int64_t num_started_ = 0;
  int64_t num_done_ = 0;
  bool leaving_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace millrace
