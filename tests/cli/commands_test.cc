// The light subcommands as functions: what they print as JSON is checked against closed forms and
// against what reads it.
#include "millrace/cli/commands.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/file.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/schedule_source.h"
#include "millrace/core/trace.h"
#include "millrace/planner/planner.h"
#include "millrace/schedule/registry.h"
#include "tests/base/caught.h"
#include "tests/cli/cli_testing.h"
#include "tests/report/markup.h"

namespace millrace::cli {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kProfile = "tests/cli/data/profile.json";
constexpr const char* kCluster = "tests/cli/data/cluster.toml";
constexpr const char* kPlan = "tests/cli/data/plan.json";

// What a command prints on stdout with --json.
template <typename Args>
Document answer_of(int (*command)(const Args&, Output&), const Args& args) {
  const Printed printed = printed_by([&] {
    Output output(true);
    return command(args, output);
  });
  EXPECT_EQ(printed.status, 0);
  return parse_json(printed.out, "stdout");
}

template <typename Args>
std::string text_of(int (*command)(const Args&, Output&), const Args& args) {
  return printed_by([&] {
           Output output(false);
           return command(args, output);
         })
      .out;
}

SimulateArgs named(const std::string& name, int ranks, int microbatches, const char* slots) {
  SimulateArgs args;
  args.source.name = name;
  args.source.ranks = ranks;
  args.source.microbatches = microbatches;
  args.slots = slots;
  return args;
}

TEST(ListTest, PrintsEveryScheduleWithItsFacts) {
  const Document answer = answer_of(run_list, ListArgs{"schedules"});
  EXPECT_EQ(answer.root.object.size(), 1U);
  std::vector<Reader> items = Reader(answer).objects("schedules");
  ASSERT_EQ(items.size(), schedules().size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(items[i].text("name"), schedules()[i].name);
    EXPECT_EQ(items[i].text("text"), schedules()[i].text);
    EXPECT_FALSE(items[i].text("formula").empty());
  }
  EXPECT_EQ(answer_of(run_list, ListArgs{}).root.object.size(), catalog().size());
}

TEST(SimulateTest, AgreesWithTheClosedFormsOfAllSchedules) {
  for (const ScheduleEntry& entry : schedules()) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const int microbatches : {1, 2, 4, 7, 16}) {
        const ScheduleConfig config{
            .num_ranks = ranks, .num_microbatches = microbatches, .chunks = entry.builtin->chunks};
        if (why_refused(entry, config)) {
          continue;
        }
        SCOPED_TRACE(fmt::format("{} {} x {}", entry.name, ranks, microbatches));
        const Schedule schedule = make_schedule(entry.name, config);
        SimulateArgs args = named(entry.name, ranks, microbatches, "1:2");
        if (!schedule.flush && microbatches == 1) {
          if (!entry.builtin->deals) {
            continue;  // one microbatch would mean one minibatch, and many mean a step of many
          }
          args.source.microbatches.reset();  // long enough for the steady period
        }
        const Document answer = answer_of(run_simulate, args);
        Reader reader(answer);
        const std::optional<SlotFormula> closed = entry.builtin->formula(config, 1, 2);
        EXPECT_EQ(answer.root.find("formula") != nullptr, closed.has_value());
        if (closed) {
          EXPECT_LE(reader.number("step_s"), closed->window_slots + 1e-9);
          EXPECT_EQ(answer.root.find("formula")->find("exact")->boolean, closed->exact);
          EXPECT_TRUE(!closed->exact ||
                      std::abs(reader.number("step_s") - closed->window_slots) < 1e-9);
        }
        if (closed && schedule.flush) {
          EXPECT_LE(reader.number("idle_slots"), closed->idle_slots + 1e-9);
          EXPECT_TRUE(!closed->exact ||
                      std::abs(reader.number("idle_slots") - closed->idle_slots) < 1e-9);
          EXPECT_THAT(reader.number("total_slots"),
                      DoubleNear(ranks * reader.number("step_s"), 1e-9));
        }
        EXPECT_THAT(reader.number("bubble_fraction"),
                    DoubleNear(reader.number("idle_slots") / reader.number("total_slots"), 1e-12));
        std::vector<Reader> parts = reader.objects("ranks");
        ASSERT_EQ(parts.size(), static_cast<std::size_t>(ranks));
        for (Reader& part : parts) {
          for (const char* key : {"busy_s", "bubble_fraction"}) {
            EXPECT_GE(part.number(key), 0);
          }
          for (const char* key : {"peak_stash_bytes", "peak_in_flight", "peak_weight_versions"}) {
            EXPECT_GE(part.integer(key), 0);
          }
        }
      }
    }
  }
}

