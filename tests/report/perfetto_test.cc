#include <gtest/gtest.h>

#include <map>
#include <set>

#include "millrace/base/document.h"
#include "millrace/report/report.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

struct Parsed {
  Document document;
  std::vector<const Value*> slices;
  std::map<std::pair<int64_t, int64_t>, std::string> threads;
  std::map<int64_t, std::string> processes;
};

Parsed parse(const std::string& text) {
  Parsed parsed{parse_json(text, "trace.perfetto.json"), {}, {}, {}};
  for (const Value& event : parsed.document.root.find("traceEvents")->array) {
    const std::string& phase = event.find("ph")->string;
    const std::string& name = event.find("name")->string;
    const int64_t process = event.find("pid")->integer;
    if (phase == "X") {
      parsed.slices.push_back(&event);
    } else if (name == "process_name") {
      parsed.processes[process] = event.find("args")->find("name")->string;
    } else if (name == "thread_name") {
      parsed.threads[{process, event.find("tid")->integer}] =
          event.find("args")->find("name")->string;
    }
  }
  return parsed;
}

TEST(Perfetto, HasOneProcessATraceAndOneThreadARank) {
  const Trace predicted = test::two_ranks("simulated", 3);
  const Trace measured = test::two_ranks("measured", 5);
  const Parsed parsed = parse(perfetto_json({&predicted, nullptr, &measured}));
  EXPECT_EQ(parsed.processes, (std::map<int64_t, std::string>{{1, "predicted"}, {2, "measured"}}));
  EXPECT_EQ(parsed.threads.size(), 4U);
  EXPECT_EQ(parsed.threads.at({2, 1}), "rank 1 (stage 1)");
  EXPECT_EQ(parsed.slices.size(), (3U + 5) * (7 + 1));  // seven actions and one wait a step
}

TEST(Perfetto, PutsTheWaitInsideItsAction) {
  const Trace trace = test::two_ranks("measured", 1);
  const Parsed parsed = parse(perfetto_json({&trace}));
  const Value& receive = *parsed.slices[1];
  const Value& wait = *parsed.slices[2];
  EXPECT_EQ(receive.find("name")->string, "0RECV_B0<1");
  EXPECT_DOUBLE_EQ(receive.find("ts")->number, 2000);
  EXPECT_DOUBLE_EQ(receive.find("dur")->number, 4000);
  const Value& args = *receive.find("args");
  EXPECT_EQ(args.find("stage")->integer, 0);
  EXPECT_EQ(args.find("microbatch")->integer, 0);
  EXPECT_EQ(args.find("peer")->integer, 1);
  EXPECT_EQ(args.find("bytes")->integer, 64);
  EXPECT_DOUBLE_EQ(args.find("wait_us")->number, 4000);
  EXPECT_EQ(wait.find("name")->string, "wait");
  EXPECT_EQ(wait.find("tid")->integer, receive.find("tid")->integer);
  EXPECT_DOUBLE_EQ(wait.find("ts")->number, 2000);
  EXPECT_LE(wait.find("dur")->number, 4000);
}

// A viewer draws nonsense where slices of one thread overlap without nesting.
TEST(Perfetto, MovesWhatOverlapsToAThreadOfItsOwn) {
  Trace trace;
  RankTrace rank;
  rank.stages = {0};
  rank.events = {test::event("0F0", 0, 1), test::event("0SEND_F0>1", 1, 4),
                 test::event("0F1", 1, 3), test::event("0SEND_F1>1", 3, 6),
                 test::event("0B0", 3.5, 5)};
  trace.ranks = {rank};
  const Parsed parsed = parse(perfetto_json({&trace}));
  std::map<int64_t, double> ends;
  std::set<int64_t> threads;
  for (const Value* slice : parsed.slices) {
    const int64_t thread = slice->find("tid")->integer;
    threads.insert(thread);
    EXPECT_GE(slice->find("ts")->number, ends[thread]);
    ends[thread] = slice->find("ts")->number + slice->find("dur")->number;
  }
  EXPECT_EQ(threads.size(), 3U);
  EXPECT_EQ(parsed.threads.size(), 3U);
}

TEST(Perfetto, KeepsTheFirstEventsAndCountsTheRest) {
  const Trace trace = test::two_ranks("measured", 100);
  const Parsed parsed = parse(perfetto_json({&trace}, 8));
  EXPECT_EQ(parsed.slices.size(), 16U + 2);
  EXPECT_EQ(parsed.document.root.find("otherData")->find("events_left_out")->integer,
            400 + 300 - 16);
}

TEST(Perfetto, TakesTracesOfNothing) {
  EXPECT_TRUE(parse(perfetto_json({})).slices.empty());
  Trace trace;
  trace.ranks.resize(1);
  const Parsed parsed = parse(perfetto_json({&trace}));
  EXPECT_EQ(parsed.threads.at({1, 0}), "rank 0 (idle)");
}

}  // namespace
}  // namespace millrace
