#include "millrace/planner/internal/task_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

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
