// PipeDream-2BW's planner: how deep the pipeline, how wide every stage, how many microbatches and
// whether activations are computed again, so that a minibatch is fast and every device's memory is
// kept. For schedule pipedream-2bw, with two weight versions.
//
// Source: "Memory-Efficient Pipeline-Parallel DNN Training" (Narayanan et al., ICML'21), section
// 3.3: a search over d w devices, where model blocks are divided equally. The formula of time and
// memory is our reconstruction and stands in internal/equal_width.h; stages are cut where the
// slowest is fastest, since layers need not repeat. Time there does not rise with the number of
// microbatches: the fewest that fit are taken. What waits at stage borders is not counted.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/planner/internal/equal_width.h"
#include "millrace/planner/planner.h"

namespace millrace::builtin_planners {
namespace {

constexpr const char* kSchedule = "pipedream-2bw";

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

}  // namespace

Plan pipedream_2bw(const PlanRequest& request) {
  if (request.schedule && *request.schedule != kSchedule) {
    throw invalid(
        fmt::format("planner `pipedream-2bw` plans for schedule {0}, found schedule {1}; "
                    "leave the schedule out, or use planner `pipedream` for {1}",
                    kSchedule, *request.schedule));
  }
  if (request.recompute == Recompute::kLayer) {
    throw invalid(
        "planner `pipedream-2bw` weighs recompute = \"none\" and \"stage\", found "
        "\"layer\"; leave recompute out or use planner `pipedream`");
  }
  const std::vector<int>& replicas = request.replicas;
  if (std::any_of(replicas.begin(), replicas.end(),
                  [&](int count) { return count != replicas.front(); })) {
    throw invalid(
        "planner `pipedream-2bw` gives all stages as many replicas; name one number, or "
        "use planner `pipedream` for unequal ones");
  }
  const internal::Line line(request.profile, 1);
  internal::EqualWidthProblem problem{line, request.cluster, request.workers};
  problem.samples = static_cast<double>(request.profile.samples_per_microbatch);
  problem.optimizer_buffers = request.run.optimizer_buffers;
  problem.depth = request.stages;
  problem.microbatches = request.microbatches;
  if (replicas.size() > 1) {
    problem.depth = static_cast<int>(replicas.size());
  }
  if (!replicas.empty()) {
    problem.width = replicas.front();
  } else if (request.straight) {
    problem.width = 1;
  }
  if (request.recompute) {
    problem.recompute = *request.recompute == Recompute::kStage;
  }
  const std::optional<internal::EqualWidthPlan> best = internal::best_equal_width(problem);
  if (!best) {
    throw invalid(fmt::format(
        "no plan of equally wide stages on {} workers fits into {} a device with {} samples a "
        "minibatch{}; use more workers, a larger device, or lift restrictions (stages, replicas, "
        "recompute, microbatches)",
        request.workers, format_bytes(request.cluster.memory_bytes),
        request.profile.samples_per_microbatch,
        request.microbatches ? fmt::format(" in {} microbatches", *request.microbatches) : ""));
  }
  Plan plan;
  int layer = 0;
  int rank = 0;
  for (const int end : best->ends) {
    PlanStage& stage = plan.stages.emplace_back();
    for (; layer < end; ++layer) {
      stage.layers.push_back(request.profile.layers[static_cast<std::size_t>(layer)].name);
    }
    stage.ranks.resize(static_cast<std::size_t>(best->width));
    std::iota(stage.ranks.begin(), stage.ranks.end(), rank);
    rank += best->width;
  }
  plan.schedule = kSchedule;
  plan.microbatches = best->microbatches;
  plan.recompute = best->recompute ? Recompute::kStage : Recompute::kNothing;
  plan.objective_s = best->minibatch_s;
  plan.notes.push_back(
      fmt::format("{} stage{} of width {}, {} microbatch{}, {}; {} a device by the planner's count",
                  best->ends.size(), best->ends.size() == 1 ? "" : "s", best->width,
                  best->microbatches, best->microbatches == 1 ? "" : "es",
                  best->recompute ? "activations computed again" : "no recompute",
                  format_bytes(best->memory_bytes)));
  return plan;
}

}  // namespace millrace::builtin_planners
