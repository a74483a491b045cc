// Mixing matrices of decentralized training: how much of whose weights a member takes in a round.
// Pure functions, used by the rule `decentralized`; any thread.
//
// Source: Wang et al., "From Promise to Practice: Realizing High-performance Decentralized
// Training", arXiv:2410.11998, its topologies. Directed pairs where the exponential one has no
// powers of two: Assran et al., "Stochastic Gradient Push", arXiv:1811.10792.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

enum class Topology {
  kComplete,     // all with all
  kRing,         // one neighbour a round, left and right in turn
  kExponential,  // one peer a round, at distance 1, 2, 4, ...
  kAlternating,  // a node at distance 1, 2, 4, ... or one's own node, in turn
};

class Mixing {
 public:
  // `nodes`: each member's node, numbered from 0; its size is the number of members.
  Mixing(Topology topology, std::vector<int> nodes);

  // Empty where the topology is offered for these members, else what it needs, as in "an even
  // number of replicas". The rest is undefined then.
  std::string needs() const;

  // The weight of member `from` in what `to` becomes in a round (from 0). Rows and columns sum
  // to 1.
  double weight(int64_t round, int to, int from) const;

  // Rounds after which the matrices repeat.
  int64_t period() const;

 private:
  bool is_peer(int64_t round, int to, int from) const;

  Topology topology_;
  std::vector<int> nodes_;
  std::vector<int> places_;  // each member's place among those of its node
  int num_nodes_ = 0;
};

}  // namespace millrace
