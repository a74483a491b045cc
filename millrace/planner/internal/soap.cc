#include "millrace/planner/internal/soap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "millrace/base/text.h"

namespace millrace::internal {
namespace {

constexpr double kGlobalPool = 16;  // pools that shrink their input more leave no rows

enum class Kind { kConvolution, kPool, kPointwise, kBatchNorm, kOther };

Kind kind_of(const std::string& layer) {
  std::string type = layer.substr(layer.find_last_of(":.") + 1);
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto has = [&type](const char* part) { return type.find(part) != std::string::npos; };
  if (has("conv")) {
    return Kind::kConvolution;
  }
  if (has("pool")) {
    return Kind::kPool;
  }
  if (has("batchnorm") || has("batch_norm") || type.rfind("bn", 0) == 0) {
    return Kind::kBatchNorm;
  }
  const bool pointwise = has("relu") || has("gelu") || has("dropout") || has("sigmoid") ||
                         has("tanh") || type.rfind("add", 0) == 0;
  return pointwise ? Kind::kPointwise : Kind::kOther;
}

// What can be split in each layer, and how it reads.
struct LayerDimensions {
  bool rows = false;
  bool channels = false;
  bool own_channels = false;
};

std::vector<LayerDimensions> dimensions_of(const Profile& profile,
                                           const std::vector<std::vector<int>>& producers) {
  std::vector<LayerDimensions> all(profile.layers.size());
  for (std::size_t l = 0; l < all.size(); ++l) {
    const LayerProfile& layer = profile.layers[l];
    const Kind kind = kind_of(layer.name);
    bool after_rows = !producers[l].empty();
    int64_t input_bytes = 0;
    for (const int from : producers[l]) {
      after_rows = after_rows && all[from].rows;
      input_bytes += profile.layers[from].output_bytes;
    }
    const bool global =
        kind == Kind::kPool && static_cast<double>(input_bytes) > kGlobalPool * layer.output_bytes;
    LayerDimensions& found = all[l];
    found.own_channels = kind != Kind::kConvolution && kind != Kind::kOther;
    found.rows = kind == Kind::kConvolution || (kind == Kind::kPool && !global) ||
                 (found.own_channels && kind != Kind::kPool && after_rows);
    found.channels = found.own_channels || layer.parameter_bytes > 0;
  }
  return all;
}

std::vector<Degrees> choices_for(const Degrees& most, int devices) {
  std::vector<Degrees> choices;
  for (int parts = 1; parts <= devices; ++parts) {
    if ((parts & (parts - 1)) != 0 && devices % parts != 0) {
      continue;
    }
    for (int samples = 1; samples <= std::min(parts, most[kSamples]); ++samples) {
      for (int rows = 1; rows <= most[kRows] && samples * rows <= parts; ++rows) {
        const int channels = parts / (samples * rows);
        if (channels <= most[kChannels] && samples * rows * channels == parts) {
          choices.push_back({samples, rows, channels});
        }
      }
    }
  }
  return choices;
}

void add_links(SoapProblem& problem, const Cluster& cluster) {
  for (const NetworkLevel& level : cluster.levels) {
    problem.link_speeds.push_back(
        {level.bandwidth_bytes_per_s, level.latency_s,
         level.all_reduce_bandwidth_bytes_per_s.value_or(level.bandwidth_bytes_per_s),
         level.all_reduce_latency_s.value_or(-1)});
  }
  const auto n = static_cast<std::size_t>(problem.num_devices);
  problem.link_of.resize(n * n);
  for (int a = 0; a < problem.num_devices; ++a) {
    for (int b = 0; b < problem.num_devices; ++b) {
      if (a != b) {
        problem.link_of[a * n + b] =
            static_cast<uint16_t>(&cluster.level_between(a, b) - cluster.levels.data());
      }
    }
  }
  for (const LinkOverride& link : cluster.links) {
    if (std::max(link.from, link.to) < problem.num_devices) {
      problem.link_of[link.from * n + link.to] = problem.link_of[link.to * n + link.from] =
          static_cast<uint16_t>(problem.link_speeds.size());
      problem.link_speeds.push_back(
          {link.bandwidth_bytes_per_s, link.latency_s, link.bandwidth_bytes_per_s, -1});
    }
  }
}

// A tick so small that the longest time that any strategy could take is a whole number of ticks
// below 2^52: sums of durations are then exact.
double tick_for(const SoapProblem& problem) {
  LinkSpeed slowest = problem.link_speeds.front();
  for (const LinkSpeed& link : problem.link_speeds) {
    slowest.bandwidth_bytes_per_s =
        std::min({slowest.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s,
                  link.reduce_bandwidth_bytes_per_s});
    slowest.latency_s = std::max({slowest.latency_s, link.latency_s, link.reduce_latency_s});
  }
  // All tasks one after the other: each device reads a whole output from every other, and passes
  // on all parameters twice.
  const double devices = problem.num_devices;
  const double speed = *std::min_element(problem.speeds.begin(), problem.speeds.end());
  double longest_s = 0;
  for (const SoapOperator& op : problem.operators) {
    longest_s += (op.forward_s + op.backward_s) / speed;
    longest_s +=
        2 * devices * static_cast<double>(op.parameter_bytes) / slowest.bandwidth_bytes_per_s +
        2 * devices * devices * slowest.latency_s;
  }
  for (const SoapEdge& edge : problem.edges) {
    const double bytes = static_cast<double>(problem.operators[edge.from].output_bytes);
    longest_s += 2 * (devices * bytes / slowest.bandwidth_bytes_per_s +
                      devices * devices * slowest.latency_s);
  }
  constexpr int kBits = 52;
  return longest_s > 0 ? std::ldexp(1.0, std::ilogb(longest_s) + 2 - kBits) : 0;
}

}  // namespace

double LinkSpeed::transfer_s(double bytes) const {
  return bytes / bandwidth_bytes_per_s + latency_s;
}

double LinkSpeed::reduce_s(double bytes, int members) const {
  const double rounds = 2.0 * (members - 1);
  return rounds / members * bytes / reduce_bandwidth_bytes_per_s +
         (reduce_latency_s < 0 ? rounds * latency_s : reduce_latency_s);
}

SoapProblem soap_problem(const Profile& profile, const Cluster& cluster, int workers,
                         int64_t most_tasks) {
  SoapProblem problem;
  problem.num_devices = workers;
  for (int device = 0; device < workers; ++device) {
    problem.speeds.push_back(cluster.speed_of(device));
  }
  add_links(problem, cluster);

  const auto n = static_cast<int>(profile.layers.size());
  std::map<std::string, int> index;
  for (int l = 0; l < n; ++l) {
    index[profile.layers[l].name] = l;
  }
  std::vector<std::vector<int>> producers(n);
  std::vector<int> num_consumers(n, 0);
  for (const ProfileEdge& edge : profile.edges) {
    producers[index.at(edge.to)].push_back(index.at(edge.from));
    ++num_consumers[index.at(edge.from)];
  }
  const std::vector<LayerDimensions> dimensions = dimensions_of(profile, producers);

  // Forward, backward and reduction of each device.
  const int64_t operators = std::max<int64_t>(1, most_tasks / (3 * int64_t{workers}));
  const auto most_layers = static_cast<std::size_t>((n + operators - 1) / operators);
  const int64_t samples = profile.samples_per_microbatch;
  problem.most_samples =
      samples > 1 ? static_cast<int>(std::min<int64_t>(workers, samples)) : workers;
  std::vector<int> operator_of(n);
  for (int l = 0; l < n; ++l) {
    const bool joins = l > 0 && producers[l] == std::vector<int>{l - 1} &&
                       num_consumers[l - 1] == 1 &&
                       problem.operators.back().layers.size() < most_layers;
    if (!joins) {
      problem.operators.emplace_back();
    }
    operator_of[l] = static_cast<int>(problem.operators.size()) - 1;
    SoapOperator& op = problem.operators.back();
    const LayerProfile& layer = profile.layers[l];
    op.layers.push_back(l);
    op.forward_s += layer.forward_s;
    op.backward_s += layer.backward_s();
    op.output_bytes = layer.output_bytes;
    op.parameter_bytes += layer.parameter_bytes;
  }
  for (SoapOperator& op : problem.operators) {
    const bool rows = std::all_of(op.layers.begin(), op.layers.end(),
                                  [&dimensions](int l) { return dimensions[l].rows; });
    const LayerDimensions& first = dimensions[op.layers.front()];
    const bool channels = op.layers.size() == 1 && first.channels;
    op.own_channels = op.layers.size() == 1 && first.own_channels;
    op.choices =
        choices_for({problem.most_samples, rows ? workers : 1, channels ? workers : 1}, workers);
  }

  for (int l = 0; l < n; ++l) {
    for (const int from : producers[l]) {
      if (operator_of[from] != operator_of[l]) {
        problem.edges.push_back({operator_of[from], operator_of[l]});
      }
    }
  }
  std::sort(problem.edges.begin(), problem.edges.end());
  problem.incoming.resize(problem.operators.size());
  problem.outgoing.resize(problem.operators.size());
  for (std::size_t e = 0; e < problem.edges.size(); ++e) {
    problem.outgoing[problem.edges[e].from].push_back(static_cast<int>(e));
    problem.incoming[problem.edges[e].to].push_back(static_cast<int>(e));
  }
  problem.tick_s = tick_for(problem);
  return problem;
}

Strategy data_parallel_strategy(const SoapProblem& problem) {
  Strategy strategy;
  for (const SoapOperator& op : problem.operators) {
    Configuration configuration;
    for (const Degrees& degrees : op.choices) {
      if (degrees[kSamples] == num_parts(degrees)) {
        configuration.degrees = degrees;  // choices ascend in parts
      }
    }
    strategy.push_back(configuration);
  }
  return strategy;
}

std::vector<Configuration> configurations(const SoapProblem& problem, int op) {
  std::vector<Configuration> all;
  for (const Degrees& degrees : problem.operators[op].choices) {
    const int starts = num_parts(degrees) == problem.num_devices ? 1 : problem.num_devices;
    for (int first = 0; first < starts; ++first) {
      all.push_back({degrees, first, {}});
    }
  }
  return all;
}

std::vector<Overlap> overlaps(int a, int b, bool own) {
  std::vector<Overlap> found;
  for (int i = 0; i < a; ++i) {
    // In units of 1 / (a b), so that what only touches is told apart exactly.
    const int from = own ? i * b / a : 0;
    for (int j = from; j < b; ++j) {
      const int common = own ? std::min((i + 1) * b, (j + 1) * a) - std::max(i * b, j * a) : b;
      if (common <= 0) {
        break;
      }
      found.push_back({i, j, static_cast<double>(common) / (static_cast<double>(a) * b)});
    }
  }
  return found;
}

std::string describe(const Configuration& configuration, int num_devices) {
  constexpr const char* kNames[] = {"samples", "rows", "channels"};
  std::vector<std::string> parts;
  for (int d = 0; d < kNumDimensions; ++d) {
    if (configuration.degrees[d] > 1) {
      parts.push_back(fmt::format("{} {}", kNames[d], configuration.degrees[d]));
    }
  }
  const int count = num_parts(configuration.degrees);
  const std::string split = parts.empty() ? "whole" : join(parts, " x ");
  if (!configuration.devices.empty()) {
    std::vector<std::string> devices;
    for (const int device : configuration.devices) {
      devices.push_back(fmt::format("{}", device));
    }
    return fmt::format("{} on {}", split, join(devices, " "));
  }
  const int last = configuration.device(count - 1, num_devices);
  return count == 1 ? fmt::format("{} on {}", split, configuration.first)
                    : fmt::format("{} on {}-{}", split, configuration.first, last);
}

}  // namespace millrace::internal
