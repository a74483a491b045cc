#include "millrace/profiler/measure_cluster.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/text.h"
#include "millrace/comm/inproc/inproc.h"
#include "millrace/runtime/team.h"

namespace millrace {
namespace {

constexpr double kTimeoutS = 30;
constexpr int kRepeats = 5;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    ranks[static_cast<std::size_t>(i)] = i;
  }
  return ranks;
}

// Seconds of one hand-over of a small tensor between two threads, from medians of ping-pong rounds.
double measure_latency_s() {
  constexpr int kRounds = 400;
  InprocWorld world(2, kTimeoutS);
  std::vector<double> results;
  run_ranks(
      first_ranks(2), [&](const Error& cause) { world.abort(cause); },
      [&](int rank) {
        const std::unique_ptr<Communicator> comm = world.communicator(rank);
        at::Tensor ball = at::ones({1});
        for (int repeat = 0; repeat < kRepeats; ++repeat) {
          const double start_s = monotonic_s();
          for (int i = 0; i < kRounds; ++i) {
            const MessageTag tag{200, 0, i};
            if (rank == 0) {
              comm->send(1, tag, ball);
              ball = comm->receive(1, tag, nullptr, nullptr);
            } else {
              ball = comm->receive(0, tag, nullptr, nullptr);
              comm->send(0, tag, ball);
            }
          }
          if (rank == 0) {
            results.push_back((monotonic_s() - start_s) / (2 * kRounds));
          }
        }
      });
  return median(results);
}

// Bytes a second at which a thread reads and copies a tensor that another thread just wrote: what a
// hand-over without a copy still costs its receiver.
double measure_bandwidth() {
  constexpr int64_t kElements = 1 << 20;
  InprocWorld world(2, kTimeoutS);
  std::vector<double> results;
  run_ranks(
      first_ranks(2), [&](const Error& cause) { world.abort(cause); },
      [&](int rank) {
        const std::unique_ptr<Communicator> comm = world.communicator(rank);
        at::Tensor mine = at::empty({kElements});
        for (int repeat = 0; repeat < 2 * kRepeats; ++repeat) {
          const MessageTag tag{200, 0, repeat};
          if (rank == 0) {
            comm->send(1, tag, at::ones({kElements}));
            comm->receive(1, tag, nullptr, nullptr);
          } else {
            const at::Tensor theirs = comm->receive(0, tag, nullptr, nullptr);
            const double start_s = monotonic_s();
            mine.copy_(theirs);
            const double seconds = monotonic_s() - start_s;
            results.push_back(static_cast<double>(kElements) * 4 / seconds);
            comm->send(0, tag, at::Tensor());
          }
        }
      });
  return median(results);
}

// Seconds of an all-reduce of `elements` floats over `workers` ranks.
double measure_all_reduce_s(int workers, int64_t elements, int rounds) {
  InprocWorld world(workers, kTimeoutS);
  std::vector<double> results;
  run_ranks(
      first_ranks(workers), [&](const Error& cause) { world.abort(cause); },
      [&](int rank) {
        const std::unique_ptr<Communicator> comm = world.communicator(rank);
        const std::unique_ptr<Group> group = comm->group(first_ranks(workers));
        at::Tensor tensor = at::ones({elements});
        for (int repeat = 0; repeat < kRepeats; ++repeat) {
          group->barrier();
          const double start_s = monotonic_s();
          for (int i = 0; i < rounds; ++i) {
            group->all_reduce_sum(tensor);
          }
          if (rank == 0) {
            results.push_back((monotonic_s() - start_s) / rounds);
          }
          tensor.fill_(1.0F);
        }
      });
  return median(results);
}

// Between process 0 and another one, from the first rank of each: ping-pong of a small tensor for
// the latency, of a growing one against an empty answer for the bandwidth.
class PairOfProcesses {
 public:
  PairOfProcesses(Communicator& comm, int other, bool serves)
      : comm_(comm), other_(other), serves_(serves) {}

