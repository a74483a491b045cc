// The checks of action lists: each kind of fault by hand, then random damage, judged by the
// rehearsal.
#include "millrace/schedule/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "millrace/base/error.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/replicate.h"
#include "tests/schedule/schedule_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using testing::Draws;
using ::testing::HasSubstr;

const std::vector<std::vector<int>> kTwoStages = {{0}, {1}};

ActionLists lists_of(const std::vector<std::string>& texts) {
  ActionLists lists;
  for (const std::string& text : texts) {
    lists.push_back(parse_actions(text));
  }
  return lists;
}

std::string texts_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += finding.text + "\n";
  }
  return text;
}

std::string faults(const std::vector<std::string>& lists, int64_t num_microbatches) {
  return texts_of(find_faults(lists_of(lists), kTwoStages, num_microbatches));
}

TEST(FindFaults, NothingInAValidList) {
  EXPECT_EQ(faults({"0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"}, 2), "");
  EXPECT_EQ(faults({"0F0-1 0B0-1", "1F0 1I0 1F1 1I1 1W0-1"}, 2), "");
}

TEST(FindFaults, NamesWhatIsMissing) {
  EXPECT_THAT(
      faults({"0F0 0F1 0B0", "1F0 1B0 1F1 1B1"}, 2),
      HasSubstr("rank 0, action 1 (0F1): stage 0, microbatch 1 has a forward and no backward"));
  EXPECT_THAT(
      faults({"0F0 0B0 0B1", "1F0 1B0 1F1 1B1"}, 2),
      HasSubstr("rank 0, action 2 (0B1): stage 0, microbatch 1 has a backward and no forward"));
  EXPECT_THAT(faults({"0F0 0B0", "1F0 1B0"}, 4),
              AllOf(HasSubstr("rank 0: no action for stage 0, microbatches 1-3"),
                    HasSubstr("rank 1: no action for stage 1, microbatches 1-3")));
  EXPECT_THAT(faults({"0F0 0I0", "1F0 1B0"}, 1), HasSubstr("its weight gradient is missing"));
  EXPECT_THAT(faults({"0F0 0W0", "1F0 1B0"}, 1), HasSubstr("has its W and no I"));
  EXPECT_THAT(faults({"0F0 0W0 0I0", "1F0 1B0"}, 1),
              HasSubstr("the W of stage 0, microbatch 0 stands before its I"));
  EXPECT_THAT(faults({"0F0 0B0 0W0", "1F0 1B0"}, 1), HasSubstr("already has a B"));
}

TEST(FindFaults, NamesWhatIsMisplaced) {
  EXPECT_THAT(faults({"0F0 0B0 0B0", "1F0 1B0"}, 1),
              HasSubstr("rank 0, action 2 (0B0): B of stage 0, microbatch 0 already stands on rank "
                        "0 as action 1"));
  EXPECT_THAT(faults({"0F0 1F0 0B0", "1B0"}, 1),
              HasSubstr("rank 0, action 1 (1F0): rank 0 does not hold stage 1; rank 1 does"));
  EXPECT_THAT(faults({"0B0 0F0", "1F0 1B0"}, 1),
              HasSubstr("stands before its forward, which is action 1"));
  EXPECT_THAT(faults({"0F0 0B0 0STEP", "1F0 1B0"}, 1), HasSubstr("added by lowering"));
  EXPECT_THAT(faults({"0F0@3 0B0", "1F0 1B0"}, 1),
              HasSubstr("neither a peer nor a weight version"));
  // A backward must run where its activations are, also when another rank holds the stage as well.
  EXPECT_THAT(texts_of(find_faults(lists_of({"0F0", "0B0"}), {{0, 1}}, 1)),
              HasSubstr("its forward on rank 0; its backward must run there"));
}

TEST(FindFaults, ReportsAllAtOnce) {
  const std::vector<Finding> findings =
      find_faults(lists_of({"0F0 0F1 0B0 0F0", "1F0 1B0 1B1 1F1"}), kTwoStages, 2);
  ASSERT_EQ(findings.size(), 3u) << texts_of(findings);
  EXPECT_EQ(findings[0].rank, 0);
  EXPECT_EQ(findings[0].index, 3u);
  EXPECT_EQ(findings[1].index, 1u);
  EXPECT_EQ(findings[2].rank, 1);
  EXPECT_EQ(findings[2].index, 2u);
}

