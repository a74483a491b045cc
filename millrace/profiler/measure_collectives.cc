#include "millrace/profiler/measure_collectives.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>

#include "millrace/base/clock.h"
#include "millrace/collective/program.h"

namespace millrace {
namespace {

constexpr double kPatienceS = 600;
constexpr int64_t kSmallBytes = 4096;
constexpr int64_t kMostBytes = 8 << 20;
constexpr int64_t kLeastLargeBytes = 256 << 10;
// A message of the larger size takes about so long.
constexpr double kLargeS = 0.1;

// Seconds of one of several in a row, as a rank sees them that reduces again and again.
double small_seconds(Group& group, int64_t bytes) {
  constexpr int kRounds = 20;
  at::Tensor values = at::zeros({bytes / 4});
  group.all_reduce_sum(values);  // programs and buffers are made
  group.barrier();
  const double start_s = monotonic_s();
  for (int i = 0; i < kRounds; ++i) {
    group.all_reduce_sum(values);
  }
  return (monotonic_s() - start_s) / kRounds;
}

// Until all members have it: what a member sent last may still be on the way when it is done. The
// median, since another program may have the core for a while.
double large_seconds(Group& group, int64_t bytes, double small_s) {
  at::Tensor values = at::zeros({bytes / 4});
  group.all_reduce_sum(values);
  std::vector<double> seconds;
  for (int i = 0; i < 3; ++i) {
    group.barrier();
    const double start_s = monotonic_s();
    group.all_reduce_sum(values);
    group.barrier();
    seconds.push_back(monotonic_s() - start_s - small_s);
  }
  std::sort(seconds.begin(), seconds.end());
  return std::max(small_s, seconds[1]);
}

std::vector<std::string> offered(const std::string& collective, int num_members) {
  std::vector<std::string> names;
  for (const CollectiveEntry& entry : collectives()) {
    CollectiveConfig config;
    config.num_members = num_members;
    config.elements = kMostBytes / 4;
    const bool runs = entry.builtin == nullptr || refusal(entry, config).empty();
    if (runs && (collective == "auto" || collective == entry.name)) {
      names.push_back(entry.name);
    }
  }
  return names;
}

}  // namespace

std::vector<CollectiveFit> measure_collectives(JoinedWorld& world, const std::string& collective,
                                               double bandwidth_bytes_per_s) {
  std::vector<int> leaders;
  for (int rank = 0; rank < world.num_ranks(); ++rank) {
    if (rank == 0 || world.process_of(rank) != world.process_of(rank - 1)) {
      leaders.push_back(rank);
    }
  }
  const auto large = static_cast<int64_t>(std::clamp(bandwidth_bytes_per_s * kLargeS,
                                                     static_cast<double>(kLeastLargeBytes),
                                                     static_cast<double>(kMostBytes)));
  const std::unique_ptr<Communicator> comm = world.communicator(world.local_ranks().front());
  std::vector<CollectiveFit> fits;
  for (const std::string& name : offered(collective, world.num_processes())) {
    world.reduce_by([name](const auto&, int64_t, int64_t) {
      return ChosenCollective{.name = name, .grid = {}};
    });
    const std::unique_ptr<Group> group = comm->group(leaders);
    CollectiveFit fit;
    fit.name = name;
    fit.num_members = world.num_processes();
    fit.small_bytes = kSmallBytes;
    fit.large_bytes = large / 4 * 4;
    fit.small_s = small_seconds(*group, fit.small_bytes);
    fit.large_s = large_seconds(*group, fit.large_bytes, fit.small_s);
    fits.push_back(fit);
  }
  world.reduce_by({});
  world.exchange("", kPatienceS);
  return fits;
}

}  // namespace millrace