TEST(SimulateTest, GPipeIdlesThreeElevenths) {
  // 4 stages, 8 microbatches: (S-1)/(M+S-1) = 3/11 whatever the slots; 33 = (8+3) x 3 slots.
  const Document answer = answer_of(run_simulate, named("gpipe", 4, 8, "1:2"));
  Reader reader(answer);
  EXPECT_EQ(reader.number("step_s"), 33);
  EXPECT_EQ(reader.number("idle_slots"), 36);
  EXPECT_EQ(reader.number("total_slots"), 132);
  EXPECT_THAT(reader.number("bubble_fraction"), DoubleNear(3.0 / 11.0, 1e-12));
}

TEST(SimulateTest, WithoutAFlushMicrobatchesAreMinibatchesThenDrained) {
  const Document answer = answer_of(run_simulate, named("pipedream", 4, 8, "1:1"));
  Reader reader(answer);
  EXPECT_FALSE(reader.boolean("flush"));
  EXPECT_EQ(reader.integer("num_steps"), 8);
  EXPECT_EQ(reader.number("total_slots"), 4 * (2 * 8 + 2 * 3));  // filled and drained once
  EXPECT_EQ(reader.number("step_s"), 2);
  EXPECT_EQ(reader.objects("ranks")[0].integer("peak_weight_versions"), 4);
}

TEST(SimulateTest, FewerMicrobatchesThanRanksGetANoteWithTheBubble) {
  const Document few = answer_of(run_simulate, named("1f1b", 4, 2, "1:2"));
  const std::vector<std::string> notes = Reader(few).texts("notes");
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], HasSubstr("60.0%"));  // 3 of 5
  EXPECT_THAT(text_of(run_simulate, named("1f1b", 4, 2, "1:2")), HasSubstr("note: 2 microbatches"));
  const Document enough = answer_of(run_simulate, named("1f1b", 4, 4, "1:2"));
  EXPECT_TRUE(Reader(enough).texts("notes").empty());
}

SimulateArgs with_profile() {
  SimulateArgs args;
  args.source.plan = kPlan;
  args.profile = kProfile;
  args.cluster = kCluster;
  return args;
}

TEST(SimulateTest, APlanIsTimedByItsProfile) {
  // Two stages of 20 ms a microbatch of 8 samples, four of them: (4 + 1) x 20 ms and messages of
  // 1 us each way.
  const Document answer = answer_of(run_simulate, with_profile());
  Reader reader(answer);
  EXPECT_THAT(reader.number("step_s"), DoubleNear(0.1, 1e-4));
  EXPECT_EQ(reader.integer("batch"), 32);
  EXPECT_FALSE(reader.has("formula"));
  SimulateArgs half = with_profile();
  half.batch = 16;
  const Document halved = answer_of(run_simulate, half);
  EXPECT_THAT(Reader(halved).number("step_s"), DoubleNear(0.05, 1e-4));
}

TEST(SimulateTest, WritesTheTrace) {
  TemporaryFolder folder;
  SimulateArgs args = with_profile();
  args.trace = folder.path("trace.json");
  const Document answer = answer_of(run_simulate, args);
  const Trace trace = trace_from(read_document(args.trace));
  EXPECT_EQ(trace.source, "simulated");
  EXPECT_EQ(trace.ranks.size(), 2U);
  EXPECT_EQ(trace.step_s, Reader(answer).number("step_s"));
}

