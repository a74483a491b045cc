#include "millrace/planner/schedule_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/random.h"
#include "millrace/base/text.h"
#include "millrace/planner/internal/timed_order.h"
#include "millrace/planner/placed.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/validate.h"
#include "millrace/sim/simulate.h"

namespace millrace {
namespace {

using internal::Preferences;
using internal::TimedPipeline;

constexpr double kNever = std::numeric_limits<double>::infinity();
// Copies of the parameters that a rank holds under a flush: weights, gradients, momentum.
constexpr int kParameterCopies = 3;
// Starting points that are improved, and how often each is looked at in all.
constexpr std::size_t kChains = 8;
constexpr double kMostWork = 4e9;  // additions or so, some ten seconds
constexpr double kMostTurns = 160'000;
constexpr double kLeastTurns = 800;
// Small enough to lose nothing to a state that looks a little worse on the way.
constexpr double kWarmth = 0.01;

// One point of the search.
struct State {
  std::vector<int> ends;     // of each stage: one behind its last layer
  std::vector<int> rank_of;  // of each stage
  bool split = false;
  Preferences preferences;
  std::string family;  // where it came from
  double seconds = kNever;
};

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : request_(request),
        memory_bytes_(request.memory_bytes > 0 ? request.memory_bytes
                                               : request.cluster.memory_bytes),
        num_layers_(static_cast<int>(request.profile.layers.size())) {
    for (const LayerProfile& layer : request.profile.layers) {
      seconds_.push_back(layer.compute_s());
    }
  }

