// What-if questions to a recorded run: settings of links and devices that change what a recording's
// actions, messages and reductions take. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "millrace/replay/recording.h"

namespace millrace {

// One "KEY=VALUE" of the command line.
struct WhatIf {
  enum class Subject { kAllLinks, kMessages, kReductions, kPair, kDevices, kRank, kStage };
  enum class Quantity { kBandwidth, kLatency, kSpeed };
  std::string text;  // as it was given
  Subject subject = Subject::kAllLinks;
  int first = -1;  // of a pair, the rank or the stage
  int second = -1;
  Quantity quantity = Quantity::kBandwidth;
  bool is_factor = true;  // "x2": times what was recorded; else bytes per second, or seconds
  double value = 1;
};

// The keys that parse_what_if takes, with what each means, for help and docs.
struct WhatIfKey {
  std::string key;
  std::string text;
};
const std::vector<WhatIfKey>& what_if_keys();

// Throws Error(kInvalidArgument) that shows the text, what was expected, and the nearest key.
WhatIf parse_what_if(const std::string& text);

// The recording with the change. Throws Error(kInvalidArgument) for a rank, stage or pair that the
// recording has nothing of.
Recording changed(Recording recording, const WhatIf& what_if);

}  // namespace millrace
