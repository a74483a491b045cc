// FusionLLM's planner, OP-Fence: stages of consecutive layers on devices of unequal speed, memory
// and links, such that the few slow links between clusters of devices are crossed as rarely as can
// be and a step of n microbatches through the pipeline is short.
//
// Source: "FusionLLM: A Decentralized LLM Training System on Geo-distributed GPUs with Adaptive
// Compression", arXiv 2410.12707 (OP-Fence). Its objective is the sum of all stages' and links'
// seconds of one microbatch plus (n - 1) times the longest of them. Reconstructed here: what a
// cluster is (internal/fence.h), devices that may stay idle, and the search, which is exact for the
// orders of devices it looks at: solutions come by falling limit on the longest term, each the
// least sum under its limit, and a limit is skipped where no sum could make up for it. A link's
// seconds are its latency and the cut's bytes over its bandwidth, there and back. Memory, of a
// stage of W parameter bytes and A stash bytes a microbatch: weights, gradient and optimizer state,
// and n A; without a flush k (W + A) besides gradient and optimizer state, where k counts the
// devices from this one on. On a graph that is no chain, layers stay in the profile's order.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/planner/internal/device_chain.h"
#include "millrace/planner/internal/fence.h"
#include "millrace/planner/internal/given_stages.h"
#include "millrace/planner/planner.h"
#include "millrace/schedule/registry.h"

namespace millrace::builtin_planners {
namespace {

using internal::ChainProblem;
using internal::ChainSolution;
using internal::ChainSolver;

constexpr double kNever = std::numeric_limits<double>::infinity();
// Microbatches that a pipeline without a flush is taken to run before it is drained.
constexpr double kSegment = 10'000;
// Steps of the search over all orders, some seconds.
constexpr double kMostSteps = 3e8;

class Fence {
 public:
  explicit Fence(const PlanRequest& request)
      : request_(request),
        flush_(!request.schedule || has_flush(*find_schedule(*request.schedule).builtin)),
        microbatches_(request.microbatches.value_or(
            flush_ ? static_cast<int>(std::clamp<int64_t>(request.profile.samples_per_microbatch, 1,
                                                          request.workers))
                   : 1)),
        num_microbatches_(flush_ ? microbatches_ : kSegment),
        stages_(internal::straight_stages(request, "fusion-llm")),
        line_(request.profile, microbatches_),
        links_(line_, request.cluster, request.workers, true) {}

  Plan run() {
    const std::vector<std::vector<int>> clusters =
        internal::fence_clusters(request_.cluster, request_.workers);
    const double steps = static_cast<double>(line_.num_layers) * request_.workers *
                         (links_.nested() && !stages_ ? 2.0 : request_.workers);
    const internal::FenceOrders orders =
        internal::fence_orders(request_.cluster, clusters, kMostSteps / steps);
    for (const std::vector<int>& order : orders.orders) {
      search(order);
    }
    if (best_s_ == kNever) {
      refuse();
    }
    Plan plan = internal::plan_of(best_.stages, request_.profile);
    plan.microbatches = microbatches_;
    plan.objective_s = best_s_ * microbatches_ / num_microbatches_;
    if (clusters.size() > 1) {
      std::vector<int> devices;
      for (const internal::ChainStage& stage : best_.stages) {
        devices.push_back(stage.device);
      }
      plan.notes.push_back(
          fmt::format("{} clusters of devices; {} borders between stages lie "
                      "between clusters",
                      clusters.size(), internal::crossings(devices, clusters)));
    }
    if (!orders.every_outer) {
      plan.notes.emplace_back(
          "too many clusters to try every order of them: each follows the one with the fastest "
          "link to it");
    }
    return plan;
  }

 private:
  ChainProblem problem_of(const std::vector<int>& order) const {
    ChainProblem problem{line_, request_.cluster, links_};
    problem.order = order;
    problem.stages = stages_;
    for (std::size_t place = 0; place < order.size(); ++place) {
      const auto in_flight = static_cast<double>(order.size() - place);
      problem.parameter_copies.push_back((flush_ ? 1 : in_flight) + 1 +
                                         request_.run.optimizer_buffers);
      problem.stash_copies.push_back(flush_ ? num_microbatches_ : in_flight);
    }
    return problem;
  }

  double value_of(const ChainSolution& solution) const {
    return solution.sum_s + (num_microbatches_ - 1) * solution.longest_s;
  }

  void offer(const ChainSolution& solution) {
    if (value_of(solution) < best_s_) {
      best_s_ = value_of(solution);
      best_ = solution;
    }
  }

  // A solution whose longest term is x takes at least its sum's lower bound plus (n - 1) x: no
  // longer x is worth looking at.
  double worthwhile(double least_sum_s) const {
    return num_microbatches_ > 1 && best_s_ < kNever
               ? std::nextafter((best_s_ - least_sum_s) / (num_microbatches_ - 1), kNever)
               : kNever;
  }

  void search(const std::vector<int>& order) {
    const ChainProblem problem = problem_of(order);
    ChainSolver solver(problem);
    if (best_s_ == kNever) {
      if (const std::optional<double> least = solver.least_limit()) {
        offer(*solver.solve(*least, ChainSolver::Aim::kLeastSum));
      }
    }
    double limit_s = worthwhile(0);
    while (limit_s >= 0) {
      const std::optional<ChainSolution> solution =
          solver.solve(limit_s, ChainSolver::Aim::kLeastSum);
      if (!solution) {
        return;
      }
      offer(*solution);
      if (num_microbatches_ == 1) {
        return;
      }
      limit_s = std::min(std::nextafter(solution->longest_s, -1.0), worthwhile(solution->sum_s));
    }
  }

  [[noreturn]] void refuse() const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("no plan of the {} layers{} on {} workers fits into {} a device with "
                            "{} microbatches{}; use more workers, smaller minibatches or a larger "
                            "device",
                            line_.num_layers, stages_ ? fmt::format(" in {} stages", *stages_) : "",
                            request_.workers, format_bytes(request_.cluster.memory_bytes),
                            microbatches_, flush_ ? "" : " and no flush"));
  }

  const PlanRequest& request_;
  bool flush_;
  int microbatches_;
  double num_microbatches_;
  std::optional<int> stages_;
  internal::Line line_;
  internal::ChainLinks links_;
  double best_s_ = kNever;
  ChainSolution best_;
};

}  // namespace

Plan fusion_llm(const PlanRequest& request) { return Fence(request).run(); }

}  // namespace millrace::builtin_planners
