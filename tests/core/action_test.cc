#include "millrace/core/action.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/core/core_testing.h"

namespace millrace {
namespace {

using testing::Draws;
using ::testing::HasSubstr;

TEST(ActionTest, FormsParseAndPrintBack) {
  for (const char* text : {"2F0",
                           "2B0-3",
                           "2I0",
                           "2W0-3",
                           "2SEND_F0>1",
                           "2RECV_F0<1",
                           "2SEND_B0>1",
                           "2RECV_B0<1",
                           "2REDUCE",
                           "2NORM",
                           "2NORM0-3",
                           "2STEP",
                           "2F5@3",
                           "2STEP@4",
                           "2STEP0-3@1",
                           "2REDUCE7",
                           "0SEND_B2-4>11@0",
                           "2SEND_F0>1:5",
                           "2RECV_F0<1:0",
                           "2SEND_B0>1:2",
                           "2RECV_B0<1:7@3",
                           "2147483647F9223372036854775807@9223372036854775807"}) {
    EXPECT_EQ(to_string(parse_action(text)), text);
  }
  EXPECT_EQ(to_string(parse_action("2B3-3")), "2B3");
  EXPECT_EQ(to_string(parse_action("2SEND_F0>1:3")), "2SEND_F0>1") << "the next stage is not named";
}

TEST(ActionTest, PartsAreWhatTheTextSays) {
  const Action send = parse_action("2SEND_F4-6>7@9");
  EXPECT_EQ(send.kind, ActionKind::kSendForward);
  EXPECT_EQ(send.stage, 2);
  EXPECT_EQ(send.first, 4);
  EXPECT_EQ(send.last, 6);
  EXPECT_EQ(send.num_microbatches(), 3);
  EXPECT_EQ(send.peer, 7);
  EXPECT_EQ(send.peer_stage, 3);
  EXPECT_EQ(send.version, 9);
  const Action step = parse_action("0STEP");
  EXPECT_EQ(step.first, kNone);
  EXPECT_EQ(step.num_microbatches(), 0);
  EXPECT_EQ(step.version, kNone);
}

TEST(ActionTest, MessagesGoToTheNextStageUnlessAnotherIsNamed) {
  EXPECT_EQ(parse_action("2SEND_F0>1").peer_stage, 3);
  EXPECT_EQ(parse_action("2RECV_F0<1").peer_stage, 1);
  EXPECT_EQ(parse_action("2SEND_B0>1").peer_stage, 1);
  EXPECT_EQ(parse_action("2RECV_B0<1").peer_stage, 3);
  EXPECT_EQ(parse_action("2SEND_F0>1:5").peer_stage, 5);
  EXPECT_EQ(parse_action("2SEND_F0>1:5").peer, 1);
  EXPECT_EQ(parse_action("2F0").peer_stage, kNone);
}

TEST(ActionTest, KindsFallIntoGroups) {
  using enum ActionKind;
  for (const ActionKind kind :
       {kForward, kBackward, kInputGradient, kWeightGradient, kSendForward, kReceiveForward,
        kSendBackward, kReceiveBackward, kReduce, kNorm, kStep, kGather, kFree}) {
    const std::string name = to_string(kind);
    EXPECT_EQ(is_compute(kind), name.size() == 1) << name;
    EXPECT_EQ(is_send(kind), name.starts_with("SEND")) << name;
    EXPECT_EQ(is_receive(kind), name.starts_with("RECV")) << name;
  }
}

TEST(ActionTest, RefusesOthersAndShowsThem) {
  for (const char* text : {"",
                           "F0",
                           "2",
                           "2F",
                           "2X0",
                           "2f0",
                           "-1F0",
                           "2F-1",
                           "2F0-",
                           "2B3-1",
                           "2F0x",
                           "2F0>1",
                           "2SEND_F0",
                           "2SEND_F0<1",
                           "2RECV_F0>1",
                           "2SEND_F>1",
                           "2SEND_F0>1:",
                           "2SEND_F0>1:-1",
                           "2SEND_F0:3",
                           "2F0:3",
                           "2SEND_F0>1@2:3",
                           "2F0@",
                           "2F0@-1",
                           "2STEP@",
                           "2FF0",
                           " 2F0",
                           "2F 0",
                           "2SEND_F0>1>2",
                           "2147483648F0",
                           "2F9223372036854775808",
                           "2F0-1-2",
                           "2STEPX"}) {
    const Error error = caught([&] { parse_action(text); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_THAT(error.message(), HasSubstr("`" + std::string(text) + "`"));
  }
  EXPECT_THAT(caught([] { parse_action("2X0"); }).message(),
              HasSubstr("at character 2 expected one of F, B, I, W"));
  EXPECT_THAT(caught([] { parse_action("2SEND_F0"); }).message(),
              HasSubstr("expected `>` and the rank that it sends to, found the end"));
}

Action random_action(Draws& draws) {
  Action action;
  action.kind = static_cast<ActionKind>(draws.between(0, 9));
  action.stage = static_cast<int32_t>(draws.between(0, 40));
  const bool optional = action.kind == ActionKind::kReduce || action.kind == ActionKind::kStep;
  if (!optional || draws.coin()) {
    action.first = draws.between(0, 1000);
    action.last = action.first + (draws.coin() ? draws.between(0, 9) : 0);
  }
  if (is_send(action.kind) || is_receive(action.kind)) {
    action.peer = static_cast<int32_t>(draws.between(0, 99));
    action.peer_stage = draws.coin() ? next_stage(action.kind, action.stage)
                                     : static_cast<int32_t>(draws.between(0, 40));
  }
  action.version = draws.coin() ? draws.between(0, 50) : kNone;
  return action;
}

TEST(ActionTest, RandomListsSurviveTheirText) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Draws draws(seed);
    ActionList list;
    for (int64_t i = draws.between(0, 20); i > 0; --i) {
      list.push_back(random_action(draws));
    }
    ASSERT_EQ(parse_actions(to_string(list)), list) << "seed " << seed << ": " << to_string(list);
  }
  EXPECT_EQ(to_string(ActionList{}), "");
  EXPECT_EQ(to_string(parse_actions(" 0F0\t0F1\n0B0  ")), "0F0 0F1 0B0");
  EXPECT_THROW(parse_actions("0F0,0F1"), Error);
}

}  // namespace
}  // namespace millrace
