#include "millrace/core/trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

TraceEvent event_from(Reader& reader) {
  TraceEvent event;
  const std::string text = reader.text("action");
  try {
    event.action = parse_action(text);
  } catch (const Error& error) {
    throw reader.error("action", error.message());
  }
  event.start_s = reader.quantity("start_s");
  event.end_s = reader.quantity("end_s");
  if (event.end_s < event.start_s) {
    throw reader.error("end_s", fmt::format("action {} ends at {} s, before its start at {} s",
                                            text, event.end_s, event.start_s));
  }
  event.wait_s = reader.quantity("wait_s", 0.0);
  event.bytes = reader.count("bytes", 0, 0);
  reader.finish();
  return event;
}

std::vector<TraceEvent> events_from(Reader& reader, const char* key) {
  std::vector<TraceEvent> events;
  for (Reader& item : reader.objects(key)) {
    TraceEvent event = event_from(item);
    if (!events.empty() && event.start_s < events.back().start_s) {
      throw item.error("start_s",
                       fmt::format("expected events in order of start, found {} s after {} s",
                                   event.start_s, events.back().start_s));
    }
    events.push_back(event);
  }
  return events;
}

RankTrace rank_from(Reader& reader) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  RankTrace trace;
  const int64_t rank = reader.count("rank", 0);
  if (rank > kMost) {
    throw reader.error("rank", fmt::format("expected at most {}", kMost));
  }
  trace.rank = static_cast<int>(rank);
  for (const int64_t stage : reader.integers("stages")) {
    if (stage < 0 || stage > kMost) {
      throw reader.error("stages", fmt::format("expected stages from 0 up, found {}", stage));
    }
    trace.stages.push_back(static_cast<int>(stage));
  }
  trace.compute_s = reader.quantity("compute_s");
  trace.communicate_s = reader.quantity("communicate_s");
  trace.wait_s = reader.quantity("wait_s");
  trace.update_s = reader.quantity("update_s");
  trace.events = events_from(reader, "events");
  if (reader.has("beside")) {
    trace.beside = events_from(reader, "beside");
  }
  trace.process = static_cast<int>(reader.count("process", 0, 0));
  trace.host = reader.text("host", "");
  trace.origin_s = reader.quantity("origin_s", 0.0);
  reader.finish();
  return trace;
}

Value to_value(const std::vector<TraceEvent>& events) {
  Value list = Value::list();
  for (const TraceEvent& event : events) {
    Value one = Value::map();
    one.set("action", Value::of(to_string(event.action)));
    one.set("start_s", Value::of(event.start_s));
    one.set("end_s", Value::of(event.end_s));
    // Most events wait for nobody and move nothing; a trace holds many of them.
    if (event.wait_s != 0) {
      one.set("wait_s", Value::of(event.wait_s));
    }
    if (event.bytes != 0) {
      one.set("bytes", Value::of(event.bytes));
    }
    list.push(std::move(one));
  }
  return list;
}

}  // namespace

Trace trace_from(const Document& document) {
  Reader reader(document);
  expect_artifact(reader, "trace", 1);
  Trace trace;
  trace.source = reader.text("source");
  if (trace.source != "measured" && trace.source != "simulated") {
    throw reader.error("source", fmt::format("expected `measured` or `simulated`, found {}",
                                             in_quotes(trace.source)));
  }
  trace.num_steps = reader.count("num_steps", 0);
  trace.step_s = reader.quantity("step_s");
  trace.window_s = reader.quantity("window_s");
  trace.complete = reader.boolean("complete");
  std::set<int> seen;
  for (Reader& item : reader.objects("ranks")) {
    trace.ranks.push_back(rank_from(item));
    if (!seen.insert(trace.ranks.back().rank).second) {
      throw item.error("rank", fmt::format("rank {} stands there twice", trace.ranks.back().rank));
    }
  }
  reader.finish();
  return trace;
}

Value to_value(const Trace& trace) {
  Value root = Value::map();
  root.set("artifact", Value::of("trace"));
  root.set("version", Value::of(1));
  root.set("source", Value::of(trace.source));
  root.set("num_steps", Value::of(trace.num_steps));
  root.set("step_s", Value::of(trace.step_s));
  root.set("window_s", Value::of(trace.window_s));
  root.set("complete", Value::of(trace.complete));
  Value ranks = Value::list();
  for (const RankTrace& rank : trace.ranks) {
    Value item = Value::map();
    item.set("rank", Value::of(rank.rank));
    Value& stages = item.set("stages", Value::list());
    for (const int stage : rank.stages) {
      stages.push(Value::of(stage));
    }
    item.set("compute_s", Value::of(rank.compute_s));
    item.set("communicate_s", Value::of(rank.communicate_s));
    item.set("wait_s", Value::of(rank.wait_s));
    item.set("update_s", Value::of(rank.update_s));
    if (rank.origin_s != 0) {
      item.set("process", Value::of(rank.process));
      item.set("host", Value::of(rank.host));
      item.set("origin_s", Value::of(rank.origin_s));
    }
    item.set("events", to_value(rank.events));
    if (!rank.beside.empty()) {
      item.set("beside", to_value(rank.beside));
    }
    ranks.push(std::move(item));
  }
  root.set("ranks", std::move(ranks));
  return root;
}

double typical_step_s(const std::vector<std::vector<StepEnd>>& segments) {
  constexpr std::size_t kMostUpdates = 8;
  std::vector<double> step_s;
  for (const std::vector<StepEnd>& ends : segments) {
    const std::size_t length = std::min(kMostUpdates, (ends.size() + 1) / 2);
    for (std::size_t first = 0; first + length < ends.size(); ++first) {
      int64_t num_steps = 0;
      for (std::size_t i = first + 1; i <= first + length; ++i) {
        num_steps += ends[i].num_steps;
      }
      step_s.push_back((ends[first + length].end_s - ends[first].end_s) /
                       static_cast<double>(num_steps));
    }
  }
  if (step_s.empty()) {
    return 0;
  }
  const auto middle = step_s.begin() + static_cast<std::ptrdiff_t>(step_s.size() / 2);
  std::nth_element(step_s.begin(), middle, step_s.end());
  return *middle;
}

std::vector<StageTimes> stage_times(const Trace& trace) {
  std::map<std::vector<int>, StageTimes> stages;
  std::map<std::vector<int>, int> num_replicas;
  for (const RankTrace& rank : trace.ranks) {
    if (rank.stages.empty()) {
      continue;  // an idle rank
    }
    StageTimes& times = stages[rank.stages];
    times.stages = rank.stages;
    times.compute_s += rank.compute_s;
    times.communicate_s += rank.communicate_s;
    times.wait_s += rank.wait_s;
    times.update_s += rank.update_s;
    ++num_replicas[rank.stages];
  }
  std::vector<StageTimes> result;
  for (auto& [stage, times] : stages) {
    // A trace of no finished step has totals of nothing yet.
    const double parts = static_cast<double>(trace.num_steps > 0 ? trace.num_steps : 1) *
                         static_cast<double>(num_replicas[stage]);
    times.compute_s /= parts;
    times.communicate_s /= parts;
    times.wait_s /= parts;
    times.update_s /= parts;
    result.push_back(times);
  }
  return result;
}

std::string describe_stages(const std::vector<int>& stages) {
  return stages.empty()
             ? "idle"
             : fmt::format("stage{} {}", stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
}

}  // namespace millrace
