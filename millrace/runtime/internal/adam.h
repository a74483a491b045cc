// What adam and adamw share: the moments and their bias corrections. Used by those two builtins.
#pragma once

#include <memory>

#include "millrace/runtime/optimizer.h"

namespace millrace::internal {

enum class AdamDecay {
  kInGradient,  // g += weight_decay w, before the moments
  kOfWeights,   // w -= lr weight_decay w, beside the moments
};

// With t the updates that the parameter has had, this one included, for each element:
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g g,
//   delta = -(lr / (1 - beta1^t)) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)  [- lr weight_decay
//   w].
// t is counted per parameter, so that a stage may join parameters of different ages.
std::unique_ptr<Optimizer> make_adam(const TrainConfig& config, FlatLayout layout, AdamDecay decay);

}  // namespace millrace::internal