TEST(FindFaults, NamesTheWaitsOfADeadlock) {
  const std::vector<Finding> findings =
      find_faults(lists_of({"0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"}), kTwoStages, 2);
  ASSERT_EQ(findings.size(), 1u) << texts_of(findings);
  EXPECT_EQ(
      findings[0].text,
      "deadlock: rank 0 at 0B0 waits for B of stage 1, microbatch 0, that rank 1 runs after 1F1; "
      "rank 1 at 1F1 waits for F of stage 0, microbatch 1, that rank 0 runs after 0B0");
  EXPECT_EQ(findings[0].rank, 0);
  EXPECT_EQ(findings[0].index, 1u);
  // Ranks that wait for a circle without being of it are its consequence.
  const std::vector<Finding> three = find_faults(
      lists_of({"0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F1 2B1 2F0 2B0"}), {{0}, {1}, {2}}, 2);
  ASSERT_EQ(three.size(), 1u) << texts_of(three);
  EXPECT_THAT(three[0].text, AllOf(HasSubstr("rank 1 at 1B0"), HasSubstr("rank 2 at 2F1"),
                                   ::testing::Not(HasSubstr("rank 0 at"))));
}

TEST(FindFaults, DamagedNumbersAreReportedAndCrashNothing) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int32_t kMost32 = std::numeric_limits<int32_t>::max();
  const LoweredSchedule valid = lower(make_schedule("1f1b", {2, 2}), 1);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < valid.ranks[rank].size(); ++i) {
      for (int what = 0; what < 9; ++what) {
        LoweredSchedule damaged = valid;
        Action& action = damaged.ranks[rank][i];
        switch (what) {
          case 0:
            action.stage = -1;
            break;
          case 1:
            action.stage = kMost32;
            break;
          case 2:
            action.stage = std::numeric_limits<int32_t>::min();
            break;
          case 3:
            action.first = -5;
            break;
          case 4:
            action.first = action.last = kMost;
            break;
          case 5:
            action.last = kMost;
            break;
          case 6:
            action.first = std::numeric_limits<int64_t>::min();
            break;
          case 7:
            action.peer = action.peer == kNone ? 0 : kMost32;
            break;
          default:
            action.peer = -7;
            break;
        }
        const std::vector<Finding> findings = find_faults(damaged);
        ASSERT_FALSE(findings.empty()) << "rank " << rank << " action " << i << " damage " << what;
        const std::string place = "rank " + std::to_string(rank) + ", action " + std::to_string(i);
        EXPECT_THAT(texts_of(findings), HasSubstr(place)) << "damage " << what;
        EXPECT_THROW(throw_findings(findings, damaged.ranks, "damaged"), Error);
        if (is_compute(action.kind)) {
          EXPECT_FALSE(find_faults(damaged.ranks, kTwoStages, 2).empty());
        }
      }
    }
  }
}

TEST(FindFaults, DamagedTablesAreReported) {
  Plan plan = testing::plan_of(2, 2);
  plan.microbatches = 2;
  const LoweredSchedule valid = lower(make_schedule("1f1b", schedule_config(plan)), plan, 1);
  const auto damaged = [&valid](const auto& damage) {
    LoweredSchedule lowered = valid;
    damage(lowered);
    return find_faults(lowered).size();
  };
  EXPECT_EQ(damaged([](LoweredSchedule&) {}), 0u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.num_stages = 3; }), 1u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.num_stages = -1; }), 1u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.num_steps = 0; }), 1u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.microbatches_per_step = INT64_MAX; }), 1u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.rank_stages.pop_back(); }), 1u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.rank_stages[1] = {1}; }), 1u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.stage_ranks[1][0] = 77; }), 1u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.stage_ranks[1].pop_back(); }), 1u);
  EXPECT_GT(damaged([](LoweredSchedule& l) {
              l.stage_ranks[1].pop_back();
              l.rank_stages[3].clear();
            }),
            1u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.links = {{1, 0}}; }), 1u);
  EXPECT_GT(damaged([](LoweredSchedule& l) { l.links = {}; }), 1u);
  EXPECT_EQ(damaged([](LoweredSchedule& l) { l.policy = "stsh"; }), 1u);
  EXPECT_GT(damaged([](LoweredSchedule& l) { l.policy = ""; }), 1u);  // forward-only it is not
  EXPECT_FALSE(find_faults(valid.ranks, {}, 2).empty());
  EXPECT_FALSE(find_faults(valid.ranks, {{0}, {}}, 2).empty());
  EXPECT_FALSE(find_faults(valid.ranks, {{0}, {-1}}, 2).empty());
  EXPECT_FALSE(find_faults(valid.ranks, kTwoStages, INT64_MAX).empty());
}

