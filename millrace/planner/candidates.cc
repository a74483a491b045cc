#include "millrace/planner/internal/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "millrace/base/error.h"
#include "millrace/planner/internal/cuts.h"
#include "millrace/planner/placed.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/registry.h"

namespace millrace::internal {
namespace {

constexpr int kMostMicrobatches = 256;
// Stages that planners are asked for one by one.
constexpr int kMostStages = 8;
// Planners whose time rises with layers x layers x workers are asked up to so many steps.
constexpr double kMostSlowSteps = 4e7;
// Planner `pipedream` is asked for given stages of a layer graph up to so many, some seconds.
constexpr double kMostGraphSteps = 2e9;
// A round of unequal replicas that is longer is not simulated whole.
constexpr int64_t kLongestRound = 64;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Whether a planner or schedule has refused, which is an answer; anything else passes through.
template <typename Make>
bool refused(const Make& make) {
  try {
    make();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kUnsupported) {
      throw;
    }
    return true;
  }
  return false;
}

class Collector {
 public:
  explicit Collector(const PlanRequest& request) : request_(request) {
    for (const LayerProfile& layer : request.profile.layers) {
      layers_.emplace(layer.name, &layer);
    }
  }

  Candidates collect() {
    ask_planners();
    for (const ScheduleEntry& entry : offered_schedules()) {
      for (const Plan& stages : pool_) {
        for (const int m : microbatches_for(stages.num_stages())) {
          add(entry, stages, m);
        }
      }
      if (!entry.builtin->deals) {
        add_placed(entry);
      }
    }
    std::stable_sort(made_.all.begin(), made_.all.end(),
                     [](const Candidate& a, const Candidate& b) {
                       const auto key = [](const Candidate& c) {
                         return std::tuple(c.bound_s, c.plan.num_used_ranks(), c.plan.num_stages(),
                                           c.plan.microbatches);
                       };
                       return key(a) < key(b);
                     });
    return std::move(made_);
  }

 private:
  void ask(const std::string& planner, const PlanRequest& request) {
    Plan plan;
    if (refused([&] { plan = make_plan(planner, request); })) {
      return;
    }
    const bool known = std::any_of(pool_.begin(), pool_.end(),
                                   [&](const Plan& other) { return other.stages == plan.stages; });
    if (!known) {
      pool_.push_back(std::move(plan));
    }
  }

  // The simplest first: of equal stages the first planner's name stays.
  void ask_planners() {
    const auto num_layers = static_cast<int>(request_.profile.layers.size());
    const double slow_steps =
        static_cast<double>(num_layers) * num_layers * static_cast<double>(request_.workers);
    const bool slow_ones = slow_steps <= kMostSlowSteps;
    placed_by_ = slow_ones ? "pipedream" : "equal-time";
    PlanRequest free = request_;
    free.schedule.reset();
    free.refuses = {};
    free.ranked = {};
    ask("one", free);
    ask("data-parallel", free);
    if (slow_ones) {
      ask("pipedream", free);
      ask("pipedream-2bw", free);
    } else {
      made_.left_out.emplace_back(
          "planners pipedream and pipedream-2bw were not asked: they take long for so many layers "
          "and workers");
    }
    ask("ftpipehd", free);
    ask("fusion-llm", free);
    free.schedule = "pipedream";  // without a flush it plans for the slowest stage alone
    ask("fusion-llm", free);
    free.schedule.reset();
    if (!request_.stages && request_.replicas.size() <= 1) {
      const int most = std::min({request_.workers, num_layers, kMostStages});
      double graph_steps = 0;
      for (int stages = 2; stages <= most; ++stages) {
        PlanRequest given = free;
        given.stages = stages;
        graph_steps += steps_of_graph(stages);
        if (slow_ones && graph_steps <= kMostGraphSteps) {
          ask("pipedream", given);
        }
        ask("equal-time", given);
      }
      if (slow_ones && graph_steps > kMostGraphSteps) {
        made_.left_out.emplace_back(
            "planner pipedream was not asked for all numbers of stages: it takes long for so many "
            "cuts of the layer graph");
      }
    } else {
      ask("equal-time", free);
    }
  }

  // Of planner `pipedream` for so many stages, where the cuts of the layer graph are not in one
  // order: it looks at all three that hold one another, for each way to deal out stages.
  double steps_of_graph(int stages) {
    if (is_chain(request_.profile)) {
      return 0;
    }
    if (!nested_cuts_) {
      nested_cuts_ = 0;
      const Cuts cuts(request_.profile);
      for (int last = 0; last < cuts.count() && !cuts.ordered(); ++last) {
        for (const int cut : cuts.inside(last)) {
          *nested_cuts_ += static_cast<double>(cuts.inside(cut).size());
        }
      }
    }
    constexpr double kComponents = 6;  // pairs of them in a level of 4
    return *nested_cuts_ * kComponents * stages * stages / 2;
  }

  std::vector<ScheduleEntry> offered_schedules() const {
    if (request_.schedule) {
      return {find_schedule(*request_.schedule)};
    }
    std::vector<ScheduleEntry> offered;
    for (const ScheduleEntry& entry : schedules()) {
      if (find_policy(entry.builtin->policies().front()).backward_as_forward) {
        offered.push_back(entry);
      }
    }
    return offered;
  }

  std::vector<int> microbatches_for(int stages) const {
    if (request_.microbatches) {
      return {*request_.microbatches};
    }
    std::set<int> counts = {stages, 2 * stages};
    for (int m = 1; m <= kMostMicrobatches; m *= 2) {
      counts.insert(m);
    }
    return {counts.begin(), counts.end()};
  }

