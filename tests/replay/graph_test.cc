#include "millrace/replay/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/error.h"
#include "millrace/replay/what_if.h"
#include "tests/replay/replay_testing.h"

namespace millrace {
namespace {

using testing::events;
using ::testing::HasSubstr;

Recording take(const Trace& trace, const Cluster* cluster = nullptr, bool reduces = true) {
  return take_apart(trace, match_events(trace, reduces), cluster);
}

// Two stages on two ranks, `steps` steps of 10 s: F 1, to the right 1 (bytes 100), F 2 and B 2 on
// stage 1, back 1, B 1, updates 0.5 and gaps as they come.
Trace pipeline(int steps) {
  Trace trace;
  trace.source = "measured";
  trace.num_steps = steps;
  for (int rank = 0; rank < 2; ++rank) {
    RankTrace each;
    each.rank = rank;
    each.stages = {rank};
    trace.ranks.push_back(each);
  }
  for (int step = 0; step < steps; ++step) {
    const std::string m = std::to_string(step);
    const std::string v = std::to_string(step + 1);
    const double t = 10.0 * step;
    for (const TraceEvent& event : events({{"0F" + m, t, t + 1},
                                           {"0SEND_F" + m + ">1", t + 1, t + 1, 0, 100},
                                           {"0RECV_B" + m + "<1", t + 1, t + 7, 6, 100},
                                           {"0B" + m, t + 7, t + 8},
                                           {"0STEP" + m + "@" + v, t + 8, t + 8.5}})) {
      trace.ranks[0].events.push_back(event);
    }
    for (const TraceEvent& event : events({{"1RECV_F" + m + "<0", t, t + 2, 2, 100},
                                           {"1F" + m, t + 2, t + 4},
                                           {"1B" + m, t + 4, t + 6},
                                           {"1SEND_B" + m + ">0", t + 6, t + 6, 0, 100},
                                           {"1STEP" + m + "@" + v, t + 6, t + 6.5}})) {
      trace.ranks[1].events.push_back(event);
    }
  }
  trace.step_s = 10;
  return trace;
}

TEST(GraphTest, ReplaysAPipelineByHand) {
  const Trace trace = pipeline(4);
  const Recording recording = take(trace);
  ASSERT_EQ(recording.messages.size(), 8U);
  EXPECT_EQ(recording.num_alone, 0);
  for (const RecordedMessage& message : recording.messages) {
    EXPECT_DOUBLE_EQ(message.wire_s, 1);
    EXPECT_TRUE(message.observed);
  }
  EXPECT_DOUBLE_EQ(recording.actions[0][2].own_s, 0);    // a receive's wait is taken off
  EXPECT_DOUBLE_EQ(recording.actions[0][5].gap_s, 1.5);  // 8.5 to 10
  const Updates updates = updates_of(recording, trace);
  EXPECT_EQ(updates.count, 4);
  EXPECT_EQ(updates.steps_each, 1);
  const Replay again = replay(recording, updates.steps_each);
  EXPECT_DOUBLE_EQ(again.step_s, 10);
  EXPECT_DOUBLE_EQ(again.window_s, 38.5);
  // The trace of the replay is the trace.
  for (std::size_t r = 0; r < 2; ++r) {
    ASSERT_EQ(again.trace.ranks[r].events.size(), trace.ranks[r].events.size());
    for (std::size_t e = 0; e < trace.ranks[r].events.size(); ++e) {
      EXPECT_EQ(again.trace.ranks[r].events[e].action, trace.ranks[r].events[e].action);
      EXPECT_NEAR(again.trace.ranks[r].events[e].end_s, trace.ranks[r].events[e].end_s, 1e-9);
    }
  }
}

TEST(GraphTest, TheCriticalPathHasNoHole) {
  const Replay again = replay(take(pipeline(3)), 1);
  double at_s = 0;
  double messages_s = 0;
  double overhead_s = 0;
  for (const PathPart& part : again.path) {
    EXPECT_NEAR(part.start_s, at_s, 1e-9);
    at_s = part.end_s;
    messages_s += part.kind == PathKind::kMessage ? part.end_s - part.start_s : 0;
    overhead_s += part.kind == PathKind::kOverhead ? part.end_s - part.start_s : 0;
  }
  EXPECT_DOUBLE_EQ(at_s, again.window_s);
  EXPECT_DOUBLE_EQ(messages_s, 6);    // two a step
  EXPECT_DOUBLE_EQ(overhead_s, 3.0);  // two gaps between steps
  EXPECT_EQ(again.path.front().what, "0F0");
  EXPECT_EQ(again.path.back().what, "0STEP2@3");
}

TEST(GraphTest, WhatIfsChangeWhatTheyName) {
  const Recording recording = take(pipeline(6));
  const auto step_s = [&](const std::string& setting) {
    return replay(changed(recording, parse_what_if(setting)), 1).step_s;
  };
  EXPECT_DOUBLE_EQ(step_s("link.bandwidth=x2"), 9);
  EXPECT_DOUBLE_EQ(step_s("message.bandwidth=x0.5"), 12);
  EXPECT_DOUBLE_EQ(step_s("link.bandwidth=200"), 9);  // 100 bytes in 0.5 s
  EXPECT_DOUBLE_EQ(step_s("link0-1.latency=0.25"), 10.5);
  EXPECT_DOUBLE_EQ(step_s("link1-0.bandwidth=x4"), 8.5);
  EXPECT_DOUBLE_EQ(step_s("device.speed=x2"), 10 - 0.5 - 2 - 0.5 - 0.25);
  EXPECT_DOUBLE_EQ(step_s("rank1.speed=x0.5"), 14);
  EXPECT_DOUBLE_EQ(step_s("stage0.speed=x2"), 10 - 1.25);
}

TEST(GraphTest, WrongWhatIfsAreRefused) {
  const auto message = [](const std::string& text) {
    try {
      parse_what_if(text);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("nothing");
  };
  EXPECT_THAT(message("link.bandwith=x2"), HasSubstr("did you mean `link.bandwidth`"));
  EXPECT_THAT(message("link.bandwidth"), HasSubstr("expected KEY=VALUE"));
  EXPECT_THAT(message("link.bandwidth=fast"), HasSubstr("a factor such as x2"));
  EXPECT_THAT(message("link.bandwidth=x0"), HasSubstr("expected a factor"));
  EXPECT_THAT(message("device.speed=2"), HasSubstr("say x2"));
  EXPECT_THAT(message("rank.speed=x2"), HasSubstr("unknown key"));
  const Recording recording = take(pipeline(2));
  EXPECT_THROW(changed(recording, parse_what_if("rank7.speed=x2")), Error);
  EXPECT_THROW(changed(recording, parse_what_if("reduce.bandwidth=x2")), Error);
}

TEST(GraphTest, ALinkCarriesOneMessageAtATime) {
  // Two sends at once, 100 bytes in 1 s each, latency 0.5 by the cluster: there at 1.5 and 2.5.
  Trace trace;
  trace.ranks.resize(2);
  trace.ranks[1].rank = 1;
  trace.ranks[0].events = events({{"0SEND_F0>1", 0, 0, 0, 100}, {"0SEND_F1>1", 0, 0, 0, 100}});
  trace.ranks[1].events =
      events({{"1RECV_F0<0", 0, 1.5, 1.5, 100}, {"1RECV_F1<0", 1.5, 2.5, 1, 100}});
  Cluster cluster = free_cluster(2);
  cluster.levels[0].latency_s = 0.5;
  const Recording recording = take(trace, &cluster);
  for (const RecordedMessage& message : recording.messages) {
    EXPECT_DOUBLE_EQ(message.wire_s, 1);
    EXPECT_DOUBLE_EQ(message.latency_s, 0.5);
  }
  EXPECT_DOUBLE_EQ(replay(recording, 1).window_s, 2.5);
  EXPECT_DOUBLE_EQ(replay(changed(recording, parse_what_if("link.bandwidth=x2")), 1).window_s, 1.5);
  EXPECT_DOUBLE_EQ(replay(changed(recording, parse_what_if("link.latency=x0")), 1).window_s, 2);
}

TEST(GraphTest, AMessageThatNobodyWaitedForTakesWhatItsLikeTook) {
  Trace trace;
  trace.ranks.resize(2);
  trace.ranks[1].rank = 1;
  trace.ranks[0].events = events({{"0SEND_F0>1", 0, 0, 0, 100}, {"0SEND_F1>1", 5, 5, 0, 100}});
  trace.ranks[1].events =
      events({{"1RECV_F0<0", 0, 2, 2, 100}, {"1F0", 2, 12}, {"1RECV_F1<0", 12, 12, 0, 100}});
  const Recording recording = take(trace);
  EXPECT_FALSE(recording.messages[1].observed);
  EXPECT_DOUBLE_EQ(recording.messages[1].wire_s, 2);
  // A fast device waits for it.
  EXPECT_DOUBLE_EQ(replay(changed(recording, parse_what_if("rank1.speed=x10")), 1).window_s, 7);
}

// Two replicas: B 4 s, then a reduction of 2 s once both have come, then an update of 1 s.
Trace replicas(int steps) {
  Trace trace;
  trace.num_steps = steps;
  trace.ranks.resize(2);
  trace.ranks[1].rank = 1;
  for (int step = 0; step < steps; ++step) {
    const double t = 8.0 * step;
    const std::string m = std::to_string(step);
    for (int rank = 0; rank < 2; ++rank) {
      const double late = rank;  // rank 1 comes a second later
      for (const TraceEvent& event :
           events({{"0B" + m, t, t + 4 + late},
                   {"0REDUCE" + m, t + 4 + late, t + 7, 3 - late, 1000},
                   {"0STEP" + m + "@" + std::to_string(step + 1), t + 7, t + 8}})) {
        trace.ranks[static_cast<std::size_t>(rank)].events.push_back(event);
      }
    }
  }
  trace.step_s = 8;
  return trace;
}

TEST(GraphTest, AReductionStartsWhenTheLastMemberCame) {
  const Recording recording = take(replicas(3));
  ASSERT_EQ(recording.reductions.size(), 3U);
  EXPECT_DOUBLE_EQ(recording.reductions[0].own_s, 2);
  EXPECT_DOUBLE_EQ(recording.reductions[0].vector_bytes(), 1000);
  EXPECT_DOUBLE_EQ(replay(recording, 1).step_s, 8);
  const auto step_s = [&](const std::string& setting) {
    return replay(changed(recording, parse_what_if(setting)), 1).step_s;
  };
  EXPECT_DOUBLE_EQ(step_s("reduce.bandwidth=x2"), 7);
  EXPECT_DOUBLE_EQ(step_s("rank1.speed=x5"), 4 + 2 + 1);  // now rank 0 is the last
  EXPECT_DOUBLE_EQ(step_s("reduce.latency=0.5"), 9);      // two messages in a row
  EXPECT_DOUBLE_EQ(step_s("reduce.bandwidth=500"), 8);    // 1000 bytes in 2 s
}

TEST(GraphTest, OfOtherRulesAReduceMeetsNobody) {
  const Recording recording = take(replicas(3), nullptr, false);
  EXPECT_TRUE(recording.reductions.empty());
  EXPECT_DOUBLE_EQ(replay(recording, 1).step_s, 8);  // as recorded, waits included
}

TEST(GraphTest, ReductionsBesideFollowOneAnotherWhileTheBackwardGoesOn) {
  Trace trace;
  trace.num_steps = 4;
  trace.ranks.resize(2);
  trace.ranks[1].rank = 1;
  for (int step = 0; step < 4; ++step) {
    const double t = 10.0 * step;
    const std::string m = std::to_string(step);
    for (RankTrace& rank : trace.ranks) {
      for (const TraceEvent& event : events({{"0B" + m, t, t + 4},
                                             {"0REDUCE" + m, t + 4, t + 8, 4, 300},
                                             {"0STEP" + m, t + 8, t + 10}})) {
        rank.events.push_back(event);
      }
      // Asked at 1, 2 and 4; 3, 1 and 3 seconds, one after another: there at 4, 5, 8.
      for (const TraceEvent& event : events({{"0REDUCE" + m, t + 1, t + 4, 0, 100},
                                             {"0REDUCE" + m, t + 2, t + 5, 0, 50},
                                             {"0REDUCE" + m, t + 4, t + 8, 0, 150}})) {
        rank.beside.push_back(event);
      }
    }
  }
  trace.step_s = 10;
  const Recording recording = take(trace);
  ASSERT_EQ(recording.reductions.size(), 12U);
  EXPECT_DOUBLE_EQ(recording.reductions[0].own_s, 3);
  EXPECT_DOUBLE_EQ(recording.reductions[1].own_s, 1);
  EXPECT_DOUBLE_EQ(recording.reductions[2].own_s, 3);
  EXPECT_DOUBLE_EQ(replay(recording, 1).step_s, 10);
  // 1 + 1.5, then 0.5, then at 4: 1.5 more: through at 5.5 in place of 8.
  EXPECT_DOUBLE_EQ(replay(changed(recording, parse_what_if("reduce.bandwidth=x2")), 1).step_s, 7.5);
  // Asked at 0.1, 0.2, 0.4; 7 s of reductions; the update then takes 0.2.
  EXPECT_NEAR(replay(changed(recording, parse_what_if("device.speed=x10")), 1).step_s, 7.3, 1e-9);
}

TEST(GraphTest, MediansStandForWhatIsAlike) {
  Trace trace = pipeline(9);
  // One step's backward hung for three seconds, which moved all that followed it.
  for (std::size_t r = 0; r < 2; ++r) {
    for (TraceEvent& event : trace.ranks[r].events) {
      const bool hung = r == 1 && event.action == parse_action("1B4");
      if (event.start_s > 44 || (event.start_s == 44 && !hung)) {
        event.start_s += 3;
      }
      if (hung || event.end_s > 46 || (r == 0 && event.end_s > 45)) {
        event.wait_s += event.action == parse_action("0RECV_B4<1") ? 3 : 0;
        event.end_s += 3;
      }
    }
  }
  const Replay again = replay(typical(take(trace)), 1);
  EXPECT_NEAR(again.window_s, 88.5, 1e-9);  // without it
  EXPECT_NEAR(replay(take(trace), 1).window_s, 91.5, 1e-9);
}

TEST(GraphTest, TheLastUpdatesAreEnough) {
  const Recording recording = last_updates(take(pipeline(20)), 5);
  EXPECT_EQ(updates_of(recording, pipeline(20)).count, 5);
  EXPECT_DOUBLE_EQ(replay(recording, 1).step_s, 10);
}

TEST(GraphTest, ARingIsAnError) {
  // Each receives before it sends.
  Trace trace;
  trace.ranks.resize(2);
  trace.ranks[1].rank = 1;
  trace.ranks[0].events = events({{"0RECV_B0<1", 0, 1, 1, 1}, {"0SEND_F0>1", 1, 1, 0, 1}});
  trace.ranks[1].events = events({{"1RECV_F0<0", 0, 1, 1, 1}, {"1SEND_B0>0", 1, 1, 0, 1}});
  EXPECT_THROW(replay(take(trace), 1), Error);
}

}  // namespace
}  // namespace millrace
