// The keys of [train] that belong to optimizers, and the check that the chosen one takes those that
// are set. The light program checks with the texts of runtime/builtin.def, the runtime with the
// same ones. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/run_config.h"

namespace millrace {

struct OptimizerKey {
  // kFraction: 0 up to below 1; kCount: a whole number from 1.
  enum class Range { kFraction, kZeroOrMore, kAboveZero, kCount };
  const char* name;
  std::optional<double> TrainConfig::*member;
  Range range;
};
const std::vector<OptimizerKey>& optimizer_keys();

// An optimizer as its line in builtin.def says: its keys with their defaults, "momentum=0
// beta=0.9".
struct OptimizerText {
  std::string name;
  std::string keys;
};

// Whether `keys` ("a=1 b c=2") names `key`.
bool takes_key(std::string_view keys, std::string_view key);

// Gives every unset key of the chosen optimizer its default. Throws Error(kInvalidArgument) at key
// train.optimizer for a name that `offered` lacks, with the nearest; at the key for one that is set
// and that the chosen optimizer does not take, naming those that do.
void settle_optimizer(TrainConfig& config, const std::vector<OptimizerText>& offered);

}  // namespace millrace
