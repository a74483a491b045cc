#include "millrace/planner/internal/equal_width.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace millrace::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Depth, width and recompute: for these the cut and the microbatches are searched.
struct Shape {
  int depth = 1;
  int width = 1;
  bool recompute = false;
  double bound_s = 0;  // no plan of this shape is faster
};

// One shape: which stages keep a limit, and the earliest cuts that do.
class ShapeSearch {
 public:
  ShapeSearch(const EqualWidthProblem& problem, const Shape& shape)
      : problem_(problem), line_(problem.line), shape_(shape) {
    for (int stage = 0; stage < shape.depth; ++stage) {
      std::vector<int> devices(at(shape.width));
      std::iota(devices.begin(), devices.end(), stage * shape.width);
      double speed = kNever;
      double bandwidth_bytes_per_s = kNever;
      for (const int device : devices) {
        speed = std::min(speed, problem.cluster.speed_of(device));
        if (stage > 0) {
          bandwidth_bytes_per_s =
              std::min(bandwidth_bytes_per_s,
                       problem.cluster.bandwidth_between(device - shape.width, device));
        }
      }
      places_.push_back({speed, bandwidth_bytes_per_s, ring_of(problem.cluster, devices)});
    }
  }

  double stage_s(int stage, int first, int last) const {
    const Place& place = places_[at(stage)];
    const double seconds =
        line_.seconds[at(last)] - line_.seconds[at(first)] +
        (shape_.recompute ? line_.forward_seconds[at(last)] - line_.forward_seconds[at(first)]
                          : 0.0);
    return std::max(seconds / (shape_.width * place.speed), exchange_s(place, first, last));
  }

  double cut_s(int stage, int cut) const {
    return 2.0 * line_.output_bytes[at(cut)] /
           (shape_.width * places_[at(stage)].bandwidth_bytes_per_s);
  }

  double memory_bytes(int stage, int first, int last, int microbatches) const {
    const double weight_bytes =
        (kVersions + 1 + problem_.optimizer_buffers) *
        (line_.parameter_bytes[at(last)] - line_.parameter_bytes[at(first)]);
    const double stash_bytes = line_.stash_bytes[at(last)] - line_.stash_bytes[at(first)];
    const double in_flight = shape_.depth - stage;
    const double shares = static_cast<double>(shape_.width) * microbatches;
    return weight_bytes + (shape_.recompute
                               ? in_flight * line_.output_bytes[at(first)] + stash_bytes
                               : in_flight * stash_bytes) /
                              shares;
  }

  // The cuts behind the stages, the earliest where several do; empty where nothing keeps the limit.
  std::vector<int> cuts(double limit_s, int microbatches) {
    if (!reach(limit_s, microbatches)) {
      return {};
    }
    std::vector<int> ends(at(shape_.depth), line_.num_layers);
    int first = 0;
    for (int stage = 0; stage + 1 < shape_.depth; ++stage) {
      int end = first + 1;
      while (!finishes_[at(stage + 1)][at(end)]) {
        ++end;
      }
      ends[at(stage)] = end;
      first = end;
    }
    return ends;
  }

  // Whether some cuts keep the limit. From the last stage back: from which cuts on the rest does.
  bool reach(double limit_s, int microbatches) {
    finishes_.resize(at(shape_.depth));
    std::vector<int> next(at(line_.num_layers) + 2);  // the first good cut from here on
    for (int stage = shape_.depth - 1; stage >= 0; --stage) {
      std::vector<bool>& good = finishes_[at(stage)];
      good.assign(at(line_.num_layers) + 1, false);
      bool any = false;
      const bool last_stage = stage == shape_.depth - 1;
      if (!last_stage) {
        next[at(line_.num_layers)] = line_.num_layers + 1;
        for (int cut = line_.num_layers - 1; cut >= 0; --cut) {
          next[at(cut)] = finishes_[at(stage + 1)][at(cut)] ? cut : next[at(cut) + 1];
        }
      }
      const int lowest = stage == 0 ? 0 : stage;
      const int highest = stage == 0 ? 0 : line_.num_layers - (shape_.depth - stage);
      for (int first = lowest; first <= highest; ++first) {
        if (stage > 0 && cut_s(stage, first) > limit_s) {
          continue;
        }
        const int end = last_stage ? line_.num_layers : next[at(first) + 1];
        const bool keeps =
            end <= line_.num_layers && stage_s(stage, first, end) <= limit_s &&
            memory_bytes(stage, first, end, microbatches) <= problem_.cluster.memory_bytes;
        good[at(first)] = keeps;
        any = any || keeps;
      }
      if (!any) {
        return false;
      }
    }
    return finishes_[0][0];
  }

