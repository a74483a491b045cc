// Weight policies on small lists whose versions are worked out by hand, and against closed forms.
#include "millrace/schedule/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "tests/schedule/schedule_testing.h"

namespace millrace {
namespace {

std::string annotated(const std::string& policy, const std::string& text) {
  ActionLists lists = {parse_actions(text)};
  find_policy(policy).annotate(lists);
  return to_string(lists[0]);
}

TEST(Policy, FlushReadsOneVersionAndMakesTheNext) {
  EXPECT_EQ(annotated("flush", "0F0 0F1 0B0 0B1 0REDUCE0-1 0STEP0-1"),
            "0F0@0 0F1@0 0B0@0 0B1@0 0REDUCE0-1 0STEP0-1@1");
  EXPECT_EQ(annotated("flush", "2F0 2I0 2W0 2STEP0"), "2F0@0 2I0@0 2W0@0 2STEP0@1");
}

TEST(Policy, StashGivesBackwardTheVersionOfItsForward) {
  EXPECT_EQ(annotated("stash", "0F0 0F1 0B0 0STEP0 0F2 0B1 0STEP1 0B2 0STEP2"),
            "0F0@0 0F1@0 0B0@0 0STEP0@1 0F2@1 0B1@0 0STEP1@2 0B2@1 0STEP2@3");
  EXPECT_EQ(annotated("stash", "0F0 0F1 0I0 0W0 0STEP0 0I1 0W1"),
            "0F0@0 0F1@0 0I0@0 0W0@0 0STEP0@1 0I1@0 0W1@0");
}

TEST(Policy, LatestGivesBackwardTheNewest) {
  EXPECT_EQ(annotated("latest", "0F0 0F1 0B0 0STEP0 0F2 0B1 0STEP1 0B2 0STEP2"),
            "0F0@0 0F1@0 0B0@0 0STEP0@1 0F2@1 0B1@1 0STEP1@2 0B2@2 0STEP2@3");
}

// Update t, here of two microbatches, reads what update t-2 made, so that two versions are enough.
TEST(Policy, DoubleBufferReadsTheVersionOfTheUpdateBeforeLast) {
  EXPECT_EQ(annotated("double_buffer",
                      "0F0 0F1 0B0 0F2 0B1 0STEP0-1 0F3 0I2 0W2 0F4-5 0B3 0STEP2-3 0B4-5 0STEP4-5"),
            "0F0@0 0F1@0 0B0@0 0F2@0 0B1@0 0STEP0-1@1 0F3@0 0I2@0 0W2@0 0F4-5@1 0B3@0 0STEP2-3@2 "
            "0B4-5@1 0STEP4-5@3");
  const LoweredSchedule lowered = lower(testing::two_stage_schedule("double_buffer"), 3);
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "1RECV_F0<0 1F0@0 1B0@0 1SEND_B0>0 1RECV_F1<0 1F1@0 1B1@0 1SEND_B1>0 1STEP0-1@1 "
            "1RECV_F2<0 1F2@0 1B2@0 1SEND_B2>0 1RECV_F3<0 1F3@0 1B3@0 1SEND_B3>0 1STEP2-3@2 "
            "1RECV_F4<0 1F4@1 1B4@1 1SEND_B4>0 1RECV_F5<0 1F5@1 1B5@1 1SEND_B5>0 1STEP4-5@3");
  for (const ActionList& list : lower(testing::two_stage_schedule("double_buffer"), 20).ranks) {
    EXPECT_EQ(peak_weight_versions(list), 2);
  }
}

// Two stages, minibatches of two: v = ceil(2/3) = 1. Stage 0 reads versions 0, 0, 1 at the first
// forwards of minibatches 0, 1, 2; the backwards of the b-th read version b-1.
TEST(Policy, VerticalNewestReadsWhatStageZeroReadAndThenTheNewestOfAll) {
  const LoweredSchedule lowered = lower(testing::two_stage_schedule("vertical_newest"), 3);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0F0@0 0SEND_F0>1 0F1@0 0SEND_F1>1 0RECV_B0<1 0B0@0 0F2@0 0SEND_F2>1 0RECV_B1<1 0B1@0 "
            "0STEP0-1@1 0F3@0 0SEND_F3>1 0RECV_B2<1 0B2@1 0F4@1 0SEND_F4>1 0RECV_B3<1 0B3@1 "
            "0STEP2-3@2 0F5@1 0SEND_F5>1 0RECV_B4<1 0B4@2 0RECV_B5<1 0B5@2 0STEP4-5@3");
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "1RECV_F0<0 1F0@0 1B0@0 1SEND_B0>0 1RECV_F1<0 1F1@0 1B1@0 1SEND_B1>0 1STEP0-1@1 "
            "1RECV_F2<0 1F2@0 1B2@1 1SEND_B2>0 1RECV_F3<0 1F3@0 1B3@1 1SEND_B3>0 1STEP2-3@2 "
            "1RECV_F4<0 1F4@1 1B4@2 1SEND_B4>0 1RECV_F5<0 1F5@1 1B5@2 1SEND_B5>0 1STEP4-5@3");
}

