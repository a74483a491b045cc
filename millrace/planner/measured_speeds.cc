#include "millrace/planner/measured_speeds.h"

#include <fmt/format.h>

#include <cmath>

#include "millrace/base/error.h"

namespace millrace {

Cluster with_measured_speeds(Cluster cluster, const std::vector<DeviceTime>& times) {
  const int devices = cluster.num_devices();
  if (cluster.relative_speed.size() == 1) {
    cluster.relative_speed.assign(static_cast<std::size_t>(devices), cluster.relative_speed[0]);
  }
  std::vector<bool> seen(static_cast<std::size_t>(devices), false);
  for (const DeviceTime& time : times) {
    if (time.device < 0 || time.device >= devices) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("times of device {}, but the cluster has {} devices, numbered from 0",
                              time.device, devices));
    }
    const auto device = static_cast<std::size_t>(time.device);
    if (seen[device]) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("times of device {} are given twice; add them up", time.device));
    }
    seen[device] = true;
    if (!(time.predicted_s > 0 && time.measured_s > 0) || !std::isfinite(time.predicted_s) ||
        !std::isfinite(time.measured_s)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("expected times above 0 of device {}, found {} s predicted and {} s "
                              "measured; leave out a device that computed nothing",
                              time.device, time.predicted_s, time.measured_s));
    }
    cluster.relative_speed[device] *= time.predicted_s / time.measured_s;
  }
  return cluster;
}

}  // namespace millrace
