#include "millrace/train/split_prediction.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "millrace/model/split.h"
#include "millrace/schedule/split.h"

namespace millrace {
namespace {

// How often the parts of a layer meet in a forward.
double meetings(const Layer& layer, const TensorSpec& output) {
  return layer.kind() == std::string("lstm") ? static_cast<double>(output.sample_shape.front()) : 1;
}

}  // namespace

Profile profile_of_part(const Profile& profile, const Model& model, int parts,
                        const Cluster& cluster) {
  const std::set<std::string> split = split_layers(model, parts);
  if (split.empty()) {
    return profile;
  }
  std::vector<int> devices(static_cast<std::size_t>(parts));
  std::iota(devices.begin(), devices.end(), 0);
  double second_per_byte = 0;
  double latency_s = 0;
  for (int a = 0; a < parts; ++a) {
    for (int b = a + 1; b < parts; ++b) {
      second_per_byte = std::max(second_per_byte, 1 / cluster.bandwidth_between(a, b));
      latency_s = std::max(latency_s, cluster.latency_between(a, b));
    }
  }
  const std::vector<TensorSpec> outputs = check_model(model);
  std::map<std::string, double> met;  // meetings a forward, by name
  for (std::size_t l = 0; l < outputs.size(); ++l) {
    met[model.layers[l]->name()] = meetings(*model.layers[l], outputs[l]);
  }
  std::map<std::string, double> output_bytes;
  for (const LayerProfile& layer : profile.layers) {
    output_bytes[layer.name] = static_cast<double>(layer.output_bytes);
  }
  Profile part = profile;
  for (LayerProfile& layer : part.layers) {
    if (!split.contains(layer.name)) {
      continue;
    }
    double input_bytes = 0;
    for (const ProfileEdge& edge : profile.edges) {
      input_bytes += edge.to == layer.name ? output_bytes.at(edge.from) : 0;
    }
    const double n = met.at(layer.name);
    const double bytes = static_cast<double>(layer.output_bytes) / n;
    const double others = static_cast<double>(parts - 1) / parts;
    // The first layer's input needs no gradient; a recurrent one's states do.
    const double input_s =
        layer.input_gradient_s > 0 ? cluster.all_reduce_s(devices, input_bytes) : 0;
    layer.forward_s = layer.forward_s / parts + n * (latency_s + bytes * others * second_per_byte);
    layer.input_gradient_s =
        layer.input_gradient_s / parts + input_s + (n - 1) * cluster.all_reduce_s(devices, bytes);
    layer.weight_gradient_s /= parts;
    layer.update_s /= parts;
    layer.parameter_bytes = (layer.parameter_bytes + parts - 1) / parts;
  }
  return part;
}

void spread_over_parts(Simulation& simulation, const Plan& plan) {
  const std::vector<std::vector<int>> ranks = ranks_of_parts(plan);
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    for (std::size_t part = 1; part < ranks.size(); ++part) {
      if (ranks[part][rank] < 0) {
        continue;
      }
      const auto other = static_cast<std::size_t>(ranks[part][rank]);
      simulation.ranks[other] = simulation.ranks[rank];
      simulation.memory[other] = simulation.memory[rank];
      RankTrace& trace = simulation.trace.ranks[other];
      trace = simulation.trace.ranks[rank];
      trace.rank = static_cast<int>(other);
      for (TraceEvent& event : trace.events) {
        if (event.action.peer != kNone) {
          event.action.peer = ranks[part][static_cast<std::size_t>(event.action.peer)];
        }
      }
    }
  }
  simulation.total_slots *= plan.split_parts;
  simulation.idle_slots *= plan.split_parts;
}

}  // namespace millrace
