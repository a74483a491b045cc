// millrace replay: the data-flow graph of a run from its trace: clocks, the step replayed beside
// the measured one, the critical path, what-if questions, proposals.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/commands.h"
#include "millrace/cli/common/run_folder.h"
#include "millrace/core/run_config.h"
#include "millrace/replay/align.h"
#include "millrace/replay/graph.h"
#include "millrace/replay/propose.h"
#include "millrace/replay/what_if.h"
#include "millrace/rule/rule.h"
#include "millrace/schedule/registry.h"
#include "millrace/sim/simulate.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

// Enough for any median, and few enough that a replay of many ranks takes well under a second.
constexpr int64_t kMostUpdates = 200;

struct PathShare {
  std::string where;
  std::string kind;
  double seconds = 0;  // per step
};

struct Question {
  std::string text;
  double step_s = 0;
};

struct Answer {
  Alignment alignment;
  int num_ranks = 0;
  int64_t num_updates = 0;
  double measured_s = 0;
  double replayed_s = 0;
  double typical_s = 0;  // with medians in place of every duration
  std::vector<PathShare> path;
  std::vector<std::string> actions;  // on the path, of one step from the middle
  std::vector<Question> questions;
  std::vector<Proposal> proposals;
  std::vector<std::string> notes;
};

// What a run left behind.
struct Run {
  Plan plan;
  Trace trace;
  std::optional<Cluster> cluster;
  std::string dir;
};

Run read(const std::string& dir) {
  const RunReport report = read_run(dir);
  if (!report.measured) {
    throw Error(ErrorCode::kInvalidArgument,
                "the run left no trace.json; it is written at the run's end, also when it is "
                "interrupted")
        .in_file(dir);
  }
  Run run{.plan = report.plan, .trace = *report.measured, .cluster = {}, .dir = dir};
  const std::string cluster = (fs::path(dir) / kClusterFile).string();
  if (fs::exists(cluster)) {
    run.cluster = cluster_from(read_document(cluster));
  }
  const auto updates = [](const RankTrace& rank) {
    return std::any_of(rank.events.begin(), rank.events.end(), [](const TraceEvent& event) {
      return event.action.kind == ActionKind::kStep;
    });
  };
  if (!std::any_of(run.trace.ranks.begin(), run.trace.ranks.end(), updates)) {
    throw Error(ErrorCode::kInvalidArgument, "the trace holds no finished step; train longer")
        .in_file((fs::path(dir) / kTraceFile).string());
  }
  return run;
}

// Whether REDUCE is a sum over all replicas that ends with it.
bool reduces(const std::string& rule) {
  const RuleTraits traits = find_rule(rule).traits;
  return traits.sums_gradients || (traits.equal_replicas && traits.overlaps);
}

std::vector<PathShare> shares_of(const Replay& replay) {
  std::map<std::pair<std::string, std::string>, double> seconds;
  for (const PathPart& part : replay.path) {
    seconds[{part.where, to_string(part.kind)}] += part.end_s - part.start_s;
  }
  const auto steps = static_cast<double>(std::max<int64_t>(replay.trace.num_steps, 1));
  std::vector<PathShare> shares;
  for (const auto& [key, sum] : seconds) {
    if (sum > 0) {
      shares.push_back({key.first, key.second, sum / steps});
    }
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const PathShare& a, const PathShare& b) { return a.seconds > b.seconds; });
  return shares;
}

// What stands on the path in a step's time from its middle.
std::vector<std::string> actions_of(const Replay& replay) {
  constexpr std::size_t kMost = 60;
  const double from_s = replay.window_s / 2;
  std::vector<std::string> actions;
  for (const PathPart& part : replay.path) {
    const bool inside = part.start_s >= from_s && part.start_s < from_s + replay.step_s;
    if (inside && part.what != "gap" && part.end_s > part.start_s && actions.size() < kMost) {
      actions.push_back(part.what);
    }
  }
  return actions;
}

std::vector<Proposal> proposals_of(const Run& run, const Recording& recording, int64_t steps_each) {
  const auto path = [&](const char* file) { return (fs::path(run.dir) / file).string(); };
  const Profile profile = profile_from(read_document(path(kProfileFile)));
  const RunConfig config = run_config_from(read_document(path(kConfigFile)));
  const Schedule schedule = make_schedule(run.plan.schedule, schedule_config(run.plan));
  return propose({.recording = recording,
                  .steps_each = steps_each,
                  .plan = run.plan,
                  .profile = profile,
                  .samples_per_part = samples_per_part(schedule, config.train.batch)});
}

