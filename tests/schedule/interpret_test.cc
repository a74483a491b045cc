// The interpreter: repeating a flush step, draining, errors with coordinates.
#include "millrace/schedule/interpret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "millrace/base/error.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "tests/schedule/schedule_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Writes down what it is told; enters steps below `limit`; may throw at one action.
class Recorder : public ActionHandler {
 public:
  explicit Recorder(int64_t limit = INT64_MAX) : limit_(limit) {}

  void forward(const Action& action) override { record(action, ActionKind::kForward); }
  void backward(const Action& action) override { record(action, ActionKind::kBackward); }
  void input_gradient(const Action& action) override { record(action, ActionKind::kInputGradient); }
  void weight_gradient(const Action& action) override {
    record(action, ActionKind::kWeightGradient);
  }
  void send(const Action& action) override {
    EXPECT_TRUE(is_send(action.kind));
    record(action, action.kind);
  }
  void receive(const Action& action) override {
    EXPECT_TRUE(is_receive(action.kind));
    record(action, action.kind);
  }
  void reduce(const Action& action) override { record(action, ActionKind::kReduce); }
  void norm(const Action& action) override { record(action, ActionKind::kNorm); }
  void step(const Action& action) override { record(action, ActionKind::kStep); }
  void gather(const Action& action) override { record(action, ActionKind::kGather); }
  void free(const Action& action) override { record(action, ActionKind::kFree); }
  bool enter_step(int64_t step) override {
    EXPECT_EQ(step, static_cast<int64_t>(asked.size()));
    EXPECT_TRUE(asked.empty() || asked.back() < limit_) << "asked again after it said no";
    asked.push_back(step);
    asked_at.push_back(actions.size());
    return step < limit_;
  }

  ActionList actions;
  std::vector<int64_t> asked;
  std::vector<std::size_t> asked_at;  // actions run before each question
  std::string throw_at;
  std::optional<Error> thrown;

 private:
  void record(const Action& action, ActionKind expected) {
    EXPECT_EQ(action.kind, expected);
    if (to_string(action) == throw_at) {
      throw *thrown;
    }
    actions.push_back(action);
  }
  int64_t limit_;
};

// Each kind reaches its own function.
TEST(Interpret, HandsEachKindToItsFunction) {
  LoweredSchedule lowered;
  lowered.policy = "flush";
  lowered.ranks = {
      parse_actions("0RECV_F0<1 0F0@0 0SEND_F0>1 0RECV_B0<1 0I0@0 0SEND_B0>1 0W0@0 0B0@0 "
                    "0REDUCE0 0STEP0@1")};
  Recorder recorder;
  EXPECT_EQ(interpret(lowered, 0, 1, recorder), 1);
  EXPECT_EQ(recorder.actions, lowered.ranks[0]);
}

// A flush step repeated is what the unrolled schedule says, microbatch for microbatch.
TEST(Interpret, RepeatedStepsAreTheUnrolledSchedule) {
  for (const char* name : {"naive", "gpipe", "1f1b"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int microbatches : {1, 2, 3, 8}) {
        const Schedule schedule = make_schedule(name, {ranks, microbatches});
        const LoweredSchedule lowered = lower(schedule, 1);
        constexpr int64_t kSteps = 4;
        const ActionLists expected = unroll(schedule, kSteps);
        for (int rank = 0; rank < ranks; ++rank) {
          Recorder recorder;
          EXPECT_EQ(interpret(lowered, rank, kSteps, recorder), kSteps);
          ActionList compute;
          int64_t num_steps = 0;
          for (Action action : recorder.actions) {
            const int64_t step = action.first / microbatches;
            EXPECT_EQ(step, num_steps) << to_string(action);
            if (action.kind == ActionKind::kStep) {
              EXPECT_EQ(action.version, ++num_steps);
              EXPECT_EQ(action.num_microbatches(), microbatches);
            } else if (is_compute(action.kind)) {
              EXPECT_EQ(action.version, num_steps);
              action.version = kNone;
              compute.push_back(action);
            } else {
              EXPECT_EQ(action.version, kNone);
            }
          }
          EXPECT_EQ(to_string(compute), to_string(expected[static_cast<std::size_t>(rank)]))
              << name;
          EXPECT_EQ(num_steps, kSteps);
        }
      }
    }
  }
}

