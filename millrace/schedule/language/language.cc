#include "millrace/schedule/language/language.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "millrace/base/file.h"
#include "millrace/schedule/language/build.h"

namespace millrace {
namespace {

// A schedule is written by hand, or one action after another for a few thousand microbatches.
constexpr uint64_t kMostBytes = uint64_t{64} << 20;

StashFormula peak_stash(const Schedule& schedule) {
  StashFormula formula;
  for (std::size_t rank = 0; rank < schedule.period.size(); ++rank) {
    // Without a flush a rank holds what its warm-up started.
    int stash = static_cast<int>(schedule.prologue[rank].size());
    int peak = stash;
    for (const Action& action : schedule.period[rank]) {
      if (action.kind != ActionKind::kInputGradient) {
        const auto num = static_cast<int>(action.num_microbatches());
        stash += action.kind == ActionKind::kForward ? num : -num;
      }
      peak = std::max(peak, stash);
    }
    formula.ranks.push_back(peak);
  }
  return formula;
}

}  // namespace

std::unique_ptr<WrittenSchedule> written_schedule(const std::string& text,
                                                  const std::string& file) {
  // Shared by the functions below, which the entry may copy.
  const auto program = std::make_shared<const language::Program>(language::parse(text, file));
  auto written = std::make_unique<WrittenSchedule>();
  const auto one_copy = [](ScheduleConfig config) {
    config.copies = 1;
    return config;
  };
  ScheduleBuiltin& builtin = written->builtin;
  builtin.make = [program, one_copy](const ScheduleConfig& config) {
    return language::build(*program, one_copy(config));
  };
  builtin.offers = [program](const ScheduleConfig& config) {
    return language::refused(*program, config);
  };
  builtin.policies = [program] { return program->policies; };
  builtin.formula = [](const ScheduleConfig&, double, double) {
    return std::optional<SlotFormula>();
  };
  builtin.peak_stash = [program, one_copy](const ScheduleConfig& config) {
    return peak_stash(language::build(*program, one_copy(config)));
  };
  builtin.formula_text = "";
  builtin.chunks = language::default_chunks(*program);
  builtin.directions = program->placement.both_ways
                           ? 2
                           : std::max(1, static_cast<int>(program->placement.routes.size()));
  builtin.recompute = program->recompute;
  builtin.microbatches = program->microbatches;
  if (program->ranks != 0) {
    ScheduleConfig config;
    config.num_ranks = program->ranks;
    config.num_microbatches = std::max(program->microbatches, 1);
    builtin.ranks = program->ranks;
    builtin.stages = static_cast<int>(language::placement_of(*program, config).front().size());
  }
  written->entry = {file, program->text.empty() ? program->name : program->text, &builtin};
  return written;
}

bool is_schedule_file(const std::string& name) { return name.ends_with(".sched"); }

const ScheduleEntry& schedule_of_file(const std::string& path) {
  // Entries are named for as long as the program runs, and a file may change meanwhile, so that
  // what it held before stays too.
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, std::unique_ptr<WrittenSchedule>> known;
  std::string text = read_file(path, kMostBytes);
  const std::lock_guard lock(mutex);
  std::unique_ptr<WrittenSchedule>& entry = known[{path, text}];
  if (entry == nullptr) {
    try {
      entry = written_schedule(text, path);
    } catch (...) {
      known.erase({path, text});
      throw;
    }
  }
  return entry->entry;
}

}  // namespace millrace
