// Stages of consecutive layers on devices that stand in a given order, each of its own speed and
// behind links of their own; devices may stay idle. The search that planners for unequal devices
// share (builtin/ftpipehd.cc, builtin/fusion_llm.cc). Pure functions over numbers; one solver is
// not for several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/core/cluster.h"
#include "millrace/core/plan.h"
#include "millrace/core/profile.h"

namespace millrace::internal {

// A profile's layers in its order, summed up to each cut; cut c stands before layer c. Where the
// graph is no chain, only cuts along this order are here.
struct Line {
  // Seconds and bytes that come with samples are divided by `parts`.
  Line(const Profile& profile, double parts);

  int num_layers = 0;
  std::vector<double> seconds;  // of all layers before the cut, on a device of speed 1
  std::vector<double> forward_seconds;
  std::vector<double> parameter_bytes;
  std::vector<double> stash_bytes;
  // That cross the cut forwards: each tensor with a consumer behind it, once.
  std::vector<double> output_bytes;
};

// Seconds of every cut's tensors, there and their gradients back, between any two devices.
class ChainLinks {
 public:
  // Of devices 0..workers-1. Without `latency` bytes alone count.
  ChainLinks(const Line& line, const Cluster& cluster, int workers, bool latency);

  double seconds(int from, int to, int cut) const { return of(from, to)[cut]; }
  const double* of(int from, int to) const {
    return seconds_[kind_[static_cast<std::size_t>(from) * static_cast<std::size_t>(workers_) +
                          static_cast<std::size_t>(to)]]
        .data();
  }
  int kind(int from, int to) const {
    return kind_[static_cast<std::size_t>(from) * static_cast<std::size_t>(workers_) +
                 static_cast<std::size_t>(to)];
  }
  // No link is an exception to its level, and a level further out is never faster: what any device
  // of a component sends may then be taken as sent at the speed of the component's own level.
  bool nested() const { return nested_; }
  // Devices of a component of each level, innermost first.
  const std::vector<int>& component_sizes() const { return component_sizes_; }
  // The seconds of a level, by cut.
  const double* of_level(std::size_t level) const { return level_seconds_[level].data(); }

 private:
  int workers_ = 0;
  bool nested_ = true;
  std::vector<uint16_t> kind_;  // [from, to]
  std::vector<std::vector<double>> seconds_;
  std::vector<int> component_sizes_;
  std::vector<std::vector<double>> level_seconds_;
};

struct ChainProblem {
  const Line& line;
  const Cluster& cluster;
  const ChainLinks& links;
  std::vector<int> order{};     // devices; a stage's stands before those of later stages
  std::optional<int> stages{};  // exactly so many
  // A stage of W parameter and A stash bytes on the device at place p of the order needs
  // parameter_copies[p] W + stash_copies[p] A. Empty: not asked.
  std::vector<double> parameter_copies{};
  std::vector<double> stash_copies{};
};

struct ChainStage {
  int first_cut = 0;
  int last_cut = 0;
  int device = 0;
  bool operator==(const ChainStage&) const = default;
};

struct ChainSolution {
  std::vector<ChainStage> stages;
  double sum_s = 0;      // of stages and links
  double longest_s = 0;  // of both
};

class ChainSolver {
 public:
  enum class Aim { kLeastSum, kFewestStages };

  // Throws Error(kUnsupported) where the number of stages is given and leaves too much to search.
  explicit ChainSolver(const ChainProblem& problem);

  // Among the solutions whose stages and links all take at most `limit_s`, one of the least sum of
  // both, or of the fewest stages; nothing when there is none. Ties are decided the same way every
  // time. N layers and M devices: N M steps for each network level, N M^2 where links are not
  // nested or stages are counted.
  std::optional<ChainSolution> solve(double limit_s, Aim aim);
  // The least limit that leaves a solution, to the last bit; nothing when no limit does.
  std::optional<double> least_limit();

  double stage_s(const ChainStage& stage) const;

 private:
  struct From {
    int cut = -1;    // where the stage begins
    int place = -1;  // of the stage before
  };

  std::size_t index(int place, int idle) const {
    return (static_cast<std::size_t>(place) * static_cast<std::size_t>(band_) +
            static_cast<std::size_t>(idle)) *
           num_cuts_;
  }
  bool fill(double limit_s, Aim aim, bool any);
  void enter(int place, int idle, double limit_s, Aim aim);
  void enter_from(const double* sums, const int* places, int place, const double* link_s,
                  double limit_s, Aim aim);
  void stage_row(int place, int idle, double limit_s, Aim aim);
  void remember(int place);
  ChainSolution trace_back(int place, int idle) const;

  const ChainProblem& problem_;
  const std::size_t num_cuts_;
  const int num_places_;
  bool by_level_ = false;
  int band_ = 1;              // numbers of idle devices so far that are told apart
  std::vector<double> sums_;  // [place, idle, cut]: all before the cut, the last stage at place
  std::vector<From> from_;    // the same
  // What a stage may follow: by the cut at which it begins.
  std::vector<double> before_;
  std::vector<int> before_place_;
  // Of each level and component, the least sum at each cut and where.
  std::vector<std::vector<double>> reached_;
  std::vector<std::vector<int>> reached_place_;
  std::vector<std::size_t> first_component_;
  std::vector<int> queue_;
  std::vector<double> key_;
};

// The plan that the stages mean; objective_s is for the caller to fill in.
Plan plan_of(const std::vector<ChainStage>& stages, const Profile& profile);

}  // namespace millrace::internal