Answer make_answer(const Run& run, const ReplayArgs& args) {
  Answer answer;
  // Before the work, so that a wrong key is told at once.
  std::vector<WhatIf> what_ifs;
  for (const std::string& text : args.set) {
    what_ifs.push_back(parse_what_if(text));
  }
  const bool sums = reduces(run.plan.rule);
  const Matches matches = match_events(run.trace, sums);
  answer.alignment = align_clocks(run.trace, matches);
  const Recording whole = take_apart(aligned(run.trace, answer.alignment), matches,
                                     run.cluster ? &*run.cluster : nullptr);
  const Updates updates = updates_of(whole, run.trace);
  const Recording recording = last_updates(whole, kMostUpdates);
  const Replay base = replay(recording, updates.steps_each);
  answer.num_ranks = static_cast<int>(whole.ranks.size());
  answer.num_updates = updates.count;
  answer.measured_s = run.trace.step_s;
  answer.replayed_s = base.step_s;
  answer.typical_s = replay(last_updates(typical(whole), kMostUpdates), updates.steps_each).step_s;
  answer.path = shares_of(base);
  answer.actions = actions_of(base);
  Recording all = recording;
  for (const WhatIf& what_if : what_ifs) {
    all = changed(std::move(all), what_if);
    if (what_ifs.size() > 1) {
      answer.questions.push_back(
          {what_if.text, replay(changed(recording, what_if), updates.steps_each).step_s});
    }
  }
  if (!what_ifs.empty() || !args.trace.empty()) {
    const Replay changed_run = replay(all, updates.steps_each);
    if (!what_ifs.empty()) {
      answer.questions.push_back(
          {what_ifs.size() > 1 ? "all of these" : what_ifs.front().text, changed_run.step_s});
    }
    if (!args.trace.empty()) {
      write_file_atomically(args.trace, to_json(to_value(changed_run.trace)) + "\n");
    }
  }
  if (args.optimize) {
    answer.proposals = proposals_of(run, recording, updates.steps_each);
  }
  if (!sums && run.plan.max_replicas() > 1) {
    answer.notes.push_back(
        fmt::format("the messages of rule {} are not in a trace: its REDUCE and STEP are replayed "
                    "as long as they were, waits included",
                    run.plan.rule));
  }
  if (!answer.alignment.consistent) {
    answer.notes.emplace_back(
        "bounds between the clocks contradict each other: a clock drifted during the run; a "
        "shorter run aligns better");
  }
  if (whole.num_alone > 0) {
    answer.notes.push_back(
        fmt::format("{} messages have only one end in the trace", whole.num_alone));
  }
  if (!run.trace.complete) {
    answer.notes.emplace_back("the trace does not hold the whole run, only its beginning");
  }
  return answer;
}

// Of seconds, finite or not.
Value number_or_null(double value) { return std::isfinite(value) ? Value::of(value) : Value(); }

Value to_value(const Answer& answer) {
  Value root = Value::map();
  root.set("measured_step_s", Value::of(answer.measured_s));
  root.set("replayed_step_s", Value::of(answer.replayed_s));
  root.set("typical_step_s", Value::of(answer.typical_s));
  root.set("updates", Value::of(answer.num_updates));
  Value clocks = Value::list();
  for (const ProcessClock& clock : answer.alignment.clocks) {
    Value item = Value::map();
    item.set("process", Value::of(static_cast<int64_t>(clock.process)));
    item.set("host", Value::of(clock.host));
    item.set("offset_s", Value::of(clock.offset_s));
    item.set("half_width_s", number_or_null(clock.half_width_s));
    item.set("by_host_s", number_or_null(clock.by_host_s));
    item.set("note", Value::of(clock.note));
    clocks.push(std::move(item));
  }
  root.set("clocks", std::move(clocks));
  Value path = Value::list();
  for (const PathShare& share : answer.path) {
    Value item = Value::map();
    item.set("where", Value::of(share.where));
    item.set("kind", Value::of(share.kind));
    item.set("seconds_per_step", Value::of(share.seconds));
    path.push(std::move(item));
  }
  root.set("critical_path", std::move(path));
  Value actions = Value::list();
  for (const std::string& action : answer.actions) {
    actions.push(Value::of(action));
  }
  root.set("critical_actions", std::move(actions));
  Value questions = Value::list();
  for (const Question& question : answer.questions) {
    Value item = Value::map();
    item.set("set", Value::of(question.text));
    item.set("step_s", Value::of(question.step_s));
    questions.push(std::move(item));
  }
  root.set("what_if", std::move(questions));
  Value proposals = Value::list();
  for (const Proposal& proposal : answer.proposals) {
    Value item = Value::map();
    item.set("kind", Value::of(proposal.kind));
    item.set("what", Value::of(proposal.what));
    item.set("settings", Value::of(proposal.settings));
    item.set("step_s", Value::of(proposal.step_s));
    item.set("note", Value::of(proposal.note));
    proposals.push(std::move(item));
  }
  root.set("proposals", std::move(proposals));
  Value notes = Value::list();
  for (const std::string& note : answer.notes) {
    notes.push(Value::of(note));
  }
  root.set("notes", std::move(notes));
  return root;
}

