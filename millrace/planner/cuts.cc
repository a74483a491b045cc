#include "millrace/planner/internal/cuts.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::internal {
namespace {

bool costs_nothing(const LayerProfile& layer) {
  return layer.compute_s() == 0 && layer.update_s == 0 && layer.output_bytes == 0 &&
         layer.parameter_bytes == 0 && layer.stash_bytes == 0;
}

}  // namespace

Cuts::Cuts(const Profile& profile) {
  const std::size_t num_layers = profile.layers.size();
  MILLRACE_CHECK(num_layers > 0, "a profile without layers");
  std::unordered_map<std::string, int> indices;
  for (const LayerProfile& layer : profile.layers) {
    indices.emplace(layer.name, static_cast<int>(indices.size()));
  }
  successors_.resize(num_layers);
  predecessors_.resize(num_layers);
  for (const ProfileEdge& edge : profile.edges) {
    const int from = indices.at(edge.from);
    const int to = indices.at(edge.to);
    MILLRACE_CHECK(from < to, "layers stand in an order that respects their edges");
    successors_[static_cast<std::size_t>(from)].push_back(to);
    predecessors_[static_cast<std::size_t>(to)].push_back(from);
  }
  std::vector<bool> inputs(num_layers);
  for (std::size_t i = 0; i < num_layers; ++i) {
    inputs[i] = predecessors_[i].empty() && costs_nothing(profile.layers[i]);
  }
  find_all(profile, inputs);
  if (cuts_.empty()) {
    find_linear(inputs);
  }
  count_ = static_cast<int>(cuts_.size());
  add_up(profile);
}

// Every cut, found by adding to a cut each layer whose predecessors it holds;
// none when there are too many.
void Cuts::find_all(const Profile& profile, const std::vector<bool>& inputs) {
  if (is_chain(profile)) {
    find_linear(std::vector<bool>(inputs.size(), false));
    linear_ = false;  // a chain has no other cuts
    return;
  }
  const std::size_t num_layers = inputs.size();
  std::unordered_set<std::vector<bool>> found = {inputs};
  std::vector<std::vector<bool>> open = {inputs};
  while (!open.empty()) {
    std::vector<bool> holds = std::move(open.back());
    open.pop_back();
    for (std::size_t i = 0; i < num_layers; ++i) {
      const auto& before = predecessors_[i];
      if (holds[i] || !std::all_of(before.begin(), before.end(),
                                   [&](int p) { return holds[static_cast<std::size_t>(p)]; })) {
        continue;
      }
      holds[i] = true;
      if (found.insert(holds).second) {
        open.push_back(holds);
      }
      holds[i] = false;
    }
    if (found.size() > static_cast<std::size_t>(kMostCuts)) {
      return;
    }
  }
  found.insert(std::vector<bool>(num_layers, false));
  for (const std::vector<bool>& holds : found) {
    Cut cut;
    cut.holds = holds;
    cut.num_layers = static_cast<int>(std::count(holds.begin(), holds.end(), true));
    cuts_.push_back(std::move(cut));
  }
  std::sort(cuts_.begin(), cuts_.end(), [](const Cut& a, const Cut& b) {
    // The greater list of booleans holds the earlier layer where the two first
    // differ.
    return a.num_layers != b.num_layers ? a.num_layers < b.num_layers : a.holds > b.holds;
  });
}

void Cuts::find_linear(const std::vector<bool>& inputs) {
  const int num_layers = static_cast<int>(inputs.size());
  linear_ = true;
  one_order_ = true;
  Cut cut;
  cut.holds.assign(inputs.size(), false);
  cuts_.push_back(cut);
  if (std::find(inputs.begin(), inputs.end(), true) != inputs.end()) {
    cut.holds = inputs;
    cut.num_layers = static_cast<int>(std::count(inputs.begin(), inputs.end(), true));
    cuts_.push_back(cut);
  }
  for (int i = 0; i < num_layers; ++i) {
    if (!inputs[static_cast<std::size_t>(i)]) {
      cut.holds[static_cast<std::size_t>(i)] = true;
      ++cut.num_layers;
      cuts_.push_back(cut);
    }
  }
}

void Cuts::add_up(const Profile& profile) {
  const std::size_t num_layers = profile.layers.size();
  const auto count = static_cast<std::size_t>(count_);
  for (Cut& cut : cuts_) {
    for (std::size_t i = 0; i < num_layers; ++i) {
      if (!cut.holds[i]) {
        continue;
      }
      const LayerProfile& layer = profile.layers[i];
      cut.parameter_bytes += layer.parameter_bytes;
      cut.stash_bytes += layer.stash_bytes;
      const auto& after = successors_[i];
      if (std::any_of(after.begin(), after.end(),
                      [&](int to) { return !cut.holds[static_cast<std::size_t>(to)]; })) {
        cut.output_bytes += layer.output_bytes;
      }
    }
  }
  inside_.resize(count);
  compute_s_.assign(count * count, -1.0);
  if (one_order_) {
    add_up_along(profile);
    return;
  }
  for (std::size_t outer = 1; outer < count; ++outer) {
    const std::vector<bool>& all = cuts_[outer].holds;
    for (std::size_t inner = 0; inner < outer; ++inner) {
      const std::vector<bool>& less = cuts_[inner].holds;
      double seconds = 0;
      bool subset = true;
      for (std::size_t i = 0; i < num_layers && subset; ++i) {
        if (all[i] && !less[i]) {
          seconds += profile.layers[i].compute_s();
        }
        subset = all[i] || !less[i];
      }
      if (subset) {
        compute_s_[index(static_cast<int>(inner), static_cast<int>(outer))] = seconds;
        inside_[outer].push_back(static_cast<int>(inner));
      } else {
        ordered_ = false;
      }
    }
  }
}

// Each cut adds one layer, or the inputs, to the one before: all sums from one
// cut in one walk.
void Cuts::add_up_along(const Profile& profile) {
  std::vector<double> added_s(cuts_.size(), 0.0);
  for (std::size_t c = 1; c < cuts_.size(); ++c) {
    for (std::size_t i = 0; i < profile.layers.size(); ++i) {
      if (cuts_[c].holds[i] && !cuts_[c - 1].holds[i]) {
        added_s[c] += profile.layers[i].compute_s();
      }
    }
  }
  for (int inner = 0; inner < count_; ++inner) {
    double seconds = 0;
    for (int outer = inner + 1; outer < count_; ++outer) {
      seconds += added_s[static_cast<std::size_t>(outer)];
      compute_s_[index(inner, outer)] = seconds;
      inside_[static_cast<std::size_t>(outer)].push_back(inner);
    }
  }
}

std::vector<int> Cuts::layers(int inner, int outer) const {
  const std::vector<bool>& all = cuts_[static_cast<std::size_t>(outer)].holds;
  const std::vector<bool>& less = cuts_[static_cast<std::size_t>(inner)].holds;
  std::vector<int> between;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] && !less[i]) {
      between.push_back(static_cast<int>(i));
    }
  }
  return between;
}

}  // namespace millrace::internal