  FoundSchedule run() {
    check();
    if (request_.use_builtins) {
      try_builtins();
    }
    try_families();
    if (best_.step_s == kNever) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("of {} schedules tried none fits into {} a rank; raise the memory, "
                              "lower the microbatch's samples, or use more ranks",
                              tried_, format_bytes(memory_bytes_)));
    }
    best_.tried = tried_;
    return std::move(best_);
  }

 private:
  void check() {
    if (request_.ranks < 1 || request_.microbatches < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("expected at least 1 rank and 1 microbatch, found {} and {}",
                              request_.ranks, request_.microbatches));
    }
    if (num_layers_ < request_.ranks) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} layers for {} ranks, and a rank needs a layer; use at most {} "
                              "ranks",
                              num_layers_, request_.ranks, num_layers_));
    }
    if (request_.cluster.num_devices() < request_.ranks) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} ranks need as many devices, but the cluster has {}; use fewer or "
                              "another cluster file",
                              request_.ranks, request_.cluster.num_devices()));
    }
    best_.step_s = kNever;
  }

  void tell(const std::string& what) const {
    if (request_.progress) {
      request_.progress(best_.step_s == kNever ? what
                                               : fmt::format("{}; {} tried, best {}", what, tried_,
                                                             format_seconds(best_.step_s)));
    }
  }

  struct Judged {
    Simulation simulation;
    bool fits = false;
  };

  Judged judge(const Schedule& schedule, const Plan& plan) {
    ++tried_;
    const std::vector<StageLink> links = stage_links(plan, request_.profile.edges);
    const auto samples = static_cast<double>(request_.profile.samples_per_microbatch);
    const LoweredSchedule lowered = lower(schedule, plan, 1, links);
    SimulationInput input{.lowered = lowered,
                          .costs = stage_costs(plan, request_.profile, samples),
                          .cluster = request_.cluster,
                          .rule = plan.rule};
    input.rule_options = plan.rule_options;
    input.link_bytes = link_bytes(plan, request_.profile, links, samples);
    Judged judged{simulate(input), true};
    for (const RankSimulation& rank : judged.simulation.ranks) {
      judged.fits = judged.fits && static_cast<double>(rank.memory.total()) <= memory_bytes_;
    }
    return judged;
  }

  // Takes it when it fits and is faster than what there is. Its seconds, or never.
  double offer(Schedule schedule, Plan plan, const std::string& origin) {
    const Judged judged = judge(schedule, plan);
    const double step_s = judged.fits ? judged.simulation.step_s : kNever;
    if (step_s < best_.step_s) {
      plan.memory.clear();
      for (const RankSimulation& rank : judged.simulation.ranks) {
        plan.memory.push_back(rank.memory);
      }
      schedule.name = "auto";
      best_.schedule = std::move(schedule);
      best_.plan = std::move(plan);
      best_.step_s = step_s;
      best_.origin = origin;
    }
    return step_s;
  }

  void try_builtins() {
    best_.best_builtin_s = kNever;
    for (const ScheduleEntry& entry : schedules()) {
      if (!has_flush(*entry.builtin)) {
        continue;
      }
      for (int chunks = 1; chunks <= request_.most_chunks; ++chunks) {
        const ScheduleConfig config{.num_ranks = request_.ranks,
                                    .num_microbatches = request_.microbatches,
                                    .chunks = chunks};
        if (why_refused(entry, config) || chunks * request_.ranks > num_layers_) {
          continue;
        }
        tell(fmt::format("builtin {}", entry.name));
        try_builtin(entry.name, config);
      }
    }
    if (best_.best_builtin.empty()) {
      best_.best_builtin_s = 0;
    }
  }

  void try_builtin(const std::string& name, const ScheduleConfig& config) {
    const PlanRequest plan_request{.profile = request_.profile,
                                   .cluster = request_.cluster,
                                   .workers = request_.ranks,
                                   .stages = {},
                                   .replicas = {},
                                   .straight = false};
    Plan plan = make_placed_plan("pipedream", plan_request, name, config);
    Schedule schedule = make_schedule(name, config);
    if (name == "1f1b") {
      best_.one_f_one_b_s = judge(schedule, plan).simulation.step_s;
    }
    const double seconds =
        offer(std::move(schedule), std::move(plan), fmt::format("builtin {}", name));
    if (seconds < best_.best_builtin_s) {
      best_.best_builtin_s = seconds;
      best_.best_builtin = name;
    }
  }

  // Consecutive layers in stages whose longest is as short as can be.
  std::vector<int> balanced(int stages) const {
    double low = *std::max_element(seconds_.begin(), seconds_.end());
    double high = 0;
    for (const double seconds : seconds_) {
      high += seconds;
    }
    std::vector<int> ends = fill(stages, high);
    for (int i = 0; i < 50 && high > low; ++i) {
      const double middle = (low + high) / 2;
      std::vector<int> tried = fill(stages, middle);
      if (tried.empty()) {
        low = middle;
      } else {
        high = middle;
        ends = std::move(tried);
      }
    }
    return ends;
  }

  // As many layers a stage as `limit` seconds hold, each stage at least one; nothing when too few.
  std::vector<int> fill(int stages, double limit) const {
    std::vector<int> ends;
    double sum = 0;
    for (int layer = 0; layer < num_layers_; ++layer) {
      const int open = stages - static_cast<int>(ends.size()) - 1;  // behind the one being filled
      const bool begun = layer > (ends.empty() ? 0 : ends.back());
      const double seconds = seconds_[static_cast<std::size_t>(layer)];
      if (begun && (sum + seconds > limit * (1 + 1e-12) || num_layers_ - layer <= open)) {
        if (open == 0) {
          return {};
        }
        ends.push_back(layer);
        sum = 0;
      }
      sum += seconds;
    }
    ends.push_back(num_layers_);
    return ends;
  }

  TimedPipeline pipeline_of(const State& state) const {
    TimedPipeline pipeline;
    const auto num_stages = state.rank_of.size();
    const auto num_ranks = static_cast<std::size_t>(request_.ranks);
    const Cluster& cluster = request_.cluster;
    pipeline.num_ranks = request_.ranks;
    pipeline.num_microbatches = request_.microbatches;
    pipeline.split = state.split;
    pipeline.rank_of = state.rank_of;
    pipeline.update_s.resize(num_ranks);
    pipeline.stash_limit_bytes.assign(num_ranks, memory_bytes_);
    int layer = 0;
    for (std::size_t stage = 0; stage < num_stages; ++stage) {
      const int rank = state.rank_of[stage];
      const auto index = static_cast<std::size_t>(rank);
      const double speed = cluster.speed_of(rank);
      std::array<double, 3> seconds{};
      double stash = 0;
      double output = 0;
      for (; layer < state.ends[stage]; ++layer) {
        const LayerProfile& part = request_.profile.layers[static_cast<std::size_t>(layer)];
        seconds[0] += part.forward_s / speed;
        seconds[1] += (state.split ? part.input_gradient_s : part.backward_s()) / speed;
        seconds[2] += part.weight_gradient_s / speed;
        stash += static_cast<double>(part.stash_bytes);
        output = static_cast<double>(part.output_bytes);
        pipeline.update_s[index] += part.update_s / speed;
        pipeline.stash_limit_bytes[index] -=
            kParameterCopies * static_cast<double>(part.parameter_bytes);
      }
      for (double& part : seconds) {
        part += cluster.action_overhead_s;
      }
      pipeline.seconds.push_back(seconds);
      pipeline.stash_bytes.push_back(stash);
      const bool moves = stage + 1 < num_stages && state.rank_of[stage + 1] != rank;
      pipeline.message_s.push_back(
          moves ? output / cluster.bandwidth_between(rank, state.rank_of[stage + 1]) +
                      cluster.latency_between(rank, state.rank_of[stage + 1])
                : 0);
    }
    return pipeline;
  }

  double seconds_of(const State& state) {
    ++tried_;
    const auto order = internal::order_by(pipeline_of(state), state.preferences);
    return order ? order->seconds : kNever;
  }

  // What the simulator says of a state's order.
  void offer(const State& state) {
    auto order = internal::order_by(pipeline_of(state), state.preferences);
    if (!order) {
      return;
    }
    Schedule schedule;
    schedule.name = "auto";
    schedule.num_ranks = request_.ranks;
    schedule.num_stages = static_cast<int>(state.rank_of.size());
    schedule.num_microbatches = request_.microbatches;
    schedule.period_microbatches = request_.microbatches;
    schedule.prologue.resize(static_cast<std::size_t>(request_.ranks));
    schedule.epilogue.resize(static_cast<std::size_t>(request_.ranks));
    schedule.period = std::move(order->lists);
    Plan plan;
    plan.planner = "search";
    plan.microbatches = request_.microbatches;
    plan.workers = request_.ranks;
    int layer = 0;
    for (std::size_t stage = 0; stage < state.rank_of.size(); ++stage) {
      schedule.stage_ranks.push_back({state.rank_of[stage]});
      PlanStage& made = plan.stages.emplace_back();
      made.ranks = {state.rank_of[stage]};
      for (; layer < state.ends[stage]; ++layer) {
        made.layers.push_back(request_.profile.layers[static_cast<std::size_t>(layer)].name);
      }
    }
    offer(std::move(schedule), std::move(plan),
          fmt::format("{} stages, at first {}, {}", state.rank_of.size(), state.family,
                      state.split ? "backward in two halves" : "whole backward"));
  }

  static std::vector<Preferences> families(int num_ranks, int chunks) {
    // Backwards first and the farthest stage's; forwards first; group by group of microbatches;
    // whatever was begun first.
    const double far = num_ranks * chunks;
    std::vector<Preferences> all(4);
    all[0] = {.bias = {0, 1e6, -1e6}, .stage = {1, 0, 0}, .microbatch = {-1, -1, -1}, .caps = {}};
    all[1] = {
        .bias = {1e6, 0, -1e6}, .stage = {-far, 1, 0}, .microbatch = {-1, -1, -1}, .caps = {}};
    all[2] = {.bias = {0, 1e6, -1e6},
              .stage = {-1, 1, 0},
              .microbatch = {-far / num_ranks, -far / num_ranks, -1},
              .caps = {}};
    all[3] = {.bias = {0, far, -far}, .stage = {1, -1, 0}, .microbatch = {-2, -2, -2}, .caps = {}};
    return all;
  }

  // Limits in microbatches of stages: none; 1F1B's; one that is the same for all ranks.
  std::vector<std::vector<int>> limits(int chunks) const {
    std::vector<std::vector<int>> all(3);
    for (int rank = 0; rank < request_.ranks; ++rank) {
      all[1].push_back(2 * (request_.ranks - rank - 1) + (chunks - 1) * request_.ranks + 1);
      all[2].push_back(chunks * request_.ranks);
    }
    return all;
  }

  std::vector<State> starts() {
    std::vector<State> states;
    for (int chunks = 1; chunks <= request_.most_chunks; ++chunks) {
      const int stages = chunks * request_.ranks;
      if (stages > num_layers_) {
        break;
      }
      for (const bool back : {false, true}) {
        State state;
        state.ends = balanced(stages);
        for (int stage = 0; stage < stages; ++stage) {
          const int place = stage % request_.ranks;
          const bool turned = back && (stage / request_.ranks) % 2 == 1;
          state.rank_of.push_back(turned ? request_.ranks - 1 - place : place);
        }
        if (back && chunks == 1) {
          continue;
        }
        state.family = back ? "there and back" : chunks == 1 ? "linear" : "looped";
        for (const bool split : {false, true}) {
          if (split && !request_.split) {
            continue;
          }
          state.split = split;
          add_starts(state, chunks, states);
        }
      }
    }
    std::stable_sort(states.begin(), states.end(),
                     [](const State& a, const State& b) { return a.seconds < b.seconds; });
    return states;
  }

  // The best order by rule for this placement, and for each limit its own where it differs.
  void add_starts(State state, int chunks, std::vector<State>& states) {
    State best = state;
    for (const Preferences& preferences : families(request_.ranks, chunks)) {
      for (const std::vector<int>& caps : limits(chunks)) {
        state.preferences = preferences;
        state.preferences.caps = caps;
        state.seconds = seconds_of(state);
        if (state.seconds < best.seconds || best.preferences.bias == Preferences{}.bias) {
          best = state;
        }
      }
    }
    states.push_back(best);
  }

  void try_families() {
    std::vector<State> states = starts();
    const std::size_t chains = std::min(kChains, states.size());
    for (std::size_t chain = 0; chain < chains; ++chain) {
      offer(states[chain]);
    }
    for (std::size_t chain = 0; chain < chains; ++chain) {
      improve(std::move(states[chain]), chain, chains);
    }
  }

  // A walk that takes every change for the better and, less and less often, one for the worse.
  void improve(State state, std::size_t chain, std::size_t chains) {
    const double actions =
        static_cast<double>(state.rank_of.size()) * request_.microbatches * (state.split ? 3 : 2);
    const double choices =
        6.0 * static_cast<double>(state.rank_of.size()) / request_.ranks + request_.ranks;
    const double turns = std::clamp(kMostWork / (actions * choices), kLeastTurns, kMostTurns) *
                         request_.effort / static_cast<double>(chains);
    const RandomKey key = RandomKey(1).with("schedule search").with(uint64_t{chain});
    State best = state;
    for (int64_t turn = 0; turn < static_cast<int64_t>(turns); ++turn) {
      const RandomKey draws = key.with(static_cast<uint64_t>(turn));
      State next = state;
      if (!change(next, draws)) {
        continue;
      }
      next.seconds = seconds_of(next);
      const double warmth = kWarmth * (1 - static_cast<double>(turn) / turns);
      const double worse = next.seconds == kNever ? kNever : next.seconds / state.seconds - 1;
      if (state.seconds == kNever || worse <= -warmth * std::log(draws.uniform(90) + 1e-12) * 0.3) {
        state = std::move(next);
        if (state.seconds < best.seconds) {
          best = state;
        }
      }
      if (turn % 256 == 0) {
        tell(fmt::format("{}, start {} of {}", state.family, chain + 1, chains));
      }
    }
    offer(best);
  }

  // One small change; false when this one is not possible.
  bool change(State& state, const RandomKey& draws) const {
    const auto stages = static_cast<uint64_t>(state.rank_of.size());
    const auto ranks = static_cast<uint64_t>(request_.ranks);
    const auto stage = static_cast<std::size_t>(draws.below(1, stages));
    switch (draws.below(0, 8)) {
      case 0:
      case 1:
        return move_border(state, stage, draws.below(2, 2) == 0 ? 1 : -1);
      case 2:
        state.rank_of[stage] = static_cast<int>(draws.below(2, ranks));
        return holds_all(state);
      case 3:
        std::swap(state.rank_of[stage], state.rank_of[draws.below(2, stages)]);
        return true;
      case 4:
        return draws.below(2, 2) == 0 ? cut(state, stage, static_cast<int>(draws.below(3, ranks)))
                                      : join_next(state, stage);
      case 5: {
        std::vector<int>& caps = state.preferences.caps;
        if (caps.empty()) {
          caps.assign(ranks, static_cast<int>(stages) * request_.microbatches);
        }
        int& cap = caps[draws.below(2, ranks)];
        cap = draws.below(3, 4) == 0
                  ? 1 + static_cast<int>(draws.below(4, 2 * ranks * stages / ranks))
                  : std::max(1, cap + (draws.below(4, 2) == 0 ? 1 : -1));
        return true;
      }
      default: {
        const auto kind = draws.below(2, 3);
        std::array<double, 3>* parts[] = {&state.preferences.bias, &state.preferences.stage,
                                          &state.preferences.microbatch};
        const uint64_t part = draws.below(3, 3);
        const double size = part == 0 ? static_cast<double>(stages) : 1.0;
        (*parts[part])[kind] = size * 2 * draws.normal(4);
        return true;
      }
    }
  }

  bool move_border(State& state, std::size_t stage, int by) const {
    if (stage + 1 >= state.ends.size()) {
      return false;
    }
    const int end = state.ends[stage] + by;
    if (end <= (stage == 0 ? 0 : state.ends[stage - 1]) || end >= state.ends[stage + 1]) {
      return false;
    }
    state.ends[stage] = end;
    return true;
  }

  bool holds_all(const State& state) const {
    for (int rank = 0; rank < request_.ranks; ++rank) {
      if (std::find(state.rank_of.begin(), state.rank_of.end(), rank) == state.rank_of.end()) {
        return false;
      }
    }
    return true;
  }

  // Half of a stage's layers become a stage on another rank.
  bool cut(State& state, std::size_t stage, int rank) const {
    const int begin = stage == 0 ? 0 : state.ends[stage - 1];
    const int size = state.ends[stage] - begin;
    const auto place = static_cast<std::ptrdiff_t>(stage);
    if (size < 2 ||
        static_cast<int>(state.rank_of.size()) >= request_.most_chunks * request_.ranks) {
      return false;
    }
    state.ends.insert(state.ends.begin() + place, begin + size / 2);
    state.rank_of.insert(state.rank_of.begin() + place, rank);
    return true;
  }

  bool join_next(State& state, std::size_t stage) const {
    const auto place = static_cast<std::ptrdiff_t>(stage);
    if (stage + 1 >= state.ends.size()) {
      return false;
    }
    state.ends.erase(state.ends.begin() + place);
    state.rank_of.erase(state.rank_of.begin() + place);
    return holds_all(state);
  }

  const SearchRequest& request_;
  double memory_bytes_;
  int num_layers_;
  std::vector<double> seconds_;  // of each layer
  int64_t tried_ = 0;
  FoundSchedule best_;
};

}  // namespace

FoundSchedule search_schedule(const SearchRequest& request) { return Search(request).run(); }

}  // namespace millrace
