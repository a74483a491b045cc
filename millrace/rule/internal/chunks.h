// A stage's flat buffer cut into chunks of equal size, of which a share is sent: coarse-grained
// sparse communication. Sizes, choice and the passes over elements; pure functions, which do
// nothing to vectors without data. Callers charge their port.
//
// Source: Sun et al., Optimizing Network Performance for Distributed DNN Training on GPU Clusters:
// ImageNet/AlexNet Training in 1.5 Minutes (GradientFlow), arXiv:1902.06855, coarse-grained sparse
// communication. The order of the passes (norms after the reset) is our reconstruction.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/rule/port.h"

namespace millrace::internal {

struct Chunks {
  int64_t num_elements = 0;
  int64_t chunk = 1;  // elements of each but the last, which has what remains

  int64_t count() const { return (num_elements + chunk - 1) / chunk; }
  Range range(int64_t index) const;
};

// Share of the chunks that update number `update` (from 0) of a run sends: 1 for `warmup` updates,
// then over `ramp` updates in equal steps down to `density`, which holds from update warmup + ramp
// on.
double share_of_update(double density, int64_t warmup, int64_t ramp, int64_t update);

// Chunks sent of `count` at a share in (0, 1]: ceil(share x count), where a product that exceeds a
// whole number by its rounding only counts as that number.
int64_t num_chunks_sent(double share, int64_t count);

// The `num` chunks of the largest norms, ascending, ties to the lower index; equal norms where
// `norms` has no data.
std::vector<uint32_t> largest_chunks(const Vector& norms, int64_t num);

// norms[c] = sum of |values| over chunk c, added in float64. `norms` has chunks.count() elements.
void chunk_norms(const Chunks& chunks, const Vector& values, Vector& norms);

// What momentum correction needs of an update.
struct MomentumStep {
  double momentum = 0;
  double decay = 0;
  double lr = 0;
  double gradient_scale = 0;
};

// velocity = momentum velocity + gradient_scale gradient + decay weights; residual += lr velocity;
// gradient = 0; on `range` of each.
void correct_momentum(const MomentumStep& step, Range range, Vector& velocity, Vector& residual,
                      Vector& gradient, const Vector& weights);

// to[at, ...) = from[range]; from[range] = 0.
void move_out(Vector& from, Range range, Vector& to, int64_t at);

// to[range] -= from[at, ...) / divisor.
void subtract_quotient(Vector& to, Range range, const Vector& from, int64_t at, double divisor);

}  // namespace millrace::internal
