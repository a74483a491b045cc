// Verify: runs some steps of a configuration on the real runtime in float64 and compares loss,
// every gradient and every weight with one process. Says what differs first, and where. Under other
// rules than bsp the process follows every replica by the rule's law (rule_oracle.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/train/prepare.h"

namespace millrace {

// Deliberate faults. They change the run, never the oracle, and must be caught.
enum class Break {
  kNothing,
  kStash,  // weights of the backward are the newest instead of the forward's (policy `latest`)
  kScale,  // gradients divided once too often
};
// Throws Error(kInvalidArgument) naming the known faults.
Break parse_break(const std::string& name);

struct VerifyOptions {
  int64_t steps =
      8;  // the last ones of the first epoch, so that a smaller last batch is among them
  Break fault = Break::kNothing;
  // [rule] keys of the run that the oracle is not told of, in place of the configuration's: a fault
  // too, for tests of the oracles of rules.
  std::optional<Value> run_rule_options{};
};

struct Difference {
  int64_t step = 0;  // within the verified steps, from 0
  int stage = 0;
  std::string layer;
  std::string what;  // "loss", "gradient of weight", "weight after the update", "replica 1's ..."
  double relative = 0;
};

// What a rank held at most of each part, in bytes: as counted in the run, and as simulated. Neither
// counts what stands at borders here.
struct VerifiedMemory {
  int rank = 0;
  MemoryUse measured;
  MemoryUse predicted;
};

struct VerifyResult {
  bool equal = false;
  int64_t steps = 0;
  std::string oracle;                  // in words
  double tolerance = 0;                // 0: bit for bit
  double max_relative_difference = 0;  // max|a-b| / max|b| over all tensors compared
  std::optional<Difference> first_difference;
  int64_t compared = 0;  // tensors
  std::vector<std::string> notes;
  std::vector<VerifiedMemory> memory;  // of ranks that hold a stage
};

// `config` is prepared by the caller's means (plan from a planner or a file), in float64 whatever
// its dtype. Throws kInvalidArgument when the fault needs what the configuration lacks.
VerifyResult verify(const RunConfig& config, const PrepareOptions& prepare_options,
                    const VerifyOptions& options);

}  // namespace millrace
