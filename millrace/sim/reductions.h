// Reductions over ranks of several processes: which collective program sums them, and how long that
// lasts. The simulator predicts by it, and the world of a run chooses by it, so both speak of the
// same programs. Thread-safe: answers are remembered by size.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/collective/codec.h"
#include "millrace/collective/cost.h"
#include "millrace/core/cluster.h"

namespace millrace {

// Measured seconds of a collective at two sizes; others lie on the line through them.
struct CollectiveFit {
  std::string name;
  int num_members = 0;
  int64_t small_bytes = 0;
  double small_s = 0;
  int64_t large_bytes = 0;
  double large_s = 0;

  double seconds(double bytes) const;
};
Value to_value(const std::vector<CollectiveFit>& fits);
std::vector<CollectiveFit> collective_fits_from(const Document& document);

class Reductions {
 public:
  // `collective`: a name of collectives(), or "auto", the fastest on `cluster` for each size.
  // `codec`: of float32 on the wire; null: none. Throws Error(kInvalidArgument) for another name,
  // and for a codec with "native", which encodes nothing.
  // `fits`: what was measured between the processes; where it knows a collective over so many
  // members, it counts, less what a codec spares; else programs are timed on the cluster.
  Reductions(Cluster cluster, int num_ranks, int num_processes, std::string collective,
             std::shared_ptr<const Codec> codec = nullptr, std::vector<CollectiveFit> fits = {});
  const std::shared_ptr<const Codec>& codec() const { return codec_; }

  // Of the sum over `leaders` (one rank a process). For "native", which is no program, only a name.
  TimedCollective choose(const std::vector<int>& leaders, int64_t elements,
                         int64_t element_bytes) const;

  // From when the last of `ranks` asks: their sums inside each process, the program between
  // processes, and handing its result to the others of each process. "native" counts as a ring.
  double seconds(const std::vector<int>& ranks, double bytes) const;

 private:
  TimedCollective time_one(const std::vector<int>& leaders, int64_t elements,
                           int64_t element_bytes) const;
  std::optional<TimedCollective> fastest_fit(int num_members, double bytes) const;

  const Cluster cluster_;
  const int num_ranks_;
  const int num_processes_;
  const std::string collective_;
  const std::shared_ptr<const Codec> codec_;
  const std::vector<CollectiveFit> fits_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::vector<int>, std::pair<int64_t, int64_t>>, TimedCollective>
      known_;
};

}  // namespace millrace