TEST(SimulateTest, SaysWhichInputsGoTogether) {
  const auto refusal = [](const SimulateArgs& args) {
    return caught([&] {
             Output output(false);
             run_simulate(args, output);
           })
        .message();
  };
  SimulateArgs args = with_profile();
  args.cluster.clear();
  EXPECT_THAT(refusal(args), HasSubstr("--profile and --cluster go together"));
  args.profile.clear();
  EXPECT_THAT(refusal(args), HasSubstr("a plan needs --profile FILE and --cluster FILE"));
  args = with_profile();
  args.slots = "1:2";
  EXPECT_THAT(refusal(args), HasSubstr("exclude each other"));
  args = with_profile();
  args.source.plan.clear();
  args.source.name = "gpipe";
  args.source.ranks = 2;
  EXPECT_THAT(refusal(args), HasSubstr("a profile needs a plan"));
  args = named("gpipe", 2, 2, "1:2");
  args.batch = 3;
  EXPECT_THAT(refusal(args), HasSubstr("--batch goes with --profile"));
  EXPECT_THAT(refusal(SimulateArgs{}), HasSubstr("give a plan file, or --name"));
  for (const char* slots : {"1", "1:", ":2", "0:1", "-1:2", "a:b", "nan:1", "1:2:3", "inf:1"}) {
    EXPECT_THAT(refusal(named("gpipe", 2, 2, slots)), HasSubstr("expected two numbers above 0"))
        << slots;
  }
}

PlanArgs planned(bool straight) {
  PlanArgs args;
  args.profile = kProfile;
  args.cluster = kCluster;
  args.straight = straight;
  return args;
}

TEST(PlanTest, AnEvenChainTakesOneLayerAWorker) {
  // Case C46: four layers of 10 ms on four machines take about 10 ms a minibatch.
  const Document answer = answer_of(run_plan, planned(true));
  Reader reader(answer);
  EXPECT_EQ(reader.text("planner"), "pipedream");
  EXPECT_THAT(reader.number("minibatch_s"), DoubleNear(0.01, 1e-9));
  EXPECT_THAT(reader.number("one_worker_minibatch_s"), DoubleNear(0.04, 1e-9));
  EXPECT_THAT(reader.number("data_parallel_minibatch_s"), DoubleNear(0.01, 1e-9));
  EXPECT_THAT(reader.number("simulated_step_s"), DoubleNear(0.01, 1e-4));
  std::vector<Reader> stages = reader.objects("stages");
  ASSERT_EQ(stages.size(), 4U);
  EXPECT_THAT(stages[2].texts("layers"), ElementsAre("c"));
  EXPECT_THAT(stages[2].integers("ranks"), ElementsAre(2));
  EXPECT_EQ(reader.objects("memory").size(), 4U);
}

TEST(PlanTest, WhatItPrintsAndWritesCanBeReadBack) {
  TemporaryFolder folder;
  PlanArgs args = planned(true);
  args.output = folder.path("plan.json");
  const Document answer = answer_of(run_plan, args);
  const Plan written = plan_from(read_document(args.output));
  EXPECT_EQ(plan_from(answer), written);
  EXPECT_EQ(written.schedule, "pipedream");
  SimulateArgs simulate = with_profile();
  simulate.source.plan = args.output;
  const Document simulated = answer_of(run_simulate, simulate);
  EXPECT_EQ(Reader(simulated).number("step_s"), Reader(answer).number("simulated_step_s"));
}

TEST(PlanTest, ReplicasAreSimulatedWithAFlushAndWithout) {
  PlanArgs args = planned(false);
  args.stages = 2;
  args.replicas = {2};
  const Document answer = answer_of(run_plan, args);
  EXPECT_GT(Reader(answer).number("simulated_step_s"), 0);
  args.schedule = "1f1b";
  args.microbatches = 4;
  const Document flushed = answer_of(run_plan, args);
  EXPECT_GT(Reader(flushed).number("simulated_step_s"), 0);
}

