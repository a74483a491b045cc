// Reduction tree: ceil(log2 P) rounds in which half of those left give everything to the other
// half, and as many rounds down again. Few steps, but every step carries all N elements, so it is
// for small messages, or where the root's link is all that counts: 2 N log2 P over its own
// full-duplex link, against 2 N (P-1) for a server. Over a medium that all share, both carry
// 2 N (P-1) and nothing is won.
//
// Source: FireCaffe: near-linear acceleration of deep neural network training on compute clusters,
// CVPR 2016, its section on reduction trees. The shape for other P than powers of two is ours (a
// reconstruction).
#include "millrace/collective/internal/builder.h"
#include "millrace/collective/internal/builtins.h"

namespace millrace::builtin_collectives {
namespace {

CollectiveProgram make(const CollectiveConfig& config) {
  internal::Builder builder("tree", config);
  const Place whole = internal::all_data(config);
  std::vector<int> members;
  for (int i = 0; i < config.num_members; ++i) {
    members.push_back(i);
  }
  const int rounds = internal::tree_rounds(members.size());
  for (int t = 0; t < rounds; ++t) {
    internal::tree_reduce_round(builder, members, whole, t);
    builder.end_step();
  }
  for (int t = 0; t < rounds; ++t) {
    internal::tree_broadcast_round(builder, members, whole, {whole}, t);
    builder.end_step();
  }
  return builder.finish();
}

}  // namespace

const CollectiveBuiltin tree = {make};

}  // namespace millrace::builtin_collectives
