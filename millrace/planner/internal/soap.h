// Operators and the ways to split them over devices, as FlexFlow's planner sees a profile. Used by
// its task graph, search and plan. Plain values and pure functions.
//
// Source: "Beyond Data and Model Parallelism for Deep Neural Networks" (FlexFlow), SysML 2019,
// sections 3 and 4: the dimensions of an operator's output that can be split are those of samples,
// attributes (places in a sample: rows of an image) and parameters (channels); a configuration has
// a degree for each, equal parts, and a device a part; a strategy is a configuration an operator.
//
// A profile knows seconds and bytes, no shapes. What follows is therefore our reconstruction:
// - An output is a box of samples x rows x channels, its bytes spread evenly; a part takes an equal
//   share of its operator's seconds.
// - What a layer is, its name says: the type behind the last `:` (or `.`), as in `node5:Conv2d`,
//   `g1a.conv2`. Samples can be split in every layer. Rows can in convolutions and pools (but one
//   that leaves less than a sixteenth of its input, which is global), and in pointwise layers and
//   batch norms that follow such layers only. Channels can where a layer has parameters, and in
//   pointwise layers, pools and batch norms (without parameters the paper calls them attributes).
// - A part reads its own samples; its own rows where rows are split, all of them else (the border
//   rows of neighbours are not counted); its own channels if it is a pointwise layer, pool or batch
//   norm, all of them else.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/cluster.h"
#include "millrace/core/profile.h"

namespace millrace::internal {

enum SoapDimension { kSamples, kRows, kChannels };
constexpr int kNumDimensions = 3;
using Degrees = std::array<int, kNumDimensions>;

constexpr int num_parts(const Degrees& degrees) {
  return degrees[kSamples] * degrees[kRows] * degrees[kChannels];
}

struct SoapOperator {
  std::vector<int> layers;  // of the profile, consecutive
  double forward_s = 0;     // of the whole minibatch on a device of speed 1
  double backward_s = 0;
  int64_t output_bytes = 0;
  int64_t parameter_bytes = 0;
  bool own_channels = false;     // reads the channels that it makes
  std::vector<Degrees> choices;  // first the whole operator on one device
};

struct SoapEdge {
  int from = 0;
  int to = 0;
  auto operator<=>(const SoapEdge&) const = default;
};

// Between two devices, in one direction.
struct LinkSpeed {
  double bandwidth_bytes_per_s = 0;
  double latency_s = 0;
  double reduce_bandwidth_bytes_per_s = 0;  // the same for a ring that reduces, where measured
  double reduce_latency_s = -1;             // of a whole reduction; below 0: latency_s a message

  // Seconds to hand over `bytes`.
  double transfer_s(double bytes) const;
  // Seconds that the link is busy in a ring of `members` that reduces `bytes`.
  double reduce_s(double bytes, int members) const;
};

struct SoapProblem {
  int num_devices = 1;
  int most_samples = 1;  // parts along that dimension
  double tick_s = 0;     // durations of tasks are rounded to whole ticks, a power of two of seconds
  std::vector<double> speeds;              // of each device
  std::vector<SoapOperator> operators;     // in an order that respects the edges
  std::vector<SoapEdge> edges;             // ascending
  std::vector<std::vector<int>> incoming;  // edges of each operator
  std::vector<std::vector<int>> outgoing;
  std::vector<LinkSpeed> link_speeds;
  std::vector<uint16_t> link_of;  // [from, to]: index into link_speeds

  const LinkSpeed& link(int from, int to) const {
    return link_speeds[link_of[static_cast<std::size_t>(from) * num_devices + to]];
  }
};

// Degrees that are offered multiply to a power of two, or to a divisor of `workers`, and samples
// are not split further than there are samples (where there is one, how many there are is taken as
// unknown). Where the graph would have more than `most_tasks` tasks in data parallel, neighbours on
// a chain become one operator, whose samples, and rows if all its layers' can, are split.
SoapProblem soap_problem(const Profile& profile, const Cluster& cluster, int workers,
                         int64_t most_tasks = 1 << 17);

// One operator's. Parts are numbered samples first: (sample part x rows + row part) x channels +
// channel part.
struct Configuration {
  Degrees degrees{1, 1, 1};
  int first = 0;             // part k is on device (first + k) mod num_devices
  std::vector<int> devices;  // or here, where it is not empty; all different
  int device(int part, int num_devices) const {
    return devices.empty() ? (first + part) % num_devices : devices[part];
  }
  bool operator==(const Configuration&) const = default;
};
using Strategy = std::vector<Configuration>;

// Every operator's samples on as many devices as its choices allow, from device 0.
Strategy data_parallel_strategy(const SoapProblem& problem);

// Every configuration of an operator on a run of devices, which may go on at device 0; those of all
// devices begin there.
std::vector<Configuration> configurations(const SoapProblem& problem, int op);

// What two parts have in common, for a producer split `a` ways along a dimension and a consumer
// split `b` ways, each of which reads its own share, or all.
struct Overlap {
  int producer = 0;
  int consumer = 0;
  double share = 0;  // of the whole dimension
};
std::vector<Overlap> overlaps(int a, int b, bool own);

// "samples 4 x channels 2 on 0-7"
std::string describe(const Configuration& configuration, int num_devices);

}  // namespace millrace::internal
