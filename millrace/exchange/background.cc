#include "millrace/exchange/background.h"

#include <ATen/Parallel.h>

#include <utility>

namespace millrace {

Background::~Background() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    leaving_ = true;
    todo_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

int64_t Background::start(std::function<void()> work) {
  int64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    todo_.push_back(std::move(work));
    number = num_started_++;
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
    }
  }
  changed_.notify_all();
  return number;
}

void Background::wait(int64_t number) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return num_done_ > number || failure_; });
  if (failure_ && num_done_ <= number) {
    std::rethrow_exception(failure_);
  }
}

void Background::run() {
  at::set_num_threads(1);  // as the worker's
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return leaving_ || !todo_.empty(); });
    if (leaving_) {
      return;
    }
    const std::function<void()> work = std::move(todo_.front());
    todo_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) {
      failure_ = failure;
      changed_.notify_all();
      return;
    }
    ++num_done_;
    changed_.notify_all();
  }
}

}  // namespace millrace
