// ASA: all-to-all, sum, all-gather. Every member collects its chunk from all others, sums in member
// order, and gives the sum to all. Member order means that a result does not depend on where in a
// message an element stands, nor on who sums it. Everything is sent at once, in turn around the
// members so that no two send to one at a time.
//
// Source: Theano-MPI: a Theano-based Distributed Training Framework, arXiv:1605.08325, its exchange
// strategy ASA, read from the authors' code. They pad to a multiple of the members; chunks that
// differ by one element need no padding.
#include "millrace/collective/internal/builder.h"
#include "millrace/collective/internal/builtins.h"

namespace millrace::builtin_collectives {
namespace {

CollectiveProgram make(const CollectiveConfig& config) {
  const int count = config.num_members;
  internal::Builder builder("asa", config);
  if (count == 1) {
    return builder.finish();
  }
  const std::vector<Place> chunks = internal::chunks_of(internal::all_data(config), count);
  // parts[r][m]: where member r finds member m's share of chunk r.
  std::vector<std::vector<Place>> parts(count, std::vector<Place>(count));
  for (int t = 1; t < count; ++t) {
    for (int from = 0; from < count; ++from) {
      const int to = (from + t) % count;
      parts[to][from] = builder.send_to_scratch(from, to, chunks[to], (t - 1) * chunks[to].size());
    }
    if (t < count - 1) {
      builder.end_step_early();
    }
  }
  for (int r = 0; r < count; ++r) {
    parts[r][r] = chunks[r];
    builder.sum(r, chunks[r], parts[r]);
  }
  builder.end_step();
  for (int t = 1; t < count; ++t) {
    for (int from = 0; from < count; ++from) {
      builder.send_final(from, (from + t) % count, chunks[from], {chunks[from]});
    }
    if (t < count - 1) {
      builder.end_step_early();
    }
  }
  builder.end_step();
  return builder.finish();
}

}  // namespace

const CollectiveBuiltin asa = {make};

}  // namespace millrace::builtin_collectives
