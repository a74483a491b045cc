// Adam: A Method for Stochastic Optimization, ICLR 2015, algorithm 1; weight decay as an L2 term of
// the gradient, as in libtorch.
#include "millrace/runtime/internal/adam.h"

#include <utility>

namespace millrace::builtin_optimizers {

std::unique_ptr<Optimizer> adam(const TrainConfig& config, FlatLayout layout) {
  return internal::make_adam(config, std::move(layout), internal::AdamDecay::kInGradient);
}

}  // namespace millrace::builtin_optimizers
