// Every builtin schedule on real threads: interpreter and mailboxes with integers for tensors. Run
// under the thread sanitizer too.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>

#include "millrace/base/error.h"
#include "millrace/schedule/interpret.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "millrace/transport/mailbox.h"
#include "tests/schedule/schedule_testing.h"

namespace millrace {
namespace {

using Boxes = Mailboxes<int64_t>;
constexpr uint8_t kReduceTag = 101;
constexpr Fingerprint kShape{};

// A mix in which order matters, so that a tensor of another stage, microbatch, replica or version
// is seen.
int64_t mix(int64_t a, int64_t b) {
  return static_cast<int64_t>((static_cast<uint64_t>(a) * 6364136223846793005u) ^
                              (static_cast<uint64_t>(b) + 1442695040888963407u));
}

int64_t expected_activation(int stage, int64_t microbatch) {
  int64_t value = mix(microbatch, 0);
  for (int s = 0; s <= stage; ++s) {
    value = mix(value, s);
  }
  return value;
}

// One rank: a stage whose forward and backward are mix(), whose update counts gradients.
class IntegerStage : public ActionHandler {
 public:
  IntegerStage(const LoweredSchedule& lowered, int rank, Boxes& boxes, int64_t stop_before)
      : lowered_(lowered),
        rank_(rank),
        stage_(lowered.stage_of_rank[static_cast<std::size_t>(rank)]),
        boxes_(boxes),
        stop_before_(stop_before) {}

  void forward(const Action& action) override {
    const int64_t input = stage_ == 0 ? mix(action.first, 0) : take(inputs_, action.first);
    const int64_t output = mix(input, stage_);
    EXPECT_EQ(output, expected_activation(stage_, action.first));
    if (lowered_.policy == "vertical_sync") {
      EXPECT_LE(action.version, newest_);
    } else {
      EXPECT_EQ(action.version == kNone ? newest_ : action.version, newest_);
    }
    stash_[action.first] = output;
    outputs_[action.first] = output;
    read_[action.first] = action.version;
  }
  void backward(const Action& action) override {
    const int64_t activation = take(stash_, action.first);
    const bool last = stage_ + 1 == lowered_.num_stages;
    const int64_t gradient = last ? activation : take(inputs_, ~action.first);
    EXPECT_EQ(gradient, expected_activation(lowered_.num_stages - 1, action.first));
    EXPECT_EQ(action.version, lowered_.policy == "latest" ? newest_ : read_[action.first]);
    gradients_[action.first] = gradient;
    ++unapplied_;
  }
  void input_gradient(const Action&) override { ADD_FAILURE() << "no schedule here has halves"; }
  void weight_gradient(const Action&) override { ADD_FAILURE() << "no schedule here has halves"; }
  void send(const Action& action) override {
    const bool forward = action.kind == ActionKind::kSendForward;
    const int64_t value = take(forward ? outputs_ : gradients_, action.first);
    boxes_.send(rank_, action.peer, tag(action.kind, stage_, action.first), kShape, value);
  }
  void receive(const Action& action) override {
    const bool forward = action.kind == ActionKind::kReceiveForward;
    const MessageTag wanted = forward ? tag(ActionKind::kSendForward, stage_ - 1, action.first)
                                      : tag(ActionKind::kSendBackward, stage_ + 1, action.first);
    // A gradient is kept under the complement of its microbatch, beside the activations.
    inputs_[forward ? action.first : ~action.first] =
        boxes_.receive(rank_, action.peer, wanted, &kShape);
  }
  // Everybody tells everybody; the sum must be the same on all.
  void reduce(const Action& action) override {
    const std::vector<int>& group = lowered_.stage_ranks[static_cast<std::size_t>(stage_)];
    const MessageTag mine{kReduceTag, stage_, action.first};
    for (const int peer : group) {
      if (peer != rank_) {
        boxes_.send(rank_, peer, mine, kShape, unapplied_);
      }
    }
    int64_t sum = unapplied_;
    for (const int peer : group) {
      sum += peer == rank_ ? 0 : boxes_.receive(rank_, peer, mine, &kShape);
    }
    EXPECT_EQ(sum, action.num_microbatches());
    unapplied_ = sum;
  }
  void norm(const Action&) override { ADD_FAILURE() << "nothing is clipped here"; }
  void step(const Action& action) override {
    EXPECT_EQ(unapplied_, action.num_microbatches());
    EXPECT_EQ(action.version, newest_ + 1);
    unapplied_ = 0;
    ++newest_;
  }
  bool enter_step(int64_t step) override { return step < stop_before_; }

  int64_t newest() const { return newest_; }
  bool empty() const { return stash_.empty() && inputs_.empty() && unapplied_ == 0; }

 private:
  static MessageTag tag(ActionKind kind, int stage, int64_t microbatch) {
    return {static_cast<uint8_t>(kind), stage, microbatch};
  }
  static int64_t take(std::map<int64_t, int64_t>& from, int64_t key) {
    const auto found = from.find(key);
    if (found == from.end()) {
      throw Error(ErrorCode::kInternal, "an action found nothing to work on");
    }
    const int64_t value = found->second;
    from.erase(found);
    return value;
  }

