#include "millrace/runtime/emulated_device.h"

#include <utility>

#include "millrace/base/clock.h"
#include "millrace/transport/pause.h"

namespace millrace {
namespace {

double seconds_of(const StageSeconds& stage, ActionKind kind, int64_t samples) {
  const auto count = static_cast<double>(samples);
  switch (kind) {
    case ActionKind::kForward:
      return count * stage.forward_s;
    case ActionKind::kBackward:
      return count * (stage.recompute_s + stage.input_gradient_s + stage.weight_gradient_s);
    case ActionKind::kInputGradient:
      return count * (stage.recompute_s + stage.input_gradient_s);
    case ActionKind::kWeightGradient:
      return count * stage.weight_gradient_s;
    default:
      MILLRACE_CHECK(kind == ActionKind::kStep, "a device computes and updates");
      return stage.update_s;
  }
}

}  // namespace

EmulatedDevice::EmulatedDevice(std::map<int, StageSeconds> seconds, double slowdown,
                               const AbortFlag& abort, double spin_s)
    : seconds_(std::move(seconds)), slowdown_(slowdown), abort_(&abort), spin_s_(spin_s) {
  MILLRACE_CHECK(seconds_.empty() ? slowdown_ >= 1 : slowdown_ > 0,
                 "a device that computes cannot be faster than it is");
}

void EmulatedDevice::finish(const Action& action, int64_t step, int64_t samples,
                            double start_s) const {
  const double seconds = seconds_.empty()
                             ? monotonic_s() - start_s
                             : seconds_of(seconds_.at(action.stage), action.kind, samples);
  // A spell is of computing; an update is as fast as ever.
  const double spell = spells_ && action.kind != ActionKind::kStep ? spells_(step) : 1;
  pause_until(start_s + seconds * slowdown_ * spell, *abort_, spin_s_);
}

std::function<void(double start_s, double updates)> EmulatedDevice::rule_work(int stage) const {
  if (seconds_.empty()) {
    return {};
  }
  const double update_s = seconds_.at(stage).update_s * slowdown_;
  return [update_s, abort = abort_, spin_s = spin_s_](double start_s, double updates) {
    pause_until(start_s + updates * update_s, *abort, spin_s);
  };
}

}  // namespace millrace
