#include "millrace/schedule/language/language.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "millrace/base/error.h"
#include "millrace/base/file.h"
#include "millrace/base/random.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/validate.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::string example(const std::string& name) { return "examples/schedules/" + name + ".sched"; }

Schedule made(const std::string& text, const ScheduleConfig& config) {
  const auto written = written_schedule(text, "my.sched");
  EXPECT_EQ(written->builtin.offers(config), std::nullopt);
  return written->builtin.make(config);
}

// What the text is refused with, as users see it.
std::string refusal(const std::string& text, const ScheduleConfig& config = {2, 2}) {
  try {
    const auto written = written_schedule(text, "my.sched");
    if (const auto reason = written->builtin.offers(config)) {
      return *reason;
    }
    written->builtin.make(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

const std::string kHead = "schedule \"mine\"\nplacement linear\n";

TEST(ScheduleLanguage, ExamplesAreTheBuiltinsAtEverySize) {
  int compared = 0;
  for (const char* name :
       {"gpipe", "1f1b", "1f1b-interleaved", "breadth-first", "chimera", "zb-h1"}) {
    const ScheduleEntry& file = find_schedule(example(name));
    const ScheduleEntry& builtin = find_schedule(name);
    for (int p = 2; p <= 8; ++p) {
      for (int m = 1; m <= 16; ++m) {
        for (int v = 1; v <= 3; ++v) {
          const ScheduleConfig config{.num_ranks = p, .num_microbatches = m, .chunks = v};
          const bool refused = why_refused(builtin, config).has_value();
          EXPECT_EQ(why_refused(file, config).has_value(), refused) << name << p << m << v;
          if (refused) {
            continue;
          }
          ++compared;
          const Schedule expected = make_schedule(name, config);
          EXPECT_EQ(make_schedule(example(name), config), expected)
              << name << " P=" << p << " M=" << m << " V=" << v;
        }
      }
    }
    EXPECT_EQ(file.builtin->chunks, builtin.builtin->chunks);
    EXPECT_EQ(file.builtin->directions, builtin.builtin->directions);
  }
  EXPECT_GT(compared, 900);
}

TEST(ScheduleLanguage, ExamplesAreShort) {
  for (const char* name :
       {"gpipe", "1f1b", "1f1b-interleaved", "breadth-first", "chimera", "zb-h1", "pipedream"}) {
    const std::string text = read_file(example(name));
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 25) << name;
  }
}

TEST(ScheduleLanguage, StashIsThatOfTheBuiltins) {
  for (const char* name : {"gpipe", "1f1b", "1f1b-interleaved", "breadth-first", "zb-h1"}) {
    for (const int m : {1, 3, 8}) {
      const ScheduleConfig config{.num_ranks = 4, .num_microbatches = m};
      EXPECT_EQ(find_schedule(example(name)).builtin->peak_stash(config).ranks,
                find_schedule(name).builtin->peak_stash(config).ranks)
          << name << m;
    }
  }
}

TEST(ScheduleLanguage, WithoutAFlushItIsPipedream) {
  for (int p = 1; p <= 6; ++p) {
    const Schedule expected = make_schedule("pipedream", {p, 1});
    EXPECT_EQ(make_schedule(example("pipedream"), {p, 1}), expected);
    EXPECT_EQ(make_schedule(example("pipedream"), {p, 1}, "latest").policy, "latest");
  }
  const std::string text =
      "schedule \"pipedream-2bw\" placement linear flush no policy double_buffer\n"
      "forwards { repeat M { F(r) } } backwards { repeat M { B(r) } } warm_up P - 1 - r";
  for (int p = 2; p <= 5; ++p) {
    EXPECT_EQ(made(text, {p, 6}), make_schedule("pipedream-2bw", {p, 6}));
  }
}

TEST(ScheduleLanguage, WrittenOutReadsBack) {
  for (const ScheduleEntry& entry : schedules()) {
    for (const int m : {4, 8}) {
      const ScheduleConfig config{.num_ranks = 4, .num_microbatches = m};
      if (why_refused(entry, config) || !has_flush(*entry.builtin)) {
        continue;
      }
      const Schedule schedule = make_schedule(entry.name, config);
      const auto written = written_schedule(schedule_text(schedule, "all of it"), "my.sched");
      EXPECT_EQ(written->builtin.make(config), schedule) << entry.name;
      EXPECT_EQ(written->builtin.ranks, 4);
      EXPECT_EQ(written->builtin.stages, schedule.num_stages);
      EXPECT_NE(written->builtin.offers({.num_ranks = 4, .num_microbatches = m + 1}), std::nullopt);
      EXPECT_NE(written->builtin.offers({.num_ranks = 2, .num_microbatches = m}), std::nullopt);
    }
  }
}

TEST(ScheduleLanguage, PlacementsAndWeights) {
  const std::string v =
      "schedule \"v\" placement v order { repeat M { F(r) F(2*P - 1 - r) } "
      "repeat M { B(2*P - 1 - r) B(r) } }";
  const Schedule there_and_back = made(v, {2, 1});
  EXPECT_EQ(there_and_back.stage_ranks, (std::vector<std::vector<int>>{{0}, {1}, {1}, {0}}));
  const std::string same =
      "schedule \"v\" placement explicit { for k in 0..P { k } for k in 0..P { P - 1 - k } }\n"
      "order { repeat M { F(r) F(2*P - 1 - r) } repeat M { B(2*P - 1 - r) B(r) } }";
  EXPECT_EQ(refusal(same, {1, 2}), "nothing");
  EXPECT_EQ(made(same, {1, 2}).period, made(v, {1, 2}).period);

  const std::string whole =
      kHead + "forwards { repeat M { F(r) } } backwards { repeat M { B(r) } } warm_up M\n";
  EXPECT_EQ(to_string(made(whole + "split weights last", {1, 3}).period[0]),
            "0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1 0W2");
  EXPECT_EQ(to_string(made(whole + "split weights together", {1, 3}).period[0]),
            "0F0 0F1 0F2 0I0 0I1 0I2 0W0-2");
  EXPECT_EQ(to_string(made(whole + "split", {1, 2}).period[0]), "0F0 0F1 0I0 0W0 0I1 0W1");
  EXPECT_EQ(to_string(made(kHead + "forwards { repeat M { F(r) } } backwards { repeat M { B(r) } }"
                                   " warm_up 1 interleave 2:1",
                           {1, 4})
                          .period[0]),
            "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
  EXPECT_EQ(to_string(made(kHead + "split list { times 1:1:1 score F = 0 - i score I = 1 "
                                   "score W = -9 }",
                           {1, 2})
                          .period[0]),
            "0F0 0I0 0F1 0I1 0W0 0W1");
}

TEST(ScheduleLanguage, Expressions) {
  const auto value = [](const std::string& expression) {
    const std::string text = kHead + "let x = " + expression +
                             "\nrequire x == 0 \"x\"\nforwards { F(r, x) F(r, 1 - x) } "
                             "backwards { repeat M { B(r) } }";
    return refusal(text, {1, 2}) == "nothing" || text.empty();
  };
  EXPECT_TRUE(value("2 + 3 * 4 - 14"));
  EXPECT_TRUE(value("(2 + 3) * 4 - 20"));
  EXPECT_TRUE(value("7 - 2 - 5"));
  EXPECT_TRUE(value("-7 / 2 + 4"));
  EXPECT_TRUE(value("-7 mod 3 - 2"));
  EXPECT_TRUE(value("min(3, 0, 2) + max(-1, -2) + 1"));
  EXPECT_TRUE(value("if M == 2 and not (P > 1) then 0 else 1"));
  EXPECT_TRUE(value("1 < 1 or 2 <= 1 or 1 >= 2 or 1 != 1"));
  EXPECT_FALSE(value("1"));
}

TEST(ScheduleLanguage, SyntaxIsRefusedAtItsPlace) {
  EXPECT_THAT(refusal("schedul \"x\""), HasSubstr("my.sched:1: column 1: expected `schedule"));
  EXPECT_THAT(refusal("schedule x"), HasSubstr("my.sched:1: column 10: expected the schedule's"));
  EXPECT_THAT(refusal("schedule \"x\"\nplacement lopped"),
              HasSubstr("my.sched:2: column 11: expected a placement: linear, looped, v, "
                        "bidirectional, explicit, found `lopped`; did you mean `looped`?"));
  EXPECT_THAT(refusal("schedule \"x\"\n  forwrds { F(r) }"),
              HasSubstr("my.sched:2: column 3: expected one of"));
  EXPECT_THAT(refusal("schedule \"x\"\n  forwrds { F(r) }"), HasSubstr("did you mean `forwards`?"));
  EXPECT_THAT(refusal("schedule \"x\" forwards { F(r) } backwards { B(r) }\n"),
              HasSubstr("my.sched:2: column 1: the placement is missing; add `placement linear`"));
  EXPECT_THAT(refusal(kHead), HasSubstr("the order is missing"));
  EXPECT_THAT(refusal(kHead + "let x = 1"), HasSubstr("the order is missing for P = 2, M = 2"));
  EXPECT_THAT(
      refusal(kHead + "forwards { F(q) }"),
      HasSubstr("my.sched:3: column 14: expected a number, or a name that has a value here, "
                "found `q`"));
  EXPECT_THAT(refusal(kHead + "forwards { B(r) }"), HasSubstr("expected one of F, for, repeat"));
  EXPECT_THAT(refusal(kHead + "forwards { F(r }"), HasSubstr("column 16: expected `)`"));
  EXPECT_THAT(refusal(kHead + "ranks 0"), HasSubstr("column 7: expected how many ranks, a number"));
  EXPECT_THAT(refusal(kHead + "ranks 2 ranks 2"), HasSubstr("column 9: `ranks` stands here a sec"));
  EXPECT_THAT(refusal(kHead + "let P = 1"), HasSubstr("`P` has a meaning of its own"));
  EXPECT_THAT(refusal(kHead + "let x = 1f1b"), HasSubstr("column 9: expected a whole number"));
  EXPECT_THAT(refusal(kHead + "let x = ?"), HasSubstr("column 9: `?` has no meaning here"));
  EXPECT_THAT(refusal(kHead + "require r == 1 \"x\""), HasSubstr("`r` differs by rank"));
  EXPECT_THAT(refusal(kHead + "let x = r\nwhen x == 1 { }"), HasSubstr("`x` differs by rank"));
  EXPECT_THAT(refusal("schedule \"x\" \"open"), HasSubstr("expected a closing \""));
  EXPECT_THAT(refusal(kHead + "policy stash"), HasSubstr("does not fit `flush yes`"));
  EXPECT_THAT(refusal(kHead + "flush no forwards { F(r) }"), HasSubstr("names its weight policy"));
  EXPECT_THAT(refusal(kHead + "policy stsh"), HasSubstr("did you mean `stash`?"));
  EXPECT_THAT(refusal(kHead + "actions { rank 0 \"0F0 0X0\" }"), HasSubstr("column 23: "));
  EXPECT_THAT(refusal(kHead + "actions { rank 1 \"0F0\" }"), HasSubstr("expected the next rank"));
  EXPECT_THAT(refusal(kHead + "let x = " + std::string(100, '(')), HasSubstr("levels deep"));
  EXPECT_THAT(refusal(kHead + "let x = " + std::string(100, '-')), HasSubstr("levels deep"));
}

TEST(ScheduleLanguage, OrdersThatDoNotHoldAreRefusedAtTheirPlace) {
  const std::string backwards = " backwards { repeat M { B(r) } } warm_up M";
  EXPECT_THAT(refusal(kHead + "forwards { F(r) }\n" + backwards),
              HasSubstr("my.sched:4: column 25: the order for P = 2, M = 2, V = 1 does not hold: "
                        "rank 0, action 2 (0B1)"));
  EXPECT_THAT(refusal(kHead + "forwards { repeat M + 1 { F(r) } }\n" + backwards),
              HasSubstr("my.sched:3: column 27: one F of stage 0 too many: all 2 microbatches"));
  EXPECT_THAT(
      refusal(kHead + "forwards { F(r + 1) }\n" + backwards),
      HasSubstr("my.sched:3: column 16: expected a stage of rank 0, which holds 0, found 1"));
  EXPECT_THAT(refusal(kHead + "forwards { F(r, M) }\n" + backwards),
              HasSubstr("column 17: expected a microbatch in 0..1, found 2 (rank 0, P = 2"));
  EXPECT_THAT(refusal(kHead + "forwards { }\n backwards { }"),
              HasSubstr("my.sched:3: column 1: the order for P = 2"));
  // Backwards before the next stage could have run theirs.
  EXPECT_THAT(refusal(kHead + "order { F(r, 0)\nif r == 0 { B(r, 0) F(r, 1) B(r, 1) } else {\n"
                              "F(r, 1) B(r, 0) B(r, 1) } }"),
              HasSubstr("my.sched:4: column 13: the order for P = 2, M = 2, V = 1 does not hold: "
                        "deadlock: rank 0 at 0B0 waits for B of stage 1"));
  EXPECT_THAT(refusal(kHead + "forwards { repeat M { F(r) } } warm_up 0-1" +
                      " backwards { repeat M { B(r) } }"),
              HasSubstr("expected a warm-up of 0 forwards or more, found -1 (rank 0"));
  EXPECT_THAT(refusal(kHead + "forwards { repeat M / (r - 1) { F(r) } }" + backwards, {2, 1}),
              HasSubstr("divided by 0"));
  EXPECT_THAT(refusal(kHead + "let x = 9223372036854775807 + P\nforwards { F(r) }"),
              HasSubstr("column 29: the result is beyond 64 bits"));
  EXPECT_THAT(refusal(kHead + "forwards { repeat 999999999999 { } }" + backwards),
              HasSubstr("turns of loops"));
  EXPECT_THAT(refusal(kHead + "forwards { repeat M { F(r) } } in_flight P - r" + backwards, {2, 4}),
              HasSubstr("my.sched:3: column 23: 0F2 on rank 0 is number 3 in flight; in_flight "
                        "allows 2"));
  EXPECT_THAT(refusal(kHead + "forwards { repeat M { F(r) } }"),
              HasSubstr("expected `backwards` beside `forwards`"));
  EXPECT_THAT(refusal(kHead + "order { } list { }"), HasSubstr("line 3 says the order already"));
  EXPECT_THAT(refusal(kHead + "warm_up 1 warm_up 2"), HasSubstr("stands in line 3 already"));
  EXPECT_THAT(refusal(kHead + "list { score F = 1 }"), HasSubstr("expected a score of B"));
  EXPECT_THAT(refusal(kHead + "list { score F = 1 score B = 1 score W = 1 }"),
              HasSubstr("need `split`"));
  EXPECT_THAT(refusal(kHead + "in_flight 0 list { score F = 1 score B = 1 }"),
              HasSubstr("expected at least 1 in flight, found 0"));
  EXPECT_THAT(refusal("schedule \"x\" placement looped chunks 2 in_flight 1\n"
                      "list { score F = 0 - s score B = 1 }"),
              HasSubstr("every rank waits for another"));
  EXPECT_THAT(refusal("schedule \"x\" placement explicit { 0 2 } order { }"),
              HasSubstr("column 37: stage 1: expected a rank in 0..1, found 2"));
  EXPECT_THAT(refusal("schedule \"x\" placement explicit { 0 1 } { 1 } order { }"),
              HasSubstr("as many stages in every block"));
}

TEST(ScheduleLanguage, OperationsAreCarriedAndRefused) {
  const std::string order =
      "forwards { repeat M { F(r) } } backwards { repeat M { B(r) } } warm_up M";
  EXPECT_THAT(
      refusal(kHead + "operation offload after F\n" + order),
      HasSubstr("my.sched:3: column 1: operation offload after F can be written, and nothing "
                "here executes it yet"));
  const auto written = written_schedule(kHead + "recompute stage\n" + order, "my.sched");
  EXPECT_EQ(written->builtin.recompute, Recompute::kStage);
  EXPECT_THAT(refusal(kHead + "recompute stages\n" + order), HasSubstr("did you mean `stage`?"));
}

TEST(ScheduleLanguage, SizesAreRefusedInWords) {
  EXPECT_THAT(*why_refused(find_schedule(example("gpipe")), {.num_ranks = 2, .chunks = 2}),
              HasSubstr("chunks = 2"));
  EXPECT_THAT(*why_refused(find_schedule(example("chimera")), {4, 5}),
              HasSubstr("half of an even number of at least P microbatches (found 5 microbatches"));
  EXPECT_THAT(*why_refused(find_schedule(example("chimera")), {3, 4}), HasSubstr("even number"));
  EXPECT_THAT(refusal("schedule \"x\" placement linear", {1, 1}), HasSubstr("order is missing"));
}

TEST(ScheduleLanguage, PlansFindTheirShape) {
  Plan plan;
  plan.schedule = example("1f1b-interleaved");
  plan.microbatches = 4;
  plan.workers = 4;
  for (int stage = 0; stage < 4; ++stage) {
    plan.stages.push_back({{"layer" + std::to_string(stage)}, {stage % 2, 2 + stage % 2}});
  }
  const ScheduleConfig config = schedule_config(plan);
  EXPECT_EQ(config.num_ranks, 2);
  EXPECT_EQ(config.chunks, 2);
  EXPECT_EQ(config.copies, 2);
  EXPECT_EQ(make_schedule(plan.schedule, config).num_microbatches, 8);
  EXPECT_NO_THROW(lower(make_schedule(plan.schedule, config), plan, 1));
}

// Both directions of a written-out order, and ranks with different numbers of stages.
TEST(ScheduleLanguage, PlansOfOneSizeFindTheirShape) {
  const std::string file = ::testing::TempDir() + "/one_size.sched";
  Schedule uneven = make_schedule("gpipe", {3, 2});
  uneven.num_ranks = 2;
  uneven.stage_ranks = {{0}, {0}, {1}};
  uneven.period[0].insert(
      uneven.period[0].begin() + 2,
      {Action::of(ActionKind::kForward, 1, 0), Action::of(ActionKind::kForward, 1, 1),
       Action::of(ActionKind::kBackward, 1, 0), Action::of(ActionKind::kBackward, 1, 1)});
  uneven.period = {uneven.period[0], uneven.period[2]};
  uneven.prologue.resize(2);
  uneven.epilogue.resize(2);
  for (const Schedule& schedule : {make_schedule("chimera", {4, 4}), uneven}) {
    write_file_atomically(file, schedule_text(schedule));
    Plan plan;
    plan.schedule = file;
    plan.microbatches = schedule.num_microbatches;
    plan.workers = schedule.num_ranks;
    for (const std::vector<int>& ranks : schedule.stage_ranks) {
      plan.stages.push_back({{"layer" + std::to_string(plan.stages.size())}, ranks});
    }
    EXPECT_EQ(make_schedule(file, schedule_config(plan)), schedule);
    plan.stages.pop_back();
    try {
      schedule_config(plan);
      ADD_FAILURE() << "a stage is missing";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("is written for "));
    }
  }
  ParallelConfig parallel;
  parallel.schedule = file;
  parallel.workers = 4;
  parallel.replicas = {2};
  EXPECT_EQ(schedule_config(parallel).copies, 2);
  EXPECT_EQ(schedule_config(parallel).num_ranks, 2);
  parallel.replicas = {3};
  EXPECT_THROW(schedule_config(parallel), Error);
  parallel.replicas = {};
  parallel.stages = 2;
  EXPECT_THROW(schedule_config(parallel), Error);
}

// Damaged files are refused or make a schedule that holds; nothing else happens.
TEST(ScheduleLanguage, DamagedFilesAreRefusedOrHold) {
  int refused = 0;
  int held = 0;
  for (const char* name : {"1f1b-interleaved", "chimera", "zb-h1", "pipedream"}) {
    const std::string whole = read_file(example(name));
    const RandomKey key = RandomKey(7).with(name);
    for (uint64_t round = 0; round < 500; ++round) {
      std::string text = whole;
      const RandomKey draws = key.with(round);
      for (uint64_t change = 0; change <= draws.below(0, 3); ++change) {
        const auto at = draws.below(4 * change + 1, text.size());
        const auto size = 1 + draws.below(4 * change + 2, 6);
        switch (draws.below(4 * change + 3, 3)) {
          case 0:
            text.erase(at, size);
            break;
          case 1:
            text.insert(at, text.substr(draws.below(4 * change + 4, text.size()), size));
            break;
          default:
            text[at] = "{}()+-*/,.=\"#09aFBrPM\n\x80"[draws.below(4 * change + 4, 24)];
        }
      }
      try {
        const auto written = written_schedule(text, "damaged.sched");
        const ScheduleConfig config{.num_ranks = 4, .num_microbatches = round % 2 == 0 ? 4 : 1};
        if (written->builtin.offers(config)) {
          ++refused;
          continue;
        }
        const Schedule schedule = written->builtin.make(config);
        EXPECT_NO_THROW(validate(schedule)) << text;
        ++held;
      } catch (const Error& error) {
        EXPECT_NE(error.code(), ErrorCode::kInternal) << text << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(held, 100);
}

}  // namespace
}  // namespace millrace
