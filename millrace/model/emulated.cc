#include "millrace/model/emulated.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "millrace/base/error.h"

namespace millrace {
namespace {

// Values of `bytes` bytes of float32, so many times fewer; none stays none.
int64_t num_values(double bytes, double shrink) {
  if (bytes <= 0) {
    return 0;
  }
  return std::max<int64_t>(1, std::llround(bytes / shrink / sizeof(float)));
}

}  // namespace

double default_shrink(const Profile& profile) {
  constexpr double kBytes = 1 << 20;
  double bytes = 0;
  for (const LayerProfile& layer : profile.layers) {
    bytes += static_cast<double>(layer.output_bytes) + static_cast<double>(layer.parameter_bytes);
  }
  return std::max(1.0, bytes / kBytes);
}

Model emulated_model(const Profile& profile, double shrink, const TensorSpec& input,
                     int64_t num_classes) {
  MILLRACE_CHECK(shrink >= 1 && num_classes >= 1 && !profile.layers.empty());
  Model model;
  model.name = profile.model.empty() ? "emulated" : profile.model;
  model.input = input;
  model.target = {{}, at::kLong};
  model.loss = cross_entropy();
  std::map<std::string, int> index;
  for (const LayerProfile& layer : profile.layers) {
    const double sample_bytes = static_cast<double>(layer.output_bytes) /
                                static_cast<double>(profile.samples_per_microbatch);
    const bool last = &layer == &profile.layers.back();
    const int64_t outputs =
        last ? num_classes : std::max<int64_t>(1, num_values(sample_bytes, shrink));
    std::vector<int> from;
    for (const ProfileEdge& edge : profile.edges) {
      if (edge.to == layer.name) {
        from.push_back(index.at(edge.from));
      }
    }
    std::sort(from.begin(), from.end());
    if (from.empty()) {
      from.push_back(kModelInput);
    }
    index[layer.name] =
        model.append(emulated(layer.name, outputs,
                              num_values(static_cast<double>(layer.parameter_bytes), shrink)),
                     std::move(from));
  }
  check_model(model);
  return model;
}

}  // namespace millrace
