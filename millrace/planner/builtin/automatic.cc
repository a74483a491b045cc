// Planner auto: compares whole configurations - stages by several planners, schedule, exchange
// rule, microbatches, recompute - and ranks them by simulated time. Our own; what the request fixes
// stays fixed.
//
// Exact only among what it compares. A candidate whose bound is above the tenth best so far, or
// whose weights alone do not fit, is not simulated. Recompute never shortens a step, so it is tried
// only where a device's memory does not hold the stashes. Exchange rules are tried on the best
// plans with replicas: those that keep replicas equal and apply every gradient at once. Work is
// counted in simulated actions and never by a clock, so that all processes of a run come to one
// answer. Among plans of equal time the simpler one stands first: fewer workers, stages and
// microbatches, a flush, no recompute, rule bsp.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/planner/internal/candidates.h"
#include "millrace/planner/planner.h"
#include "millrace/rule/rule.h"
#include "millrace/schedule/registry.h"

namespace millrace::builtin_planners {
namespace {

constexpr std::size_t kBest = 10;
// Some seconds of simulation.
constexpr double kMostActions = 1e6;
// Likewise of exchange rules: a rule that overlaps acts layer by layer.
constexpr double kMostRuleActions = 4e6;

struct Judged {
  RankedPlan ranked;
  int order = 0;       // in which it was tried
  double actions = 0;  // of its candidate

  auto key() const {
    const Plan& plan = ranked.plan;
    // Seconds to 24 bits: what differs by rounding is equal.
    return std::tuple(static_cast<float>(ranked.step_s), plan.num_used_ranks(), plan.num_stages(),
                      !has_flush(*find_schedule(plan.schedule).builtin), plan.microbatches,
                      plan.recompute, plan.rule != "bsp", order);
  }
};

class Auto {
 public:
  explicit Auto(const PlanRequest& request) : request_(request) {}

  Plan run() {
    const internal::Candidates candidates = internal::candidates_for(request_);
    for (const internal::Candidate& candidate : candidates.all) {
      try_candidate(candidate);
    }
    try_rules();
    if (best_.empty()) {
      refuse();
    }
    for (const Judged& judged : best_) {
      if (request_.ranked) {
        request_.ranked(judged.ranked);
      }
    }
    Plan plan = best_.front().ranked.plan;
    plan.objective_s = best_.front().ranked.step_s;
    plan.notes = candidates.left_out;
    plan.notes.insert(
        plan.notes.begin(),
        fmt::format(
            "stages by planner {}; {} of {} candidates simulated, {} slower by their bound,"
            " {} too large for a device's memory, {} refused{}",
            plan.planner, simulated_, candidates.all.size() + extra_, slower_, too_large_, refused_,
            unseen_ > 0 ? fmt::format(", {} left out as too much to simulate", unseen_) : ""));
    if (!request_.schedule && !has_flush(*find_schedule(plan.schedule).builtin)) {
      plan.notes.push_back(
          fmt::format("schedule {} updates without a flush, with weights that are some updates "
                      "old; name a schedule with a flush for the updates of one process",
                      plan.schedule));
      if (plan.max_replicas() > 1) {
        plan.notes.push_back(
            fmt::format("a stage with r replicas updates once every r minibatches, {} at most",
                        plan.max_replicas()));
      }
    }
    return plan;
  }

 private:
  double tenth_s() const {
    return best_.size() < kBest ? std::numeric_limits<double>::infinity()
                                : best_.back().ranked.step_s;
  }

  void try_candidate(const internal::Candidate& candidate) {
    if (candidate.bound_s > tenth_s()) {
      ++slower_;
      return;
    }
    if (candidate.weight_bytes > request_.cluster.memory_bytes) {
      ++too_large_;
      least_bytes_ = std::min(least_bytes_, candidate.weight_bytes);
      return;
    }
    Plan plan = candidate.plan;
    if (judge(plan, candidate.actions, actions_left_) || request_.recompute) {
      return;
    }
    for (const Recompute recompute : {Recompute::kStage, Recompute::kLayer}) {
      plan.recompute = recompute;
      ++extra_;
      if (judge(plan, candidate.actions, actions_left_)) {
        return;
      }
    }
  }

