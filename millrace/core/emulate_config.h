// EmulateConfig: the [emulate] table of run.toml as a value: a run on devices and links that are
// not there. Read with RunConfig; used by `train` to prepare, predict and execute such a run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/core/cluster.h"

namespace millrace {

struct EmulateConfig {
  std::string profile;           // file of the Profile to wait by; empty: the model computes
  double time_scale = 1;         // all emulated times last so many times as long; > 0
  std::optional<double> shrink;  // emulated tensors hold so many times fewer bytes than the
                                 // profile's; >= 1; empty: chosen. Only with a profile.
  std::vector<double> speeds;  // of the devices, one for all or one a worker; empty: the cluster's
  // Spells of slowness that move round: each device in turn is `spell_slowdown` times as slow for
  // `spell_steps` of its own steps. 0: none.
  int64_t spell_steps = 0;
  double spell_slowdown = 2;
  std::vector<LinkOverride> links;
  bool operator==(const EmulateConfig&) const = default;
};

// Reads and checks one [emulate] table of a run with so many workers. A model that computes cannot
// be faster than it is: without a profile every speed must be at most the time_scale.
EmulateConfig emulate_config_from(Reader& reader, int workers);
Value to_value(const EmulateConfig& config);

// How many times as long as at other times a worker's own step lasts.
double spell_slowdown(const EmulateConfig& config, int worker, int workers, int64_t step);

// `cluster`, whose devices the run has, with the speeds and links of [emulate] in place of its own.
// Devices beyond the workers that `speeds` names are of speed 1. Throws kInvalidArgument when a
// model that computes would have to be faster than it is.
Cluster emulated_cluster(const EmulateConfig& config, Cluster cluster);

}  // namespace millrace
