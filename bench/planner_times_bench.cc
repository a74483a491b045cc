// How long planners take: every one of them on a chain of 2,000 layers and 1,024 devices in
// machines of 8, and on the published profiles of the folder MILLRACE_PROFILES, where it is named,
// for 4 machines of 4. What a planner refuses is told in the label.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "millrace/base/error.h"
#include "millrace/base/file.h"
#include "millrace/base/random.h"
#include "millrace/core/pipedream_graph.h"
#include "millrace/planner/planner.h"

namespace millrace {
namespace {

Profile large_chain() {
  Profile profile;
  profile.model = "chain";
  profile.samples_per_microbatch = 4096;
  const RandomKey key = RandomKey(1).with("large chain");
  for (uint64_t i = 0; i < 2000; ++i) {
    const RandomKey draws = key.with(i);
    LayerProfile layer;
    layer.name = "l" + std::to_string(i);
    layer.forward_s = 1e-3 * (0.1 + draws.uniform(0));
    layer.input_gradient_s = layer.forward_s;
    layer.weight_gradient_s = layer.forward_s;
    layer.output_bytes = static_cast<int64_t>(1e5 + 1e7 * draws.uniform(1));
    layer.stash_bytes = layer.output_bytes;
    layer.parameter_bytes = static_cast<int64_t>(1e4 + 4e7 * draws.uniform(2));
    profile.layers.push_back(layer);
  }
  make_chain(profile);
  return profile;
}

Cluster machines(int size, int count) {
  Cluster cluster;
  cluster.memory_bytes = 64e9;
  NetworkLevel level;
  level.size = size;
  level.bandwidth_bytes_per_s = 12e9;
  level.latency_s = 1e-6;
  cluster.levels.push_back(level);
  level.size = count;
  level.bandwidth_bytes_per_s = 1.25e9;
  level.latency_s = 1e-5;
  cluster.levels.push_back(level);
  return cluster;
}

Profile published(const std::string& name) {
  const std::string file =
      std::string(std::getenv("MILLRACE_PROFILES")) + "/" + name + ".graph.txt";
  return profile_from_pipedream_graph(read_file(file), file, name, 64);
}

void planning(benchmark::State& state, const std::string& planner, const Profile& profile,
              const Cluster& cluster) {
  const PlanRequest request{profile, cluster, cluster.num_devices(), {}, {}, false};
  for (auto _ : state) {
    try {
      const Plan plan = make_plan(planner, request);
      state.SetLabel(plan.notes.empty() ? "" : plan.notes.front());
    } catch (const Error& error) {
      state.SetLabel(error.message());
    }
  }
}

const bool registered = [] {
  const auto add = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMillisecond)->Iterations(1);
  };
  for (const PlannerEntry& entry : planners()) {
    const std::string planner = entry.name;
    add(planner + "/large", [planner](benchmark::State& state) {
      planning(state, planner, large_chain(), machines(8, 128));
    });
    if (std::getenv("MILLRACE_PROFILES") == nullptr) {
      continue;
    }
    for (const std::string name : {"alexnet", "vgg16", "resnet50", "gnmt"}) {
      add(planner + "/" + name, [planner, name](benchmark::State& state) {
        planning(state, planner, published(name), machines(4, 4));
      });
    }
  }
  return true;
}();

}  // namespace
}  // namespace millrace
