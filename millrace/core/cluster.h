// Cluster: the devices and links that a plan may use. Written by the user (TOML or JSON, same keys)
// or measured by `millrace doctor --measure`; read by planner and simulator. A plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/document.h"

namespace millrace {

// One network level. Level 0 joins `size` devices; level k joins `size` components of level k-1.
// Links are full duplex and shared per component.
struct NetworkLevel {
  int size = 1;
  double bandwidth_bytes_per_s = 0;  // > 0
  double latency_s = 0;
  // Measured speed of the engine's own all-reduce, as bytes x 2(r-1)/r over seconds; when absent
  // the link's bandwidth and latency stand in.
  std::optional<double> all_reduce_bandwidth_bytes_per_s;
  std::optional<double> all_reduce_latency_s;
  bool operator==(const NetworkLevel&) const = default;
};

// Overrides the level's numbers between two devices, in both directions.
struct LinkOverride {
  int from = 0;
  int to = 0;
  double bandwidth_bytes_per_s = 0;
  double latency_s = 0;
  bool operator==(const LinkOverride&) const = default;
};

struct Cluster {
  double memory_bytes = 16e9;               // of each device
  std::vector<double> relative_speed{1.0};  // one for all, or one a device; > 0
  double action_overhead_s = 0;      // a rank's own cost per action, measured; 0 when unknown
  std::vector<NetworkLevel> levels;  // innermost first, at least one
  std::vector<LinkOverride> links;
  std::string measured_on;  // machine's name when measured, else empty

  int num_devices() const;  // product of level sizes
  double speed_of(int device) const;
  // Bandwidth and latency between two different devices: the override, else the lowest common
  // level.
  const NetworkLevel& level_between(int a, int b) const;
  double bandwidth_between(int a, int b) const;
  double latency_between(int a, int b) const;
  // Seconds of an all-reduce of `bytes` over `devices` (ring form: 2(r-1)/r bytes over the slowest
  // level they span, plus that level's latency 2(r-1) times unless measured). 0 for one device.
  double all_reduce_s(const std::vector<int>& devices, double bytes) const;

  bool operator==(const Cluster&) const = default;
};

// Reading validates sizes >= 1, bandwidth > 0, latency >= 0, speeds > 0 and of a fitting count,
// link ends.
Cluster cluster_from(const Document& document);
Value to_value(const Cluster& cluster);

// The list of links at `key` of a table whose devices are below `num_devices`; empty when absent.
std::vector<LinkOverride> links_from(Reader& reader, const char* key, int num_devices);
Value to_value(const std::vector<LinkOverride>& links);

// `workers` equal devices on one level whose links cost nothing (for closed forms and slots).
Cluster free_cluster(int workers);

}  // namespace millrace