// Minibatches of one: v = ceil(S/2), and a forward runs S-1 updates behind.
TEST(Policy, VerticalNewestOfOneMicrobatch) {
  for (int stages = 1; stages <= 7; ++stages) {
    Schedule schedule = make_schedule("pipedream", {stages, 1});
    schedule.policy = "vertical_newest";
    const LoweredSchedule lowered = lower(schedule, 20);
    EXPECT_EQ(testing::rehearse(lowered), "") << stages;
    for (const ActionList& list : lowered.ranks) {
      for (const Action& action : list) {
        if (action.kind == ActionKind::kForward) {
          EXPECT_EQ(action.version, std::max<int64_t>(0, action.first - (stages - 1)));
        } else if (action.kind == ActionKind::kBackward) {
          EXPECT_EQ(action.version, std::max<int64_t>(0, action.first + 1 - (stages + 1) / 2));
        }
      }
    }
  }
}

// What is mixed in is the newest at that time; the annotation names the other part.
TEST(Policy, BlendNamesTheStaleVersionAsStashDoes) {
  const std::string text = "0F0 0F1 0B0 0STEP0 0F2 0I1 0W1 0STEP1 0B2 0STEP2";
  EXPECT_EQ(annotated("blend", text), annotated("stash", text));
  EXPECT_EQ(lower(testing::two_stage_schedule("blend"), 1).blend_lambda, 1);
}

// Minibatches of three microbatches whose backward is one action: it is cut where an update came
// between the forwards.
TEST(Policy, ABackwardIsCutWhereItsForwardsReadDifferentVersions) {
  for (const char* policy : {"stash", "blend"}) {
    ActionLists lists = {parse_actions("0F0 0F1 0F2 0F3 0B0-2 0STEP0-2 0F4 0F5 0B3-5 0STEP3-5")};
    find_policy(policy).annotate(lists);
    EXPECT_EQ(to_string(lists[0]),
              "0F0@0 0F1@0 0F2@0 0F3@0 0B0-2@0 0STEP0-2@1 0F4@1 0F5@1 0B3@0 0B4-5@1 0STEP3-5@2");
    const ActionLists once = lists;
    find_policy(policy).annotate(lists);
    EXPECT_EQ(lists, once);
    EXPECT_EQ(peak_weight_versions(lists[0]), 2);
  }
}

