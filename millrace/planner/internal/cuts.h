// The cuts of a layer graph: where a plan may end a stage. A cut is a set of layers closed under
// predecessors; a stage is what lies between two cuts, one of which holds the other. Built once for
// a profile, then read by every planner that cuts graphs. Immutable after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/core/profile.h"

namespace millrace::internal {

// More cuts than this are not searched.
constexpr int kMostCuts = 2000;

// Cut 0 holds no layer, the last one all of them. Cuts stand by number of layers; among equals the
// one that holds the earlier layers of the profile stands first, so "earlier cut" means lower
// index.
//
// A source that costs nothing at all (no time, no bytes: an input) is in every cut but cut 0, that
// is, always in the first stage.
class Cuts {
 public:
  // The layers must stand in an order that respects the edges. Memory and time: for C cuts of N
  // layers, 8 C^2 bytes and at most C^2 N additions.
  explicit Cuts(const Profile& profile);

  int count() const { return count_; }
  int whole() const { return count_ - 1; }
  // Every cut holds all earlier ones.
  bool ordered() const { return ordered_; }
  // The graph has more than kMostCuts cuts, and only those along one linear order are here: inputs,
  // then the profile's order.
  bool linear() const { return linear_; }

  // Whether `outer` holds all layers of `inner` and more.
  bool nested(int inner, int outer) const { return compute_s_[index(inner, outer)] >= 0; }
  // The cuts before `outer` that it holds, ascending.
  const std::vector<int>& inside(int outer) const {
    return inside_[static_cast<std::size_t>(outer)];
  }

  // Of the layers in `outer` but not in `inner`, which must be nested. Seconds are added up in the
  // profile's order, as the formula does.
  double compute_s(int inner, int outer) const { return compute_s_[index(inner, outer)]; }
  int64_t parameter_bytes(int inner, int outer) const {
    return cuts_[static_cast<std::size_t>(outer)].parameter_bytes -
           cuts_[static_cast<std::size_t>(inner)].parameter_bytes;
  }
  int64_t stash_bytes(int inner, int outer) const {
    return cuts_[static_cast<std::size_t>(outer)].stash_bytes -
           cuts_[static_cast<std::size_t>(inner)].stash_bytes;
  }
  std::vector<int> layers(int inner, int outer) const;

  // What crosses the cut forwards: the output of each layer in it that has a consumer outside,
  // once.
  int64_t output_bytes(int cut) const { return cuts_[static_cast<std::size_t>(cut)].output_bytes; }

 private:
  struct Cut {
    std::vector<bool> holds;  // by layer
    int num_layers = 0;
    int64_t parameter_bytes = 0;
    int64_t stash_bytes = 0;
    int64_t output_bytes = 0;
  };

  std::size_t index(int inner, int outer) const {
    return static_cast<std::size_t>(inner) * static_cast<std::size_t>(count_) +
           static_cast<std::size_t>(outer);
  }
  void find_all(const Profile& profile, const std::vector<bool>& inputs);
  void find_linear(const std::vector<bool>& inputs);
  void add_up(const Profile& profile);
  void add_up_along(const Profile& profile);

  std::vector<std::vector<int>> successors_;
  std::vector<std::vector<int>> predecessors_;
  std::vector<Cut> cuts_;
  int count_ = 0;
  bool ordered_ = true;
  bool linear_ = false;
  bool one_order_ = false;  // each cut adds a layer to the one before, in the profile's order
  std::vector<double> compute_s_;  // [inner, outer]; -1 where not nested
  std::vector<std::vector<int>> inside_;
};

}  // namespace millrace::internal
