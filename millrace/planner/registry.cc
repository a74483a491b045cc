// The table of planners and the checks around every one of them. builtin.def is
// read twice: to declare the functions, then to list them.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/base/find_entry.h"
#include "millrace/base/text.h"
#include "millrace/planner/planner.h"

namespace millrace {

namespace builtin_planners {
#define PLANNER(name, symbol, ...) Plan symbol(const PlanRequest& request);
#include "millrace/planner/builtin.def"
#undef PLANNER
}  // namespace builtin_planners

namespace {

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

void check_workers(const PlanRequest& request) {
  if (request.profile.layers.empty()) {
    throw invalid("expected a profile with at least one layer, found none");
  }
  if (request.profile.layers.size() > 1 && request.profile.edges.empty()) {
    throw invalid(fmt::format("expected edges among the profile's {} layers, found none",
                              request.profile.layers.size()));
  }
  if (request.workers < 1) {
    throw invalid(fmt::format("expected at least 1 worker, found workers = {}", request.workers));
  }
  if (request.workers > request.cluster.num_devices()) {
    throw invalid(
        fmt::format("{} workers need as many devices, but the "
                    "cluster has {}; use fewer workers or "
                    "another cluster file",
                    request.workers, request.cluster.num_devices()));
  }
}

void check_stages(int stages, const std::string& asked, const PlanRequest& request) {
  const int num_layers = static_cast<int>(request.profile.layers.size());
  if (stages < 1) {
    throw invalid(fmt::format("expected at least 1 stage, found {}", asked));
  }
  if (stages > num_layers) {
    throw invalid(
        fmt::format("{} asks for {} stages of a model of {} layers, and a stage needs a "
                    "layer; ask for at most {} stages",
                    asked, stages, num_layers, num_layers));
  }
  if (stages > request.workers) {
    throw invalid(
        fmt::format("{} asks for {} stages on {} workers, and a stage needs a worker; ask "
                    "for at most {} stages or give more workers",
                    asked, stages, request.workers, request.workers));
  }
}

void check_replicas(const PlanRequest& request) {
  const std::vector<int>& replicas = request.replicas;
  if (replicas.empty()) {
    return;
  }
  std::vector<std::string> numbers;
  for (int r : replicas) {
    numbers.push_back(fmt::format("{}", r));
  }
  const std::string asked = fmt::format("replicas = {}", join(numbers, ", "));
  if (*std::min_element(replicas.begin(), replicas.end()) < 1) {
    throw invalid(fmt::format("expected at least 1 replica of every stage, found {}", asked));
  }
  if (request.straight && *std::max_element(replicas.begin(), replicas.end()) > 1) {
    throw invalid(
        fmt::format("a straight pipeline has one worker a stage, "
                    "found {}; drop one of the two",
                    asked));
  }
  int64_t needed = std::accumulate(replicas.begin(), replicas.end(), int64_t{0});
  if (replicas.size() > 1) {
    if (request.stages && *request.stages != static_cast<int>(replicas.size())) {
      throw invalid(fmt::format("{} names {} stages, but stages = {}; make them agree", asked,
                                replicas.size(), *request.stages));
    }
    check_stages(static_cast<int>(replicas.size()), asked, request);
  } else if (request.stages) {
    needed *= *request.stages;
  }
  if (needed > request.workers) {
    throw invalid(fmt::format("{}{} needs {} workers, found workers = {}", asked,
                              request.stages ? fmt::format(" on {} stages", *request.stages) : "",
                              needed, request.workers));
  }
}

}  // namespace

const std::vector<PlannerEntry>& planners() {
  static const std::vector<PlannerEntry> entries = {
#define PLANNER(name, symbol, text, source, ...) \
  {name, text, source, &builtin_planners::symbol, __VA_ARGS__},
#include "millrace/planner/builtin.def"
#undef PLANNER
  };
  return entries;
}

const PlannerEntry& find_planner(const std::string& name) {
  return find_entry(planners(), name, "a planner");
}

Plan make_plan(const std::string& planner, const PlanRequest& request) {
  const PlannerEntry& entry = find_planner(planner);
  check_workers(request);
  if (request.stages) {
    check_stages(*request.stages, fmt::format("stages = {}", *request.stages), request);
  }
  check_replicas(request);

  const auto finish = [&request](const PlannerEntry& by, const PlanRequest& asked) {
    Plan plan = by.make(asked);
    plan.planner = by.name;
    plan.workers = request.workers;
    plan.schedule = request.schedule.value_or(plan.schedule);
    plan.microbatches = request.microbatches.value_or(plan.microbatches);
    plan.recompute = request.recompute.value_or(plan.recompute);
    if (request.rule) {
      plan.rule = *request.rule;
      plan.rule_options = request.rule_options;
    }
    plan.minibatch_s = pipedream_minibatch_s(plan, request.profile, request.cluster);
    if (plan.objective_s == 0) {
      plan.objective_s = plan.minibatch_s;  // the planner minimised nothing else
    }
    return plan;
  };
  Plan plan = finish(entry, request);
  const PlanRequest unrestricted{request.profile, request.cluster, request.workers, {}, {}, false};
  plan.data_parallel_minibatch_s = finish(find_planner("data-parallel"), unrestricted).minibatch_s;
  plan.one_worker_minibatch_s = finish(find_planner("one"), unrestricted).minibatch_s;

  check_plan(plan, layer_names(request.profile), request.profile.edges);
  return plan;
}

}  // namespace millrace
