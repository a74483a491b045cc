// AdamW: Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2, with the schedule's
// multiplier inside lr, as in libtorch: the decay is scaled by lr and does not pass the moments.
#include <utility>

#include "millrace/runtime/internal/adam.h"

namespace millrace::builtin_optimizers {

std::unique_ptr<Optimizer> adamw(const TrainConfig& config, FlatLayout layout) {
  return internal::make_adam(config, std::move(layout), internal::AdamDecay::kOfWeights);
}

}  // namespace millrace::builtin_optimizers
