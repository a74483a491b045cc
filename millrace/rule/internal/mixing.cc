#include "millrace/rule/internal/mixing.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace millrace {
namespace {

bool is_power_of_two(int number) { return std::has_single_bit(static_cast<unsigned>(number)); }

// ceil(log2 number)
int num_distances(int number) {
  return number <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<unsigned>(number - 1)));
}

int distance(int64_t turn, int num_distances) {
  return num_distances == 0 ? 0 : 1 << static_cast<int>(turn % num_distances);
}

}  // namespace

Mixing::Mixing(Topology topology, std::vector<int> nodes)
    : topology_(topology), nodes_(std::move(nodes)) {
  for (std::size_t member = 0; member < nodes_.size(); ++member) {
    num_nodes_ = std::max(num_nodes_, nodes_[member] + 1);
    places_.push_back(static_cast<int>(std::count(
        nodes_.begin(), nodes_.begin() + static_cast<std::ptrdiff_t>(member), nodes_[member])));
  }
}

std::string Mixing::needs() const {
  if (topology_ == Topology::kRing && nodes_.size() % 2 != 0 && nodes_.size() > 1) {
    return "an even number of replicas";
  }
  if (topology_ == Topology::kAlternating) {
    if (!is_power_of_two(num_nodes_)) {
      return "a number of nodes that is a power of two";
    }
    for (int node = 0; node < num_nodes_; ++node) {
      if (std::count(nodes_.begin(), nodes_.end(), node) !=
          std::count(nodes_.begin(), nodes_.end(), 0)) {
        return "equally many replicas in every node";
      }
    }
  }
  return "";
}

bool Mixing::is_peer(int64_t round, int to, int from) const {
  const int size = static_cast<int>(nodes_.size());
  switch (topology_) {
    case Topology::kComplete:
      return true;
    case Topology::kRing:
      // Pairs (0, 1), (2, 3), ... in even rounds, (1, 2), ..., (size - 1, 0) in odd ones.
      return from == (to + ((to + round) % 2 == 0 ? 1 : size - 1)) % size;
    case Topology::kExponential: {
      const int step = distance(round, num_distances(size));
      return is_power_of_two(size) ? from == (to ^ step) : to == (from + step) % size;
    }
    case Topology::kAlternating: {
      const int step = distance(round / 2, num_distances(num_nodes_));
      const auto node = static_cast<std::size_t>(to);
      const auto other = static_cast<std::size_t>(from);
      // Half of the pairs of nodes use the network in a round, the other half in the next.
      const int parity = std::popcount(static_cast<unsigned>(nodes_[node] & ~step)) % 2;
      if (step == 0 || parity != round % 2) {
        return nodes_[node] == nodes_[other];
      }
      return nodes_[other] == (nodes_[node] ^ step) && places_[node] == places_[other];
    }
  }
  return false;
}

double Mixing::weight(int64_t round, int to, int from) const {
  int num_taken = 1;  // itself
  for (int member = 0; member < static_cast<int>(nodes_.size()); ++member) {
    num_taken += member != to && is_peer(round, to, member) ? 1 : 0;
  }
  return to == from || is_peer(round, to, from) ? 1.0 / num_taken : 0.0;
}

int64_t Mixing::period() const {
  switch (topology_) {
    case Topology::kComplete:
      return 1;
    case Topology::kRing:
      return 2;
    case Topology::kExponential:
      return std::max(1, num_distances(static_cast<int>(nodes_.size())));
    case Topology::kAlternating:
      return std::max(1, 2 * num_distances(num_nodes_));
  }
  return 1;
}

}  // namespace millrace
