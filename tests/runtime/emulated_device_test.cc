// How long actions last on an emulated device: never shorter than asked.
#include "millrace/runtime/emulated_device.h"

#include <gtest/gtest.h>

#include "millrace/base/clock.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

constexpr StageSeconds kSeconds{
    .forward_s = 0.001, .input_gradient_s = 0.002, .weight_gradient_s = 0.003, .update_s = 0.004};

TEST(EmulatedDevice, EachActionLastsItsSeconds) {
  struct Case {
    ActionKind kind;
    double seconds;
  };
  const AbortFlag abort;
  for (const double slowdown : {0.5, 2.0}) {
    const EmulatedDevice device({{2, kSeconds}}, slowdown, abort, 0);
    for (const Case& each :
         {Case{ActionKind::kForward, 5 * 0.001}, Case{ActionKind::kBackward, 5 * 0.005},
          Case{ActionKind::kInputGradient, 5 * 0.002}, Case{ActionKind::kWeightGradient, 5 * 0.003},
          Case{ActionKind::kStep, 0.004}}) {
      const double start_s = monotonic_s();
      device.finish(Action::of(each.kind, 2, 0), 0, 5, start_s);
      EXPECT_GE(monotonic_s(), start_s + slowdown * each.seconds) << to_string(each.kind);
    }
  }
}

// What was computed meanwhile is part of the action and not added to it: nothing is left to wait.
TEST(EmulatedDevice, CountsFromTheStartOfTheAction) {
  const AbortFlag abort;
  const EmulatedDevice device({{0, StageSeconds{.forward_s = 1e6}}}, 1, abort, 0);
  device.finish(Action::of(ActionKind::kForward, 0, 0), 0, 3, monotonic_s() - 3e6);
}

TEST(EmulatedDevice, ARulesWorkLastsItsShareOfAnUpdate) {
  const AbortFlag abort;
  const auto work = EmulatedDevice({{2, kSeconds}}, 3, abort, 0).rule_work(2);
  const double start_s = monotonic_s();
  work(start_s, 1.5);
  EXPECT_GE(monotonic_s(), start_s + 1.5 * 3 * 0.004);
  EXPECT_FALSE(EmulatedDevice({}, 3, abort, 0).rule_work(2));
}

TEST(EmulatedDevice, WithoutAProfileTheMeasuredTimeCounts) {
  const AbortFlag abort;
  const EmulatedDevice device({}, 4, abort, 0);
  const double start_s = monotonic_s() - 0.01;  // an action that took 10 ms
  device.finish(Action::of(ActionKind::kForward, 0, 0), 0, 7, start_s);
  EXPECT_GE(monotonic_s(), start_s + 0.04);
}

TEST(EmulatedDevice, CannotBeFasterThanTheOneThatComputes) {
  const AbortFlag abort;
  EXPECT_EQ(caught([&] { EmulatedDevice({}, 0.5, abort, 0); }).code(), ErrorCode::kInternal);
}

TEST(EmulatedDevice, AnAbortEndsTheWait) {
  AbortFlag abort;
  abort.raise(Error(ErrorCode::kTimeout, "gone"));
  const EmulatedDevice device({{0, kSeconds}}, 1e9, abort, 0);
  EXPECT_EQ(caught([&] {
              device.finish(Action::of(ActionKind::kForward, 0, 0), 0, 1, monotonic_s());
            }).code(),
            ErrorCode::kPeerLost);
}

}  // namespace
}  // namespace millrace