TEST(Policy, StagesOfARankHaveVersionsOfTheirOwn) {
  EXPECT_EQ(annotated("stash", "0F0 2F0 2B0 2STEP0 0F1 2F1 0B0 0STEP0 2B1 2STEP1 0B1 0STEP1"),
            "0F0@0 2F0@0 2B0@0 2STEP0@1 0F1@0 2F1@1 0B0@0 0STEP0@1 2B1@1 2STEP1@2 0B1@0 0STEP1@2");
  EXPECT_EQ(annotated("latest", "0F0 2F0 2B0 2STEP0 2F1 0B0 0STEP0"),
            "0F0@0 2F0@0 2B0@0 2STEP0@1 2F1@1 0B0@0 0STEP0@1");
  // Stage 0 keeps its first version for B1, stage 2 updates in place.
  EXPECT_EQ(peak_weight_versions(parse_actions(
                "0F0@0 2F0@0 2B0@0 2STEP0@1 0F1@0 2F1@1 0B0@0 0STEP0@1 2B1@1 2STEP1@2 0B1@0")),
            2);
}

TEST(Policy, MessagesStayWithoutVersionAndStagesAreCountedApart) {
  EXPECT_EQ(annotated("stash", "1RECV_F0<0 1F0 3F0 1B0 1SEND_B0>0 1STEP0 3F1 1F1"),
            "1RECV_F0<0 1F0@0 3F0@0 1B0@0 1SEND_B0>0 1STEP0@1 3F1@0 1F1@1");
}

TEST(Policy, AnnotationIsAFixedPointAndOverwritesWhatWasThere) {
  for (const PolicyEntry& policy : policies()) {
    ActionLists lists = {parse_actions("0F0@7 0F1@9 0B0@3 0STEP0@5 0B1@1 0STEP1@2")};
    policy.annotate(lists);
    ActionLists again = lists;
    policy.annotate(again);
    EXPECT_EQ(again, lists) << policy.name;
    EXPECT_EQ(lists[0][0].version, 0) << policy.name;
    EXPECT_EQ(lists[0].back().version, 2) << policy.name;
  }
}

TEST(Policy, BackwardWithoutForwardIsLeftUnannotated) {
  EXPECT_EQ(annotated("stash", "0B3 0STEP3"), "0B3 0STEP3@1");
}

TEST(Policy, UnknownNameGetsTheNearest) {
  try {
    find_policy("flash");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("flush"));
  }
}

TEST(PeakVersions, CountsWhatMustLiveAtOnce) {
  const auto peak = [](const std::string& text) {
    return peak_weight_versions(parse_actions(text));
  };
  EXPECT_EQ(peak(""), 1);
  EXPECT_EQ(peak("0F0@0 0B0@0 0STEP0@1"), 1);                       // updated in place
  EXPECT_EQ(peak("0F0@0 0F1@0 0B0@0 0STEP0@1 0B1@0 0STEP1@2"), 2);  // version 0 still read
  EXPECT_EQ(peak("0F0@0 0STEP0@1 0F1@1 0STEP1@2 0F2@2 0B0@0 0B1@1 0B2@2"), 3);
  EXPECT_EQ(peak("0F0@0 0STEP0@1 0STEP1@2 0STEP2@3 0B0@0"), 2);  // 1 and 2 have no reader
  EXPECT_EQ(peak("0F0@0 0STEP0@1 0B0@0 0STEP1@2 0STEP2@3"), 2);  // freed after its last
  EXPECT_EQ(peak("0F4@4 0F5@4 0B4@4 0STEP4@5 0B5@4"), 2);        // a later segment's numbers
}

