// millrace schedule --name auto: a schedule searched for a profile and a cluster, written in the
// schedule language with its plan beside it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/commands.h"
#include "millrace/planner/schedule_search.h"
#include "millrace/schedule/language/language.h"

namespace millrace::cli {
namespace {

Error wrong(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

void check_args(const ScheduleArgs& args) {
  const ScheduleSource& source = args.source;
  const char* missing = args.profile.empty()   ? "--profile FILE"
                        : args.cluster.empty() ? "--cluster FILE"
                        : source.ranks < 1     ? "--ranks N"
                        : !source.microbatches ? "--microbatches N"
                        : args.output.empty()  ? "-o FILE.sched"
                                               : nullptr;
  if (missing != nullptr) {
    throw wrong(fmt::format("--name auto needs {} as well", missing));
  }
  const char* extra = !source.plan.empty()   ? "a plan file"
                      : !source.file.empty() ? "--file"
                      : source.chunks > 0    ? "--chunks"
                      : args.lowered         ? "--lowered"
                                             : nullptr;
  if (extra != nullptr) {
    throw wrong(
        fmt::format("{} does not go with --name auto, which finds a schedule of its own", extra));
  }
  if (!source.policy.empty() && source.policy != "flush") {
    throw wrong("--name auto searches among schedules with a flush; leave --policy out");
  }
  if (!is_schedule_file(args.output)) {
    throw wrong(
        fmt::format("-o: expected a name that ends in .sched, found {}", in_quotes(args.output)));
  }
}

// "my.sched" -> "my.plan.json"
std::string plan_file_of(const std::string& schedule_file) {
  return schedule_file.substr(0, schedule_file.size() - std::string(".sched").size()) +
         ".plan.json";
}

Value to_value(const FoundSchedule& found, const std::string& plan_file) {
  Value root = Value::map();
  root.set("step_s", Value::of(found.step_s));
  root.set("origin", Value::of(found.origin));
  root.set("one_f_one_b_s", found.one_f_one_b_s > 0 ? Value::of(found.one_f_one_b_s) : Value());
  root.set("best_builtin", found.best_builtin.empty() ? Value() : Value::of(found.best_builtin));
  root.set("best_builtin_s",
           found.best_builtin.empty() ? Value() : Value::of(found.best_builtin_s));
  root.set("tried", Value::of(found.tried));
  root.set("schedule", Value::of(found.plan.schedule));
  root.set("plan", Value::of(plan_file));
  return root;
}

std::string describe(const FoundSchedule& found, const ScheduleArgs& args,
                     const std::string& plan_file) {
  std::string text =
      fmt::format("found a step of {} among {} tried: {}\n", format_seconds(found.step_s),
                  format_count(found.tried), found.origin);
  if (found.one_f_one_b_s > 0) {
    text += fmt::format("1f1b on the planner's stages {}: {:.2f}x\n",
                        format_seconds(found.one_f_one_b_s), found.one_f_one_b_s / found.step_s);
  }
  if (!found.best_builtin.empty()) {
    text += fmt::format("best builtin that fits, {}, {}: {:.2f}x\n", found.best_builtin,
                        format_seconds(found.best_builtin_s), found.best_builtin_s / found.step_s);
  }
  for (std::size_t rank = 0; rank < found.plan.memory.size(); ++rank) {
    text += fmt::format("rank {} (stages {}): {}\n", rank,
                        fmt::join(found.plan.stages_of_rank(static_cast<int>(rank)), ", "),
                        format_bytes(static_cast<double>(found.plan.memory[rank].total())));
  }
  return text + fmt::format(
                    "\nwritten to {} and {}; next: millrace simulate {} --profile {} "
                    "--cluster {}\n",
                    args.output, plan_file, plan_file, args.profile, args.cluster);
}

}  // namespace

int run_search(const ScheduleArgs& args, Output& output) {
  check_args(args);
  const Profile profile = profile_from(read_document(args.profile));
  const Cluster cluster = cluster_from(read_document(args.cluster));
  const SearchRequest request{
      .profile = profile,
      .cluster = cluster,
      .ranks = args.source.ranks,
      .microbatches = *args.source.microbatches,
      .memory_bytes = args.memory_bytes,
      .progress = [&output](const std::string& text) { output.progress(text); }};
  FoundSchedule found = search_schedule(request);
  found.plan.schedule = args.output;
  const std::string plan_file = plan_file_of(args.output);
  write_file_atomically(args.output,
                        schedule_text(found.schedule, fmt::format("searched: {}", found.origin)));
  write_file_atomically(plan_file, to_json(to_value(found.plan)) + "\n");
  output.document(to_value(found, plan_file));
  output.text(describe(found, args, plan_file));
  return 0;
}

}  // namespace millrace::cli
