// Random problems for the tests and the benchmark of FlexFlow's planner.
#pragma once

#include <algorithm>
#include <random>
#include <string>

#include "millrace/planner/internal/soap_search.h"
#include "tests/planner/planner_testing.h"

namespace millrace::testing {

// A chain of layers of the given types, from every fifth a skip edge over three layers. Over links
// of some 1e9 bytes a second computing and communication weigh alike.
inline Profile random_operators(int num_layers, std::mt19937& random,
                                const std::vector<std::string>& types = {"Linear", "ReLU", "Conv2d",
                                                                         "Conv2d"}) {
  const auto uniform = [&random](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  Profile profile;
  profile.samples_per_microbatch = 1;
  for (int l = 0; l < num_layers; ++l) {
    LayerProfile layer;
    const std::string& type = types[random() % types.size()];
    layer.name = "node" + std::to_string(l) + ":" + type;
    layer.forward_s = uniform(1e-3, 10e-3);
    layer.input_gradient_s = uniform(1e-3, 20e-3);
    layer.output_bytes = static_cast<int64_t>(uniform(1e5, 1e7));
    layer.parameter_bytes = type == "ReLU" ? 0 : static_cast<int64_t>(uniform(1e5, 5e7));
    profile.layers.push_back(layer);
  }
  make_chain(profile);
  for (int l = 0; l + 3 < num_layers; l += 5) {
    profile.edges.push_back({profile.layers[l].name, profile.layers[l + 3].name});
  }
  return profile;
}

// Any of an operator's configurations, runs of devices or free ones.
inline internal::Configuration random_configuration(const internal::SoapProblem& problem, int op,
                                                    bool free, std::mt19937& random) {
  const auto& choices = problem.operators[op].choices;
  internal::Configuration drawn;
  drawn.degrees = choices[random() % choices.size()];
  if (internal::num_parts(drawn.degrees) < problem.num_devices) {
    drawn.first = static_cast<int>(random() % problem.num_devices);
  }
  if (free) {
    for (int device = 0; device < problem.num_devices; ++device) {
      drawn.devices.push_back(device);
    }
    std::shuffle(drawn.devices.begin(), drawn.devices.end(), random);
    drawn.devices.resize(internal::num_parts(drawn.degrees));
  }
  return drawn;
}

// The least cost of all strategies on runs of devices, by trying each of them.
inline double exhaustive_optimum_s(const internal::SoapProblem& problem, int64_t& strategies) {
  internal::TaskGraph graph(problem, internal::data_parallel_strategy(problem));
  const int num_operators = static_cast<int>(problem.operators.size());
  double best_s = graph.cost_s();
  const auto try_from = [&](const auto& self, int op) -> void {
    for (const internal::Configuration& configuration : configurations(problem, op)) {
      const double cost_s = graph.edit({{op, configuration}});
      if (op + 1 < num_operators) {
        self(self, op + 1);
      } else {
        best_s = std::min(best_s, cost_s);
        ++strategies;
      }
    }
  };
  try_from(try_from, 0);
  return best_s;
}

// Of `seeds` searches from data parallel, those that find a strategy of cost `optimum_s`.
inline int searches_that_find(const internal::SoapProblem& problem, double optimum_s, int seeds) {
  int found = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    internal::SearchLimits limits;
    limits.seed = seed;
    const internal::SearchResult result =
        internal::search_strategies(problem, internal::data_parallel_strategy(problem), limits);
    found += result.best_s <= optimum_s * (1 + 1e-12) ? 1 : 0;
  }
  return found;
}

}  // namespace millrace::testing
