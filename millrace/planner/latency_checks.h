// How far off a LatencyModel is on what it has not seen: layers, devices, and the partition that
// comes of its times. For `millrace bench latency`. Pure functions; what is drawn is keyed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/profile.h"
#include "millrace/planner/latency_model.h"

namespace millrace {

// Times shorter than this are left out of all errors.
inline constexpr double kShortestJudgedS = 20e-6;

// Means of |predicted / measured - 1| over times.
struct LatencyErrors {
  int64_t times = 0;
  double spread = 0;  // of the repeats of one measurement, as the profiles say
  double predicted = 0;
  double flops_only = 0;  // t = c FLOPs, one c a pass, fitted to what the predictor learned from
};

// A layer, and what is said of it by a model that learned from four fifths of the layers, it not
// among them.
struct HeldOutLayer {
  const LayerProfile* layer = nullptr;
  int64_t samples = 1;
  std::array<double, kLayerPasses.size()> predicted_s{};
  std::array<double, kLayerPasses.size()> flops_only_s{};  // by t = c FLOPs, fitted to the same
};

// Every layer once. `profiles` has to outlive what is returned. Errors are those of
// learn_latencies.
std::vector<HeldOutLayer> hold_out(const std::vector<Profile>& profiles);

struct HeldOutErrors {
  std::string what;  // a pass, "all", or a kind of layer
  LatencyErrors errors;
};

std::vector<HeldOutErrors> held_out_errors(const std::vector<HeldOutLayer>& layers);

struct DeviceErrors {
  double slower = 1;          // median of this device's time over the first one's
  int64_t times = 0;          // judged
  double base_measured = 0;   // DeviceFit over the layers' times on the first device
  double base_predicted = 0;  // over times predicted for it, the layer held out
  double flops_only = 0;      // t = c FLOPs fitted to the same observations
};

// Means over 50 draws of `observations` times of the device, each judged on all others.
// `first`: the same layers by name and samples, and more, on the device learned from.
DeviceErrors unseen_device_errors(const std::vector<HeldOutLayer>& first,
                                  const std::vector<Profile>& device, int observations);

// Chains of held-out layers, cut into stages of one worker each by planner `pipedream` over free
// links: by how much the slowest stage by measured times is above the least there can be.
struct PartitionErrors {
  int chains = 200;
  int layers = 32;
  int stages = 4;
  double mean = 0;
  double most = 0;
  double flops_mean = 0;  // of cuts by FLOPs
  double flops_most = 0;
};
PartitionErrors partition_errors(const std::vector<HeldOutLayer>& held_out);

}  // namespace millrace