  // A sample at least for every microbatch and replica.
  bool splits(const ScheduleConfig& config) const {
    return config.num_parts() <= request_.profile.samples_per_microbatch;
  }

  void add(const ScheduleEntry& entry, const Plan& stages, int microbatches) {
    Plan plan = stages;
    plan.schedule = entry.name;
    plan.microbatches = microbatches;
    ScheduleConfig config;
    if (refused([&] { config = schedule_config(plan); }) || why_refused(entry, config) ||
        !splits(config)) {
      return;
    }
    keep(entry, std::move(plan), config);
  }

  void add_placed(const ScheduleEntry& entry) {
    const int directions = entry.builtin->directions;
    for (int copies = 1; copies <= request_.workers; ++copies) {
      const bool wanted = request_.replicas.empty() ? request_.workers % copies == 0
                                                    : copies == request_.replicas.front();
      const int ranks = request_.workers / copies;
      const int stages = ranks * std::max(entry.builtin->chunks, 1);
      if (!wanted || (request_.straight && copies > 1) ||
          (entry.builtin->chunks == 1 && directions == 1 && copies > 1 && ranks == 1) ||
          stages > kMostPlaced || (request_.stages && stages != *request_.stages) ||
          stages > static_cast<int>(request_.profile.layers.size())) {
        continue;
      }
      PlanRequest placed = request_;
      placed.stages.reset();
      placed.replicas.clear();
      placed.refuses = {};
      placed.ranked = {};
      Plan plan;
      for (const int m : microbatches_for(ranks)) {
        const ScheduleConfig config{.num_ranks = ranks, .num_microbatches = m, .copies = copies};
        if (why_refused(entry, config) || !splits(config)) {
          continue;
        }
        // Stages and places do not depend on the number of microbatches.
        if (plan.stages.empty() && refused([&] {
              plan = make_placed_plan(placed_by_, placed, entry.name, config, &placed_stages_);
            })) {
          break;
        }
        plan.microbatches = m;
        keep(entry, plan, config);
      }
    }
  }

  void keep(const ScheduleEntry& entry, Plan plan, const ScheduleConfig& config) {
    plan.recompute = request_.recompute.value_or(Recompute::kNothing);
    plan.rule = request_.rule.value_or("bsp");
    plan.rule_options = request_.rule ? request_.rule_options : Value::map();
    plan.memory.clear();
    plan.notes.clear();
    // Planners agree, and a schedule's own places can be those of a plan.
    const bool known = std::any_of(made_.all.begin(), made_.all.end(), [&](const Candidate& other) {
      return other.plan.schedule == plan.schedule && other.plan.microbatches == plan.microbatches &&
             other.plan.stages == plan.stages;
    });
    if (known) {
      return;
    }
    Candidate candidate{std::move(plan)};
    weigh(entry, config, candidate);
    made_.all.push_back(std::move(candidate));
  }

  void weigh(const ScheduleEntry& entry, const ScheduleConfig& config, Candidate& candidate) const {
    const Plan& plan = candidate.plan;
    const bool flush = has_flush(*entry.builtin);
    std::vector<double> busy_s(at(plan.workers), 0.0);
    std::vector<double> weight_bytes(at(plan.workers), 0.0);
    double before_s = 0;  // of one microbatch on the stages before
    int64_t round = 1;
    for (const PlanStage& stage : plan.stages) {
      double compute_s = 0;
      double first_s = 0;
      double bytes = 0;
      for (const std::string& name : stage.layers) {
        const LayerProfile& layer = *layers_.at(name);
        compute_s += layer.compute_s();
        first_s += layer.forward_s + layer.input_gradient_s;
        bytes += static_cast<double>(layer.parameter_bytes);
      }
      const auto replicas = static_cast<int64_t>(stage.ranks.size());
      double speed = 0;
      double slowest_s = 0;
      for (const int rank : stage.ranks) {
        speed = std::max(speed, request_.cluster.speed_of(rank));
        busy_s[at(rank)] +=
            compute_s / static_cast<double>(replicas) / request_.cluster.speed_of(rank);
        slowest_s = std::max(slowest_s, busy_s[at(rank)]);
        weight_bytes[at(rank)] += (2.0 + request_.run.optimizer_buffers) * bytes;
        candidate.weight_bytes = std::max(candidate.weight_bytes, weight_bytes[at(rank)]);
      }
      const bool in_line = entry.builtin->deals && flush;
      candidate.bound_s = std::max(candidate.bound_s, slowest_s + (in_line ? before_s : 0.0));
      before_s += first_s / speed / config.num_parts();
      round = std::min(std::lcm(round, replicas), kLongestRound);
    }
    // Rounding must not lift it over what the simulator adds up.
    candidate.bound_s *= 1 - 1e-9;
    const int used = plan.num_used_ranks();
    const double steps =
        flush ? 1.0 : static_cast<double>(steady_steps(used, entry.builtin->deals ? round : 1));
    constexpr double kActionsEach = 6;  // F and B, and to send and receive both
    candidate.actions = kActionsEach * steps * plan.num_stages() * std::max(1, config.num_parts());
  }

  // Several stages a rank on more than so many places are not for a quick comparison.
  static constexpr int kMostPlaced = 64;

  const PlanRequest& request_;
  std::unordered_map<std::string, const LayerProfile*> layers_;
  std::vector<Plan> pool_;
  std::string placed_by_ = "pipedream";  // for schedules that hold several stages a rank
  PlacedStages placed_stages_;
  std::optional<double> nested_cuts_;  // threes that hold one another, see steps_of_graph
  Candidates made_;
};

}  // namespace

Candidates candidates_for(const PlanRequest& request) { return Collector(request).collect(); }

}  // namespace millrace::internal
