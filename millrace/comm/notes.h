// NoteQueue: notes between processes on their way to a listener: in order, one at a time, kept
// until there is a listener. Torch-free; any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "millrace/comm/world.h"

namespace millrace {

class NoteQueue {
 public:
  // Delivers the note on this thread, unless another one is delivering: that one goes on with it. A
  // listener may put notes itself.
  void put(int from_process, const std::string& text) {
    std::unique_lock lock(mutex_);
    waiting_.emplace_back(from_process, text);
    deliver(lock);
  }

  // Replaces the listener; returns when no call of the former one is running, unless called by it.
  void listen(World::Listener listener) {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return !delivering_ || deliverer_ == std::this_thread::get_id(); });
    listener_ = std::move(listener);
    deliver(lock);
  }

 private:
  void deliver(std::unique_lock<std::mutex>& lock) {
    if (delivering_) {
      return;
    }
    delivering_ = true;
    deliverer_ = std::this_thread::get_id();
    while (listener_ && !waiting_.empty()) {
      const auto [from, text] = std::move(waiting_.front());
      waiting_.pop_front();
      const World::Listener listener = listener_;
      lock.unlock();
      listener(from, text);
      lock.lock();
    }
    delivering_ = false;
    idle_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<std::pair<int, std::string>> waiting_;
  World::Listener listener_;
  bool delivering_ = false;
  std::thread::id deliverer_;
};

}  // namespace millrace