TEST(Interpret, WithoutFlushRunsTheListOnceAsItStands) {
  const LoweredSchedule lowered = lower(make_schedule("pipedream", {3, 1}), 7);
  for (int rank = 0; rank < 3; ++rank) {
    Recorder recorder;
    EXPECT_EQ(interpret(lowered, rank, 7, recorder), 7);
    EXPECT_EQ(recorder.actions, lowered.ranks[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(recorder.asked.size(), 7u);
  }
}

TEST(Interpret, AsksBeforeTheFirstActionOfEachStep) {
  const LoweredSchedule lowered = lower(make_schedule("pipedream", {3, 1}), 6);
  for (int rank = 0; rank < 3; ++rank) {
    Recorder recorder;
    interpret(lowered, rank, 6, recorder);
    for (std::size_t step = 0; step < 6; ++step) {
      std::size_t first = 0;
      while (recorder.actions[first].first != static_cast<int64_t>(step)) {
        ++first;
      }
      EXPECT_EQ(recorder.asked_at[step], first) << "rank " << rank << " step " << step;
    }
  }
}

// Drained at any step the run is exactly that of a shorter segment: all that was started is
// finished.
TEST(Interpret, DrainCompletesWhatWasStarted) {
  testing::Draws draws(7);  // seed 7
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = static_cast<int>(1 + draws.below(6));
    const int64_t steps = 1 + draws.below(20);
    const int64_t stop = draws.below(steps + 1);
    SCOPED_TRACE(::testing::Message() << "P=" << ranks << " steps=" << steps << " stop=" << stop);
    for (const char* policy : {"stash", "latest"}) {
      const Schedule schedule = make_schedule("pipedream", {ranks, 1}, policy);
      LoweredSchedule lowered = lower(schedule, steps);
      ActionLists ran;
      for (int rank = 0; rank < ranks; ++rank) {
        Recorder recorder(stop);
        EXPECT_EQ(interpret(lowered, rank, steps, recorder), stop);
        ran.push_back(recorder.actions);
      }
      if (stop == 0) {
        EXPECT_EQ(ran, ActionLists(static_cast<std::size_t>(ranks)));
        continue;
      }
      EXPECT_EQ(ran, lower(schedule, stop).ranks);
      lowered.ranks = ran;
      lowered.num_steps = stop;
      EXPECT_EQ(testing::rehearse(lowered), "");
    }
  }
}

TEST(Interpret, FlushStopsBetweenSteps) {
  const LoweredSchedule lowered = lower(make_schedule("1f1b", {2, 3}), 1);
  Recorder recorder(2);
  EXPECT_EQ(interpret(lowered, 1, 10, recorder), 2);
  EXPECT_EQ(recorder.actions.size(), 2 * lowered.ranks[1].size());
  EXPECT_EQ(recorder.asked, (std::vector<int64_t>{0, 1, 2}));
}

TEST(Interpret, FewerStepsThanLoweredAreADrainToo) {
  const Schedule schedule = make_schedule("pipedream", {3, 1});
  const LoweredSchedule lowered = lower(schedule, 9);
  for (int rank = 0; rank < 3; ++rank) {
    Recorder recorder;
    EXPECT_EQ(interpret(lowered, rank, 4, recorder), 4);
    EXPECT_EQ(recorder.actions, lower(schedule, 4).ranks[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(recorder.asked.size(), 4u);  // never about a step beyond num_steps
  }
}

TEST(Interpret, IdleRankAndNoStepsRunNothing) {
  const LoweredSchedule lowered =
      lower(make_schedule("1f1b", {2, 2}), testing::plan_of(2, 1, 1), 1);
  Recorder recorder;
  EXPECT_EQ(interpret(lowered, 2, 5, recorder), 0);
  EXPECT_EQ(interpret(lowered, 0, 0, recorder), 0);
  EXPECT_TRUE(recorder.actions.empty() && recorder.asked.empty());
}

TEST(Interpret, EvaluationAsksOnce) {
  const LoweredSchedule lowered = lower_evaluation(testing::plan_of(2, 1), 5);
  Recorder recorder;
  EXPECT_EQ(interpret(lowered, 1, 1, recorder), 1);
  EXPECT_EQ(recorder.actions, lowered.ranks[1]);
  EXPECT_EQ(recorder.asked.size(), 1u);
}

TEST(Interpret, ErrorsGetTheActionAndRankWhereTheyHaveNone) {
  const LoweredSchedule lowered = lower(make_schedule("1f1b", {2, 2}), 1);
  Recorder recorder;
  recorder.throw_at = "1F3@1";  // microbatch 1 of the second step
  recorder.thrown = Error(ErrorCode::kOutOfMemory, "no memory");
  try {
    interpret(lowered, 1, 2, recorder);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(error.action(), "1F3@1");
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.what(), HasSubstr("1F3@1"));
  }
  Recorder other;
  other.throw_at = "1F3@1";
  other.thrown = Error(ErrorCode::kPeerLost, "gone").at_rank(0).at_action("0B1");
  try {
    interpret(lowered, 1, 2, other);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.action(), "0B1");  // a peer's error keeps its place
    EXPECT_EQ(error.rank(), 0);
  }
}

TEST(Interpret, RefusesWhatItCannotRun) {
  const LoweredSchedule lowered = lower(make_schedule("pipedream", {2, 1}), 3);
  Recorder recorder;
  EXPECT_THROW(interpret(lowered, 2, 1, recorder), Error);
  EXPECT_THROW(interpret(lowered, -1, 1, recorder), Error);
  try {
    interpret(lowered, 0, 4, recorder);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("4 steps of a segment that was lowered for 3"));
  }
  LoweredSchedule broken = lowered;
  broken.microbatches_per_step = 0;
  EXPECT_THROW(interpret(broken, 0, 1, recorder), Error);
  EXPECT_TRUE(recorder.actions.empty());
}

}  // namespace
}  // namespace millrace
