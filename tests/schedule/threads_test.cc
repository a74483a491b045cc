// Every builtin schedule on real threads: interpreter and mailboxes with integers for tensors. Run
// under the thread sanitizer too.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "millrace/base/error.h"
#include "millrace/schedule/interpret.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/replicate.h"
#include "millrace/schedule/validate.h"
#include "millrace/transport/mailbox.h"
#include "tests/schedule/schedule_testing.h"

namespace millrace {
namespace {

using Boxes = Mailboxes<int64_t>;
constexpr uint8_t kReduceTag = 101;
constexpr uint8_t kNormTag = 102;
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

// One rank: stages whose forward and backward are mix(), whose update counts gradients.
class IntegerStages : public ActionHandler {
 public:
  IntegerStages(const LoweredSchedule& lowered, int rank, Boxes& boxes, int64_t stop_before)
      : lowered_(lowered), rank_(rank), boxes_(boxes), stop_before_(stop_before) {
    for (const int stage : lowered.rank_stages[static_cast<std::size_t>(rank)]) {
      stages_[stage];
    }
  }

  void forward(const Action& action) override {
    Stage& stage = stages_.at(action.stage);
    for (int64_t m = action.first; m <= action.last; ++m) {
      const int64_t input =
          action.stage == 0 ? mix(m, 0) : take_input(stage.inputs, action.stage - 1, m, false);
      const int64_t output = mix(input, action.stage);
      EXPECT_EQ(output, expected_activation(action.stage, m));
      stage.stash[m] = output;
      stage.read[m] = action.version;
      if (!is_last(action.stage)) {
        stage.outputs[m] = output;
      }
    }
    const std::string& policy = lowered_.policy;
    EXPECT_LE(action.version, stage.newest);
    if (policy == "double_buffer") {
      EXPECT_LE(stage.newest - action.version, 1) << "needs a third buffer";
    } else if (policy != "vertical_sync" && policy != "vertical_newest") {
      EXPECT_EQ(action.version == kNone ? stage.newest : action.version, stage.newest);
    }
  }
  void backward(const Action& action) override {
    input_gradient(action);
    weight_gradient(action);
  }
  void input_gradient(const Action& action) override {
    Stage& stage = stages_.at(action.stage);
    for (int64_t m = action.first; m <= action.last; ++m) {
      const int64_t gradient = is_last(action.stage)
                                   ? stage.stash.at(m)
                                   : take_input(stage.gradient_inputs, action.stage + 1, m, true);
      EXPECT_EQ(gradient, expected_activation(lowered_.num_stages - 1, m));
      check_version(stage, action, m);
      stage.has_gradient.insert(m);
      if (action.stage > 0) {
        stage.gradients[m] = gradient;
      }
    }
  }
  void weight_gradient(const Action& action) override {
    Stage& stage = stages_.at(action.stage);
    for (int64_t m = action.first; m <= action.last; ++m) {
      EXPECT_EQ(take(stage.stash, m), expected_activation(action.stage, m));
      EXPECT_EQ(stage.has_gradient.erase(m), 1u);
      check_version(stage, action, m);
      stage.read.erase(m);
    }
    stage.unapplied += action.num_microbatches();
  }
  void send(const Action& action) override {
    Stage& stage = stages_.at(action.stage);
    const bool forward = action.kind == ActionKind::kSendForward;
    const int64_t value = take(forward ? stage.outputs : stage.gradients, action.first);
    boxes_.send(rank_, action.peer, tag(action.kind, action.stage, action.peer_stage, action.first),
                kShape, value);
  }
  void receive(const Action& action) override {
    Stage& stage = stages_.at(action.stage);
    const bool forward = action.kind == ActionKind::kReceiveForward;
    const MessageTag wanted = tag(forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
                                  action.peer_stage, action.stage, action.first);
    (forward ? stage.inputs : stage.gradient_inputs)[action.first] =
        boxes_.receive(rank_, action.peer, wanted, &kShape);
  }
  void reduce(const Action& action) override {
    int64_t& unapplied = stages_.at(action.stage).unapplied;
    unapplied = sum_over(lowered_.stage_ranks[static_cast<std::size_t>(action.stage)],
                         {kReduceTag, action.stage, action.first}, unapplied);
    EXPECT_EQ(unapplied, action.num_microbatches());
  }
  // Of all ranks that do anything: each brings its gradients, which are reduced already.
  void norm(const Action& action) override {
    std::vector<int> group;
    int64_t expected = 0;
    for (std::size_t rank = 0; rank < lowered_.ranks.size(); ++rank) {
      if (!lowered_.ranks[rank].empty()) {
        group.push_back(static_cast<int>(rank));
        expected += std::ssize(lowered_.rank_stages[rank]) * action.num_microbatches();
      }
    }
    int64_t own = 0;
    for (const auto& [index, stage] : stages_) {
      own += stage.unapplied;
    }
    EXPECT_EQ(sum_over(group, {kNormTag, 0, action.first}, own), expected);
  }
  void gather(const Action& action) override { ADD_FAILURE() << to_string(action); }
  void free(const Action& action) override { ADD_FAILURE() << to_string(action); }
  void step(const Action& action) override {
    Stage& stage = stages_.at(action.stage);
    EXPECT_EQ(stage.unapplied, action.num_microbatches());
    EXPECT_EQ(action.version, stage.newest + 1);
    stage.unapplied = 0;
    ++stage.newest;
  }
  bool enter_step(int64_t step) override { return step < stop_before_; }