TEST(PlanTest, SaysWhenDataParallelWinsAndWhoStaysIdle) {
  TemporaryFolder folder;
  std::string text = read_file(kProfile);
  for (std::size_t at = 0; (at = text.find("\"output_bytes\": 1000,", at)) != std::string::npos;) {
    text.replace(at, 21, "\"output_bytes\": 1000000000,");
  }
  PlanArgs args = planned(false);
  args.profile = folder.write("wide.json", text);
  args.stages = 2;
  args.replicas = {1};
  const Document answer = answer_of(run_plan, args);
  const std::vector<std::string> notes = Reader(answer).object("simulation").texts("notes");
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_THAT(notes[0], HasSubstr("plain data parallel wins here"));
  EXPECT_THAT(notes[1], HasSubstr("2 of 4 workers stay idle"));
}

TEST(PlanTest, OneWorkerThatIsFasterIsNamed) {
  TemporaryFolder folder;
  PlanArgs args = planned(false);
  // 1 kB/s between devices: any use of a second one costs seconds.
  args.cluster = folder.write("slow.toml", "[[level]]\nsize = 4\nbandwidth_bytes_per_s = 1e3\n");
  args.stages = 4;
  const Document forced = answer_of(run_plan, args);
  EXPECT_THAT(Reader(forced).object("simulation").texts("notes").at(0),
              HasSubstr("one worker wins here: 40.0 ms"));
  args.stages.reset();
  const Document free = answer_of(run_plan, args);
  EXPECT_EQ(Reader(free).objects("stages").size(), 1U);
  EXPECT_THAT(Reader(free).object("simulation").texts("notes"),
              ElementsAre(HasSubstr("3 of 4 workers stay idle: using them was not found")));
}

TEST(PlanTest, ABandwidthInAnotherUnitIsNoted) {
  TemporaryFolder folder;
  PlanArgs args = planned(true);
  args.cluster = folder.write("gb.toml", "[[level]]\nsize = 4\nbandwidth_bytes_per_s = 1.25\n");
  const Document answer = answer_of(run_plan, args);
  EXPECT_THAT(
      Reader(answer).object("simulation").texts("notes"),
      ::testing::Contains(HasSubstr("level[0].bandwidth_bytes_per_s is 1.25 bytes a second")));
}

TEST(PlanTest, AnotherObjectiveStandsBesideTheFormula) {
  PlanArgs args = planned(false);
  args.planner = "pipedream-released";
  const Document answer = answer_of(run_plan, args);
  EXPECT_GT(Reader(answer).number("objective_s"), 0);
  args.planner = "pipedream";
  const Document paper = answer_of(run_plan, args);
  EXPECT_EQ(Reader(paper).number("objective_s"), Reader(paper).number("minibatch_s"));
}

TEST(PlanTest, RefusesWhatNoPlanCanBe) {
  const auto refusal = [](const PlanArgs& args) {
    return caught([&] {
             Output output(false);
             run_plan(args, output);
           })
        .message();
  };
  PlanArgs args = planned(true);
  args.stages = 5;
  EXPECT_THAT(refusal(args), HasSubstr("at most 4 stages"));
  args = planned(true);
  args.workers = 9;
  EXPECT_THAT(refusal(args), HasSubstr("the cluster has 4"));
  args = planned(true);
  args.planner = "pipedreem";
  EXPECT_THAT(refusal(args), HasSubstr("did you mean `pipedream`?"));
  args = planned(true);
  args.microbatches = 4;  // pipedream takes one
  EXPECT_THAT(refusal(args), HasSubstr("takes one microbatch a step"));
}

ScheduleArgs drawn(const std::string& name, int ranks, int microbatches) {
  ScheduleArgs args;
  args.source.name = name;
  args.source.ranks = ranks;
  args.source.microbatches = microbatches;
  return args;
}

TEST(ScheduleTest, DrawsTheGridAndTheOrder) {
  EXPECT_EQ(text_of(run_schedule, drawn("1f1b", 2, 2)),
            "schedule 1f1b, policy flush: 2 ranks, 2 stages, 2 microbatches a step\n"
            "\n"
            "One column is 1 slot; F takes 1, B 2; . is idle\n"
            "rank 0 | 0F0 0F1 .   .   0B0 --- .   0B1 ---\n"
            "rank 1 | .   1F0 1B0 --- 1F1 1B1 --- .   .\n"
            "\n"
            "rank 0 (stage 0; idle 33.3%, stash 2): 0F0 0F1 0B0 0B1\n"
            "rank 1 (stage 1; idle 33.3%, stash 1): 1F0 1B0 1F1 1B1\n");
}

