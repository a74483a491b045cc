#include "millrace/planner/internal/device_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <unordered_map>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Numbers of a table that counts stages: 1.6 GB with what belongs to each.
constexpr double kMostEntries = 1e8;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

}  // namespace

Line::Line(const Profile& profile, double parts)
    : num_layers(static_cast<int>(profile.layers.size())) {
  const std::size_t count = profile.layers.size() + 1;
  seconds.assign(count, 0.0);
  forward_seconds.assign(count, 0.0);
  parameter_bytes.assign(count, 0.0);
  stash_bytes.assign(count, 0.0);
  output_bytes.assign(count, 0.0);
  std::unordered_map<std::string, std::size_t> indices;
  std::vector<std::size_t> last_use(profile.layers.size(), 0);
  for (const LayerProfile& layer : profile.layers) {
    indices.emplace(layer.name, indices.size());
  }
  for (const ProfileEdge& edge : profile.edges) {
    std::size_t& last = last_use[indices.at(edge.from)];
    last = std::max(last, indices.at(edge.to));
  }
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    const LayerProfile& layer = profile.layers[i];
    seconds[i + 1] = seconds[i] + layer.compute_s() / parts;
    forward_seconds[i + 1] = forward_seconds[i] + layer.forward_s / parts;
    parameter_bytes[i + 1] = parameter_bytes[i] + static_cast<double>(layer.parameter_bytes);
    stash_bytes[i + 1] = stash_bytes[i] + static_cast<double>(layer.stash_bytes) / parts;
    for (std::size_t cut = i + 1; cut <= last_use[i]; ++cut) {
      output_bytes[cut] += static_cast<double>(layer.output_bytes) / parts;
    }
  }
}

ChainLinks::ChainLinks(const Line& line, const Cluster& cluster, int workers, bool latency)
    : workers_(workers), nested_(cluster.links.empty()) {
  const auto seconds_of = [&](double bandwidth_bytes_per_s, double latency_s) {
    std::vector<double> seconds;
    for (const double bytes : line.output_bytes) {
      seconds.push_back(2.0 * bytes / bandwidth_bytes_per_s + (latency ? 2.0 * latency_s : 0.0));
    }
    return seconds;
  };
  int devices = 1;
  for (const NetworkLevel& level : cluster.levels) {
    devices *= level.size;
    if (level.size == 1) {
      continue;
    }
    component_sizes_.push_back(devices);
    level_seconds_.push_back(seconds_of(level.bandwidth_bytes_per_s, level.latency_s));
    const std::size_t last = level_seconds_.size() - 1;
    for (std::size_t cut = 0; last > 0 && cut < level_seconds_[last].size(); ++cut) {
      nested_ = nested_ && level_seconds_[last][cut] >= level_seconds_[last - 1][cut];
    }
  }
  kind_.assign(at(workers) * at(workers), 0);
  std::vector<std::pair<double, double>> kinds;
  for (int a = 0; a < workers; ++a) {
    for (int b = a + 1; b < workers; ++b) {
      const std::pair<double, double> link{cluster.bandwidth_between(a, b),
                                           cluster.latency_between(a, b)};
      const auto found = std::find(kinds.begin(), kinds.end(), link);
      const auto kind = static_cast<uint16_t>(found - kinds.begin());
      if (found == kinds.end()) {
        MILLRACE_CHECK(kinds.size() < std::numeric_limits<uint16_t>::max(), "kinds of links");
        kinds.push_back(link);
        seconds_.push_back(seconds_of(link.first, link.second));
      }
      kind_[at(a) * at(workers) + at(b)] = kind;
      kind_[at(b) * at(workers) + at(a)] = kind;
    }
  }
}

ChainSolver::ChainSolver(const ChainProblem& problem)
    : problem_(problem),
      num_cuts_(at(problem.line.num_layers) + 1),
      num_places_(static_cast<int>(problem.order.size())),
      by_level_(problem.links.nested() && !problem.stages) {
  if (problem.stages) {
    band_ = std::max(num_places_ - *problem.stages, 0) + 1;
    const double entries =
        static_cast<double>(num_cuts_) * static_cast<double>(num_places_) * band_;
    if (entries > kMostEntries) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("{} stages of {} layers on {} of {} unequal devices are too many to "
                      "search; leave the number of stages out",
                      *problem.stages, problem.line.num_layers, *problem.stages, num_places_));
    }
  }
  sums_.resize(index(num_places_, 0));
  from_.resize(sums_.size());
  before_.resize(num_cuts_);
  before_place_.resize(num_cuts_);
  queue_.resize(num_cuts_);
  key_.resize(num_cuts_);
  if (by_level_) {
    int most = 0;
    for (const int device : problem.order) {
      most = std::max(most, device);
    }
    for (const int size : problem.links.component_sizes()) {
      first_component_.push_back(reached_.size());
      reached_.resize(reached_.size() + at(most / size + 1), std::vector<double>(num_cuts_));
    }
    reached_place_.assign(reached_.size(), std::vector<int>(num_cuts_));
  }
}

