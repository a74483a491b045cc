// Task: a rule's work at one moment of training, written as it is read, top to bottom. It stops at
// each `co_await` until a message or a reduction is there. The runtime blocks at such a point, so a
// task runs through at once; the simulator goes on with other replicas and resumes it when its
// virtual time has come. So both run the same lines.
//
// Used from one thread at a time. Parameters taken by reference must outlive the task.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace millrace {

class [[nodiscard]] Task {
 public:
  struct promise_type {  // the language's name: NOLINT(readability-identifier-naming)
    struct Final {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(
          std::coroutine_handle<promise_type> ended) const noexcept {
        const std::coroutine_handle<> next = ended.promise().caller;
        return next ? next : std::noop_coroutine();
      }
      void await_resume() const noexcept {}
    };

    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    Final final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() noexcept { exception = std::current_exception(); }

    std::coroutine_handle<> caller;  // null: nobody awaits it
    std::exception_ptr exception;
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) {
      handle_.destroy();
    }
  }

  // Runs to the first point at which it has to wait, or to the end. Once. Throws what the task
  // threw.
  void start() {
    handle_.resume();
    rethrow();
  }
  bool done() const { return handle_.done(); }
  // For whoever resumed it at the point where it waited.
  void rethrow() const {
    if (handle_.done() && handle_.promise().exception) {
      std::rethrow_exception(handle_.promise().exception);
    }
  }

  // A task may await another, which then is part of it.
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) noexcept {
    handle_.promise().caller = caller;
    return handle_;
  }
  void await_resume() const { rethrow(); }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace millrace
