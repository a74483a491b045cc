#include "millrace/replay/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/replay/internal/first_stage.h"

namespace millrace {

using internal::ends_step;
using internal::first_stage_rank;

namespace {

// A node begins lag_s after the end of `node`.
struct Edge {
  int node = -1;
  double lag_s = 0;
};

struct Node {
  double own_s = 0;
  double release_s = 0;  // not before this
  int queue = -1;  // of links and of reductions beside; -1: none, or a rank's, which edges keep
  std::vector<Edge> after{};
  // What it is.
  int rank = -1;  // place in the recording; of actions
  int action = -1;
  int message = -1;
  int reduction = -1;
};

// Where an action's nodes are.
struct Placed {
  Edge before;  // what its start waits for on the rank; node -1: nothing
  double release_s = 0;
  int last = -1;
};

class Graph {
 public:
  explicit Graph(const Recording& recording) : recording_(recording) {
    begin_s_ = std::numeric_limits<double>::infinity();
    for (const std::vector<RecordedAction>& actions : recording.actions) {
      if (!actions.empty()) {
        begin_s_ = std::min(begin_s_, actions.front().start_s);
      }
    }
    messages_.assign(recording.messages.size(), -1);
    reductions_.assign(recording.reductions.size(), -1);
    placed_.resize(recording.actions.size());
    for (std::size_t r = 0; r < recording.actions.size(); ++r) {
      add_rank(r);
    }
    for (std::size_t r = 0; r < recording.actions.size(); ++r) {
      join_rank(r);
    }
  }

  void run();
  Replay result(int64_t steps_each) const;

 private:
  int add(Node node) {
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size()) - 1;
  }
  Node& at(int node) { return nodes_[static_cast<std::size_t>(node)]; }
  const Node& at(int node) const { return nodes_[static_cast<std::size_t>(node)]; }
  const RecordedAction& action_of(const Node& node) const {
    return recording_
        .actions[static_cast<std::size_t>(node.rank)][static_cast<std::size_t>(node.action)];
  }

  void add_rank(std::size_t r);
  void join_rank(std::size_t r);
  int message_node(int message);
  int reduction_node(int reduction);
  int queue_of(std::vector<int> key) {
    return queues_.try_emplace(std::move(key), static_cast<int>(queues_.size())).first->second;
  }
  std::vector<PathPart> path() const;
  PathPart part_of(const Node& node) const;
  double step_s(int64_t steps_each) const;
  Trace trace() const;