  int64_t newest(int stage) const { return stages_.at(stage).newest; }
  bool empty() const {
    return std::all_of(stages_.begin(), stages_.end(), [](const auto& entry) {
      const Stage& stage = entry.second;
      return stage.inputs.empty() && stage.gradient_inputs.empty() && stage.outputs.empty() &&
             stage.gradients.empty() && stage.stash.empty() && stage.has_gradient.empty() &&
             stage.read.empty() && stage.unapplied == 0;
    });
  }

 private:
  using Values = std::map<int64_t, int64_t>;  // by microbatch
  struct Stage {
    Values inputs, gradient_inputs, outputs, gradients, stash;
    Values read;                     // version that the forward read
    std::set<int64_t> has_gradient;  // whose I ran and whose W has not
    int64_t newest = 0;
    int64_t unapplied = 0;
  };

  bool is_last(int stage) const { return stage + 1 == lowered_.num_stages; }

  static MessageTag tag(ActionKind kind, int from_stage, int to_stage, int64_t microbatch) {
    return {.kind = static_cast<uint8_t>(kind),
            .stage = from_stage,
            .microbatch = microbatch,
            .to_stage = to_stage};
  }
  static int64_t take(Values& from, int64_t key) {
    const auto found = from.find(key);
    if (found == from.end()) {
      throw Error(ErrorCode::kInternal, "an action found nothing to work on");
    }
    const int64_t value = found->second;
    from.erase(found);
    return value;
  }
  // What was received, else what the stage `source` of this rank left.
  int64_t take_input(Values& received, int source, int64_t microbatch, bool gradient) {
    if (received.count(microbatch) == 1) {
      return take(received, microbatch);
    }
    const auto own = stages_.find(source);
    if (own == stages_.end()) {
      throw Error(ErrorCode::kInternal, "an action found nothing to work on");
    }
    return take(gradient ? own->second.gradients : own->second.outputs, microbatch);
  }
  void check_version(const Stage& stage, const Action& action, int64_t microbatch) const {
    if (lowered_.policy == "vertical_newest") {
      EXPECT_LE(action.version, stage.newest);
    } else {
      EXPECT_EQ(action.version,
                lowered_.policy == "latest" ? stage.newest : stage.read.at(microbatch));
    }
  }
  // Everybody tells everybody; the sum must be the same on all.
  int64_t sum_over(const std::vector<int>& group, const MessageTag& mine, int64_t own) {
    for (const int peer : group) {
      if (peer != rank_) {
        boxes_.send(rank_, peer, mine, kShape, own);
      }
    }
    int64_t sum = own;
    for (const int peer : group) {
      sum += peer == rank_ ? 0 : boxes_.receive(rank_, peer, mine, &kShape);
    }
    return sum;
  }

