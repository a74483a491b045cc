#include "millrace/planner/internal/task_graph.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace millrace::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kDone = std::numeric_limits<int>::max();  // waits_for of tasks that are kept
constexpr int kGone = -2;                               // place of tasks that an edit takes away
constexpr std::size_t kMostShifts = 8;
constexpr std::size_t kWorthShifting = 16;  // tasks

template <typename Block>
void mark(Block& block, int place) {
  for (auto& task : block.tasks) {
    task.place = place;
  }
}

// order[count[k]..count[k + 1]] are the indices i with key(i) = k, ascending.
template <typename Key>
void sort_by(std::size_t size, int num_keys, const Key& key, std::vector<int>& order,
             std::vector<int>& count) {
  count.assign(num_keys + 1, 0);
  for (std::size_t i = 0; i < size; ++i) {
    ++count[key(i) + 1];
  }
  for (int k = 0; k < num_keys; ++k) {
    count[k + 1] += count[k];
  }
  order.resize(size);
  std::vector<int> next(count.begin(), count.end() - 1);
  for (std::size_t i = 0; i < size; ++i) {
    order[next[key(i)]++] = static_cast<int>(i);
  }
}

}  // namespace

TaskGraph::TaskGraph(const SoapProblem& problem, Strategy strategy)
    : problem_(problem), strategy_(std::move(strategy)) {
  const auto devices = static_cast<std::size_t>(problem_.num_devices);
  free_s_.resize(devices + devices * devices);
  for (std::size_t op = 0; op < problem_.operators.size(); ++op) {
    operators_.push_back(make_operator(static_cast<int>(op)));
  }
  for (std::size_t edge = 0; edge < problem_.edges.size(); ++edge) {
    edges_.push_back(make_edge(static_cast<int>(edge)));
  }
  simulate_from(0);
}

TaskGraph::Task TaskGraph::make_task(Kind kind, int owner, int index, int queue, double duration_s,
                                     int rank, uint64_t part) const {
  Task task;
  task.kind = kind;
  task.owner = owner;
  task.index = index;
  task.queue = queue;
  task.duration_s = problem_.tick_s > 0
                        ? std::nearbyint(duration_s / problem_.tick_s) * problem_.tick_s
                        : duration_s;
  task.key = (static_cast<uint64_t>(rank) << 32U) | part;
  task.ready_s = kNever;  // not simulated
  return task;
}

TaskGraph::OperatorTasks TaskGraph::make_operator(int op) const {
  const Configuration& configuration = strategy_[op];
  const SoapOperator& what = problem_.operators[op];
  const int num_operators = static_cast<int>(problem_.operators.size());
  OperatorTasks block;
  block.fresh = true;
  block.parts = num_parts(configuration.degrees);
  block.shards = configuration.degrees[kChannels];
  block.holders = block.parts / block.shards;
  block.reduces = block.holders > 1 && what.parameter_bytes > 0;
  block.tasks.reserve(static_cast<std::size_t>(block.parts) * (block.reduces ? 3 : 2));
  const auto device = [&](int part) { return configuration.device(part, problem_.num_devices); };
  const auto add_compute = [&](Kind kind, double seconds, int rank) {
    for (int part = 0; part < block.parts; ++part) {
      const int where = device(part);
      block.tasks.push_back(make_task(kind, op, part, where,
                                      seconds / block.parts / problem_.speeds[where], rank, part));
    }
  };
  add_compute(Kind::kForward, what.forward_s, op);
  add_compute(Kind::kBackward, what.backward_s, 2 * num_operators - 1 - op);
  if (block.reduces) {
    const double bytes = static_cast<double>(what.parameter_bytes) / block.shards;
    for (int part = 0; part < block.parts; ++part) {
      const int from = device(part);
      const int to = device((part + block.shards) % block.parts);
      block.tasks.push_back(make_task(
          Kind::kReduce, op, part, problem_.num_devices + from * problem_.num_devices + to,
          problem_.link(from, to).reduce_s(bytes, block.holders), 2 * num_operators + op, part));
    }
  }
  return block;
}