  const Recording& recording_;
  double begin_s_ = 0;
  std::vector<Node> nodes_;
  std::vector<std::vector<Placed>> placed_;  // by rank and action
  std::vector<int> messages_;                // nodes; -1: none yet
  std::vector<int> reductions_;
  std::map<std::vector<int>, int> queues_;
  // Of the run.
  std::vector<double> start_s_;
  std::vector<double> end_s_;
  std::vector<Edge> cause_;  // what the start waited for longest
};

// A rank's own nodes and their order; a node for each ask but the last stretch.
void Graph::add_rank(std::size_t r) {
  const std::vector<RecordedAction>& actions = recording_.actions[r];
  Edge before;
  for (std::size_t a = 0; a < actions.size(); ++a) {
    const RecordedAction& each = actions[a];
    Placed placed{.before = before};
    if (before.node < 0) {
      placed.release_s = each.start_s - begin_s_;
    } else {
      placed.before.lag_s = each.gap_s;
    }
    Edge last = placed.before;
    const auto stretch = [&](double own_s) {
      Node node{.own_s = own_s,
                .release_s = placed.release_s,
                .rank = static_cast<int>(r),
                .action = static_cast<int>(a)};
      if (last.node >= 0) {
        node.after.push_back(last);
      }
      last = {add(std::move(node)), 0};
    };
    for (const Ask& ask : each.asks) {
      stretch(ask.after_s);
      const int asked = last.node;
      const int reduction = reduction_node(ask.reduction);
      at(reduction).after.push_back({asked, 0});
    }
    stretch(each.own_s);
    placed.last = last.node;
    before = {placed.last, 0};
    placed_[r].push_back(placed);
  }
}

int Graph::message_node(int message) {
  int& node = messages_[static_cast<std::size_t>(message)];
  if (node < 0) {
    const RecordedMessage& sent = recording_.messages[static_cast<std::size_t>(message)];
    const auto process = [&](int rank) {
      const auto found = std::find(recording_.ranks.begin(), recording_.ranks.end(), rank);
      return recording_.processes[static_cast<std::size_t>(found - recording_.ranks.begin())];
    };
    const int from = process(sent.from);
    const int to = process(sent.to);
    const bool within = from == to;
    node = add(
        {.own_s = sent.wire_s,
         .queue = queue_of({0, within ? 1 : 0, within ? sent.from : from, within ? sent.to : to}),
         .message = message});
  }
  return node;
}

int Graph::reduction_node(int reduction) {
  int& node = reductions_[static_cast<std::size_t>(reduction)];
  if (node < 0) {
    const RecordedReduction& each = recording_.reductions[static_cast<std::size_t>(reduction)];
    std::vector<int> key = {1, each.stage};
    key.insert(key.end(), each.ranks.begin(), each.ranks.end());
    node = add({.own_s = each.own_s,
                .queue = each.beside ? queue_of(std::move(key)) : -1,
                .reduction = reduction});
  }
  return node;
}

// What passes between ranks.
void Graph::join_rank(std::size_t r) {
  for (std::size_t a = 0; a < recording_.actions[r].size(); ++a) {
    const RecordedAction& each = recording_.actions[r][a];
    const Placed& placed = placed_[r][a];
    // The start of an action, as others wait for it.
    const auto wait_for_start = [&](int node) {
      if (placed.before.node >= 0) {
        at(node).after.push_back(placed.before);
      } else {
        at(node).release_s = std::max(at(node).release_s, placed.release_s);
      }
    };
    if (each.message >= 0) {
      const int message = message_node(each.message);
      if (is_send(each.action.kind)) {
        wait_for_start(message);
      } else {
        const double latency_s =
            recording_.messages[static_cast<std::size_t>(each.message)].latency_s;
        at(placed.last).after.push_back({message, latency_s});
      }
    }
    for (const int awaited : each.awaits) {
      const int reduction = reduction_node(awaited);
      if (!recording_.reductions[static_cast<std::size_t>(awaited)].beside) {
        wait_for_start(reduction);
      }
      at(placed.last).after.push_back({reduction, 0});
    }
  }
}

void Graph::run() {
  const std::size_t n = nodes_.size();
  start_s_.assign(n, 0);
  end_s_.assign(n, 0);
  cause_.assign(n, Edge{});
  std::vector<double> ready_s(n);
  std::vector<int> missing(n);
  std::vector<std::vector<Edge>> next(n);
  for (std::size_t i = 0; i < n; ++i) {
    ready_s[i] = nodes_[i].release_s;
    missing[i] = static_cast<int>(nodes_[i].after.size());
    for (const Edge& edge : nodes_[i].after) {
      next[static_cast<std::size_t>(edge.node)].push_back({static_cast<int>(i), edge.lag_s});
    }
  }
  struct Queue {
    double free_s = 0;
    int last = -1;
  };
  std::vector<Queue> queues(queues_.size());
  using Ready = std::pair<double, int>;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> heap;
  for (std::size_t i = 0; i < n; ++i) {
    if (missing[i] == 0) {
      heap.emplace(ready_s[i], static_cast<int>(i));
    }
  }
  std::size_t num_done = 0;
  while (!heap.empty()) {
    const int i = heap.top().second;
    const auto index = static_cast<std::size_t>(i);
    heap.pop();
    ++num_done;
    const Node& node = nodes_[index];
    start_s_[index] = ready_s[index];
    if (node.queue >= 0) {
      Queue& queue = queues[static_cast<std::size_t>(node.queue)];
      if (queue.free_s > start_s_[index]) {
        start_s_[index] = queue.free_s;
        cause_[index] = {queue.last, 0};
      }
      queue = {start_s_[index] + node.own_s, i};
    }
    end_s_[index] = start_s_[index] + node.own_s;
    for (const Edge& edge : next[index]) {
      const auto follower = static_cast<std::size_t>(edge.node);
      const double after_s = end_s_[index] + edge.lag_s;
      if (after_s >= ready_s[follower]) {
        ready_s[follower] = after_s;
        cause_[follower] = {i, edge.lag_s};
      }
      if (--missing[follower] == 0) {
        heap.emplace(ready_s[follower], edge.node);
      }
    }
  }
  if (num_done < n) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} of {} parts of the trace wait for each other in a ring: it holds "
                            "messages of another run, or was edited; train again",
                            n - num_done, n));
  }
}

PathPart Graph::part_of(const Node& node) const {
  if (node.message >= 0) {
    const RecordedMessage& sent = recording_.messages[static_cast<std::size_t>(node.message)];
    return {PathKind::kMessage, fmt::format("link {}>{}", sent.from, sent.to),
            fmt::format("{}>{}", sent.from, sent.to)};
  }
  if (node.reduction >= 0) {
    const int stage = recording_.reductions[static_cast<std::size_t>(node.reduction)].stage;
    return {PathKind::kReduction, stage < 0 ? "all stages" : fmt::format("stage {}", stage),
            stage < 0 ? "norm" : fmt::format("{}reduction", stage)};
  }
  const RecordedAction& each = action_of(node);
  const ActionKind kind = each.action.kind;
  return {is_compute(kind)            ? PathKind::kCompute
          : kind == ActionKind::kStep ? PathKind::kUpdate
                                      : PathKind::kOverhead,
          fmt::format("rank {}", recording_.ranks[static_cast<std::size_t>(node.rank)]),
          to_string(each.action)};
}

