// Profiler: Model -> Profile. Measures every layer's forward, both backward halves and update on
// this machine.
//
// All ranks that will share the machine are busy while it measures, since cores share memory
// bandwidth and caches; the numbers are those of rank 0's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/core/profile.h"
#include "millrace/core/run_config.h"
#include "millrace/data/dataset.h"
#include "millrace/model/model.h"

namespace millrace {

struct ProfileRequest {
  const Model* model = nullptr;
  const Dataset* dataset =
      nullptr;           // real samples, so that loading is part of the first layer's forward
  int64_t samples = 1;   // a microbatch on one replica
  int busy_ranks = 1;    // threads that run the same work meanwhile, the measured one included
  TrainConfig train;     // its optimizer, for update_s
  double seconds = 1.5;  // spent measuring layers, at least; and at least 7 repeats
  bool timed = true;     // false: one pass, which counts bytes; all seconds are 0
  bool peak = true;      // whether the peak of products is measured too, where times are
  std::string machine;   // recorded in the profile
  std::function<void(double fraction)> progress;  // may be empty; called from the measuring thread
};

// Medians over repeats of whole passes through the model, as in training, so that a layer meets the
// caches as its neighbours leave them. The first layer's forward includes fetching the samples, the
// last one's the loss. Behind them the peak of products is measured, in a fifth of the time.
Profile profile_model(const ProfileRequest& request);

}  // namespace millrace
