#include "millrace/planner/internal/soap_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/text.h"

namespace millrace::internal {
namespace {

std::vector<int> devices_of(const Configuration& configuration, int num_devices) {
  std::vector<int> devices(num_parts(configuration.degrees));
  for (std::size_t part = 0; part < devices.size(); ++part) {
    devices[part] = configuration.device(static_cast<int>(part), num_devices);
  }
  return devices;
}

}  // namespace

Strategy strategy_of(const SoapProblem& problem, const SoapStages& stages) {
  Strategy strategy(problem.operators.size());
  int op = 0;
  int first = 0;
  for (std::size_t s = 0; s < stages.ends.size(); ++s) {
    for (; op < stages.ends[s]; ++op) {
      strategy[op] = {{stages.replicas[s], 1, 1}, first, {}};
    }
    first += stages.replicas[s];
  }
  return strategy;
}

std::optional<SoapStages> stages_of(const SoapProblem& problem, const Strategy& strategy) {
  SoapStages stages;
  std::vector<bool> taken(problem.num_devices, false);
  std::vector<int> before;
  for (std::size_t op = 0; op < strategy.size(); ++op) {
    const Degrees& degrees = strategy[op].degrees;
    if (degrees[kSamples] != num_parts(degrees)) {
      return std::nullopt;
    }
    const std::vector<int> devices = devices_of(strategy[op], problem.num_devices);
    if (op > 0 && devices == before) {
      ++stages.ends.back();
      continue;
    }
    for (const int device : devices) {
      if (taken[device]) {
        return std::nullopt;
      }
      taken[device] = true;
    }
    stages.ends.push_back(static_cast<int>(op) + 1);
    stages.replicas.push_back(static_cast<int>(devices.size()));
    before = devices;
  }
  return stages;
}

std::optional<SoapStages> stages_of(const SoapProblem& problem, const Profile& profile,
                                    const Plan& plan) {
  SoapStages stages;
  std::size_t layer = 0;
  int op = 0;
  for (const PlanStage& stage : plan.stages) {
    for (const std::string& name : stage.layers) {
      if (profile.layers[layer++].name != name) {
        return std::nullopt;
      }
    }
    const bool last = &stage == &plan.stages.back();
    const int begin = op;
    while (op < static_cast<int>(problem.operators.size()) &&
           (last || problem.operators[op].layers.back() < static_cast<int>(layer))) {
      ++op;
    }
    if (op > begin) {
      stages.ends.push_back(op);
      stages.replicas.push_back(
          std::min(static_cast<int>(stage.ranks.size()), problem.most_samples));
    }
  }
  return stages;
}

Plan plan_of(const SoapProblem& problem, const Profile& profile, const SoapStages& stages) {
  Plan plan;
  int op = 0;
  int rank = 0;
  for (std::size_t s = 0; s < stages.ends.size(); ++s) {
    PlanStage stage;
    for (; op < stages.ends[s]; ++op) {
      for (const int layer : problem.operators[op].layers) {
        stage.layers.push_back(profile.layers[layer].name);
      }
    }
    stage.ranks.resize(stages.replicas[s]);
    std::iota(stage.ranks.begin(), stage.ranks.end(), rank);
    rank += stages.replicas[s];
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

std::string describe(const SoapProblem& problem, const Profile& profile, const Strategy& strategy) {
  std::vector<std::string> groups;
  for (std::size_t op = 0; op < strategy.size();) {
    std::size_t end = op + 1;
    while (end < strategy.size() && strategy[end] == strategy[op]) {
      ++end;
    }
    const std::string& first = profile.layers[problem.operators[op].layers.front()].name;
    const std::string& last = profile.layers[problem.operators[end - 1].layers.back()].name;
    const std::string configuration = describe(strategy[op], problem.num_devices);
    groups.push_back(first == last ? fmt::format("{}: {}", first, configuration)
                                   : fmt::format("{}..{}: {}", first, last, configuration));
    op = end;
  }
  return join(groups, "; ");
}

}  // namespace millrace::internal