std::string change(double now_s, double before_s) {
  return before_s > 0 ? fmt::format("{:+.1f}%", 100 * (now_s / before_s - 1)) : std::string("-");
}

std::string describe_clocks(const Alignment& alignment) {
  std::string text = "\nclocks, against the first process's\n";
  TextTable table({"process", "host", "offset", "half width", "by the host's clock"});
  for (std::size_t i = 1; i < alignment.clocks.size(); ++i) {
    const ProcessClock& clock = alignment.clocks[i];
    table.row({fmt::format("{}", clock.process), clock.host,
               fmt::format("{:+.3f} ms", 1e3 * clock.offset_s),
               std::isfinite(clock.half_width_s)
                   ? fmt::format("{:.3f} ms", 1e3 * clock.half_width_s)
                   : "unknown",
               std::isfinite(clock.by_host_s) ? fmt::format("{:+.3f} ms", 1e3 * clock.by_host_s)
                                              : "another host"});
  }
  text += table.str();
  for (const ProcessClock& clock : alignment.clocks) {
    if (!clock.note.empty()) {
      text += fmt::format("process {}: {}\n", clock.process, clock.note);
    }
  }
  return text;
}

std::string describe_path(const Answer& answer) {
  std::string text = "\ncritical path, seconds of a step\n";
  TextTable table({"where", "what", "time", "share"});
  double sum = 0;
  for (const PathShare& share : answer.path) {
    sum += share.seconds;
  }
  constexpr double kLeastShare = 1e-3;
  for (const PathShare& share : answer.path) {
    if (share.seconds < kLeastShare * sum) {
      break;
    }
    table.row({share.where, share.kind, format_seconds(share.seconds),
               fmt::format("{:.1f}%", 100 * share.seconds / sum)});
  }
  text += table.str();
  if (!answer.actions.empty()) {
    text += fmt::format("one step of it: {}\n", fmt::join(answer.actions, " "));
  }
  return text;
}

std::string describe(const Answer& answer) {
  std::string text =
      fmt::format("{} ranks in {} processes, {} updates recorded\n", answer.num_ranks,
                  answer.alignment.clocks.size(), answer.num_updates);
  if (answer.alignment.clocks.size() > 1) {
    text += describe_clocks(answer.alignment);
  }
  text += fmt::format(
      "\nstep  measured {}, replayed {} ({}); with medians in place of every duration {} ({})\n",
      format_seconds(answer.measured_s), format_seconds(answer.replayed_s),
      change(answer.replayed_s, answer.measured_s), format_seconds(answer.typical_s),
      change(answer.typical_s, answer.measured_s));
  text += describe_path(answer);
  if (!answer.questions.empty()) {
    text += "\nwhat if\n";
    TextTable table({"set", "step", "change"});
    for (const Question& question : answer.questions) {
      table.row({question.text, format_seconds(question.step_s),
                 change(question.step_s, answer.replayed_s)});
    }
    text += table.str();
  }
  if (!answer.proposals.empty()) {
    text += "\nproposals\n";
    for (const Proposal& proposal : answer.proposals) {
      text +=
          fmt::format("{}: {}\n  step {} ({})\n", proposal.kind, proposal.what,
                      format_seconds(proposal.step_s), change(proposal.step_s, answer.replayed_s));
      if (!proposal.settings.empty()) {
        text += fmt::format("  --set {}\n", join(split(proposal.settings, ' '), " --set "));
      }
      if (!proposal.note.empty()) {
        text += fmt::format("  {}\n", proposal.note);
      }
    }
  }
  for (const std::string& note : answer.notes) {
    text += "\nnote: " + note + "\n";
  }
  return text;
}

}  // namespace

int run_replay(const ReplayArgs& args, Output& output) {
  const Answer answer = make_answer(read(args.dir), args);
  output.document(to_value(answer));
  output.text(describe(answer));
  if (!args.trace.empty()) {
    output.text(fmt::format("\ntrace written to {}\n", args.trace));
  }
  return 0;
}

}  // namespace millrace::cli