  const LoweredSchedule& lowered_;
  const int rank_;
  const int stage_;
  Boxes& boxes_;
  const int64_t stop_before_;
  int64_t newest_ = 0;
  int64_t unapplied_ = 0;
  std::map<int64_t, int64_t> inputs_, outputs_, stash_, gradients_, read_;
};

// Updates of a rank in the steps before `stop`.
int64_t num_updates(const LoweredSchedule& lowered, int rank, int64_t stop) {
  if (lowered.flush) {
    return stop;
  }
  int64_t count = 0;
  for (const Action& action : lowered.ranks[static_cast<std::size_t>(rank)]) {
    count += action.kind == ActionKind::kStep && action.first < stop ? 1 : 0;
  }
  return count;
}

// Runs all ranks to the end; every one must have made the updates of `stop_before` steps (none in
// evaluation).
void run_on_threads(const LoweredSchedule& lowered, int64_t num_steps, int64_t stop_before) {
  const int num_ranks = static_cast<int>(lowered.ranks.size());
  Boxes boxes(num_ranks, 60);
  std::vector<std::optional<Error>> errors(lowered.ranks.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      IntegerStage stage(lowered, rank, boxes, stop_before);
      try {
        EXPECT_EQ(interpret(lowered, rank, num_steps, stage), std::min(num_steps, stop_before));
        if (!lowered.policy.empty()) {
          EXPECT_TRUE(stage.empty());
          EXPECT_EQ(stage.newest(), num_updates(lowered, rank, std::min(num_steps, stop_before)));
        }
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
        boxes.abort(error);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::optional<Error>& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(error.has_value()) << "rank " << rank << ": " << (error ? error->what() : "");
    EXPECT_EQ(boxes.held(rank), 0u);
  }
}

TEST(SchedulesOnThreads, EveryBuiltinWithEveryPolicy) {
  for (const ScheduleEntry& entry : testing::straight_schedules()) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const int microbatches : {1, 2, 7}) {
        if (entry.builtin->offers({ranks, microbatches})) {
          continue;
        }
        for (const std::string& policy : entry.builtin->policies()) {
          SCOPED_TRACE(::testing::Message()
                       << entry.name << " P=" << ranks << " M=" << microbatches << " " << policy);
          const int64_t steps = entry.name == "pipedream" ? 40 : 5;
          run_on_threads(lower(make_schedule(entry.name, {ranks, microbatches}, policy), steps),
                         steps, steps);
        }
      }
    }
  }
}

TEST(SchedulesOnThreads, ReplicasReduceTogether) {
  for (const char* name : {"naive", "gpipe", "1f1b"}) {
    for (int replicas = 2; replicas <= 3; ++replicas) {
      SCOPED_TRACE(::testing::Message() << name << " r=" << replicas);
      Plan plan = testing::plan_of(2, replicas);
      plan.microbatches = 4;
      run_on_threads(lower(make_schedule(name, schedule_config(plan)), plan, 1), 4, 4);
    }
  }
}

TEST(SchedulesOnThreads, UnequalReplicasTakeMinibatchesInTurn) {
  for (const std::vector<int>& replicas :
       {std::vector<int>{3, 1}, {2, 1, 1}, {1, 2}, {2, 3}, {2, 2}, {4, 1, 2}}) {
    for (const UpdateRule update : {UpdateRule::kRound, UpdateRule::kStep}) {
      Plan plan = testing::plan_of_replicas(replicas);
      plan.update = update;
      SCOPED_TRACE(::testing::Message() << describe(plan) << " " << to_string(update));
      for (const int64_t steps : {1, 5, 12, 29}) {
        const Schedule schedule = make_schedule("pipedream", schedule_config(plan));
        const LoweredSchedule lowered = lower(schedule, plan, steps);
        run_on_threads(lowered, steps, steps);
        run_on_threads(lowered, steps, steps / lowered.round_steps / 2 * lowered.round_steps);
      }
      plan.microbatches = 3;
      for (const char* name : {"naive", "gpipe", "1f1b"}) {
        run_on_threads(lower(make_schedule(name, schedule_config(plan)), plan, 1), 3, 3);
      }
    }
  }
}

TEST(SchedulesOnThreads, DrainsAtAnyStep) {
  testing::Draws draws(11);  // seed 11
  for (int trial = 0; trial < 30; ++trial) {
    const int ranks = static_cast<int>(1 + draws.below(5));
    const int64_t steps = 1 + draws.below(20);
    const int64_t stop = draws.below(steps + 1);
    SCOPED_TRACE(::testing::Message() << "P=" << ranks << " steps=" << steps << " stop=" << stop);
    run_on_threads(lower(make_schedule("pipedream", {ranks, 1}), steps), steps, stop);
    run_on_threads(lower(make_schedule("1f1b", {ranks, 3}), 1), steps, stop);
  }
}

TEST(SchedulesOnThreads, Evaluation) {
  for (int replicas = 1; replicas <= 3; ++replicas) {
    run_on_threads(lower_evaluation(testing::plan_of(3, replicas), 10), 1, 1);
  }
}

}  // namespace
}  // namespace millrace
