// Profile: what each layer of a model costs on one device. Made by the profiler (or imported), read
// by planner and simulator. A plain value; see docs/formats.md for its JSON form.
//
// All seconds and bytes are for one microbatch of `samples_per_microbatch` samples.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/document.h"

namespace millrace {

struct LayerProfile {
  std::string name;
  double forward_s = 0;
  double input_gradient_s = 0;   // I half of the backward
  double weight_gradient_s = 0;  // W half of the backward
  double update_s = 0;           // optimizer step over this layer's parameters, once a step
  int64_t output_bytes = 0;  // activation handed to the next layer; its gradient has the same size
  int64_t parameter_bytes = 0;
  int64_t stash_bytes = 0;  // alive from forward to backward (I where it is split)
  int64_t kept_bytes = 0;   // alive from I to W
  // Alive from forward to backward, too, but made by a layer before and counted in its stash: adds
  // to the stash of a stage that starts here.
  int64_t shared_stash_bytes = 0;
  // Half the distance between the first and third quarter of the repeats of each time above; 0
  // where it is unknown.
  double forward_spread_s = 0;
  double input_gradient_spread_s = 0;
  double weight_gradient_spread_s = 0;
  // Multiplications and additions of one forward pass, counted from shapes; the halves of the
  // backward likewise. 0 where the layer does not count them.
  double forward_flops = 0;
  double input_gradient_flops = 0;
  double weight_gradient_flops = 0;
  // What the layer is, for those who predict its times: Layer::kind, and the shapes of one sample
  // (of all inputs' first) and of its first parameter. Empty where unknown.
  std::string kind;
  std::vector<int64_t> input_shape;
  std::vector<int64_t> output_shape;
  std::vector<int64_t> weight_shape;
  std::vector<std::string> estimated;  // names of fields above that were not measured

  double flops() const { return forward_flops + input_gradient_flops + weight_gradient_flops; }
  double backward_s() const { return input_gradient_s + weight_gradient_s; }
  double compute_s() const { return forward_s + backward_s(); }
  bool operator==(const LayerProfile&) const = default;
};

struct ProfileEdge {
  std::string from;
  std::string to;
  bool operator==(const ProfileEdge&) const = default;
};

struct Profile {
  std::string model;
  std::string machine;  // processor name and core count; empty when unknown
  std::string dtype = "float32";
  int64_t samples_per_microbatch = 1;
  int busy_ranks = 1;  // ranks of the machine that were busy while it was measured
  // Most FLOPs a second that one rank reached in a matrix product while all `busy_ranks`
  // multiplied; 0 where it was not measured.
  double peak_flops_per_s = 0;
  std::vector<LayerProfile> layers;  // in an order that respects the edges
  std::vector<ProfileEdge>
      edges;  // empty in a file means a chain in order; always explicit in memory

  bool operator==(const Profile&) const = default;
};

// Reading validates: unique non-empty layer names, known edge ends, no cycle, layer order respects
// the edges (a file whose layers are out of order is sorted, keeping file order among equals),
// finite non-negative numbers. Throws Error(kBadFile/kInvalidArgument) with file and key.
Profile profile_from(const Document& document);
Value to_value(const Profile& profile);

// Sorts the layers so that edges point forwards; among those that could come next, the present
// order decides. Edges must name layers. Layers that form a cycle stay as they are and are
// described:
// "`a` -> `b` -> `a`".
std::optional<std::string> sort_layers(Profile& profile);

// The edges 0->1->2... of a chain; true when the profile's DAG is exactly that chain.
void make_chain(Profile& profile);
bool is_chain(const Profile& profile);
bool is_chain(const std::vector<std::string>& layers, const std::vector<ProfileEdge>& edges);

// The layers' names, in order.
std::vector<std::string> layer_names(const Profile& profile);

}  // namespace millrace