// NORM is where all ranks meet: each fault of one by hand.
TEST(FindFaults, NormsMeetOnAllRanksBetweenReduceAndStep) {
  const Plan plan = testing::plan_of(2, 2, 1);
  const LoweredSchedule valid =
      lower(make_schedule("gpipe", schedule_config(plan)), plan, 1, chain_links(2), true);
  ASSERT_EQ(texts_of(find_faults(valid)), "");
  const std::string good = to_string(valid.ranks[0]);
  const std::string head = good.substr(0, good.find("0REDUCE"));
  const auto ending = [&](const std::string& tail) {
    LoweredSchedule lowered = valid;
    lowered.ranks[0] = parse_actions(head + tail);
    return texts_of(find_faults(lowered));
  };
  ASSERT_EQ(ending("0REDUCE0-1 0NORM0-1 0STEP0-1@1"), "");
  EXPECT_THAT(ending("0REDUCE0-1 0STEP0-1@1"),
              AllOf(HasSubstr("expected a NORM of the same microbatches"),
                    HasSubstr("has no NORM to meet it")));
  EXPECT_THAT(ending("0NORM0-1 0REDUCE0-1 0STEP0-1@1"),
              HasSubstr("takes the norm before 0REDUCE0-1"));
  EXPECT_THAT(ending("0REDUCE0-1 0STEP0-1@1 0NORM0-1"), HasSubstr("no STEP uses the norm"));
  EXPECT_THAT(ending("0REDUCE0-1 0NORM0-1 0NORM0-1 0STEP0-1@1"),
              HasSubstr("has no NORM to meet it"));
}

// A rank that waits in NORM for one that waits for its message.
TEST(FindFaults, ANormThatWaitsForAWaitingRankIsADeadlock) {
  LoweredSchedule lowered =
      lower(make_schedule("gpipe", {2, 1}), testing::plan_of(2, 1), 1, chain_links(2), true);
  ASSERT_EQ(texts_of(find_faults(lowered)), "");
  lowered.ranks[1] = parse_actions("1RECV_F0<0 1F0@0 1B0@0 1NORM0 1STEP0@1 1SEND_B0>0");
  EXPECT_THAT(texts_of(find_faults(lowered)), HasSubstr("deadlock"));
}

TEST(FindFaults, EvaluationIsForwardOnly) {
  LoweredSchedule lowered = lower_evaluation(testing::plan_of(2, 1), 2);
  EXPECT_EQ(texts_of(find_faults(lowered)), "");
  lowered.ranks[1] = parse_actions("1RECV_F0<0 1F0 1B0 1RECV_F1<0 1F1@2 1STEP0");
  EXPECT_THAT(
      texts_of(find_faults(lowered)),
      AllOf(HasSubstr("a backward in a forward-only"), HasSubstr("an update in a forward-only"),
            HasSubstr("a weight version in a forward-only")));
}

TEST(ThrowFindings, ShowsEachWithItsCellMarked) {
  EXPECT_NO_THROW(throw_findings({}, {}, "none"));
  const ActionLists lists = lists_of({"0F0 0F1 0B0", "1F0 1B0 1F1 1B1 1B1"});
  try {
    throw_findings(find_faults(lists, kTwoStages, 2), lists, "mine");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("schedule mine cannot run: 2 findings"), HasSubstr("\n1. "),
                      HasSubstr("\n2. "), HasSubstr(">0F1<"), HasSubstr(">1B1<")));
    EXPECT_EQ(error.rank(), 1);
  }
}