TEST(ScheduleTest, LoweredShowsCommunicationVersionsAndUpdates) {
  ScheduleArgs args = drawn("gpipe", 2, 1);
  args.lowered = true;
  EXPECT_EQ(text_of(run_schedule, args),
            "schedule gpipe, policy flush: 2 ranks, 2 stages, 1 microbatch a step\n"
            "\n"
            "rank 0 (stage 0): 0F0@0 0SEND_F0>1 0RECV_B0<1 0B0@0 0STEP0@1\n"
            "rank 1 (stage 1): 1RECV_F0<0 1F0@0 1B0@0 1SEND_B0>0 1STEP0@1\n");
  const Document answer = answer_of(run_schedule, args);
  std::vector<Reader> ranks = Reader(answer).objects("ranks");
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[1].integers("stages"), std::vector<int64_t>{1});
  EXPECT_EQ(ranks[1].integers("replicas"), std::vector<int64_t>{0});
  EXPECT_THAT(ranks[1].text("actions"), HasSubstr("1SEND_B0>0"));
}

TEST(ScheduleTest, RanksOfSeveralStagesAreNamed) {
  TemporaryFolder folder;
  Schedule schedule;
  schedule.name = "by-hand";
  schedule.num_ranks = 2;
  schedule.num_stages = 3;
  schedule.num_microbatches = 2;
  schedule.period_microbatches = 2;
  schedule.stage_ranks = {{0}, {1}, {0}};
  schedule.period = {parse_actions("0F0 0F1 2F0 2B0 2F1 2B1 0B0 0B1"),
                     parse_actions("1F0 1F1 1B0 1B1")};
  ScheduleArgs args;
  args.source.file = folder.write("schedule.json", to_json(to_value(schedule)));
  args.lowered = true;
  const std::string text = text_of(run_schedule, args);
  EXPECT_THAT(text, HasSubstr("rank 0 (stages 0, 2): 0F0@0 0SEND_F0>1"));
  EXPECT_THAT(text, HasSubstr("rank 1 (stage 1): 1RECV_F0<0"));
  const Document drawn_answer = answer_of(run_schedule, args);
  std::vector<Reader> lists = Reader(drawn_answer).objects("ranks");
  ASSERT_EQ(lists.size(), 2U);
  EXPECT_THAT(lists[0].integers("stages"), ElementsAre(0, 2));
  EXPECT_THAT(lists[0].integers("replicas"), ElementsAre(0, 0));

  SimulateArgs simulated;
  simulated.source.file = args.source.file;
  simulated.slots = "1:2";
  const Document answer = answer_of(run_simulate, simulated);
  std::vector<Reader> ranks = Reader(answer).objects("ranks");
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_THAT(ranks[0].integers("stages"), ElementsAre(0, 2));
  EXPECT_THAT(ranks[1].integers("stages"), ElementsAre(1));
  EXPECT_THAT(text_of(run_simulate, simulated), HasSubstr("0, 2"));
}

TEST(ScheduleTest, ChunksGoWithAName) {
  ScheduleArgs args = drawn("1f1b", 2, 2);
  args.source.chunks = 2;
  const auto refusal = [&] {
    return caught([&] {
             Output output(false);
             run_schedule(args, output);
           })
        .message();
  };
  EXPECT_THAT(refusal(), HasSubstr("found chunks = 2"));
  args.source = {};
  args.source.plan = kPlan;
  args.source.chunks = 2;
  EXPECT_THAT(refusal(), HasSubstr("--chunks goes with --name"));
}

