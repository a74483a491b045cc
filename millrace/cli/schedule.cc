// millrace schedule: the order of work on every rank, checked and drawn.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/commands.h"
#include "millrace/cli/picture.h"
#include "millrace/cli/schedule_source.h"
#include "millrace/core/cluster.h"
#include "millrace/core/grid.h"
#include "millrace/report/report.h"
#include "millrace/sim/simulate.h"

namespace millrace::cli {
namespace {

// What a text drawing shows before it is cut; the picture has it all.
constexpr std::size_t kMostColumns = 64;
constexpr std::size_t kMostActionsListed = 48;

// The name that asks for a search instead of a schedule that there is.
constexpr const char* kSearchName = "auto";

void refuse_search_options(const ScheduleArgs& args) {
  const char* option = !args.profile.empty()   ? "--profile"
                       : !args.cluster.empty() ? "--cluster"
                       : args.memory_bytes > 0 ? "--memory"
                                               : nullptr;
  if (option != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} goes with --name auto, which searches for a schedule", option));
  }
}

// One column of the grid: the longest length that both divide into, where they are whole.
double column_slots(Slots slots) {
  constexpr double kLargest = 1e6;
  const bool whole = std::floor(slots.forward) == slots.forward &&
                     std::floor(slots.backward) == slots.backward &&
                     std::max(slots.forward, slots.backward) <= kLargest;
  return whole ? static_cast<double>(std::gcd(static_cast<int64_t>(slots.forward),
                                              static_cast<int64_t>(slots.backward)))
               : std::min(slots.forward, slots.backward);
}

Simulation simulate_in_slots(const ChosenSchedule& chosen, Slots slots) {
  const Cluster cluster = free_cluster(static_cast<int>(chosen.lowered.ranks.size()));
  return simulate({.lowered = chosen.lowered,
                   .costs = slot_costs(chosen.lowered.num_stages, slots.forward, slots.backward),
                   .cluster = cluster,
                   .num_steps = chosen.num_steps});
}

std::string place_of(const LoweredSchedule& lowered, std::size_t rank) {
  const std::vector<int>& stages = lowered.rank_stages[rank];
  std::string place = describe_stages(stages);
  if (stages.size() == 1 && lowered.stage_ranks[static_cast<std::size_t>(stages[0])].size() > 1) {
    place += fmt::format(", replica {}", lowered.replica_of(static_cast<int>(rank), stages[0]));
  }
  return place;
}

// The actions of each rank as text; only F, B, I, W unless `complete`. With a simulation also what
// each rank waits and keeps in it.
std::string orders(const LoweredSchedule& lowered, bool complete,
                   const Simulation* simulation = nullptr) {
  std::string text;
  for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
    ActionList shown;
    for (Action action : lowered.ranks[rank]) {
      if (!complete && !is_compute(action.kind)) {
        continue;
      }
      if (!complete) {
        action.version = kNone;
      }
      shown.push_back(action);
    }
    const bool cut = !complete && shown.size() > kMostActionsListed;
    if (cut) {
      shown.resize(kMostActionsListed);
    }
    std::string facts;
    if (simulation != nullptr && !lowered.rank_stages[rank].empty()) {
      const RankSimulation& part = simulation->ranks[rank];
      facts =
          fmt::format("; idle {:.1f}%, stash {}", 100 * part.bubble_fraction, part.peak_in_flight);
    }
    text += fmt::format("rank {} ({}{}): {}{}\n", rank, place_of(lowered, rank), facts,
                        to_string(shown), cut ? " ..." : "");
  }
  return text;
}

std::string drawing(const ChosenSchedule& chosen, const ScheduleArgs& args, Slots slots) {
  const Simulation simulation = simulate_in_slots(chosen, slots);
  if (args.draw != "text") {
    return picture(args.draw, simulation.trace, describe(chosen), TraceClock::kSlots);
  }
  const double column = column_slots(slots);
  return fmt::format("{}\n\nOne column is {} slot{}; F takes {}, B {}; . is idle\n{}\n{}",
                     describe(chosen), column, column == 1 ? "" : "s", slots.forward,
                     slots.backward, time_grid(simulation.trace, column, kMostColumns),
                     orders(chosen.lowered, false, &simulation));
}

Value to_value(const LoweredSchedule& lowered) {
  Value root = Value::map();
  root.set("name", Value::of(lowered.name));
  root.set("policy", Value::of(lowered.policy));
  root.set("flush", Value::of(lowered.flush));
  root.set("num_stages", Value::of(lowered.num_stages));
  root.set("num_steps", Value::of(lowered.num_steps));
  root.set("microbatches_per_step", Value::of(lowered.microbatches_per_step));
  Value ranks = Value::list();
  for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
    Value item = Value::map();
    item.set("rank", Value::of(static_cast<int64_t>(rank)));
    Value stages = Value::list();
    Value replicas = Value::list();
    for (const int stage : lowered.rank_stages[rank]) {
      stages.push(Value::of(stage));
      replicas.push(Value::of(lowered.replica_of(static_cast<int>(rank), stage)));
    }
    item.set("stages", std::move(stages));
    item.set("replicas", std::move(replicas));
    item.set("actions", Value::of(to_string(lowered.ranks[rank])));
    ranks.push(std::move(item));
  }
  root.set("ranks", std::move(ranks));
  return root;
}

}  // namespace

int run_schedule(const ScheduleArgs& args, Output& output) {
  if (args.source.name == kSearchName) {
    return run_search(args, output);
  }
  refuse_search_options(args);
  check_form(args.draw, {"text", "svg", "html"});
  const Slots slots = parse_slots(args.slots);
  const ChosenSchedule chosen = choose_schedule(args.source, Purpose::kDraw);
  std::string text;
  if (output.json()) {
    text = to_json(args.lowered ? to_value(chosen.lowered) : to_value(chosen.schedule)) + "\n";
  } else if (args.lowered) {
    text = describe(chosen) + "\n\n" + orders(chosen.lowered, true);
  } else {
    text = drawing(chosen, args, slots);
  }
  if (args.output.empty()) {
    output.answer(text);
  } else {
    write_file_atomically(args.output, text);
    output.text(fmt::format("{}\nwritten to {}\n", describe(chosen), args.output));
  }
  return 0;
}

}  // namespace millrace::cli