  double latency_s() {
    constexpr int kRounds = 100;
    std::vector<double> results;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      results.push_back(round_trips_s(at::ones({1}), kRounds, true) / (2 * kRounds));
    }
    return median(results);
  }

  double bandwidth(double latency) {
    // Long enough that the start of a transfer does not count, and that a slow link is not kept
    // busy for seconds.
    constexpr double kLongEnoughS = 0.02;
    constexpr int64_t kMostElements = 1 << 21;
    for (int64_t elements = 1 << 16;; elements *= 4) {
      const at::Tensor load = at::ones({elements});
      std::vector<double> results;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        results.push_back(round_trips_s(load, 1, false) - 2 * latency);
      }
      double seconds = std::max(median(results), 1e-9);
      // Both sides go by the time of the one that serves.
      at::Tensor agreed = at::full({1}, seconds, at::kDouble);
      if (serves_) {
        comm_.send(other_, next_tag(), agreed);
      } else {
        agreed = comm_.receive(other_, next_tag(), nullptr, nullptr);
      }
      seconds = *agreed.data_ptr<double>();
      if (seconds >= kLongEnoughS || elements >= kMostElements) {
        return static_cast<double>(elements) * 4 / seconds;
      }
    }
  }

 private:
  MessageTag next_tag() { return {200, 0, number_++}; }

  double round_trips_s(const at::Tensor& load, int rounds, bool same_back) {
    const double start_s = monotonic_s();
    for (int i = 0; i < rounds; ++i) {
      const MessageTag there = next_tag();
      const MessageTag back = next_tag();
      if (serves_) {
        comm_.send(other_, there, load);
        comm_.receive(other_, back, nullptr, nullptr);
      } else {
        comm_.receive(other_, there, nullptr, nullptr);
        comm_.send(other_, back, same_back ? load : at::ones({1}));
      }
    }
    return monotonic_s() - start_s;
  }

  Communicator& comm_;
  int other_;
  bool serves_;
  int64_t number_ = 0;
};

int first_rank_of(const World& world, int process) {
  int rank = 0;
  while (world.process_of(rank) != process) {
    ++rank;
  }
  return rank;
}

NetworkLevel measure_between(World& world) {
  constexpr double kPatienceS = 600;
  NetworkLevel level;
  level.bandwidth_bytes_per_s = std::numeric_limits<double>::infinity();
  const std::unique_ptr<Communicator> comm = world.communicator(world.local_ranks().front());
  for (int process = 1; process < world.num_processes(); ++process) {
    if (world.leads() || world.process() == process) {
      PairOfProcesses pair(*comm, first_rank_of(world, world.leads() ? process : 0), world.leads());
      pair.latency_s();  // connections and threads warm up
      const double latency_s = pair.latency_s();
      level.latency_s = std::max(level.latency_s, latency_s);
      level.bandwidth_bytes_per_s =
          std::min(level.bandwidth_bytes_per_s, pair.bandwidth(latency_s));
    }
    world.exchange("", kPatienceS);  // one pair at a time
  }
  return level;
}

}  // namespace

std::string machine_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string name = "unknown processor";
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) {
      name = trim(line.substr(line.find(':') + 1));
      break;
    }
  }
  return name + ", " + std::to_string(std::max(1U, std::thread::hardware_concurrency())) + " cores";
}

double machine_memory_bytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

Cluster measure_cluster(int workers, const std::string& machine) {
  Cluster cluster;
  cluster.measured_on = machine;
  cluster.memory_bytes = machine_memory_bytes() / std::max(1, workers);
  NetworkLevel level;
  level.size = workers;
  level.latency_s = measure_latency_s();
  level.bandwidth_bytes_per_s = measure_bandwidth();
  if (workers > 1) {
    constexpr int64_t kSmall = 256;
    constexpr int64_t kLarge = 1 << 20;
    const double small_s = measure_all_reduce_s(workers, kSmall, 200);
    const double large_s = measure_all_reduce_s(workers, kLarge, 4);
    const double moved = 2.0 * (workers - 1) / workers * 4.0 * static_cast<double>(kLarge - kSmall);
    level.all_reduce_latency_s = small_s;
    level.all_reduce_bandwidth_bytes_per_s = moved / std::max(large_s - small_s, 1e-9);
  }
  cluster.levels.push_back(level);
  return cluster;
}

Cluster measure_cluster(World& world, const std::string& machine) {
  if (!world.spans_processes()) {
    return measure_cluster(world.num_ranks(), machine);
  }
  const int processes = world.num_processes();
  const int inside = world.num_ranks() / processes;
  const bool even = inside * processes == world.num_ranks();
  Cluster cluster;
  if (even && inside > 1) {
    cluster = measure_cluster(inside, machine);
  } else {
    cluster.measured_on = machine;
    if (even && processes > 2) {
      // Each process has a link, which it shares among all that it sends to the others.
      NetworkLevel alone;
      alone.bandwidth_bytes_per_s = std::numeric_limits<double>::infinity();
      cluster.levels.push_back(alone);
    }
  }
  cluster.memory_bytes = machine_memory_bytes() / std::max(1, world.num_ranks());
  NetworkLevel between = measure_between(world);
  between.size = even ? processes : world.num_ranks();
  cluster.levels.push_back(between);
  return cluster;
}

}  // namespace millrace
