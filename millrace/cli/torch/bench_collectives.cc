// bench collectives: all-reduces of two ranks, from 4 KB to 64 MB: as threads of one process, and
// as two processes by our collective programs over the engine's messages and by the engine's own.
// Started by `millrace bench collectives` as two processes, of which the first prints.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/find_world.h"
#include "millrace/cli/torch/bench.h"
#include "millrace/cli/torch/membership.h"
#include "millrace/collective/program.h"
#include "millrace/comm/inproc/inproc.h"
#include "millrace/profiler/measure_cluster.h"
#include "millrace/runtime/team.h"

namespace millrace::cli {
namespace {

constexpr double kTimeoutS = 60;
constexpr int64_t kFirstBytes = 4 << 10;
constexpr int64_t kLastBytes = 64 << 20;

// So many all-reduces as take some tens of milliseconds.
int rounds_of(int64_t bytes) {
  return static_cast<int>(std::clamp<int64_t>((16 << 20) / bytes, 2, 200));
}

double seconds_each(Group& group, at::Tensor& tensor, int rounds) {
  tensor.fill_(1);
  group.all_reduce_sum(tensor);  // buffers and programs are made
  group.barrier();
  const double start_s = monotonic_s();
  for (int i = 0; i < rounds; ++i) {
    group.all_reduce_sum(tensor);
  }
  group.barrier();  // what was sent last may still be on the way
  return (monotonic_s() - start_s) / rounds;
}

double inproc_s(int64_t bytes) {
  InprocWorld world(2, kTimeoutS);
  double result = 0;
  run_ranks(
      {0, 1}, [&](const Error& cause) { world.abort(cause); },
      [&](int rank) {
        const std::unique_ptr<Communicator> comm = world.communicator(rank);
        const std::unique_ptr<Group> group = comm->group({0, 1});
        at::Tensor tensor = at::ones({bytes / 4});
        const double seconds = seconds_each(*group, tensor, rounds_of(bytes));
        if (rank == 0) {
          result = seconds;
        }
      });
  return result;
}

// Two threads, each copying `bytes`: the traffic of an all-reduce of so many bytes, which reads and
// writes each rank's once.
double copy_s(int64_t bytes) {
  const int rounds = rounds_of(bytes);
  std::vector<double> seconds(2);
  const auto copy = [&](std::size_t index) {
    at::set_num_threads(1);
    const at::Tensor from = at::ones({bytes / 4});
    const at::Tensor to = at::ones({bytes / 4});
    const double start_s = monotonic_s();
    for (int i = 0; i < rounds; ++i) {
      std::memcpy(to.data_ptr(), from.data_ptr(), static_cast<std::size_t>(bytes));
    }
    seconds[index] = (monotonic_s() - start_s) / rounds;
  };
  std::thread other([&] { copy(1); });
  copy(0);
  other.join();
  return std::max(seconds[0], seconds[1]);
}

struct Contender {
  std::string name;
  std::unique_ptr<Group> group;
  std::vector<double> seconds;
};

// Of two members all of them send the same, in other orders.
std::vector<Contender> contenders(JoinedWorld& world, Communicator& comm) {
  std::vector<Contender> all;
  for (const CollectiveEntry& entry : collectives()) {
    const CollectiveConfig config{
        .num_members = 2, .elements = 2, .grid = {}, .host_of_member = {}};
    if (entry.builtin != nullptr && !refusal(entry, config).empty()) {
      continue;
    }
    world.reduce_by([name = entry.name](const auto&, int64_t, int64_t) {
      return ChosenCollective{.name = name, .grid = {}};
    });
    all.push_back({entry.name, comm.group({0, 1}), {}});
  }
  return all;
}

double best_s(const std::vector<Contender>& all, std::string& name) {
  double best = 0;
  for (const Contender& each : all) {
    const double seconds = median(each.seconds);
    if (each.name != "native" && (name.empty() || seconds < best)) {
      best = seconds;
      name = each.name;
    }
  }
  return best;
}

}  // namespace

void bench_collectives(const BenchArgs& args, Output& output, Value& answer) {
  const WorldPlace place = find_world({}, std::getenv);
  if (place.num_processes != 2) {
    throw Error(ErrorCode::kInvalidArgument,
                "bench collectives runs as two processes; start it with `millrace`");
  }
  Membership membership(place);
  if (!membership.leads()) {
    output.silence();
  }
  membership.join(2, kTimeoutS, "bench collectives");
  JoinedWorld& world = *membership.joined();
  const std::unique_ptr<Communicator> comm = world.communicator(world.local_ranks().front());
  output.text(fmt::format("{}; median of {} alternating runs\n", machine_name(), args.repeats));
  std::vector<Contender> all = contenders(world, *comm);
  TextTable table({"size", "threads", "of copying", "best program", "", world.engine() + "'s own",
                   "own / program", "own / threads"});
  Value rows = Value::list();
  for (int64_t bytes = kFirstBytes; bytes <= kLastBytes; bytes *= 4) {
    output.progress(fmt::format("{}", format_bytes(static_cast<double>(bytes))));
    std::vector<double> threads;
    std::vector<double> copies;
    at::Tensor tensor = at::empty({bytes / 4});
    for (Contender& each : all) {
      each.seconds.clear();
    }
    for (int repeat = 0; repeat < args.repeats; ++repeat) {
      if (membership.leads()) {
        threads.push_back(inproc_s(bytes));
        copies.push_back(copy_s(bytes));
      }
      world.exchange("", kTimeoutS);  // the other process keeps still meanwhile
      for (Contender& each : all) {
        each.seconds.push_back(seconds_each(*each.group, tensor, rounds_of(bytes)));
      }
    }
    if (!membership.leads()) {
      continue;
    }
    std::string name;
    const double program_s = best_s(all, name);
    const double native_s = median(std::find_if(all.begin(), all.end(), [](const Contender& c) {
                                     return c.name == "native";
                                   })->seconds);
    const double threads_s = median(threads);
    const double copy = median(copies);
    table.row({format_bytes(static_cast<double>(bytes)), format_seconds(threads_s),
               fmt::format("{:.2f}", copy / threads_s), format_seconds(program_s), name,
               format_seconds(native_s), fmt::format("{:.2f}x", native_s / program_s),
               fmt::format("{:.2f}x", native_s / threads_s)});
    Value row = Value::map();
    row.set("bytes", Value::of(bytes));
    row.set("threads_s", Value::of(threads_s));
    row.set("copy_s", Value::of(copy));
    row.set("native_s", Value::of(native_s));
    for (const Contender& each : all) {
      row.set(each.name + "_s", Value::of(median(each.seconds)));
    }
    rows.push(std::move(row));
  }
  membership.leave();
  output.end_progress();
  output.text(table.str());
  answer.set("engine", Value::of(world.engine()));
  answer.set("rows", std::move(rows));
}

}  // namespace millrace::cli
