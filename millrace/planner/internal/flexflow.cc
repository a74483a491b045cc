#include "millrace/planner/internal/flexflow.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/planner/internal/soap_search.h"

namespace millrace::internal {
namespace {

// Work that a search may do, seconds on most machines. It ends searches at the same proposal
// everywhere, which processes that plan alike count on; the clock is for machines so slow or busy
// that it would take too long.
constexpr int64_t kTasksOverStages = 4'000'000;
constexpr int64_t kTasksOverStrategies = 8'000'000;
constexpr double kMostSeconds = 6;
constexpr double kMostSecondsOverStages = 2;
constexpr int64_t kProposalsAnOperator = 1000;
// Layers x workers up to which PipeDream's plan, which is planned at once, is a start, too.
constexpr int64_t kPipedreamAtMost = 20'000;

// The best of the plans that one may start from.
SoapStages first_stages(const SoapProblem& problem, const PlanRequest& request) {
  const int num_operators = static_cast<int>(problem.operators.size());
  std::vector<SoapStages> starts = {{{num_operators}, {problem.most_samples}},
                                    {{num_operators}, {1}}};
  if (static_cast<int64_t>(request.profile.layers.size()) * request.workers <= kPipedreamAtMost) {
    try {
      const Plan plan = find_planner("pipedream").make(request);
      if (std::optional<SoapStages> stages = stages_of(problem, request.profile, plan)) {
        starts.push_back(std::move(*stages));
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) {
        throw;
      }  // nothing of its family fits in memory, which is not asked for here
    }
  }
  std::vector<double> costs_s;
  for (const SoapStages& start : starts) {
    costs_s.push_back(TaskGraph(problem, strategy_of(problem, start)).cost_s());
  }
  return starts[std::min_element(costs_s.begin(), costs_s.end()) - costs_s.begin()];
}

}  // namespace

Plan plan_by_flexflow(const PlanRequest& request, const char* name, bool free_placement) {
  if (request.stages || !request.replicas.empty() || request.straight) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("planner `{}` chooses stages and replicas itself, found stages, replicas "
                    "or straight; drop them or use planner `pipedream`",
                    name));
  }
  const double begin_s = monotonic_s();
  const SoapProblem problem = soap_problem(request.profile, request.cluster, request.workers);
  const SoapStages start = first_stages(problem, request);

  SearchLimits limits;
  limits.proposals = kProposalsAnOperator * static_cast<int64_t>(problem.operators.size());
  limits.simulated_tasks = kTasksOverStages;
  limits.until_s = begin_s + kMostSecondsOverStages;
  const SearchResult staged = search_stages(problem, start, limits);
  SoapStages stages = stages_of(problem, staged.best).value();
  double stages_s = staged.best_s;

  limits.simulated_tasks = kTasksOverStrategies;
  limits.until_s = begin_s + kMostSeconds;
  limits.free_placement = free_placement;
  const SearchResult general = search_strategies(problem, staged.best, limits);
  if (std::optional<SoapStages> said = stages_of(problem, general.best)) {
    const double said_s = TaskGraph(problem, strategy_of(problem, *said)).cost_s();
    if (said_s < stages_s) {
      stages = std::move(*said);
      stages_s = said_s;
    }
  }

  Plan plan = plan_of(problem, request.profile, stages);
  plan.objective_s = stages_s;
  if (general.best_s < stages_s) {
    plan.notes.push_back(fmt::format(
        "a strategy that splits operators in their own ways takes {}, {:.2f}x as fast as this plan "
        "by the same task graph, but is more than stages and replicas can say: {}",
        format_seconds(general.best_s), stages_s / general.best_s,
        describe(problem, request.profile, general.best)));
  }
  if (problem.operators.size() < request.profile.layers.size()) {
    plan.notes.push_back(
        fmt::format("{} layers were planned as {} operators, neighbours together: each is split in "
                    "one way",
                    request.profile.layers.size(), problem.operators.size()));
  }
  if (staged.clock_ended || general.clock_ended) {
    plan.notes.push_back(
        fmt::format("the search ended after {:.0f} s, at {} proposals of up to {}: the best seen, "
                    "which need not be the same elsewhere",
                    kMostSeconds, staged.proposals + general.proposals, 2 * limits.proposals));
  }
  return plan;
}

}  // namespace millrace::internal