double ChainSolver::stage_s(const ChainStage& stage) const {
  return (problem_.line.seconds[at(stage.last_cut)] - problem_.line.seconds[at(stage.first_cut)]) /
         problem_.cluster.speed_of(stage.device);
}

// Takes `sums` over one link into what a stage on `place` may follow. `places`: where each sum
// comes from, or null and it is all `place`.
void ChainSolver::enter_from(const double* sums, const int* places, int place, const double* link_s,
                             double limit_s, Aim aim) {
  for (std::size_t cut = 1; cut + 1 < num_cuts_; ++cut) {
    const double sum = sums[cut] + (aim == Aim::kLeastSum ? link_s[cut] : 0.0);
    if (sum < before_[cut] && link_s[cut] <= limit_s) {
      before_[cut] = sum;
      before_place_[cut] = places == nullptr ? place : places[cut];
    }
  }
}

void ChainSolver::enter(int place, int idle, double limit_s, Aim aim) {
  std::fill(before_.begin(), before_.end(), kNever);
  std::fill(before_place_.begin(), before_place_.end(), -1);
  const int stage = problem_.stages ? place - idle : 0;
  if (stage == 0) {
    before_[0] = 0;
    if (problem_.stages) {
      return;
    }
  }
  const int device = problem_.order[at(place)];
  if (by_level_) {
    for (std::size_t level = 0; level < first_component_.size(); ++level) {
      const std::size_t component =
          first_component_[level] + at(device / problem_.links.component_sizes()[level]);
      enter_from(reached_[component].data(), reached_place_[component].data(), place,
                 problem_.links.of_level(level), limit_s, aim);
    }
    return;
  }
  for (int other = 0; other < place; ++other) {
    const int other_idle = problem_.stages ? other - (stage - 1) : 0;
    if (other_idle >= 0 && other_idle < band_) {
      enter_from(&sums_[index(other, other_idle)], nullptr, other,
                 problem_.links.of(problem_.order[at(other)], device), limit_s, aim);
    }
  }
}

// The stage itself: a sliding window over where it begins, since a stage that begins later is
// neither longer nor larger.
void ChainSolver::stage_row(int place, int idle, double limit_s, Aim aim) {
  const Line& line = problem_.line;
  const int device = problem_.order[at(place)];
  const double speed = problem_.cluster.speed_of(device);
  const bool with_memory = !problem_.parameter_copies.empty();
  const double weight_copies = with_memory ? problem_.parameter_copies[at(place)] : 0.0;
  const double stash_copies = with_memory ? problem_.stash_copies[at(place)] : 0.0;
  const auto fits = [&](std::size_t first, std::size_t last) {
    return (line.seconds[last] - line.seconds[first]) / speed <= limit_s &&
           (!with_memory ||
            weight_copies * (line.parameter_bytes[last] - line.parameter_bytes[first]) +
                    stash_copies * (line.stash_bytes[last] - line.stash_bytes[first]) <=
                problem_.cluster.memory_bytes);
  };
  double* sums = &sums_[index(place, idle)];
  From* from = &from_[index(place, idle)];
  sums[0] = kNever;
  std::size_t lowest = 0;
  std::size_t head = 0;
  std::size_t tail = 0;
  for (std::size_t last = 1; last < num_cuts_; ++last) {
    const std::size_t begin = last - 1;
    if (before_[begin] < kNever) {
      key_[begin] =
          aim == Aim::kLeastSum ? before_[begin] - line.seconds[begin] / speed : before_[begin] + 1;
      while (tail > head && key_[at(queue_[tail - 1])] > key_[begin]) {
        --tail;
      }
      queue_[tail++] = static_cast<int>(begin);
    }
    while (lowest < last && !fits(lowest, last)) {
      ++lowest;
    }
    while (head < tail && at(queue_[head]) < lowest) {
      ++head;
    }
    if (head == tail) {
      sums[last] = kNever;
      continue;
    }
    const std::size_t best = at(queue_[head]);
    sums[last] = key_[best] + (aim == Aim::kLeastSum ? line.seconds[last] / speed : 0.0);
    from[last] = {static_cast<int>(best), before_place_[best]};
  }
}

