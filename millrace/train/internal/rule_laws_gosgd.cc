// The law of gosgd. When a push arrives depends on timing, and at the end also who still runs. So
// the weights that go round are kept as a list of masses, a share and where it lies: every update's
// weights must be the mean of the replica's own and of some masses that were under way then, each
// taken in once, and the common weights the mean of all that is left.
#include <ATen/ops/dot.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <utility>

#include "millrace/base/random.h"
#include "millrace/train/internal/rule_laws.h"

namespace millrace::internal {
namespace {

// Sets of masses that are tried for an update.
constexpr std::size_t kMostMasses = 16;

struct Mass {
  double share;
  int from;
  int64_t step;  // lies at the weights of `from` after that update
  bool taken = false;
};

// What is known of the updates, each vector as one number too: its product with fixed draws.
struct Facts {
  explicit Facts(const StageRun& stage_run) : run(stage_run), draws(at::empty_like(run.initial)) {
    const RandomKey key = RandomKey(1).with("gosgd-law");
    for (int64_t i = 0; i < draws.numel(); ++i) {
      draws.data_ptr<double>()[i] = key.uniform(static_cast<uint64_t>(i)) - 0.5;
    }
    slack = 1e-12 * (1 + run.initial.abs().dot(draws.abs()).item<double>());
  }
  double place(const at::Tensor& weights) const { return weights.dot(draws).item<double>(); }
  std::size_t index(int replica, int64_t step) const {
    return static_cast<std::size_t>(step * run.num_replicas() + replica);
  }

  const StageRun& run;
  at::Tensor draws;
  double slack = 0;
  // Step by step, replica by replica: after its own step and before any arrival; after the update.
  std::vector<at::Tensor> own;
  std::vector<double> own_places;
  std::vector<double> after_places;
};

// One way in which the run may have gone: `alone` finds nobody running from its update `since` on,
// and keeps what it would push.
class Course {
 public:
  Course(const Facts& facts, int alone, int64_t since)
      : facts_(&facts),
        alone_(alone),
        since_(since),
        explained_(static_cast<std::size_t>(facts.run.num_replicas())),
        share_(explained_.size(), 1.0 / facts.run.num_replicas()) {}

