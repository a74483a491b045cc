// Laws of rules whose replicas meet at known updates: each is replayed by its formula.
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "millrace/train/internal/rule_laws.h"

namespace millrace::internal {
namespace {

at::Tensor sum_of_gradients(const StageRun& run, int64_t step) {
  at::Tensor sum = run.gradient(step, 0).clone();
  for (int replica = 1; replica < run.num_replicas(); ++replica) {
    sum.add_(run.gradient(step, replica));
  }
  return sum;
}

// Of equal replicas, at the end.
void expect_end(const StageRun& run, Judge& judge, const at::Tensor& weights) {
  for (int replica = 0; replica < run.num_replicas(); ++replica) {
    judge.expect_last(replica, weights);
  }
  judge.expect_settled(weights);
}

// The share of the chunks that an update sends: all in the warm-up, then down to `density` in equal
// parts.
double share_of(const RuleOptions& options, int64_t update) {
  const double density = options.number("density");
  const int64_t warmup = options.integer("warmup");
  const int64_t ramp = options.integer("ramp");
  const double done = std::clamp(
      static_cast<double>(update - warmup + 1) / static_cast<double>(ramp + 1), 0.0, 1.0);
  return 1 - (1 - density) * (update < warmup ? 0 : done);
}

// Every replica keeps a velocity u and a residual r:
//   u = mu u + P/samples g + decay w;  r = r + lr u;  w = w - mean of r and r = 0 within the mask;
// the next mask: the chunks of the largest sum |r| over all replicas.
void check_sparse_flow(const StageRun& run, Judge& judge) {
  const auto replicas = static_cast<std::size_t>(run.num_replicas());
  const int64_t size = run.initial.numel();
  const int64_t chunk = std::min(run.options.integer("chunk"), std::max<int64_t>(size, 1));
  const int64_t count = (size + chunk - 1) / chunk;
  const double momentum = std::max(0.0, run.options.number("momentum"));
  const double decay = std::max(0.0, run.options.number("decay"));
  std::vector<double> norms(static_cast<std::size_t>(count), 0);
  std::vector<at::Tensor> velocity(replicas);
  std::vector<at::Tensor> residual(replicas);
  for (std::size_t r = 0; r < replicas; ++r) {
    velocity[r] = at::zeros_like(run.initial);
    residual[r] = at::zeros_like(run.initial);
  }
  at::Tensor weights = run.initial.clone();
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    std::vector<int64_t> order(norms.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return norms[static_cast<std::size_t>(a)] > norms[static_cast<std::size_t>(b)];
    });
    const double exact = share_of(run.options, step) * static_cast<double>(count);
    order.resize(static_cast<std::size_t>(
        std::min<double>(static_cast<double>(count), std::ceil(exact * (1 - 1e-12)))));
    for (std::size_t r = 0; r < replicas; ++r) {
      velocity[r].mul_(momentum).add_(run.gradient(step, static_cast<int>(r)),
                                      static_cast<double>(replicas) / run.all(step));
      velocity[r].add_(weights, decay);
    }
    for (std::size_t r = 0; r < replicas; ++r) {
      residual[r].add_(velocity[r], run.rate(step));
    }
    for (const int64_t each : order) {
      const int64_t begin = each * chunk;
      const int64_t length = std::min(chunk, size - begin);
      for (std::size_t r = 0; r < replicas; ++r) {
        at::Tensor waiting = residual[r].narrow(0, begin, length);
        weights.narrow(0, begin, length).sub_(waiting, 1.0 / static_cast<double>(replicas));
        waiting.zero_();
      }
    }
    for (int64_t each = 0; each < count && static_cast<int64_t>(order.size()) < count; ++each) {
      const int64_t begin = each * chunk;
      double& norm = norms[static_cast<std::size_t>(each)];
      norm = 0;
      for (const at::Tensor& waiting : residual) {
        norm += waiting.narrow(0, begin, std::min(chunk, size - begin)).abs().sum().item<double>();
      }
    }
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      judge.expect_after(step, replica, weights);
    }
  }
  expect_end(run, judge, weights);
}

}  // namespace

