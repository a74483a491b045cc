// EmulatedDevice: makes a rank's actions last as long as they would on another device. The worker
// computes, then calls finish(), which waits for the rest of the emulated time.
//
// One wait an action and not one a layer: each wait ends some tens of microseconds late, and a
// stage of forty layers would be late by forty times that.
//
// One object a rank, used from that rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "millrace/core/action.h"
#include "millrace/transport/mailbox.h"

namespace millrace {

// What a rank's stage costs on a device of relative speed 1: seconds of one sample; `update_s` of
// one update.
struct StageSeconds {
  double forward_s = 0;
  double input_gradient_s = 0;
  double weight_gradient_s = 0;
  double recompute_s = 0;  // besides, in B or I
  double update_s = 0;
};

class EmulatedDevice {
 public:
  // An action lasts `slowdown` (above 0) times its seconds: those of its stage in `seconds`, or,
  // where there are none, those that it took here, and then `slowdown` must be at least 1. `abort`
  // ends waits and outlives the device; `spin_s` as for pause_until.
  EmulatedDevice(std::map<int, StageSeconds> seconds, double slowdown, const AbortFlag& abort,
                 double spin_s);

  // Called with the rank's own step: how many times as long as usual it lasts, 1 or more.
  using Spells = std::function<double(int64_t step)>;
  void set_spells(Spells spells) { spells_ = std::move(spells); }

  // Waits until the end of a compute action of the rank's own step on `samples` samples in all, or
  // a STEP; `start_s` is monotonic_s() at its start. Does not wait when that is past. Throws
  // kPeerLost after an abort.
  void finish(const Action& action, int64_t step, int64_t samples, double start_s) const;

  // Of a stage with an exchange rule: waits until so many times an update's seconds have passed
  // since `start_s`, as finish() does; for any thread. Empty where what it took here counts.
  std::function<void(double start_s, double updates)> rule_work(int stage) const;

 private:
  std::map<int, StageSeconds> seconds_;  // by stage; empty: as long as it took
  double slowdown_;
  Spells spells_;  // empty: none
  const AbortFlag* abort_;
  double spin_s_;
};

}  // namespace millrace
