#include "millrace/sim/reductions.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/core/world_place.h"

namespace millrace {

double CollectiveFit::seconds(double bytes) const {
  const double slope =
      (large_s - small_s) / static_cast<double>(std::max<int64_t>(1, large_bytes - small_bytes));
  return small_s + std::max(0.0, bytes - static_cast<double>(small_bytes)) * slope;
}

Value to_value(const std::vector<CollectiveFit>& fits) {
  Value list = Value::list();
  for (const CollectiveFit& fit : fits) {
    Value item = Value::map();
    item.set("name", Value::of(fit.name));
    item.set("num_members", Value::of(fit.num_members));
    item.set("small_bytes", Value::of(fit.small_bytes));
    item.set("small_s", Value::of(fit.small_s));
    item.set("large_bytes", Value::of(fit.large_bytes));
    item.set("large_s", Value::of(fit.large_s));
    list.push(std::move(item));
  }
  Value value = Value::map();
  value.set("collectives", std::move(list));
  return value;
}

std::vector<CollectiveFit> collective_fits_from(const Document& document) {
  std::vector<CollectiveFit> fits;
  Reader reader(document);
  for (Reader& item : reader.objects("collectives")) {
    CollectiveFit fit;
    fit.name = item.text("name");
    fit.num_members = static_cast<int>(item.integer("num_members"));
    fit.small_bytes = item.integer("small_bytes");
    fit.small_s = item.number("small_s");
    fit.large_bytes = item.integer("large_bytes");
    fit.large_s = item.number("large_s");
    fits.push_back(std::move(fit));
  }
  return fits;
}

Reductions::Reductions(Cluster cluster, int num_ranks, int num_processes, std::string collective,
                       std::shared_ptr<const Codec> codec, std::vector<CollectiveFit> fits)
    : cluster_(std::move(cluster)),
      num_ranks_(num_ranks),
      num_processes_(num_processes),
      collective_(std::move(collective)),
      codec_(std::move(codec)),
      fits_(std::move(fits)) {
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
  // The wire's bytes, were it one message.
  if (const auto fit =
          fastest_fit(static_cast<int>(leaders.size()), elements > 0 ? bytes(elements) : 0)) {
    return *fit;
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

std::optional<TimedCollective> Reductions::fastest_fit(int num_members, double bytes) const {
  std::optional<TimedCollective> best;
  for (const CollectiveFit& fit : fits_) {
    const bool eligible = fit.num_members == num_members &&
                          (collective_ == "auto" ? codec_ == nullptr || fit.name != "native"
                                                 : collective_ == fit.name);
    if (eligible && (!best || fit.seconds(bytes) < best->seconds)) {
      best = TimedCollective{.name = fit.name, .grid = {}, .seconds = fit.seconds(bytes)};
    }
  }
  return best;
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
