#include "millrace/sim/reductions.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/core/world_place.h"

namespace millrace {

Reductions::Reductions(Cluster cluster, int num_ranks, int num_processes, std::string collective,
                       std::shared_ptr<const Codec> codec)
    : cluster_(std::move(cluster)),
      num_ranks_(num_ranks),
      num_processes_(num_processes),
      collective_(std::move(collective)),
      codec_(std::move(codec)) {
  if (collective_ != "auto") {
    find_collective(collective_);
  }
  if (collective_ == "native" && codec_ != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the engine's own reduction encodes nothing; set codec = \"none\", or another "
                "collective than \"native\"")
        .at_key("parallel.codec");
  }
}

TimedCollective Reductions::time_one(const std::vector<int>& leaders, int64_t elements,
                                     int64_t element_bytes) const {
  WireBytes bytes = plain_bytes(static_cast<double>(element_bytes));
  if (codec_ != nullptr && element_bytes == sizeof(float)) {
    bytes = [this](int64_t block) { return static_cast<double>(codec_->wire_bytes(block)); };
  }
  if (collective_ == "auto") {
    return choose_collective(leaders, elements, cluster_, bytes).best;
  }
  TimedCollective one{.name = collective_, .grid = {}, .seconds = 0};
  const CollectiveConfig config = collective_config(leaders, elements, cluster_);
  const std::string program = collective_ == "native" ? "ring" : collective_;
  one.seconds = time_program(make_collective(program, config), leaders, cluster_, bytes).seconds;
  return one;
}

TimedCollective Reductions::choose(const std::vector<int>& leaders, int64_t elements,
                                   int64_t element_bytes) const {
  const auto key = std::pair(leaders, std::pair(elements, element_bytes));
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  if (found != known_.end()) {
    return found->second;
  }
  return known_.emplace(key, time_one(leaders, elements, element_bytes)).first->second;
}

double Reductions::seconds(const std::vector<int>& ranks, double bytes) const {
  std::map<int, std::vector<int>> by_process;
  for (const int rank : ranks) {
    by_process[process_of_rank(rank, num_ranks_, num_processes_)].push_back(rank);
  }
  std::vector<int> leaders;
  double inside_s = 0;
  for (const auto& [process, members] : by_process) {
    leaders.push_back(members.front());
    double own_s = cluster_.all_reduce_s(members, bytes);
    if (members.size() > 1 && by_process.size() > 1) {
      own_s += bytes / cluster_.bandwidth_between(members[0], members[1]);
    }
    inside_s = std::max(inside_s, own_s);
  }
  if (leaders.size() == 1) {
    return inside_s;
  }
  constexpr int64_t kElementBytes = 4;
  const auto elements = static_cast<int64_t>(std::ceil(bytes / static_cast<double>(kElementBytes)));
  return inside_s + choose(leaders, elements, kElementBytes).seconds;
}

}  // namespace millrace
