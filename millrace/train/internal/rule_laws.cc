#include "millrace/train/internal/rule_laws.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace millrace::internal {
namespace {

constexpr RuleLaw kLaws[] = {
    {"bsp", "sums of gradients applied by each replica", check_gradient_sum},
    {"bsp-average", "replicas' own steps, averaged by samples after every update", check_average},
    {"server-sync", "replicas' own steps, added by their shares of samples after every update",
     check_average},
    {"local-sgd", "replicas' own steps, averaged by samples every tau updates and at the end",
     check_local_sgd},
    {"pipe-sgd", "sums of gradients applied width - 1 updates later, the last ones at the end",
     check_pipe_sgd},
    {"gradient-flow",
     "sums of gradients; with density < 1 velocities, residuals and masks of chunks",
     check_gradient_flow},
    {"daso", "sums inside nodes and merges between them, at the intervals that follow the loss",
     check_daso},
    {"decentralized", "neighbours' weights mixed by the topology's matrices, and own steps",
     check_decentralized},
    {"slim", "own steps, and the server's vector by the core and the drawn explorers", check_slim},
    {"gosgd", "own steps, each update's arrivals found among the pushes drawn, and the end's mean",
     check_gosgd},
    {"easgd", "own steps, and one order of exchanges that gives the centre and all weights",
     check_easgd},
    {"asgd", "own steps, and one order of pushes that gives all weights and the server's vector",
     check_asgd},
    {"downpour",
     "own steps, and one order of pushes and fetches that gives all weights and the server's "
     "vector",
     check_downpour},
    {"server-async",
     "own steps, and one order of pushes that gives all weights and the server's vector",
     check_server_async},
    {"server-bounded",
     "own steps, and one order of pushes and releases, within the bound of leads, that gives all "
     "weights and the server's vector",
     check_server_bounded},
    {"dssp",
     "own steps, and one order of pushes and releases, within the cap of leads, that gives all "
     "weights and the server's vector",
     check_dssp}};

// What has no parameter of its own to be told by.
std::string first_layer(const StageRun& run) {
  return run.layout->slots().empty() ? "" : run.layout->slots().front().layer;
}

// What ends the run is told with its last step.
int64_t last_step(const StageRun& run) { return run.num_steps() - 1; }

}  // namespace

const RuleLaw* find_law(const std::string& rule) {
  const RuleLaw* found = std::find_if(std::begin(kLaws), std::end(kLaws),
                                      [&](const RuleLaw& law) { return rule == law.rule; });
  return found == std::end(kLaws) ? nullptr : found;
}

Judge::Judge(const StageRun& run, Comparison& compare)
    : run_(run), compare_(compare), num_calls_(run.calls.size()) {
  for (int replica = 0; replica < run.num_replicas(); ++replica) {
    optimizers_.push_back(make_optimizer(*run.train, flat_layout(*run.layout, at::kDouble)));
  }
}

at::Tensor Judge::optimize(int replica, int64_t step, const at::Tensor& weights,
                           const at::Tensor& gradient, double samples, double lr) {
  const auto r = static_cast<std::size_t>(replica);
  const std::vector<RecordedRun::OptimizerCall>& calls = *run_.calls[r];
  const std::size_t call = num_calls_[r]++;
  if (call >= calls.size() || calls[call].step != step) {
    compare_.note(step, run_.stage, first_layer(run_),
                  fmt::format("replica {}'s step of the optimizer, which is missing", replica),
                  std::numeric_limits<double>::infinity());
  } else {
    compare_.flat(step, run_.stage, run_.layout->slots(),
                  fmt::format("replica {}'s gradient of ", replica), "", calls[call].mean_gradient,
                  gradient.div(samples));
  }
  at::Tensor sum = gradient.clone();
  at::Tensor delta = at::empty_like(sum);
  optimizers_[r]->update(weights, delta, sum, {.samples = samples, .lr = lr, .delta_only = true});
  return delta;
}

at::Tensor Judge::optimize_own(int replica, int64_t step) {
  const double samples = run_.own(step, replica);
  if (samples == 0) {
    return at::zeros_like(run_.initial);
  }
  return optimize(replica, step, run_.weights_before(step, replica), run_.gradient(step, replica),
                  samples, run_.rate(step));
}

void Judge::expect(int replica, int64_t step, const std::string& when, const at::Tensor& run,
                   const at::Tensor& oracle) {
  compare_.flat(step, run_.stage, run_.layout->slots(), fmt::format("replica {}'s ", replica),
                " " + when, run, oracle);
}

void Judge::expect_after(int64_t step, int replica, const at::Tensor& oracle) {
  expect(replica, step, "after the update", run_.weights_after(step, replica), oracle);
}

void Judge::expect_all_after(int64_t step, const std::vector<at::Tensor>& oracle) {
  for (int replica = 0; replica < run_.num_replicas(); ++replica) {
    expect_after(step, replica, oracle[static_cast<std::size_t>(replica)]);
  }
}

void Judge::expect_last(int replica, const at::Tensor& oracle) {
  expect(replica, last_step(run_), "at the end", run_.last[static_cast<std::size_t>(replica)],
         oracle);
}

void Judge::expect_settled(const at::Tensor& oracle) {
  compare_.flat(last_step(run_), run_.stage, run_.layout->slots(), "the replicas' common ", "",
                run_.settled, oracle);
}

void Judge::expect_no_more_steps() {
  for (int replica = 0; replica < run_.num_replicas(); ++replica) {
    const auto r = static_cast<std::size_t>(replica);
    const std::vector<RecordedRun::OptimizerCall>& calls = *run_.calls[r];
    const bool more = num_calls_[r] < calls.size();
    compare_.note(more ? calls[num_calls_[r]].step : last_step(run_), run_.stage, first_layer(run_),
                  fmt::format("replica {}'s step of the optimizer, which is one too many", replica),
                  more ? std::numeric_limits<double>::infinity() : 0);
  }
}

}  // namespace millrace::internal
