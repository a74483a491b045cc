// How the task graph is simulated after an edit: rewound, simulated, shifted. The rest of it stands
// in task_graph.cc.
#include <algorithm>
#include <functional>
#include <limits>

#include "millrace/planner/internal/task_graph.h"

namespace millrace::internal {
namespace {

constexpr int kDone = std::numeric_limits<int>::max();  // waits_for of tasks that are kept
constexpr std::size_t kMostShifts = 8;
constexpr std::size_t kWorthShifting = 16;  // tasks

}  // namespace

template <typename Tasks, typename WaitsFor>
void TaskGraph::rewind(Tasks& block, double begin_s, const WaitsFor& waits_for) {
  for (Task& task : block.tasks) {
    if (task.ready_s < begin_s) {
      task.waits_for = kDone;
      continue;
    }
    task.ready_s = 0;
    task.waits_for = waits_for(task);
    if (task.waits_for == 0) {
      heap_.push_back({0, task.key, &task});
    }
  }
  if (block.fresh) {
    made_ += static_cast<int64_t>(block.tasks.size());
    block.fresh = false;
  }
}

// Every task that is not kept waits for its predecessors again.
void TaskGraph::rewind_all(double begin_s) {
  heap_.clear();
  made_ = 0;
  for (std::size_t op = 0; op < operators_.size(); ++op) {
    const std::vector<int>& incoming = problem_.incoming[op];
    const std::vector<int>& outgoing = problem_.outgoing[op];
    rewind(operators_[op], begin_s, [&](const Task& task) {
      if (task.kind == Kind::kReduce) {
        return 2;
      }
      int count = 0;
      if (task.kind == Kind::kForward) {
        for (const int edge : incoming) {
          const std::vector<int>& pairs = edges_[edge].of_consumer;
          count += pairs[task.index + 1] - pairs[task.index];
        }
        return count;
      }
      for (const int edge : outgoing) {
        const std::vector<int>& pairs = edges_[edge].of_producer;
        count += pairs[task.index + 1] - pairs[task.index];
      }
      return outgoing.empty() ? 1 : count;  // a consumer's backward is behind our forward anyway
    });
  }
  for (EdgeTasks& edge : edges_) {
    rewind(edge, begin_s, [](const Task&) { return 1; });
  }
}

void TaskGraph::simulate_from(double begin_s) {
  const auto kept = std::partition_point(order_.begin(), order_.end(), [begin_s](const Task* task) {
    return task->ready_s < begin_s;
  });
  journal_.kept = static_cast<std::size_t>(kept - order_.begin());
  before_.clear();
  gone_.clear();
  for (auto task = kept; task != order_.end(); ++task) {
    const bool gone = (*task)->place == kGone;
    if (gone) {
      gone_.push_back(before_.size());
    }
    (*task)->place = static_cast<int>(before_.size());
    before_.push_back({*task, (*task)->ready_s, (*task)->end_s, gone, false});
  }
  gone_.push_back(before_.size());
  next_gone_ = 0;
  passed_ = 0;
  ahead_ = 0;
  order_.resize(journal_.kept);
  rewind_all(begin_s);

  std::fill(free_s_.begin(), free_s_.end(), 0.0);
  cost_s_ = 0;
  for (const Task* task : order_) {
    free_s_[task->queue] = task->end_s;
    cost_s_ = std::max(cost_s_, task->end_s);
    finish(*task);
  }
  shifted_.assign({{}, {0, cost_s_, cost_s_}});  // what is kept is shifted by nothing
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    double shift_s = 0;
    if (only_shifted(shift_s)) {
      shift_on(shift_s);
      continue;
    }
    Task& task = *heap_.front().task;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    double& free_s = free_s_[task.queue];
    free_s = task.end_s = std::max(task.ready_s, free_s) + task.duration_s;
    cost_s_ = std::max(cost_s_, task.end_s);
    order_.push_back(&task);
    note_end(task);
    finish(task);
    ++num_simulated_;
  }
}

// Of a task just simulated.
void TaskGraph::note_end(const Task& task) {
  if (task.place < 0) {
    --made_;
    shifted_[0].now_s = std::max(shifted_[0].now_s, task.end_s);
    return;
  }
  Before& before = before_[task.place];
  before.done = true;
  ++ahead_;
  for (; passed_ < before_.size() && (before_[passed_].done || before_[passed_].gone); ++passed_) {
    if (before_[passed_].gone) {
      shifted_[0].before_s = std::max(shifted_[0].before_s, before_[passed_].end_s);
      ++next_gone_;
    } else {
      --ahead_;
    }
  }
  const double shift_s = task.end_s - before.end_s;
  note_ends({shift_s, before.end_s, task.end_s});
}

void TaskGraph::note_ends(const Shifted& ends) {
  auto found = std::find_if(shifted_.begin() + 1, shifted_.end(), [&ends](const Shifted& known) {
    return known.shift_s == ends.shift_s;
  });
  if (found == shifted_.end()) {
    if (shifted_.size() <= kMostShifts) {
      shifted_.push_back(ends);
      return;
    }
    // The one that ended first is the least likely to be met again.
    found = std::min_element(shifted_.begin() + 1, shifted_.end(),
                             [](const Shifted& a, const Shifted& b) { return a.now_s < b.now_s; });
    shifted_[0].before_s = std::max(shifted_[0].before_s, found->before_s);
    shifted_[0].now_s = std::max(shifted_[0].now_s, found->now_s);
    *found = ends;
    return;
  }
  found->before_s = std::max(found->before_s, ends.before_s);
  found->now_s = std::max(found->now_s, ends.now_s);
}

