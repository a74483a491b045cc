// The law of slim: its rounds are synchronous, so they are replayed, draws included.
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "millrace/base/random.h"
#include "millrace/train/internal/rule_laws.h"

namespace millrace::internal {
namespace {

using Places = std::vector<int64_t>;

// Of the largest scores, ascending; of equal scores the lower places.
Places largest(const at::Tensor& scores, int64_t count) {
  const double* score = scores.data_ptr<double>();
  Places places(static_cast<std::size_t>(scores.numel()));
  std::iota(places.begin(), places.end(), 0);
  std::stable_sort(places.begin(), places.end(),
                   [score](int64_t a, int64_t b) { return score[a] > score[b]; });
  places.resize(static_cast<std::size_t>(count));
  std::sort(places.begin(), places.end());
  return places;
}

// Floyd's sampling over the places outside of `core` (ascending).
Places explorers_of(const RandomKey& key, int64_t size, const Places& core, int64_t count) {
  Places others;
  for (int64_t place = 0; place < size; ++place) {
    if (!std::binary_search(core.begin(), core.end(), place)) {
      others.push_back(place);
    }
  }
  std::set<uint64_t> drawn;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t last = others.size() - static_cast<uint64_t>(count - i);
    const uint64_t draw = key.below(static_cast<uint64_t>(i), last + 1);
    drawn.insert(drawn.contains(draw) ? last : draw);
  }
  Places explorers;
  for (const uint64_t each : drawn) {
    explorers.push_back(others[each]);
  }
  return explorers;
}

}  // namespace

void check_slim(const StageRun& run, Judge& judge) {
  const RuleOptions& options = run.options;
  const auto replicas = static_cast<std::size_t>(run.num_replicas());
  const int64_t size = run.initial.numel();
  const auto elements = static_cast<double>(size);
  const double alpha = options.number("alpha");
  const int64_t num_core = std::llround(options.number("beta") * elements);
  const int64_t num_explorers =
      alpha == 1 ? size - num_core
                 : std::min<int64_t>(size - num_core,
                                     std::llround((alpha - options.number("beta")) * elements));
  at::Tensor center = run.initial.clone();
  at::Tensor received = at::zeros_like(center);  // the last delta of each element
  Places core = largest(center.abs(), num_core);
  std::vector<at::Tensor> weights(replicas);
  std::vector<at::Tensor> residual(replicas);
  for (std::size_t r = 0; r < replicas; ++r) {
    weights[r] = run.initial.clone();
    residual[r] = at::zeros_like(center);
  }
  int64_t round = 0;
  const auto exchange = [&] {
    std::vector<Places> sent;
    for (std::size_t r = 0; r < replicas; ++r) {
      const RandomKey key = RandomKey(run.train->seed)
                                .with("slim")
                                .with(static_cast<uint64_t>(r))
                                .with(static_cast<uint64_t>(round));
      Places places = explorers_of(key, size, core, num_explorers);
      places.insert(places.end(), core.begin(), core.end());
      auto* waiting = residual[r].data_ptr<double>();
      for (const int64_t place : places) {
        center.data_ptr<double>()[place] += waiting[place] / static_cast<double>(replicas);
        received.data_ptr<double>()[place] = waiting[place];
        waiting[place] = 0;
      }
      sent.push_back(std::move(places));
    }
    for (std::size_t r = 0; r < replicas; ++r) {
      for (const int64_t place : sent[r]) {
        weights[r].data_ptr<double>()[place] = center.data_ptr<double>()[place];
      }
    }
    if (++round % options.integer("refresh") == 0) {
      core = largest(center.abs().add(received.abs(), options.number("weight")), num_core);
    }
  };
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      const auto r = static_cast<std::size_t>(replica);
      const at::Tensor delta = judge.optimize(
          replica, step, run.weights_before(step, replica), run.gradient(step, replica),
          run.all(step) / static_cast<double>(replicas), run.rate(step));
      weights[r].add_(delta);
      residual[r].add_(delta);
    }
    if ((step + 1) % options.integer("period") == 0) {
      exchange();
    }
    judge.expect_all_after(step, weights);
  }
  for (int replica = 0; replica < run.num_replicas(); ++replica) {
    judge.expect_last(replica, weights[static_cast<std::size_t>(replica)]);
  }
  judge.expect_settled(center);
}

}  // namespace millrace::internal
