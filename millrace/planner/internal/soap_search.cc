#include "millrace/planner/internal/soap_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/random.h"

namespace millrace::internal {
namespace {

// The draws of one proposal.
class Draws {
 public:
  Draws(const RandomKey& key, int64_t proposal) : key_(key.with(static_cast<uint64_t>(proposal))) {}
  int below(int bound) {
    return static_cast<int>(key_.below(next_++, static_cast<uint64_t>(bound)));
  }
  double uniform() { return key_.uniform(next_++); }

 private:
  RandomKey key_;
  uint64_t next_ = 0;
};

// `propose(draws)` gives the edits that lead to a neighbour, none where it is the same state;
// `keep()` says that it became the state.
template <typename Propose, typename Keep>
SearchResult anneal(const SoapProblem& problem, const Strategy& start, const SearchLimits& limits,
                    const char* chain, const Propose& propose, const Keep& keep) {
  TaskGraph graph(problem, start);
  SearchResult result{start, graph.cost_s(), graph.cost_s(), 0, false};
  const RandomKey key = RandomKey(limits.seed).with("flexflow").with(chain);
  const double beta = limits.beta / graph.cost_s();
  const auto work = [&graph] { return graph.num_simulated() + graph.num_shifted() / 4; };
  for (; result.proposals < limits.proposals && work() < limits.simulated_tasks;
       ++result.proposals) {
    if (monotonic_s() > limits.until_s) {
      result.clock_ended = true;
      break;
    }
    Draws draws(key, result.proposals);
    const double old_s = graph.cost_s();
    const std::vector<TaskGraph::Edit> edits = propose(draws, graph.strategy());
    if (edits.empty()) {
      continue;
    }
    const double new_s = graph.edit(edits);
    if (new_s > old_s && draws.uniform() >= std::exp(beta * (old_s - new_s))) {
      graph.undo();
      continue;
    }
    keep();
    if (new_s < result.best_s) {
      result.best_s = new_s;
      result.best = graph.strategy();
    }
  }
  return result;
}

Configuration draw_configuration(const SoapProblem& problem, int op, bool free_placement,
                                 Draws& draws) {
  const std::vector<Degrees>& choices = problem.operators[op].choices;
  Configuration drawn;
  drawn.degrees = choices[draws.below(static_cast<int>(choices.size()))];
  const int parts = num_parts(drawn.degrees);
  if (!free_placement) {
    drawn.first = parts == problem.num_devices ? 0 : draws.below(problem.num_devices);
    return drawn;
  }
  drawn.devices.resize(problem.num_devices);
  std::iota(drawn.devices.begin(), drawn.devices.end(), 0);
  for (int part = 0; part < parts; ++part) {
    std::swap(drawn.devices[part], drawn.devices[part + draws.below(problem.num_devices - part)]);
  }
  drawn.devices.resize(parts);
  return drawn;
}

// Another way to cut and replicate, or the same where the move drawn is none.
SoapStages neighbour(const SoapProblem& problem, const SoapStages& stages, Draws& draws) {
  SoapStages moved = stages;
  const int num_stages = static_cast<int>(stages.ends.size());
  const int idle =
      problem.num_devices - std::accumulate(stages.replicas.begin(), stages.replicas.end(), 0);
  const int s = draws.below(num_stages);
  const int begin = s > 0 ? stages.ends[s - 1] : 0;
  switch (draws.below(4)) {
    case 0:  // the cut behind it
      if (s + 1 < num_stages) {
        moved.ends[s] = begin + 1 + draws.below(stages.ends[s + 1] - begin - 1);
      }
      break;
    case 1: {  // its replicas, from idle devices or those of another stage
      const int other = draws.below(num_stages);
      const int spare = idle + (other == s ? 0 : stages.replicas[other] - 1);
      moved.replicas[s] =
          std::min(problem.most_samples, 1 + draws.below(stages.replicas[s] + spare));
      const int taken = moved.replicas[s] - stages.replicas[s] - idle;
      if (other != s && taken > 0) {
        moved.replicas[other] -= taken;
      }
      break;
    }
    case 2: {  // two of it
      const int devices = stages.replicas[s] + idle;
      if (stages.ends[s] - begin < 2 || devices < 2) {
        break;
      }
      const int cut = begin + 1 + draws.below(stages.ends[s] - begin - 1);
      const int here = 1 + draws.below(devices - 1);
      const int there = 1 + draws.below(devices - here);
      moved.ends.insert(moved.ends.begin() + s, cut);
      moved.replicas[s] = std::min(problem.most_samples, here);
      moved.replicas.insert(moved.replicas.begin() + s + 1, std::min(problem.most_samples, there));
      break;
    }
    default:  // one of it and the next
      if (s + 1 < num_stages) {
        const int devices = stages.replicas[s] + stages.replicas[s + 1] + idle;
        moved.ends.erase(moved.ends.begin() + s);
        moved.replicas.erase(moved.replicas.begin() + s);
        moved.replicas[s] = std::min(problem.most_samples, 1 + draws.below(devices));
      }
  }
  return moved;
}

}  // namespace

SearchResult search_strategies(const SoapProblem& problem, const Strategy& start,
                               const SearchLimits& limits) {
  const auto propose = [&](Draws& draws, const Strategy& now) {
    std::vector<TaskGraph::Edit> edits;
    const int op = draws.below(static_cast<int>(problem.operators.size()));
    Configuration drawn = draw_configuration(problem, op, limits.free_placement, draws);
    if (drawn != now[op]) {
      edits.emplace_back(op, std::move(drawn));
    }
    return edits;
  };
  return anneal(problem, start, limits, "strategies", propose, [] {});
}

SearchResult search_stages(const SoapProblem& problem, const SoapStages& start,
                           const SearchLimits& limits) {
  SoapStages stages = start;
  SoapStages proposed = start;
  const auto propose = [&](Draws& draws, const Strategy& now) {
    proposed = neighbour(problem, stages, draws);
    const Strategy then = strategy_of(problem, proposed);
    std::vector<TaskGraph::Edit> edits;
    for (std::size_t op = 0; op < then.size(); ++op) {
      if (then[op] != now[op]) {
        edits.emplace_back(static_cast<int>(op), then[op]);
      }
    }
    return edits;
  };
  return anneal(problem, strategy_of(problem, start), limits, "stages", propose,
                [&] { stages = proposed; });
}

}  // namespace millrace::internal