// Whether all that follows happens as before, `shift_s` later. It does when the same tasks are done
// as were then, when the next one comes that much later, and when of the tasks done only those
// that ended that much later, too, end after it has become ready: nothing else that was done can
// have a say in when a later task is ready, or its queue free.
bool TaskGraph::only_shifted(double& shift_s) const {
  if (ahead_ != 0 || gone_[next_gone_] - std::min(passed_, gone_[next_gone_]) < kWorthShifting) {
    return false;
  }
  const Before& next = before_[passed_];
  if (heap_.front().task != next.task) {
    return false;
  }
  const double ready_s = heap_.front().ready_s;
  shift_s = ready_s - next.ready_s;
  for (std::size_t k = 0; k < shifted_.size(); ++k) {
    const Shifted& shifted = shifted_[k];
    if ((k == 0 || shifted.shift_s != shift_s) &&
        (shifted.before_s > next.ready_s || shifted.now_s > ready_s)) {
      return false;
    }
  }
  return true;
}

// Shifts what comes next, up to a task that is gone or to one that the edit made. Tasks are
// released as ever, since some may be left behind that.
void TaskGraph::shift_on(double shift_s) {
  const auto made = std::partition(heap_.begin(), heap_.end(),
                                   [](const Ready& ready) { return ready.task->place < 0; });
  released_.clear();
  for (auto ready = made; ready != heap_.end(); ++ready) {
    released_.push_back(ready->task);
  }
  heap_.erase(made, heap_.end());
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  const bool to_the_end = made_ == 0 && gone_[next_gone_] == before_.size();
  const std::size_t begin = passed_;
  Shifted shifted{shift_s, 0, 0};
  shifting_ = true;
  for (; passed_ < gone_[next_gone_]; ++passed_) {
    Before& before = before_[passed_];
    Task& task = *before.task;
    const double ready_s = before.ready_s + shift_s;
    if ((!to_the_end && task.waits_for > 0) ||  // for a task that the edit made
        (!heap_.empty() && Ready{ready_s, task.key, &task} > heap_.front())) {
      break;
    }
    before.done = true;
    task.ready_s = ready_s;
    free_s_[task.queue] = task.end_s = before.end_s + shift_s;
    shifted.before_s = std::max(shifted.before_s, before.end_s);
    shifted.now_s = std::max(shifted.now_s, task.end_s);
    order_.push_back(&task);
    if (!to_the_end) {
      finish(task);
    }
  }
  shifting_ = false;
  cost_s_ = std::max(cost_s_, shifted.now_s);
  note_ends(shifted);
  num_shifted_ += static_cast<int64_t>(passed_ - begin);
  if (to_the_end) {
    return;
  }
  for (; passed_ < before_.size() && before_[passed_].gone; ++passed_) {
    shifted_[0].before_s = std::max(shifted_[0].before_s, before_[passed_].end_s);
    ++next_gone_;
  }
  for (Task* task : released_) {
    if (!before_[task->place].done) {
      heap_.push_back({task->ready_s, task->key, task});
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  }
}

void TaskGraph::release(Task& task, double end_s) {
  task.ready_s = std::max(task.ready_s, end_s);
  if (--task.waits_for > 0) {
    return;
  }
  if (shifting_ && task.place >= 0) {
    released_.push_back(&task);
  } else {
    heap_.push_back({task.ready_s, task.key, &task});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
}

void TaskGraph::finish(const Task& task) {
  switch (task.kind) {
    case Kind::kForward: {
      if (problem_.outgoing[task.owner].empty()) {
        OperatorTasks& self = operators_[task.owner];
        release(self.tasks[self.parts + task.index], task.end_s);
      }
      for (const int e : problem_.outgoing[task.owner]) {
        EdgeTasks& edge = edges_[e];
        OperatorTasks& consumer = operators_[problem_.edges[e].to];
        for (int k = edge.of_producer[task.index]; k < edge.of_producer[task.index + 1]; ++k) {
          const Pair& pair = edge.pairs[k];
          release(pair.transfer >= 0 ? edge.tasks[pair.transfer] : consumer.tasks[pair.consumer],
                  task.end_s);
        }
      }
      return;
    }
    case Kind::kBackward: {
      OperatorTasks& self = operators_[task.owner];
      if (self.reduces) {
        const int before = (task.index + self.parts - self.shards) % self.parts;
        release(self.tasks[2 * self.parts + task.index], task.end_s);
        release(self.tasks[2 * self.parts + before], task.end_s);
      }
      for (const int e : problem_.incoming[task.owner]) {
        EdgeTasks& edge = edges_[e];
        OperatorTasks& producer = operators_[problem_.edges[e].from];
        for (int k = edge.of_consumer[task.index]; k < edge.of_consumer[task.index + 1]; ++k) {
          const Pair& pair = edge.pairs[edge.by_consumer[k]];
          release(pair.transfer >= 0 ? edge.tasks[pair.transfer + 1]
                                     : producer.tasks[producer.parts + pair.producer],
                  task.end_s);
        }
      }
      return;
    }
    case Kind::kForwardTransfer: {
      const int consumer = edges_[task.owner].pairs[task.index].consumer;
      release(operators_[problem_.edges[task.owner].to].tasks[consumer], task.end_s);
      return;
    }
    case Kind::kBackwardTransfer: {
      const int part = edges_[task.owner].pairs[task.index].producer;
      OperatorTasks& producer = operators_[problem_.edges[task.owner].from];
      release(producer.tasks[producer.parts + part], task.end_s);
      return;
    }
    case Kind::kReduce:
      return;
  }
}

}  // namespace millrace::internal
