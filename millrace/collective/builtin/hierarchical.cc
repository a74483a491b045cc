// Two levels: the members of a host sum by a tree to the host's first member, the leaders run a
// ring, and each leader gives the result back down its tree. Only leaders use the network between
// hosts, 2N(H-1)/H each for H hosts, at the cost of all N elements a round inside.
//
// Source: the usual two-level scheme (local reduce, exchange of leaders, local broadcast) that
// Theano-MPI, arXiv:1605.08325, gets by NCCL inside a machine and MPI between machines.
#include <algorithm>

#include "millrace/collective/internal/builder.h"
#include "millrace/collective/internal/builtins.h"

namespace millrace::builtin_collectives {
namespace {

CollectiveProgram make(const CollectiveConfig& config) {
  const std::vector<std::vector<int>> hosts = internal::members_by_host(config);
  const int num_hosts = static_cast<int>(hosts.size());
  internal::Builder builder("hierarchical", config);
  const Place whole = internal::all_data(config);
  internal::Ring leaders;
  leaders.chunks = internal::chunks_of(whole, num_hosts);
  int rounds = 0;
  for (int h = 0; h < num_hosts; ++h) {
    leaders.members.push_back(hosts[h].front());
    leaders.blocks.push_back({leaders.chunks[h]});
    rounds = std::max(rounds, internal::tree_rounds(hosts[h].size()));
  }
  for (int t = 0; t < rounds; ++t) {
    for (const std::vector<int>& host : hosts) {
      internal::tree_reduce_round(builder, host, whole, t);
    }
    builder.end_step();
  }
  for (int t = 0; t < num_hosts - 1; ++t) {
    internal::reduce_scatter_step(builder, leaders, t);
    builder.end_step();
  }
  for (int t = 0; t < num_hosts - 1; ++t) {
    internal::all_gather_step(builder, leaders, t);
    builder.end_step();
  }
  const std::vector<Place> blocks = internal::without_empty(leaders.chunks);
  for (int t = 0; t < rounds; ++t) {
    for (const std::vector<int>& host : hosts) {
      internal::tree_broadcast_round(builder, host, whole, blocks, t);
    }
    builder.end_step();
  }
  return builder.finish();
}

}  // namespace

const CollectiveBuiltin hierarchical = {make};

}  // namespace millrace::builtin_collectives