TEST(ThrowFindings, ManyFindingsStayReadable) {
  ActionLists lists(1);
  for (int m = 0; m < 1000; ++m) {
    lists[0].push_back(Action::of(ActionKind::kForward, 0, m));
  }
  const std::vector<Finding> findings = find_faults(lists, {{0}}, 1000);
  EXPECT_EQ(findings.size(), 1000u);
  try {
    throw_findings(findings, lists, "long");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("\n1000. "));
    EXPECT_LT(error.message().size(), 300000u);
  }
}

TEST(Validate, RefusesDamagedSchedules) {
  const auto refused = [](const char* name, const auto& damage) {
    Schedule schedule = make_schedule(name, {3, 1});
    damage(schedule);
    try {
      validate(schedule);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnsupported;
    }
    return false;
  };
  for (const char* name : {"1f1b", "pipedream"}) {
    EXPECT_FALSE(refused(name, [](Schedule&) {}));
    EXPECT_TRUE(refused(name, [](Schedule& s) { s.num_ranks = 0; }));
    EXPECT_TRUE(refused(name, [](Schedule& s) { s.num_ranks = 4; }));
    EXPECT_TRUE(refused(name, [](Schedule& s) { s.num_stages = 2; }));
    EXPECT_TRUE(refused(name, [](Schedule& s) { s.period.pop_back(); }));
    EXPECT_TRUE(refused(name, [](Schedule& s) { s.prologue.push_back({}); }));
    EXPECT_TRUE(refused(name, [](Schedule& s) { s.period[1].pop_back(); }));
    EXPECT_TRUE(refused(name, [](Schedule& s) { s.stage_ranks[2] = {0}; }));
    EXPECT_TRUE(refused(name, [](Schedule& s) { std::swap(s.period[0], s.period[1]); }));
    EXPECT_TRUE(refused(name, [](Schedule& s) { s.period[0][0].last = INT64_MAX; }));
  }
  EXPECT_TRUE(refused("pipedream", [](Schedule& s) { s.prologue[0].clear(); }));
  EXPECT_TRUE(refused("pipedream", [](Schedule& s) { s.epilogue[0][0] = s.epilogue[0][1]; }));
}

// One random change to a list; says in words what it was, and on which rank.
struct Damage {
  std::string text;
  std::size_t rank = 0;
};
Damage damage(ActionLists& lists, Draws& draws, int num_microbatches, bool lowered) {
  Damage done;
  do {
    done.rank = static_cast<std::size_t>(draws.below(static_cast<int64_t>(lists.size())));
  } while (lists[done.rank].empty());
  ActionList& list = lists[done.rank];
  const auto size = static_cast<int64_t>(list.size());
  const int64_t i = draws.below(size);
  const int64_t to = draws.below(size);
  Action& action = list[static_cast<std::size_t>(i)];
  done.text = "rank " + std::to_string(done.rank) + " action " + std::to_string(i) + " " +
              to_string(action);
  const Action copy = action;
  switch (draws.below(lowered ? 8 : 6)) {
    case 0:
      done.text += " deleted";
      list.erase(list.begin() + i);
      break;
    case 1:
      done.text += " duplicated at " + std::to_string(to);
      list.insert(list.begin() + to, copy);
      break;
    case 2:
      done.text += " swapped with " + std::to_string(to);
      std::swap(action, list[static_cast<std::size_t>(to)]);
      break;
    case 3:
      done.text += " moved to " + std::to_string(to);
      list.erase(list.begin() + i);
      list.insert(list.begin() + to, copy);
      break;
    case 4:
      action.first = action.last = draws.below(num_microbatches);
      done.text += " became " + to_string(action);
      break;
    case 5: {
      const auto other = static_cast<std::size_t>(draws.below(static_cast<int64_t>(lists.size())));
      done.text += " went to rank " + std::to_string(other);
      list.erase(list.begin() + i);
      lists[other].insert(
          lists[other].begin() + draws.below(static_cast<int64_t>(lists[other].size()) + 1), copy);
      break;
    }
    case 6:
      if (action.peer != kNone && draws.below(2) == 0) {
        action.peer_stage = static_cast<int32_t>(draws.below(5));
      } else if (action.peer != kNone) {
        action.peer = static_cast<int32_t>(draws.below(static_cast<int64_t>(lists.size())));
      }
      done.text += " became " + to_string(action);
      break;
    default:
      action.version = action.version == kNone ? kNone : draws.below(4);
      done.text += " became " + to_string(action);
      break;
  }
  return done;
}