 private:
  static constexpr int kVersions = 2;

  // Links of one kind in the ring of a stage's devices.
  struct RingLink {
    double bandwidth_bytes_per_s;
    double latency_s;  // of all rounds
    bool operator==(const RingLink&) const = default;
  };

  struct Place {
    double speed;
    double bandwidth_bytes_per_s;  // to the stage before
    std::vector<RingLink> ring;    // each kind once
  };

  // Cluster::all_reduce_s taken apart, since it is asked for very many sizes.
  static std::vector<RingLink> ring_of(const Cluster& cluster, const std::vector<int>& devices) {
    std::vector<RingLink> ring;
    const double rounds = 2.0 * static_cast<double>(devices.size() - 1);
    for (std::size_t i = 0; devices.size() > 1 && i < devices.size(); ++i) {
      const int a = devices[i];
      const int b = devices[(i + 1) % devices.size()];
      const NetworkLevel& level = cluster.level_between(a, b);
      const bool overridden =
          std::any_of(cluster.links.begin(), cluster.links.end(), [&](const LinkOverride& link) {
            return (link.from == a && link.to == b) || (link.from == b && link.to == a);
          });
      const RingLink link =
          overridden
              ? RingLink{cluster.bandwidth_between(a, b), rounds * cluster.latency_between(a, b)}
              : RingLink{
                    level.all_reduce_bandwidth_bytes_per_s.value_or(level.bandwidth_bytes_per_s),
                    level.all_reduce_latency_s.value_or(rounds * level.latency_s)};
      if (std::find(ring.begin(), ring.end(), link) == ring.end()) {
        ring.push_back(link);
      }
    }
    return ring;
  }

  double exchange_s(const Place& place, int first, int last) const {
    const double count = shape_.width;
    const double moved = 2.0 * (count - 1) / count *
                         (line_.parameter_bytes[at(last)] - line_.parameter_bytes[at(first)]);
    double slowest_s = 0;
    for (const RingLink& link : place.ring) {
      slowest_s = std::max(slowest_s, moved / link.bandwidth_bytes_per_s + link.latency_s);
    }
    return slowest_s;
  }

  const EqualWidthProblem& problem_;
  const Line& line_;
  const Shape shape_;
  std::vector<Place> places_;
  std::vector<std::vector<bool>> finishes_;  // [stage][cut]: from here on it can be done
};

class Search {
 public:
  explicit Search(const EqualWidthProblem& problem) : problem_(problem) {
    for (int device = 0; device < problem.workers; ++device) {
      speed_ = std::max(speed_, problem.cluster.speed_of(device));
    }
    for (const NetworkLevel& level : problem.cluster.levels) {
      bandwidth_bytes_per_s_ = std::max({bandwidth_bytes_per_s_, level.bandwidth_bytes_per_s,
                                         level.all_reduce_bandwidth_bytes_per_s.value_or(0)});
    }
    for (const LinkOverride& link : problem.cluster.links) {
      bandwidth_bytes_per_s_ = std::max(bandwidth_bytes_per_s_, link.bandwidth_bytes_per_s);
    }
  }

  std::optional<EqualWidthPlan> run() {
    for (const Shape& shape : shapes()) {
      if (best_ && shape.bound_s > best_->minibatch_s) {
        break;
      }
      try_shape(shape);
    }
    return best_;
  }

 private:
  std::vector<int> microbatches_of(const Shape& shape) const {
    const auto fits = [&](int m) {
      return static_cast<double>(m) * shape.width <= problem_.samples;
    };
    std::vector<int> counts;
    if (problem_.microbatches) {
      if (fits(*problem_.microbatches) && *problem_.microbatches >= shape.depth - 1) {
        counts.push_back(*problem_.microbatches);
      }
      return counts;
    }
    for (int m = shape.depth; fits(m) && m <= kMostMicrobatches; m *= 2) {
      counts.push_back(m);
    }
    return counts;
  }