  void follow() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int replica = 0; replica < facts_->run.num_replicas(); ++replica) {
        while (num_explained(replica) < facts_->run.num_steps() && explain(replica)) {
          moved = true;
        }
      }
    }
  }

  int64_t num_explained() const {
    int64_t sum = 0;
    for (const std::vector<at::Tensor>& own : explained_) {
      sum += static_cast<int64_t>(own.size());
    }
    return sum;
  }
  bool explains_all() const {
    return num_explained() == facts_->run.num_steps() * facts_->run.num_replicas();
  }
  // Whether more was under way at some update than could be tried.
  bool gave_up() const { return gave_up_; }
  // The weights that each of the replica's first updates must have led to.
  const std::vector<at::Tensor>& explained(int replica) const {
    return explained_[static_cast<std::size_t>(replica)];
  }
  // The mean of all masses that nobody took in.
  at::Tensor mean() const {
    at::Tensor mean = at::zeros_like(facts_->run.initial);
    for (const Mass& mass : masses_) {
      if (!mass.taken) {
        mean.add_(weights_of(mass), mass.share);
      }
    }
    return mean;
  }

 private:
  int64_t num_explained(int replica) const {
    return static_cast<int64_t>(explained_[static_cast<std::size_t>(replica)].size());
  }
  const at::Tensor& weights_of(const Mass& mass) const {
    return facts_->run.weights_after(mass.step, mass.from);
  }

  // The replica's next update, if masses that are under way explain it. Its own may come back: with
  // those of one that took them in at its end.
  bool explain(int replica) {
    const auto r = static_cast<std::size_t>(replica);
    const std::size_t index = facts_->index(replica, num_explained(replica));
    std::vector<Mass*> under_way;
    for (Mass& mass : masses_) {
      if (!mass.taken) {
        under_way.push_back(&mass);
      }
    }
    if (under_way.size() > kMostMasses) {
      gave_up_ = true;
      under_way.resize(kMostMasses);
    }
    for (uint32_t set = 0; set < (1U << under_way.size()); ++set) {
      double share = share_[r];
      double sum = share * facts_->own_places[index];
      for (std::size_t i = 0; i < under_way.size(); ++i) {
        if ((set >> i & 1U) != 0) {
          const Mass& mass = *under_way[i];
          share += mass.share;
          sum += mass.share * facts_->after_places[facts_->index(mass.from, mass.step)];
        }
      }
      if (std::abs(sum / share - facts_->after_places[index]) > facts_->slack) {
        continue;
      }
      at::Tensor weights = facts_->own[index].mul(share_[r] / share);
      for (std::size_t i = 0; i < under_way.size(); ++i) {
        under_way[i]->taken = (set >> i & 1U) != 0;
        if (under_way[i]->taken) {
          weights.add_(weights_of(*under_way[i]), under_way[i]->share / share);
        }
      }
      share_[r] = share;
      finish_update(replica, std::move(weights));
      return true;
    }
    return false;
  }

  void finish_update(int replica, at::Tensor weights) {
    const auto r = static_cast<std::size_t>(replica);
    const StageRun& run = facts_->run;
    const int64_t step = num_explained(replica);
    explained_[r].push_back(std::move(weights));
    const RandomKey key = RandomKey(run.train->seed)
                              .with("gosgd")
                              .with(static_cast<uint64_t>(replica))
                              .with(static_cast<uint64_t>(run.first_step + step));
    const bool nobody = replica == alone_ && step >= since_;
    if (!nobody && key.uniform(0) < run.options.number("probability")) {
      masses_.push_back({share_[r] / 2, replica, step});
      share_[r] /= 2;
    }
    if (step + 1 == run.num_steps()) {
      masses_.push_back({share_[r], replica, step});  // handed over to whoever runs
    }
  }

  const Facts* facts_;
  int alone_;
  int64_t since_;
  std::vector<std::vector<at::Tensor>> explained_;  // by replica
  std::vector<double> share_;
  std::vector<Mass> masses_;
  bool gave_up_ = false;
};

// The course that explains the run; else the one that explains most of it.
Course find_course(const Facts& facts, double tolerance) {
  Course best(facts, -1, 0);
  best.follow();
  const auto ends_well = [&](const Course& course) {
    return course.explains_all() &&
           relative_difference(facts.run.settled, course.mean()) <= tolerance;
  };
  for (int replica = 0; replica < facts.run.num_replicas(); ++replica) {
    for (int64_t since = facts.run.num_steps() - 1; since >= 0 && !ends_well(best); --since) {
      Course course(facts, replica, since);
      course.follow();
      if (ends_well(course) || course.num_explained() > best.num_explained()) {
        best = std::move(course);
      }
    }
  }
  return best;
}

}  // namespace

void check_gosgd(const StageRun& run, Judge& judge) {
  Facts facts(run);
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      facts.own.push_back(run.weights_before(step, replica).add(judge.optimize_own(replica, step)));
      facts.own_places.push_back(facts.place(facts.own.back()));
      facts.after_places.push_back(facts.place(run.weights_after(step, replica)));
    }
  }
  const Course course = find_course(facts, judge.tolerance());
  for (int replica = 0; replica < run.num_replicas(); ++replica) {
    const std::vector<at::Tensor>& explained = course.explained(replica);
    const auto num_explained = static_cast<int64_t>(explained.size());
    for (int64_t step = 0; step < num_explained; ++step) {
      judge.expect_after(step, replica, explained[static_cast<std::size_t>(step)]);
    }
    if (num_explained < run.num_steps() && !course.gave_up()) {
      judge.expect_after(num_explained, replica, facts.own[facts.index(replica, num_explained)]);
    }
    judge.expect_last(replica, run.settled);
  }
  if (!course.explains_all() && course.gave_up()) {
    judge.say(
        "gosgd: too many pushes were under way at once to find which arrived; gradients and the "
        "updates before were compared");
  }
  if (course.explains_all()) {
    judge.expect_settled(course.mean());
  }
}

}  // namespace millrace::internal