// Every finding points into the lists, and one of them speaks of the rank that was changed.
void expect_coordinates(const std::vector<Finding>& findings, const ActionLists& lists,
                        std::size_t rank) {
  bool named = false;
  for (const Finding& finding : findings) {
    ASSERT_GE(finding.rank, 0);
    ASSERT_LT(static_cast<std::size_t>(finding.rank), lists.size());
    const std::size_t size = lists[static_cast<std::size_t>(finding.rank)].size();
    EXPECT_TRUE(finding.index < size || (size == 0 && finding.index == 0)) << finding.text;
    named = named || finding.text.find("rank " + std::to_string(rank)) != std::string::npos;
  }
  EXPECT_TRUE(named) << texts_of(findings);
}

TEST(Damage, OfLoweredSchedulesIsFoundExactlyWhenTheRehearsalFails) {
  constexpr uint64_t kSeed = 20;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Draws draws(kSeed);
  int num_harmless = 0;
  int num_found = 0;
  for (int trial = 0; trial < 9000; ++trial) {
    const ScheduleEntry& entry =
        schedules()[static_cast<std::size_t>(draws.below(std::ssize(schedules())))];
    const int ranks = static_cast<int>(1 + draws.below(4));
    const int microbatches = static_cast<int>(1 + draws.below(5));
    const int replicas = static_cast<int>(1 + draws.below(2));
    ScheduleConfig config{.num_ranks = ranks, .num_microbatches = microbatches, .copies = replicas};
    if (why_refused(entry, config)) {
      config.num_microbatches = 1;
    }
    if (why_refused(entry, config)) {
      config.num_ranks = 2;
      config.num_microbatches = entry.name == "2bp-1f1b-2" ? 4 : 2;
    }
    if (entry.builtin->deals) {
      config.replicas.assign(static_cast<std::size_t>(config.num_ranks), replicas);
      config.num_ranks *= replicas;
      config.copies = 1;
    }
    const auto policies = entry.builtin->policies();
    const Schedule schedule = make_schedule(
        entry.name, config,
        policies[static_cast<std::size_t>(draws.below(static_cast<int64_t>(policies.size())))]);
    const Plan plan = plan_of_positions(schedule);
    LoweredSchedule lowered = lower(schedule, plan, 1 + draws.below(6));
    const LoweredSchedule before = lowered;
    const int total = static_cast<int>(lowered.num_steps * lowered.microbatches_per_step);
    const Damage done = damage(lowered.ranks, draws, total, true);
    SCOPED_TRACE(::testing::Message()
                 << "trial " << trial << " " << testing::describe(entry, config)
                 << " r=" << replicas << " " << schedule.policy << ": " << done.text);
    const std::vector<Finding> findings = find_faults(lowered);
    const std::string fault = testing::rehearse(lowered);
    ASSERT_EQ(findings.empty(), fault.empty()) << texts_of(findings) << "rehearsal: " << fault;
    if (findings.empty()) {
      ++num_harmless;
      continue;
    }
    ++num_found;
    expect_coordinates(findings, lowered.ranks, done.rank);
    EXPECT_THROW(throw_findings(findings, lowered.ranks, entry.name), Error);
  }
  // Both sides of the claim were tried often.
  EXPECT_GT(num_harmless, 500);
  EXPECT_GT(num_found, 3000);
}

