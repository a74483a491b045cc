// Parameter server beside member 0: everybody sends it everything, it sums in member order and
// sends the result back. What others are compared with: its link carries 2N(P-1).
//
// Source: the parameter server of FireCaffe: near-linear acceleration of deep neural network
// training on compute clusters, CVPR 2016, in its comparison with a reduction tree.
#include "millrace/collective/internal/builder.h"
#include "millrace/collective/internal/builtins.h"

namespace millrace::builtin_collectives {
namespace {

CollectiveProgram make(const CollectiveConfig& config) {
  internal::Builder builder("server", config);
  const Place whole = internal::all_data(config);
  for (int member = 1; member < config.num_members; ++member) {
    const Place arrived = builder.send_to_scratch(member, 0, whole);
    builder.sum(0, whole, {whole, arrived});
    builder.end_step();
  }
  for (int member = 1; member < config.num_members; ++member) {
    builder.send_final(0, member, whole, {whole});
    builder.end_step();
  }
  return builder.finish();
}

}  // namespace

const CollectiveBuiltin server = {make};

}  // namespace millrace::builtin_collectives