std::vector<PathPart> Graph::path() const {
  std::vector<PathPart> parts;
  if (nodes_.empty()) {
    return parts;
  }
  auto at_node = static_cast<int>(std::max_element(end_s_.begin(), end_s_.end()) - end_s_.begin());
  while (at_node >= 0) {
    const auto index = static_cast<std::size_t>(at_node);
    const Node& node = nodes_[index];
    PathPart part = part_of(node);
    part.start_s = start_s_[index];
    part.end_s = end_s_[index];
    parts.push_back(part);
    const Edge cause = cause_[index];
    if (cause.node >= 0 && cause.lag_s > 0) {
      // A link's latency is the message's; a gap is the rank's.
      PathPart lag = part_of(at(cause.node).message >= 0 ? at(cause.node) : node);
      if (lag.kind != PathKind::kMessage || at(cause.node).message < 0) {
        lag.kind = PathKind::kOverhead;
        lag.what = "gap";
      }
      lag.start_s = part.start_s - cause.lag_s;
      lag.end_s = part.start_s;
      parts.push_back(std::move(lag));
    }
    at_node = cause.node;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

double Graph::step_s(int64_t steps_each) const {
  const int rank = first_stage_rank(recording_);
  std::vector<std::vector<StepEnd>> segments;
  int64_t before = -1;
  for (std::size_t a = 0; rank >= 0 && a < placed_[static_cast<std::size_t>(rank)].size(); ++a) {
    const RecordedAction& each = recording_.actions[static_cast<std::size_t>(rank)][a];
    if (!ends_step(each)) {
      continue;
    }
    // Microbatches are counted anew in each segment.
    if (segments.empty() || each.action.first <= before) {
      segments.emplace_back();
    }
    before = each.action.first;
    const int last = placed_[static_cast<std::size_t>(rank)][a].last;
    segments.back().push_back({end_s_[static_cast<std::size_t>(last)], steps_each});
  }
  return typical_step_s(segments);
}

Trace Graph::trace() const {
  Trace trace;
  trace.source = "simulated";
  for (std::size_t r = 0; r < placed_.size(); ++r) {
    RankTrace rank;
    rank.rank = recording_.ranks[r];
    for (std::size_t a = 0; a < placed_[r].size(); ++a) {
      const RecordedAction& each = recording_.actions[r][a];
      const Placed& placed = placed_[r][a];
      const double start_s =
          placed.before.node < 0
              ? placed.release_s
              : end_s_[static_cast<std::size_t>(placed.before.node)] + placed.before.lag_s;
      const double end_s = end_s_[static_cast<std::size_t>(placed.last)];
      TraceEvent event{each.action, start_s, end_s,
                       std::max(0.0, end_s - start_s - each.total_s())};
      if (each.message >= 0) {
        event.bytes = recording_.messages[static_cast<std::size_t>(each.message)].bytes;
      }
      double& total = is_compute(each.action.kind)            ? rank.compute_s
                      : each.action.kind == ActionKind::kStep ? rank.update_s
                                                              : rank.communicate_s;
      total += each.total_s();
      rank.wait_s += event.wait_s;
      if (std::find(rank.stages.begin(), rank.stages.end(), each.action.stage) ==
          rank.stages.end()) {
        rank.stages.push_back(each.action.stage);
      }
      rank.events.push_back(event);
    }
    std::sort(rank.stages.begin(), rank.stages.end());
    trace.ranks.push_back(std::move(rank));
  }
  return trace;
}

Replay Graph::result(int64_t steps_each) const {
  Replay replay;
  replay.path = path();
  replay.window_s = end_s_.empty() ? 0 : *std::max_element(end_s_.begin(), end_s_.end());
  replay.step_s = step_s(steps_each);
  replay.trace = trace();
  const int rank = first_stage_rank(recording_);
  if (rank >= 0) {
    const auto& actions = recording_.actions[static_cast<std::size_t>(rank)];
    replay.trace.num_steps = steps_each * std::count_if(actions.begin(), actions.end(), ends_step);
  }
  if (replay.step_s == 0) {
    replay.step_s = replay.window_s;  // a single update
  }
  replay.trace.step_s = replay.step_s;
  replay.trace.window_s = replay.window_s;
  return replay;
}

}  // namespace

const char* to_string(PathKind kind) {
  switch (kind) {
    case PathKind::kCompute:
      return "compute";
    case PathKind::kUpdate:
      return "update";
    case PathKind::kMessage:
      return "message";
    case PathKind::kReduction:
      return "reduction";
    case PathKind::kOverhead:
      return "overhead";
  }
  return "?";
}

Replay replay(const Recording& recording, int64_t steps_each) {
  Graph graph(recording);
  graph.run();
  return graph.result(steps_each);
}

}  // namespace millrace