// Source: PipeDream, SOSP'19, section 3.3: stage s runs minibatch b on version max(0, b-(S-1-s)),
// and keeps S-s versions once the pipeline is full.
TEST(Stash, VersionsFollowTheClosedForm) {
  for (int stages = 1; stages <= 8; ++stages) {
    const Schedule schedule = make_schedule("pipedream", {stages, 1});
    for (int64_t minibatches : {1, 2, 3, 7, 16, 33}) {
      const LoweredSchedule lowered = lower(schedule, minibatches);
      for (int stage = 0; stage < stages; ++stage) {
        const ActionList& list = lowered.ranks[static_cast<std::size_t>(stage)];
        for (const Action& action : list) {
          if (is_compute(action.kind)) {
            EXPECT_EQ(action.version, std::max<int64_t>(0, action.first - (stages - 1 - stage)))
                << "S=" << stages << " " << to_string(action);
          } else if (action.kind == ActionKind::kStep) {
            EXPECT_EQ(action.version, action.first + 1);
          }
        }
        if (minibatches >= 2 * stages) {
          EXPECT_EQ(peak_weight_versions(list), stages - stage)
              << "S=" << stages << " stage " << stage;
        }
      }
    }
  }
}

// The same with replicas: the k-th minibatch of a replica of stage s, of its r_s, runs on the
// weights after max(0, k-w) rounds, w = ceil(ranks from s on / r_s) - 1.
TEST(Stash, VersionsOfReplicatedStagesFollowTheClosedForm) {
  for (const std::vector<int>& replicas : {std::vector<int>{3, 1}, {2, 1, 1}, {1, 2}, {4, 2, 3}}) {
    const Plan plan = testing::plan_of_replicas(replicas);
    const ScheduleConfig config = schedule_config(plan);
    const LoweredSchedule lowered = lower(make_schedule("pipedream", config), plan, 37);
    for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
      const int stage = lowered.rank_stages[rank].front();
      const int own = replicas[static_cast<std::size_t>(stage)];
      const int64_t ahead = (config.ranks_from(stage) + own - 1) / own - 1;
      for (const Action& action : lowered.ranks[rank]) {
        if (is_compute(action.kind)) {
          EXPECT_EQ(action.version, std::max<int64_t>(0, action.first / own - ahead))
              << describe(plan) << " " << to_string(action);
        }
      }
      EXPECT_EQ(peak_weight_versions(lowered.ranks[rank]), ahead + 1) << describe(plan);
    }
  }
}

// Source: PipeDream, SOSP'19, section 3.3: all stages run minibatch b on version max(0, b-(S-1)).
TEST(VerticalSync, AllStagesReadOneVersion) {
  for (int stages = 1; stages <= 6; ++stages) {
    const LoweredSchedule lowered =
        lower(make_schedule("pipedream", {stages, 1}, "vertical_sync"), 24);
    for (const ActionList& list : lowered.ranks) {
      for (const Action& action : list) {
        if (is_compute(action.kind)) {
          EXPECT_EQ(action.version, std::max<int64_t>(0, action.first - (stages - 1)));
        }
      }
      EXPECT_EQ(peak_weight_versions(list), stages);
    }
  }
}

// Under `latest` a backward reads what S-1-s updates since its forward have made of the weights.
TEST(Latest, BackwardReadsTheNewestVersionAndOneVersionLives) {
  for (int stages = 1; stages <= 8; ++stages) {
    const LoweredSchedule lowered = lower(make_schedule("pipedream", {stages, 1}, "latest"), 24);
    for (int stage = 0; stage < stages; ++stage) {
      const ActionList& list = lowered.ranks[static_cast<std::size_t>(stage)];
      for (const Action& action : list) {
        if (action.kind == ActionKind::kForward) {
          EXPECT_EQ(action.version, std::max<int64_t>(0, action.first - (stages - 1 - stage)));
        } else if (action.kind == ActionKind::kBackward) {
          EXPECT_EQ(action.version, action.first);
        }
      }
      EXPECT_EQ(peak_weight_versions(list), 1);
    }
  }
}

TEST(Flush, OneVersionLives) {
  for (const char* name : {"naive", "gpipe", "1f1b"}) {
    const LoweredSchedule lowered = lower(make_schedule(name, {4, 8}), 1);
    for (const ActionList& list : lowered.ranks) {
      EXPECT_EQ(peak_weight_versions(list), 1) << name;
    }
  }
}

}  // namespace
}  // namespace millrace
