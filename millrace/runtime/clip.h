// Clipping of the gradient by its norm over all stages. Pure functions; the runtime and the oracles
// share them as they share the optimizer's arithmetic.
#pragma once

#include <ATen/core/Tensor.h>

namespace millrace {

// Sum of the squares of all elements, in double whatever the dtype (float32 or float64), in an
// order that depends on the size alone.
double squared_norm(const at::Tensor& flat);

// What the mean gradient of norm `norm` is multiplied with so that its norm is at most `most`:
// most / norm where that is below 1, else 1. A norm that is not a number gives 1.
double clip_factor(double norm, double most);

}  // namespace millrace