void check_alone(const StageRun& run, Judge& judge) {
  at::Tensor weights = run.initial.clone();
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    weights.add_(judge.optimize_own(0, step));
    judge.expect_after(step, 0, weights);
  }
  expect_end(run, judge, weights);
}

void check_gradient_sum(const StageRun& run, Judge& judge) {
  std::vector<at::Tensor> weights(static_cast<std::size_t>(run.num_replicas()));
  std::generate(weights.begin(), weights.end(), [&] { return run.initial.clone(); });
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    const at::Tensor gradient = sum_of_gradients(run, step);
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      weights[static_cast<std::size_t>(replica)].add_(
          judge.optimize(replica, step, run.weights_before(step, replica), gradient, run.all(step),
                         run.rate(step)));
    }
    judge.expect_all_after(step, weights);
  }
  expect_end(run, judge, weights.front());
}

// The mean of own steps' results by samples is what own deltas, scaled, add up to.
void check_average(const StageRun& run, Judge& judge) {
  at::Tensor weights = run.initial.clone();
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      const at::Tensor delta = judge.optimize_own(replica, step);
      weights.add_(delta, run.own(step, replica) / run.all(step));
    }
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      judge.expect_after(step, replica, weights);
    }
  }
  expect_end(run, judge, weights);
}

void check_local_sgd(const StageRun& run, Judge& judge) {
  const int64_t tau = run.options.integer("tau");
  const auto replicas = static_cast<std::size_t>(run.num_replicas());
  at::Tensor common = run.initial;
  std::vector<at::Tensor> moved(replicas, at::zeros_like(run.initial));  // since the last average
  std::vector<double> samples(replicas, 0);
  const auto average = [&] {
    const double all = std::accumulate(samples.begin(), samples.end(), 0.0);
    at::Tensor mean = common.clone();
    for (std::size_t r = 0; r < replicas && all > 0; ++r) {
      mean.add_(moved[r], samples[r] / all);
    }
    common = mean;
    std::fill(moved.begin(), moved.end(), at::zeros_like(run.initial));
    std::fill(samples.begin(), samples.end(), 0.0);
  };
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      const auto r = static_cast<std::size_t>(replica);
      moved[r] = moved[r].add(judge.optimize_own(replica, step));
      samples[r] += run.own(step, replica);
    }
    if ((step + 1) % tau == 0) {
      average();
    }
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      judge.expect_after(step, replica, common.add(moved[static_cast<std::size_t>(replica)]));
    }
  }
  average();
  expect_end(run, judge, common);
}

void check_pipe_sgd(const StageRun& run, Judge& judge) {
  const auto width = static_cast<std::size_t>(run.options.integer("width"));
  struct Sum {
    at::Tensor gradient;
    double samples;
  };
  std::deque<Sum> under_way;
  std::vector<at::Tensor> weights(static_cast<std::size_t>(run.num_replicas()));
  std::generate(weights.begin(), weights.end(), [&] { return run.initial.clone(); });
  const auto apply = [&](int64_t step) {
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      at::Tensor& own = weights[static_cast<std::size_t>(replica)];
      own.add_(judge.optimize(replica, step, own, under_way.front().gradient,
                              under_way.front().samples, run.rate(step)));
    }
    under_way.pop_front();
  };
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    under_way.push_back({sum_of_gradients(run, step), run.all(step)});
    if (under_way.size() == width) {
      apply(step);
    }
    judge.expect_all_after(step, weights);
  }
  while (!under_way.empty()) {
    apply(run.num_steps() - 1);
  }
  expect_end(run, judge, weights.front());
}

void check_gradient_flow(const StageRun& run, Judge& judge) {
  if (run.options.number("density") < 1) {
    check_sparse_flow(run, judge);
  } else {
    check_gradient_sum(run, judge);
  }
}

}  // namespace millrace::internal