TaskGraph::EdgeTasks TaskGraph::make_edge(int edge) const {
  const auto [from, to] = problem_.edges[edge];
  const Configuration& producer = strategy_[from];
  const Configuration& consumer = strategy_[to];
  const Degrees& a = producer.degrees;
  const Degrees& b = consumer.degrees;
  const double bytes = static_cast<double>(problem_.operators[from].output_bytes);
  const int devices = problem_.num_devices;
  EdgeTasks block;
  block.fresh = true;
  std::vector<Pair> pairs;
  std::vector<double> share;
  const auto rows = overlaps(a[kRows], b[kRows], true);
  const auto channels = overlaps(a[kChannels], b[kChannels], problem_.operators[to].own_channels);
  for (const Overlap& s : overlaps(a[kSamples], b[kSamples], true)) {
    for (const Overlap& r : rows) {
      for (const Overlap& c : channels) {
        pairs.push_back({(s.producer * a[kRows] + r.producer) * a[kChannels] + c.producer,
                         (s.consumer * b[kRows] + r.consumer) * b[kChannels] + c.consumer, -1});
        share.push_back(s.share * r.share * c.share);
      }
    }
  }
  std::vector<int> order;
  sort_by(
      pairs.size(), num_parts(a), [&](std::size_t i) { return pairs[i].producer; }, order,
      block.of_producer);
  const int rank = 3 * static_cast<int>(problem_.operators.size()) + 2 * edge;
  block.pairs.reserve(pairs.size());
  for (const int i : order) {
    Pair pair = pairs[i];
    const int there = producer.device(pair.producer, devices);
    const int here = consumer.device(pair.consumer, devices);
    if (there != here) {
      pair.transfer = static_cast<int>(block.tasks.size());
      const int index = static_cast<int>(block.pairs.size());
      const uint64_t part = static_cast<uint64_t>(pair.producer) * num_parts(b) + pair.consumer;
      block.tasks.push_back(
          make_task(Kind::kForwardTransfer, edge, index, devices + there * devices + here,
                    problem_.link(there, here).transfer_s(bytes * share[i]), rank, part));
      block.tasks.push_back(
          make_task(Kind::kBackwardTransfer, edge, index, devices + here * devices + there,
                    problem_.link(here, there).transfer_s(bytes * share[i]), rank + 1, part));
    }
    block.pairs.push_back(pair);
  }
  sort_by(
      block.pairs.size(), num_parts(b), [&](std::size_t i) { return block.pairs[i].consumer; },
      block.by_consumer, block.of_consumer);
  return block;
}

double TaskGraph::earliest_effect_s(const std::vector<Edit>& edits) const {
  double earliest_s = kNever;
  for (const auto& [op, configuration] : edits) {
    if (problem_.incoming[op].empty()) {
      return 0;
    }
    for (const int edge : problem_.incoming[op]) {
      const OperatorTasks& producer = operators_[problem_.edges[edge].from];
      for (int part = 0; part < producer.parts; ++part) {
        earliest_s = std::min(earliest_s, producer.tasks[part].end_s);
      }
    }
  }
  return earliest_s;
}

double TaskGraph::edit(const std::vector<Edit>& edits) {
  const double begin_s = earliest_effect_s(edits);
  journal_.cost_s = cost_s_;
  journal_.configurations.clear();
  journal_.operators.clear();
  journal_.edges.clear();
  for (const auto& [op, configuration] : edits) {
    journal_.configurations.emplace_back(op, strategy_[op]);
    strategy_[op] = configuration;
  }
  for (const auto& [op, configuration] : edits) {
    journal_.operators.emplace_back(op, std::exchange(operators_[op], make_operator(op)));
    for (const auto* edges : {&problem_.incoming[op], &problem_.outgoing[op]}) {
      for (const int edge : *edges) {
        if (!edges_[edge].fresh) {  // else made for another operator of this edit
          journal_.edges.emplace_back(edge, std::exchange(edges_[edge], make_edge(edge)));
        }
      }
    }
  }
  for (auto& [op, block] : journal_.operators) {
    mark(block, kGone);
  }
  for (auto& [edge, block] : journal_.edges) {
    mark(block, kGone);
  }
  simulate_from(begin_s);
  return cost_s_;
}

void TaskGraph::undo() {
  for (auto& [op, configuration] : journal_.configurations) {
    strategy_[op] = std::move(configuration);
  }
  for (auto& [op, block] : journal_.operators) {
    operators_[op] = std::move(block);
  }
  for (auto& [edge, block] : journal_.edges) {
    edges_[edge] = std::move(block);
  }
  order_.resize(journal_.kept);
  for (const Before& before : before_) {
    before.task->ready_s = before.ready_s;
    before.task->end_s = before.end_s;
    order_.push_back(before.task);
  }
  cost_s_ = journal_.cost_s;
}

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

std::vector<TaskTime> TaskGraph::times() const {
  std::vector<TaskTime> all;
  for (const Task* task : order_) {
    all.push_back({task->key, task->queue, task->ready_s, task->end_s});
  }
  std::sort(all.begin(), all.end(),
            [](const TaskTime& a, const TaskTime& b) { return a.key < b.key; });
  return all;
}

}  // namespace millrace::internal
