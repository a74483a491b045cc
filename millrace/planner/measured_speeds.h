// What a run measured, made of use to the next plan: device speeds that turn predicted into
// measured times. For planners that take unequal devices, `ftpipehd` above all. A pure function.
#pragma once

#include <vector>

#include "millrace/core/cluster.h"

namespace millrace {

// Computing of one device over the same work, without waiting: predicted with the cluster's speeds,
// and measured.
struct DeviceTime {
  int device = 0;
  double predicted_s = 0;  // > 0
  double measured_s = 0;   // > 0
};

// The cluster with each device's speed times predicted_s / measured_s; devices that were not
// measured, because they were idle, keep theirs. FTPipeHD (arXiv 2110.02781) calls the reciprocal a
// device's capacity. Throws Error(kInvalidArgument) for a device that the cluster lacks, one named
// twice, and times that are not above 0.
Cluster with_measured_speeds(Cluster cluster, const std::vector<DeviceTime>& times);

}  // namespace millrace