// The same of ranks with several stages, with copies, halves and skip edges.
TEST(Damage, OfSeveralStagesARankIsFoundExactlyWhenTheRehearsalFails) {
  constexpr uint64_t kSeed = 22;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Draws draws(kSeed);
  const std::vector<Schedule> by_hand = {
      testing::chunked_schedule(),
      testing::v_schedule(),
      testing::bidirectional_schedule(),
      testing::flush_schedule(
          {"0F0-1 2F0-1 2I0-1 0I0 0I1 2W0 0W0-1 2W1", "1F0 1F1 3F0-1 3B0 3B1 1I0-1 1W0-1"},
          {{0}, {1}, {0}, {1}}, 2),
      testing::two_stage_schedule("double_buffer"),
      testing::two_stage_schedule("blend"),
      testing::two_stage_schedule("vertical_newest")};
  int num_harmless = 0;
  int num_found = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    const auto which = static_cast<std::size_t>(draws.below(std::ssize(by_hand)));
    const int copies = static_cast<int>(1 + draws.below(2));
    const Schedule schedule = replicate(by_hand[which], copies);
    std::vector<StageLink> links = chain_links(schedule.num_stages);
    if (schedule.num_stages == 4 && draws.below(2) == 0) {
      links = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
    }
    const bool clips = schedule.flush && draws.below(2) == 0;
    LoweredSchedule lowered =
        lower(schedule, plan_of_positions(schedule), 1 + draws.below(4), links, clips);
    ASSERT_TRUE(find_faults(lowered).empty());
    const int total = static_cast<int>(lowered.num_steps * lowered.microbatches_per_step);
    const Damage done = damage(lowered.ranks, draws, total, true);
    SCOPED_TRACE(::testing::Message() << "trial " << trial << " schedule " << which
                                      << " copies=" << copies << ": " << done.text);
    const std::vector<Finding> findings = find_faults(lowered);
    const std::string fault = testing::rehearse(lowered);
    ASSERT_EQ(findings.empty(), fault.empty()) << texts_of(findings) << "rehearsal: " << fault;
    (findings.empty() ? num_harmless : num_found) += 1;
    if (!findings.empty()) {
      expect_coordinates(findings, lowered.ranks, done.rank);
    }
  }
  EXPECT_GT(num_harmless, 500);
  EXPECT_GT(num_found, 3000);
}

TEST(FindFaults, ABackwardOfForwardsOnDifferentVersionsIsReported) {
  LoweredSchedule lowered = lower(make_schedule("i-timeprest", {2, 3}, "stash"), 4);
  EXPECT_TRUE(find_faults(lowered).empty());
  ActionList& list = lowered.ranks[0];
  const auto part = std::find_if(list.begin(), list.end(), [](const Action& action) {
    return action.kind == ActionKind::kBackward && action.num_microbatches() < 3;
  });
  ASSERT_NE(part, list.end());
  part->last = (part + 1)->last;
  list.erase(part + 1);
  EXPECT_THAT(texts_of(find_faults(lowered)),
              HasSubstr("forwards that read different versions; policy stash needs it cut"));
}

TEST(FindFaults, MessagesOfARankToItselfAreReported) {
  LoweredSchedule lowered = lower(testing::v_schedule(), 1);
  ActionList& list = lowered.ranks[1];
  ASSERT_EQ(to_string(list[1]), "1F0@0");
  list.insert(list.begin() + 2, {parse_action("1SEND_F0>1"), parse_action("2RECV_F0<1")});
  EXPECT_THAT(texts_of(find_faults(lowered)), HasSubstr("its own rank"));
}

// The bare lists: judged by lowering what is left and rehearsing it.
TEST(Damage, OfBareListsIsFoundExactlyWhenTheyCannotRun) {
  constexpr uint64_t kSeed = 21;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Draws draws(kSeed);
  int num_harmless = 0;
  int num_found = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const char* const names[] = {"naive", "gpipe", "1f1b"};
    const int stages = static_cast<int>(1 + draws.below(4));
    const int microbatches = static_cast<int>(1 + draws.below(5));
    Schedule schedule = make_schedule(names[draws.below(3)], {stages, microbatches});
    const Damage done = damage(schedule.period, draws, microbatches, false);
    SCOPED_TRACE(::testing::Message()
                 << "trial " << trial << " " << schedule.name << ": " << done.text);
    const std::vector<Finding> findings =
        find_faults(schedule.period, schedule.stage_ranks, microbatches);
    std::string fault;
    try {
      fault = testing::rehearse(lower(schedule, 1));
    } catch (const Error& error) {
      fault = error.what();
    }
    ASSERT_EQ(findings.empty(), fault.empty()) << texts_of(findings) << "rehearsal: " << fault;
    if (findings.empty()) {
      ++num_harmless;
      EXPECT_NO_THROW(validate(schedule));
    } else {
      ++num_found;
      expect_coordinates(findings, schedule.period, done.rank);
      EXPECT_THROW(validate(schedule), Error);
    }
  }
  EXPECT_GT(num_harmless, 300);
  EXPECT_GT(num_found, 2000);
}

}  // namespace
}  // namespace millrace
