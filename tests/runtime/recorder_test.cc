// What joined records say of a step: unbiased where updates come in a rhythm, unmoved by a hiccup.
#include "millrace/runtime/recorder.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// step_s of a first stage whose updates took `durations`, each of `num_steps` steps.
Trace joined(const std::vector<double>& durations, int64_t num_steps = 1,
             const std::vector<int64_t>& segment_starts = {0}) {
  Recorder recorder(0, {0}, 100, 10);
  double end_s = 100;
  for (const double duration : durations) {
    end_s += duration;
    recorder.step_done(end_s, num_steps);
  }
  Recorder last(1, {1}, 100, 10);
  return join_traces({&last, &recorder}, segment_starts);
}

TEST(JoinTraces, AnEvenStepIsItself) {
  const Trace trace = joined({1, 1, 1, 1, 1, 1});
  EXPECT_EQ(trace.num_steps, 6);
  EXPECT_DOUBLE_EQ(trace.step_s, 1);
}

TEST(JoinTraces, ARhythmOfShortAndLongStepsHasItsMean) {
  std::vector<double> durations;
  for (int i = 0; i < 40; ++i) {
    durations.push_back(i % 2 == 0 ? 1 : 2);
  }
  EXPECT_DOUBLE_EQ(joined(durations).step_s, 1.5);
}

TEST(JoinTraces, OneLongStepDoesNotCount) {
  std::vector<double> durations(40, 1.0);
  durations[20] = 50;
  EXPECT_DOUBLE_EQ(joined(durations).step_s, 1);
}

TEST(JoinTraces, AnUpdateOfSeveralStepsIsDividedByThem) {
  const Trace trace = joined({12, 12, 12, 12}, 3);
  EXPECT_EQ(trace.num_steps, 12);
  EXPECT_DOUBLE_EQ(trace.step_s, 4);
}

// Between the segments, after three updates of two steps each, lay an evaluation.
TEST(JoinTraces, WhatLiesBetweenSegmentsIsNoStep) {
  EXPECT_DOUBLE_EQ(joined({2, 2, 2, 1000, 2, 2}, 2, {0, 6}).step_s, 1);
  EXPECT_GT(joined({2, 2, 2, 1000, 2, 2}, 2, {0}).step_s, 1);
}

// A first replica that is done sooner, as one beside a server is; and replicas of unequal numbers.
TEST(JoinTraces, AStepEndsWithItsLastReplica) {
  for (const int more : {0, 1}) {
    Recorder fast(0, {0}, 100, 10);
    Recorder slow(1, {0}, 100, 10);
    for (int i = 1; i <= 6; ++i) {
      fast.step_done(100 + i, 1);
      slow.step_done(100 + 3 * i, 1);
    }
    for (int i = 0; i < more; ++i) {
      slow.step_done(130, 1);
    }
    const Trace trace = join_traces({&fast, &slow}, {0});
    EXPECT_EQ(trace.num_steps, 6);
    EXPECT_DOUBLE_EQ(trace.step_s, more == 0 ? 3 : 1);
  }
}

TEST(JoinTraces, OfTooFewUpdatesTheWindowCounts) {
  EXPECT_EQ(joined({}).step_s, 0);
  Recorder recorder(0, {0}, 100, 10);
  recorder.add(Action::of(ActionKind::kForward, 0, 0), 101, 102, 0, 0);
  recorder.step_done(105, 1);
  EXPECT_DOUBLE_EQ(join_traces({&recorder}, {0}).step_s, 4);
  EXPECT_EQ(joined({1, 1000, 1}, 1, {0, 1, 2}).step_s, 0) << "every update a segment of its own";
}

// 24 steps, the first five twice as long, with an evaluation before the thirteenth.
TEST(FirstSteps, AreWithoutWarmUpAndAStep) {
  Recorder recorder(3, {1}, 100, 4);
  double now_s = 100;
  for (int64_t step = 0; step < 24; ++step) {
    EXPECT_EQ(recorder.first_steps().has_value(), step >= Recorder::kFirstSteps) << step;
    const double scale = step < Recorder::kWarmSteps ? 2 : 1;
    recorder.add(Action::of(ActionKind::kForward, 1, step), now_s, now_s + 3 * scale, 0, 0);
    recorder.add(Action::of(ActionKind::kSendForward, 1, step), now_s, now_s + 5 * scale, 4 * scale,
                 0);
    recorder.add(Action::of(ActionKind::kStep, 1, step), now_s, now_s + 2 * scale, 0, 0);
    now_s += step == 12 ? 500 : 10 * scale;  // the evaluation, then the step
    recorder.step_done(now_s, 1);
  }
  const RankSteps steps = recorder.first_steps().value();
  EXPECT_EQ(steps.times.rank, 3);
  EXPECT_EQ(steps.times.stages, std::vector<int>{1});
  EXPECT_TRUE(steps.times.events.empty());
  EXPECT_DOUBLE_EQ(steps.times.compute_s, 3);
  EXPECT_DOUBLE_EQ(steps.times.communicate_s, 1);
  EXPECT_DOUBLE_EQ(steps.times.wait_s, 4);
  EXPECT_DOUBLE_EQ(steps.times.update_s, 2);
  EXPECT_DOUBLE_EQ(steps.step_s({0, 12}), 10);
  EXPECT_GT(steps.step_s({0}), 10);
}

TEST(FirstSteps, UpdatesOfSeveralStepsAreDividedByThem) {
  Recorder recorder(0, {0}, 0, 4);
  for (int64_t update = 0; update < 4; ++update) {
    recorder.add(Action::of(ActionKind::kForward, 0, update), 0, 16, 0, 0);
    recorder.step_done(16 * static_cast<double>(update + 1), 8);
  }
  const RankSteps steps = recorder.first_steps().value();
  EXPECT_DOUBLE_EQ(steps.times.compute_s, 2);
  EXPECT_DOUBLE_EQ(steps.step_s({0}), 2);
}

}  // namespace
}  // namespace millrace
