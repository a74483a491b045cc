// Ring all-reduce: chunks travel once around the ring while they are summed, then once more
// complete. Every link carries about 2N(P-1)/P, whatever P; an element's order of summation depends
// on its chunk, so fused and unfused messages differ in their last bits from P = 3.
//
// Source: the bandwidth-optimal all-reduce of Patarasuk and Yuan, JPDC 2009, as Pipe-SGD, NeurIPS
// 2018, and PowerAI DDL, arXiv:1708.02188, take it for granted.
#include "millrace/collective/internal/builder.h"
#include "millrace/collective/internal/builtins.h"

namespace millrace::builtin_collectives {
namespace {

CollectiveProgram make(const CollectiveConfig& config) {
  internal::Builder builder("ring", config);
  internal::Ring ring;
  ring.chunks = internal::chunks_of(internal::all_data(config), config.num_members);
  for (int i = 0; i < config.num_members; ++i) {
    ring.members.push_back(i);
    ring.blocks.push_back({ring.chunks[i]});
  }
  for (int t = 0; t < config.num_members - 1; ++t) {
    internal::reduce_scatter_step(builder, ring, t);
    builder.end_step();
  }
  for (int t = 0; t < config.num_members - 1; ++t) {
    internal::all_gather_step(builder, ring, t);
    builder.end_step();
  }
  return builder.finish();
}

}  // namespace

const CollectiveBuiltin ring = {make};

}  // namespace millrace::builtin_collectives