TEST(ScheduleTest, JsonIsTheArtifactThatFileTakes) {
  TemporaryFolder folder;
  for (const ScheduleEntry& entry : schedules()) {
    if (!entry.builtin->deals) {
      continue;  // several stages a rank, split backwards, or a policy of its own
    }
    ScheduleArgs args = drawn(entry.name, 3, 4);
    args.output = folder.path("schedule.json");
    printed_by([&] {
      Output output(true);
      return run_schedule(args, output);
    });
    ScheduleArgs from_file;
    from_file.source.file = args.output;
    const Document answer = answer_of(run_schedule, from_file);
    const bool flush = schedule_from(answer).flush;
    EXPECT_EQ(schedule_from(answer), make_schedule(entry.name, {3, flush ? 4 : 1}));
  }
}

TEST(ScheduleTest, TakesAFileInTheScheduleLanguage) {
  ScheduleArgs args;
  args.source.file = "examples/schedules/1f1b-interleaved.sched";
  args.source.ranks = 4;
  args.source.microbatches = 8;
  args.source.chunks = 3;
  EXPECT_EQ(
      schedule_from(answer_of(run_schedule, args)),
      make_schedule("1f1b-interleaved", {.num_ranks = 4, .num_microbatches = 8, .chunks = 3}));
  SimulateArgs simulated;
  simulated.source = args.source;
  simulated.slots = "1:2";
  const Document answer = answer_of(run_simulate, simulated);
  EXPECT_EQ(Reader(answer).number("step_s"), 81);  // (VM + P - 1) x 3

  args.source.policy = "stash";
  const auto refusal = [&] {
    return std::string(caught([&] {
                         Output output(false);
                         run_schedule(args, output);
                       }).what());
  };
  EXPECT_THAT(refusal(), HasSubstr("does not take weight policy `stash`"));
  args.source.ranks = 0;
  EXPECT_THAT(refusal(), HasSubstr("--file FILE.sched needs --ranks N"));

  TemporaryFolder folder;
  args.source = {};
  args.source.ranks = 2;
  args.source.file = folder.write("wrong.sched", "schedule \"wrong\"\nplacement lineer\n");
  EXPECT_THAT(refusal(), HasSubstr("wrong.sched:2: column 11: expected a placement"));
  // The size that was asked for, not another one that was tried.
  args.source.microbatches = 4;
  args.source.file = folder.write(
      "short.sched",
      "schedule \"short\" placement linear order { repeat M { F(r) } repeat M - 1 { B(r) } }");
  EXPECT_THAT(refusal(), HasSubstr("short.sched:1: column 54: the order for P = 2, M = 4"));
}

TEST(ScheduleTest, AutoWritesWhatSimulateReproduces) {
  TemporaryFolder folder;
  ScheduleArgs args;
  args.source.name = "auto";
  args.source.ranks = 2;
  args.source.microbatches = 3;
  args.profile = kProfile;
  args.cluster = kCluster;
  args.output = folder.path("my.sched");
  const Document found = answer_of(run_search, args);
  Reader answer(found);
  EXPECT_LE(answer.number("step_s"), answer.number("best_builtin_s"));
  EXPECT_EQ(answer.text("plan"), folder.path("my.plan.json"));

  SimulateArgs simulated;
  simulated.source.plan = answer.text("plan");
  simulated.profile = kProfile;
  simulated.cluster = kCluster;
  const Document again = answer_of(run_simulate, simulated);
  EXPECT_DOUBLE_EQ(Reader(again).number("step_s"), answer.number("step_s"));

  const auto refusal = [&] {
    return caught([&] {
             Output output(false);
             run_schedule(args, output);
           })
        .message();
  };
  args.output = "my.json";
  EXPECT_THAT(refusal(), HasSubstr("ends in .sched, found `my.json`"));
  args.output = "";
  EXPECT_THAT(refusal(), HasSubstr("--name auto needs -o FILE.sched"));
  args.source.chunks = 2;
  args.output = folder.path("my.sched");
  EXPECT_THAT(refusal(), HasSubstr("--chunks does not go with --name auto"));
  args.source = drawn("1f1b", 2, 2).source;
  EXPECT_THAT(refusal(), HasSubstr("--profile goes with --name auto"));
}

