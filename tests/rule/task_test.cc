#include "millrace/rule/task.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace millrace {
namespace {

// Where a task waits until the test resumes it.
struct Gate {
  std::coroutine_handle<> waiter;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept { waiter = handle; }
  void await_resume() const noexcept {}
};

Task leaf(Gate& gate, std::string& log) {
  log += "a";
  co_await gate;
  log += "b";
}

Task middle(Gate& gate, std::string& log, bool fails) {
  co_await leaf(gate, log);
  log += "c";
  if (fails) {
    throw std::runtime_error("middle");
  }
}

Task top(Gate& gate, std::string& log, bool fails) {
  co_await middle(gate, log, fails);
  Task again = middle(gate, log, false);
  co_await again;
  log += "d";
}

Task catching(Gate& gate, std::string& log) {
  try {
    co_await middle(gate, log, true);
  } catch (const std::runtime_error& error) {
    log += error.what();
  }
}

TEST(Task, DoesNothingBeforeItIsStarted) {
  Gate gate;
  std::string log;
  {
    const Task task = leaf(gate, log);
    EXPECT_FALSE(task.done());
  }
  EXPECT_EQ(log, "");
}

TEST(Task, NestedTasksGoOnWhereTheyWaited) {
  Gate gate;
  std::string log;
  Task task = top(gate, log, false);
  task.start();
  EXPECT_EQ(log, "a");
  EXPECT_FALSE(task.done());
  gate.waiter.resume();
  EXPECT_EQ(log, "abca");
  gate.waiter.resume();
  EXPECT_EQ(log, "abcabcd");
  EXPECT_TRUE(task.done());
  EXPECT_NO_THROW(task.rethrow());
}

TEST(Task, ExceptionsReachWhoeverStartedOrResumedIt) {
  Gate gate;
  std::string log;
  Task task = top(gate, log, true);
  task.start();
  gate.waiter.resume();  // must not throw through a coroutine handle
  EXPECT_TRUE(task.done());
  EXPECT_EQ(log, "abc");
  EXPECT_THROW(task.rethrow(), std::runtime_error);

  const auto throws_at_once = []() -> Task {
    throw std::invalid_argument("at once");
    co_return;
  };
  Task at_once = throws_at_once();
  EXPECT_THROW(at_once.start(), std::invalid_argument);
}

TEST(Task, ATaskMayCatchWhatItsPartThrows) {
  Gate gate;
  std::string log;
  Task task = catching(gate, log);
  task.start();
  gate.waiter.resume();
  EXPECT_EQ(log, "abcmiddle");
  EXPECT_TRUE(task.done());
  EXPECT_NO_THROW(task.rethrow());
}

TEST(Task, MovesAndMayBeGivenUpWhileItWaits) {
  Gate gate;
  std::string log;
  struct Mark {
    std::string* log;
    ~Mark() { *log += "x"; }
  };
  const auto marked = [](Gate& at, std::string& text) -> Task {
    const Mark mark{&text};
    co_await at;
  };
  {
    Task first = marked(gate, log);
    first.start();
    Task second = std::move(first);
    EXPECT_FALSE(second.done());
    EXPECT_EQ(log, "");
  }
  EXPECT_EQ(log, "x");
}

}  // namespace
}  // namespace millrace