void ChainSolver::remember(int place) {
  const int device = problem_.order[at(place)];
  const double* sums = &sums_[index(place, 0)];
  for (std::size_t level = 0; level < first_component_.size(); ++level) {
    const std::size_t component =
        first_component_[level] + at(device / problem_.links.component_sizes()[level]);
    double* reached = reached_[component].data();
    int* places = reached_place_[component].data();
    for (std::size_t cut = 1; cut < num_cuts_; ++cut) {
      if (sums[cut] < reached[cut]) {
        reached[cut] = sums[cut];
        places[cut] = place;
      }
    }
  }
}

// Fills the table; with `any`, up to the first place at which all layers are done. Whether there is
// one.
bool ChainSolver::fill(double limit_s, Aim aim, bool any) {
  for (std::vector<double>& reached : reached_) {
    std::fill(reached.begin(), reached.end(), kNever);
  }
  bool found = false;
  for (int place = 0; place < num_places_; ++place) {
    for (int idle = 0; idle < band_; ++idle) {
      const int stage = place - idle;
      if (problem_.stages && (stage < 0 || stage >= *problem_.stages)) {
        std::fill_n(sums_.begin() + static_cast<std::ptrdiff_t>(index(place, idle)), num_cuts_,
                    kNever);
        continue;
      }
      enter(place, idle, limit_s, aim);
      stage_row(place, idle, limit_s, aim);
      found = found || (sums_[index(place, idle) + num_cuts_ - 1] < kNever &&
                        (!problem_.stages || stage == *problem_.stages - 1));
    }
    if (found && any) {
      return true;
    }
    if (by_level_) {
      remember(place);
    }
  }
  return found;
}

ChainSolution ChainSolver::trace_back(int place, int idle) const {
  ChainSolution solution;
  int cut = problem_.line.num_layers;
  while (place >= 0) {
    const From& from = from_[index(place, idle) + at(cut)];
    solution.stages.push_back({from.cut, cut, problem_.order[at(place)]});
    if (problem_.stages && from.place >= 0) {
      idle = from.place - (place - idle - 1);
    }
    cut = from.cut;
    place = from.place;
  }
  std::reverse(solution.stages.begin(), solution.stages.end());
  for (std::size_t s = 0; s < solution.stages.size(); ++s) {
    const ChainStage& stage = solution.stages[s];
    double link_s = 0;
    if (s > 0) {
      link_s = problem_.links.seconds(solution.stages[s - 1].device, stage.device, stage.first_cut);
    }
    solution.sum_s += link_s + stage_s(stage);
    solution.longest_s = std::max({solution.longest_s, link_s, stage_s(stage)});
  }
  return solution;
}

std::optional<ChainSolution> ChainSolver::solve(double limit_s, Aim aim) {
  if (!fill(limit_s, aim, false)) {
    return std::nullopt;
  }
  double least = kNever;
  int best_place = 0;
  int best_idle = 0;
  for (int place = 0; place < num_places_; ++place) {
    for (int idle = 0; idle < band_; ++idle) {
      const double sum = sums_[index(place, idle) + num_cuts_ - 1];
      if (sum < least && (!problem_.stages || place - idle == *problem_.stages - 1)) {
        least = sum;
        best_place = place;
        best_idle = idle;
      }
    }
  }
  return trace_back(best_place, best_idle);
}

std::optional<double> ChainSolver::least_limit() {
  // Doubles that are not negative stand in the order of their bits.
  if (!fill(kNever, Aim::kFewestStages, true)) {
    return std::nullopt;
  }
  uint64_t low = 0;
  uint64_t high = std::bit_cast<uint64_t>(kNever);
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (fill(std::bit_cast<double>(middle), Aim::kFewestStages, true)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return std::bit_cast<double>(low);
}

Plan plan_of(const std::vector<ChainStage>& stages, const Profile& profile) {
  Plan plan;
  for (const ChainStage& stage : stages) {
    PlanStage& made = plan.stages.emplace_back();
    for (int layer = stage.first_cut; layer < stage.last_cut; ++layer) {
      made.layers.push_back(profile.layers[at(layer)].name);
    }
    made.ranks = {stage.device};
  }
  return plan;
}

}  // namespace millrace::internal