  // Simulates the plan and keeps it where it is among the best. False when recompute could help:
  // it does not fit into memory.
  bool judge(const Plan& plan, double actions, double& actions_left) {
    if (actions > actions_left) {
      ++unseen_;
      return true;
    }
    if (request_.refuses && request_.refuses(plan)) {
      ++refused_;
      return true;
    }
    PlanSimulation run = request_.run;
    if (!request_.schedule) {
      run.policy.clear();
    }
    Simulation simulation;
    try {
      actions_left -= actions;
      simulation = simulate_plan(plan, request_.profile, request_.cluster,
                                 request_.profile.samples_per_microbatch, run);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kUnsupported) {
        throw;
      }
      ++refused_;
      return true;
    }
    ++simulated_;
    double bytes = 0;
    for (const RankSimulation& rank : simulation.ranks) {
      bytes = std::max(bytes, static_cast<double>(rank.memory.total()));
    }
    if (bytes > request_.cluster.memory_bytes) {
      ++too_large_;
      least_bytes_ = std::min(least_bytes_, bytes);
      return false;
    }
    Judged judged{{plan, simulation.step_s, reason(plan, simulation, bytes)}, simulated_, actions};
    const auto place =
        std::upper_bound(best_.begin(), best_.end(), judged,
                         [](const Judged& a, const Judged& b) { return a.key() < b.key(); });
    best_.insert(place, std::move(judged));
    if (best_.size() > kBest) {
      best_.pop_back();
    }
    return true;
  }

  std::string reason(const Plan& plan, const Simulation& simulation, double bytes) const {
    double most_busy_s = 0;
    std::size_t busiest = 0;
    for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
      if (simulation.ranks[rank].busy_s > most_busy_s) {
        most_busy_s = simulation.ranks[rank].busy_s;
        busiest = rank;
      }
    }
    const double busy = simulation.window_s > 0 ? most_busy_s / simulation.window_s : 0;
    return fmt::format(
        "rank {} computes {:.0f}% of the time, all used ranks {:.0f}%; {} of {} a "
        "device; {} used",
        busiest, 100 * busy, 100 * (1 - simulation.bubble_fraction), format_bytes(bytes),
        format_bytes(request_.cluster.memory_bytes), plan.num_used_ranks());
  }

  void try_rules() {
    if (request_.rule) {
      return;
    }
    std::vector<std::pair<Plan, double>> replicated;  // and actions
    for (const Judged& judged : best_) {
      if (judged.ranked.plan.max_replicas() > 1) {
        replicated.emplace_back(judged.ranked.plan, judged.actions);
      }
    }
    double actions_left = kMostRuleActions;
    for (auto& [plan, actions] : replicated) {
      for (const RuleEntry& rule : rules()) {
        if (rule.name == plan.rule || !rule.traits.equal_replicas || rule.staleness != "0") {
          continue;
        }
        plan.rule = rule.name;
        ++extra_;
        const std::size_t passes = rule.traits.overlaps ? request_.profile.layers.size() : 1;
        judge(plan, actions * static_cast<double>(passes), actions_left);
      }
    }
  }

  [[noreturn]] void refuse() const {
    std::string text =
        least_bytes_ < std::numeric_limits<double>::infinity()
            ? fmt::format(
                  "no plan on {} workers fits in memory: the least found needs {} a "
                  "worker, a device has {} (memory_bytes of the cluster); use more "
                  "workers, smaller minibatches or a larger device",
                  request_.workers, format_bytes(least_bytes_),
                  format_bytes(request_.cluster.memory_bytes))
            : fmt::format(
                  "no plan of {} layers on {} workers meets all restrictions{}; relax "
                  "stages, replicas, microbatches or the schedule",
                  request_.profile.layers.size(), request_.workers,
                  unseen_ > 0 ? ", or it is too much to simulate" : "");
    throw Error(ErrorCode::kInvalidArgument, std::move(text));
  }

  const PlanRequest& request_;
  std::vector<Judged> best_;  // at most kBest, best first
  double actions_left_ = kMostActions;
  double least_bytes_ = std::numeric_limits<double>::infinity();
  int simulated_ = 0;
  int slower_ = 0;
  int too_large_ = 0;
  int refused_ = 0;
  int unseen_ = 0;
  std::size_t extra_ = 0;
};

}  // namespace

Plan automatic(const PlanRequest& request) { return Auto(request).run(); }

}  // namespace millrace::builtin_planners