  // No plan of the shape is faster: all seconds and weights in equal parts, or the longest and
  // largest layer alone, on the fastest device and link.
  double bound_s(const Shape& shape) const {
    const Line& line = problem_.line;
    double longest_s = 0;
    double largest_bytes = 0;
    for (std::size_t i = 0; i + 1 < line.seconds.size(); ++i) {
      longest_s = std::max(longest_s, line.seconds[i + 1] - line.seconds[i]);
      largest_bytes =
          std::max(largest_bytes, line.parameter_bytes[i + 1] - line.parameter_bytes[i]);
    }
    const double all_s =
        line.seconds.back() + (shape.recompute ? line.forward_seconds.back() : 0.0);
    const double stage_s = std::max(all_s / shape.depth, longest_s) / (shape.width * speed_);
    const double stage_bytes = std::max(line.parameter_bytes.back() / shape.depth, largest_bytes);
    const double exchange_s =
        2.0 * (shape.width - 1) / shape.width * stage_bytes / bandwidth_bytes_per_s_;
    // Rounding must not lift it over what a plan takes.
    return std::max(stage_s, exchange_s) * (1 - 1e-12);
  }

  std::vector<Shape> shapes() const {
    std::vector<Shape> all;
    const int deepest = std::min(problem_.workers, problem_.line.num_layers);
    for (int depth = 1; depth <= deepest; ++depth) {
      for (int width = 1; depth * width <= problem_.workers; ++width) {
        for (const bool recompute : {false, true}) {
          if ((problem_.depth && depth != *problem_.depth) ||
              (problem_.width && width != *problem_.width) ||
              (problem_.recompute && recompute != *problem_.recompute)) {
            continue;
          }
          Shape shape{depth, width, recompute};
          shape.bound_s = bound_s(shape);
          all.push_back(shape);
        }
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Shape& a, const Shape& b) { return a.bound_s < b.bound_s; });
    return all;
  }

  void try_shape(const Shape& shape) {
    const std::vector<int> counts = microbatches_of(shape);
    if (counts.empty()) {
      return;
    }
    ShapeSearch search(problem_, shape);
    const int most = counts.back();  // needs least memory, and no more time
    const double worst_s = best_ ? best_->minibatch_s : kNever;
    if (!search.reach(worst_s, most)) {
      return;
    }
    // Doubles that are not negative stand in the order of their bits.
    uint64_t low = std::bit_cast<uint64_t>(shape.bound_s);
    uint64_t high = std::bit_cast<uint64_t>(worst_s);
    if (best_ && !search.reach(std::nextafter(worst_s, 0.0), most)) {
      low = high;  // as fast as the best, no faster
    }
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      if (search.reach(std::bit_cast<double>(middle), most)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const double least_s = std::bit_cast<double>(low);
    for (const int m : counts) {
      const std::vector<int> ends = search.cuts(least_s, m);
      if (!ends.empty()) {
        offer(shape, search, {least_s, 0, shape.width, m, shape.recompute, ends});
        return;
      }
    }
  }

  void offer(const Shape& shape, const ShapeSearch& search, EqualWidthPlan plan) {
    const auto key = [](const EqualWidthPlan& p) {
      const auto depth = static_cast<int>(p.ends.size());
      return std::tuple(p.minibatch_s, depth * p.width, p.recompute, depth, p.microbatches);
    };
    if (best_ && key(*best_) <= key(plan)) {
      return;
    }
    int first = 0;
    for (int stage = 0; stage < shape.depth; ++stage) {
      plan.memory_bytes =
          std::max(plan.memory_bytes,
                   search.memory_bytes(stage, first, plan.ends[at(stage)], plan.microbatches));
      first = plan.ends[at(stage)];
    }
    best_ = std::move(plan);
  }

  static constexpr int kMostMicrobatches = 1 << 16;

  const EqualWidthProblem& problem_;
  double speed_ = 0;                  // of the fastest device
  double bandwidth_bytes_per_s_ = 0;  // of the fastest link
  std::optional<EqualWidthPlan> best_;
};

}  // namespace

std::optional<EqualWidthPlan> best_equal_width(const EqualWidthProblem& problem) {
  return Search(problem).run();
}

}  // namespace millrace::internal