// Every schedule: a lane a rank, a box each action, bubble and stash as the simulator says.
TEST(ScheduleTest, PicturesHoldLanesBoxesAndFacts) {
  for (const ScheduleEntry& entry : schedules()) {
    SCOPED_TRACE(entry.name);
    const int microbatches = entry.name == "2bp-1f1b-1" ? 4 : 8;
    ScheduleArgs args = drawn(entry.name, 4, microbatches);
    const ChosenSchedule chosen = choose_schedule(args.source, Purpose::kDraw);
    std::size_t actions = 0;
    for (const ActionList& list : chosen.lowered.ranks) {
      actions += static_cast<std::size_t>(std::count_if(
          list.begin(), list.end(), [](const Action& action) { return is_compute(action.kind); }));
    }
    for (const char* form : {"svg", "html"}) {
      args.draw = form;
      const std::string picture = text_of(run_schedule, args);
      EXPECT_EQ(picture, text_of(run_schedule, args)) << "the same each time";
      EXPECT_EQ(test::count(picture, "<title>") - 1, actions);
      EXPECT_EQ(test::count(picture, "class=\"fact\""), 8U);
      for (int rank = 0; rank < 4; ++rank) {
        EXPECT_THAT(picture, HasSubstr(fmt::format(">rank {}, stage", rank)));
      }
      EXPECT_THAT(picture, HasSubstr(">forward (F)</text>"));
      EXPECT_EQ(picture.find("update, border of a step") != std::string::npos,
                !chosen.schedule.flush);
      const std::size_t begin = picture.find(form == std::string("svg") ? "<svg" : "<div class");
      const std::size_t end = picture.rfind("</svg>") + 6;
      ASSERT_LT(begin, end);
      EXPECT_TRUE(test::is_nested(picture.substr(begin, end - begin)));
      EXPECT_LT(picture.size(), 100'000U);
    }
  }
}

TEST(ScheduleTest, LegendsNameChunksAndDirections) {
  const auto svg_of = [](const char* name) {
    ScheduleArgs args = drawn(name, 4, 8);
    args.draw = "svg";
    return text_of(run_schedule, args);
  };
  EXPECT_THAT(svg_of("zb-v"), HasSubstr(">chunk 1</text>"));
  EXPECT_THAT(svg_of("zb-v"), HasSubstr(">weight gradient (W)</text>"));
  EXPECT_THAT(svg_of("chimera"), HasSubstr(">down</text>"));
  EXPECT_THAT(svg_of("chimera"), HasSubstr(">up</text>"));
  EXPECT_THAT(svg_of("bitpipe"), HasSubstr(">up, chunk 1</text>"));
  EXPECT_THAT(svg_of("1f1b"), Not(HasSubstr("chunk")));
  EXPECT_THAT(svg_of("chimera"), HasSubstr("bubble 14.3% of 28 slots"));
}

TEST(ScheduleTest, LargePicturesStayFilesOfASaneSize) {
  for (const char* name : {"1f1b", "chimera", "zb-v", "1f1b-interleaved", "timeprest"}) {
    ScheduleArgs args = drawn(name, 16, 64);
    args.draw = "svg";
    EXPECT_LT(text_of(run_schedule, args).size(), 600'000U) << name;
    args.draw = "html";
    EXPECT_LT(text_of(run_schedule, args).size(), 1'000'000U) << name;
  }
}

TEST(SimulateTest, WritesAPictureOfSecondsOrSlots) {
  TemporaryFolder folder;
  SimulateArgs args = named("1f1b", 2, 4, "1:2");
  args.draw = "svg";
  args.output = folder.path("picture.svg");
  EXPECT_THAT(text_of(run_simulate, args), HasSubstr("picture written to " + args.output));
  EXPECT_THAT(read_file(args.output), HasSubstr("simulated: bubble 20.0% of 15 slots"));
  SimulateArgs planned;
  planned.source.plan = kPlan;
  planned.profile = kProfile;
  planned.cluster = kCluster;
  planned.draw = "html";
  planned.output = folder.path("picture.html");
  text_of(run_simulate, planned);
  EXPECT_THAT(read_file(planned.output), HasSubstr(" ms from "));
}

TEST(ImportTest, AGraphOfPipeDreamBecomesAProfileFile) {
  TemporaryFolder folder;
  ProfileArgs args;
  args.from =
      folder.write("net.graph.txt",
                   "a -- Linear(1, 2) -- forward_compute_time=1.000, backward_compute_time=2.000, "
                   "activation_size=8.000, parameter_size=16.000\n"
                   "b -- ReLU() -- forward_compute_time=1.000, backward_compute_time=0.000, "
                   "activation_size=8.000, parameter_size=0.000\n"
                   "\ta -- b\n");
  args.output = folder.path("profile.json");
  EXPECT_THAT(text_of(run_import, args), HasSubstr("--samples N does"));
  args.samples = 64;
  EXPECT_THAT(text_of(run_import, args),
              HasSubstr("net: 2 layers, 1 edges, 4.000 ms a pass over 64 samples"));
  const Profile profile = profile_from(read_document(args.output));
  EXPECT_EQ(profile.model, "net");
  EXPECT_EQ(profile.samples_per_microbatch, 64);
  EXPECT_EQ(layer_names(profile), (std::vector<std::string>{"a:Linear", "b:ReLU"}));
  EXPECT_EQ(profile_from(answer_of(run_import, args)), profile);
}

TEST(ScheduleTest, APlansReplicasAreWorldRanks) {
  TemporaryFolder folder;
  ScheduleArgs args;
  args.source.plan =
      folder.write("plan.json",
                   R"({"schedule": "gpipe", "microbatches": 2, "workers": 3, "idle_ranks": [1],
          "stages": [{"layers": ["a"], "ranks": [0, 2]}]})");
  const std::string text = text_of(run_schedule, args);
  EXPECT_THAT(text, HasSubstr("rank 0 (stage 0, replica 0; idle 0.0%, stash 2): 0F0"));
  EXPECT_THAT(text, HasSubstr("rank 1 (idle):"));
  EXPECT_THAT(text, HasSubstr("rank 2 (stage 0, replica 1; idle 0.0%, stash 2): 0F1"));
}

TEST(ScheduleTest, RefusesOtherDrawingsAndSources) {
  const auto refusal = [](const ScheduleArgs& args) {
    return caught([&] {
      Output output(false);
      run_schedule(args, output);
    });
  };
  ScheduleArgs args = drawn("1f1b", 2, 2);
  args.draw = "htm";
  EXPECT_EQ(refusal(args).code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refusal(args).message(), HasSubstr("did you mean `html`"));
  EXPECT_THAT(refusal(args).message(), HasSubstr("use text, svg or html"));
  args = drawn("1f1b", 2, 2);
  args.source.plan = kPlan;
  EXPECT_THAT(refusal(args).message(), HasSubstr("exclude each other"));
  args = drawn("1f1b", 0, 2);
  EXPECT_THAT(refusal(args).message(), HasSubstr("needs --ranks"));
  args = drawn("1f1b", 1000, 100000);
  EXPECT_THAT(refusal(args).message(), HasSubstr("too many to show"));
  args = drawn("1f2b", 2, 2);
  EXPECT_THAT(refusal(args).message(), HasSubstr("did you mean `1f1b`?"));
}

TEST(ScheduleTest, AScheduleThatCannotRunIsRefusedWithItsGrid) {
  TemporaryFolder folder;
  ScheduleArgs args;
  Value schedule = to_value(make_schedule("gpipe", {2, 2}));
  // Rank 1 wants the second microbatch's backward before its forward.
  Value lists = Value::list();
  lists.push(Value::of("0F0 0F1 0B0 0B1"));
  lists.push(Value::of("1F0 1B1 1F1 1B0"));
  ASSERT_NE(schedule.find("period"), nullptr);
  schedule.set("period", lists);
  args.source.file = folder.write("bad.json", to_json(schedule));
  const Error error = caught([&] {
    Output output(false);
    run_schedule(args, output);
  });
  EXPECT_EQ(error.file(), args.source.file);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_THAT(error.message(), HasSubstr(">1B1<"));
}

}  // namespace
}  // namespace millrace::cli