  const LoweredSchedule& lowered_;
  const int rank_;
  Boxes& boxes_;
  const int64_t stop_before_;
  std::map<int, Stage> stages_;
};

// Updates of a stage on a rank in the steps before `stop`.
int64_t num_updates(const LoweredSchedule& lowered, int rank, int stage, int64_t stop) {
  if (lowered.flush) {
    return stop;
  }
  int64_t count = 0;
  for (const Action& action : lowered.ranks[static_cast<std::size_t>(rank)]) {
    count += action.kind == ActionKind::kStep && action.stage == stage &&
                     action.first < stop * lowered.microbatches_per_step
                 ? 1
                 : 0;
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
      IntegerStages stages(lowered, rank, boxes, stop_before);
      try {
        EXPECT_EQ(interpret(lowered, rank, num_steps, stages), std::min(num_steps, stop_before));
        if (!lowered.policy.empty()) {
          EXPECT_TRUE(stages.empty());
          for (const int stage : lowered.rank_stages[static_cast<std::size_t>(rank)]) {
            EXPECT_EQ(stages.newest(stage),
                      num_updates(lowered, rank, stage, std::min(num_steps, stop_before)));
          }
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
  for (const ScheduleEntry& entry : schedules()) {
    for (const ScheduleConfig& config :
         testing::offered(entry, testing::from_to(1, 5), {1, 2, 4, 7, 8})) {
      if (config.chunks > std::max(2, entry.builtin->chunks)) {
        continue;  // nothing new on a rank of more than two
      }
      for (const std::string& policy : entry.builtin->policies()) {
        SCOPED_TRACE(testing::describe(entry, config) + " " + policy);
        const Schedule schedule = make_schedule(entry.name, config, policy);
        const int64_t steps = schedule.flush ? 3 : std::max(40 / config.num_microbatches, 9);
        run_on_threads(lower(schedule, steps), steps, steps);
        run_on_threads(lower(schedule, steps), steps, steps / 2);
      }
    }
  }
}

TEST(SchedulesOnThreads, CopiesOfEveryBuiltin) {
  for (const ScheduleEntry& entry : schedules()) {
    for (ScheduleConfig config : testing::offered(entry, {2, 3}, {1, 2, 4, 6})) {
      if (config.chunks > std::max(2, entry.builtin->chunks)) {
        continue;
      }
      for (const int copies : {2, 3}) {
        config.copies = copies;
        SCOPED_TRACE(testing::describe(entry, config));
        const Schedule schedule = make_schedule(entry.name, config);
        const int64_t steps = schedule.flush ? 2 : 9;
        const LoweredSchedule lowered =
            lower(schedule, plan_of_positions(schedule), steps, chain_links(schedule.num_stages),
                  schedule.flush && copies == 2);
        run_on_threads(lowered, steps, steps);
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

TEST(SchedulesOnThreads, SeveralStagesOnARank) {
  for (const Schedule& schedule :
       {testing::chunked_schedule(), testing::v_schedule(), testing::bidirectional_schedule()}) {
    for (const int copies : {1, 2, 3}) {
      const Schedule copied = replicate(schedule, copies);
      const Plan plan = plan_of_positions(copied);
      const std::vector<StageLink> links = chain_links(copied.num_stages);
      for (const bool clips : {false, true}) {
        SCOPED_TRACE(::testing::Message() << to_string(schedule.period[0]) << " copies=" << copies);
        run_on_threads(lower(copied, plan, 1, links, clips), 4, 4);
        run_on_threads(lower(copied, plan, 1, links, clips), 4, 2);
      }
    }
  }
}

TEST(SchedulesOnThreads, HalvesAndRangesOfSeveralStages) {
  const Schedule schedule = testing::flush_schedule(
      {"0F0-1 2F0-1 2I0-1 0I0 0I1 2W0 0W0-1 2W1", "1F0 1F1 3F0-1 3B0 3B1 1I0-1 1W0-1"},
      {{0}, {1}, {0}, {1}}, 2);
  validate(schedule);
  run_on_threads(lower(schedule, 1), 5, 5);
  run_on_threads(lower(replicate(schedule, 2), 1), 5, 5);
}

TEST(SchedulesOnThreads, StepsOfSeveralMicrobatchesWithoutAFlush) {
  for (const char* policy :
       {"stash", "latest", "blend", "vertical_sync", "double_buffer", "vertical_newest"}) {
    for (const int copies : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << policy << " copies=" << copies);
      const Schedule schedule = replicate(testing::two_stage_schedule(policy), copies);
      validate(schedule);
      run_on_threads(lower(schedule, 12), 12, 12);
      run_on_threads(lower(schedule, 12), 12, 5);
    }
  }
}

TEST(SchedulesOnThreads, Evaluation) {
  for (int replicas = 1; replicas <= 3; ++replicas) {
    run_on_threads(lower_evaluation(testing::plan_of(3, replicas), 10), 1, 1);
  }
}

}  // namespace
}  // namespace millrace
