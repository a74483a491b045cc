// millrace compare: schedules side by side on one model, each predicted before it runs and measured
// in turn with the others.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/torch/bench.h"
#include "millrace/cli/torch/commands.h"
#include "millrace/schedule/registry.h"
#include "millrace/train/session.h"

namespace millrace::cli {
namespace {

constexpr double kMeasurementS = 1.0;  // of one schedule in one round, where --steps is not given
constexpr double kAgreement = 0.10;    // beyond which a row's spread is named

// One schedule: what was said of it before it ran, and what it did.
struct Row {
  std::string name;
  std::string refusal;  // why it did not run
  std::optional<Job> job;
  std::vector<double> measured_s;
  std::vector<double> bubbles;  // share of the ranks' time in which they did not compute
  int64_t steps = 0;
  double bytes = 0;  // sent and reduced a step, all ranks
  double loss = 0;   // mean over a round's last step
  int64_t stash_bytes = 0;
};

std::vector<std::string> schedule_names(const std::string& list) {
  std::vector<std::string> names;
  if (list.empty()) {
    for (const ScheduleEntry& entry : schedules()) {
      names.push_back(entry.name);
    }
    return names;
  }
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    names.push_back(find_schedule(trim(list.substr(begin, comma - begin))).name);
    begin = comma + 1;
  }
  return names;
}

// The run's configuration under another schedule: the same workers, one stage on each where the
// run does not say otherwise; a schedule that takes one microbatch a step gets one.
Row prepare_row(const std::string& name, const CompareArgs& args, const PrepareOptions& options) {
  Row row;
  row.name = name;
  const ScheduleBuiltin& builtin = *find_schedule(name).builtin;
  std::vector<std::string> settings = args.run.set;
  settings.push_back("parallel.schedule=" + name);
  settings.push_back("parallel.policy=\"\"");
  try {
    RunConfig config = read_run_config(args.run.config, args.run.set);
    const bool one_a_rank = find_schedule(config.parallel.schedule).builtin->deals;
    const auto with = [&](int64_t microbatches) {
      std::vector<std::string> own = settings;
      own.push_back(fmt::format("parallel.microbatches={}", microbatches));
      if (builtin.deals && !config.parallel.stages && !config.parallel.plan_is_file()) {
        own.push_back(fmt::format("parallel.stages={}", config.parallel.workers));
        own.push_back("parallel.replicas=1");
      }
      return read_run_config(args.run.config, own);
    };
    try {
      config = with(config.parallel.microbatches);
    } catch (const Error& error) {
      if (has_flush(builtin) || config.parallel.microbatches == 1) {
        throw;
      }
      config = with(1);
    }
    // The run's stages are one a rank. A schedule with several a rank has so many more, or it would
    // run on fewer ranks than the others.
    if (one_a_rank && !builtin.deals && config.parallel.stages) {
      config.parallel.replicas = {std::max(1, config.parallel.workers / *config.parallel.stages)};
      config.parallel.stages.reset();
    }
    row.job = prepare(config, options);
  } catch (const Error& error) {
    row.refusal = error.message();
  }
  return row;
}

Session session_of(const Row& row, bool measures_stash = false) {
  return Session({.model = &row.job->model,
                  .plan = row.job->plan,
                  .policy = row.job->config.parallel.policy,
                  .blend_lambda = row.job->config.parallel.blend_lambda,
                  .train = row.job->config.train,
                  .timeout_s = row.job->config.parallel.timeout_s,
                  .emulation = row.job->emulation_or_null(),
                  .measures_stash = measures_stash});
}

void measure(Row& row) {
  const Job& job = *row.job;
  const SampleOrder order(job.data.train->size(), job.config.train.batch, job.config.train.seed);
  row.steps = std::min(row.steps, order.steps_per_epoch());
  Session session = session_of(row);
  LossSums last;
  StepHooks hooks;
  hooks.on_step = [&last](int64_t /*step*/, const LossSums& sums) { last = sums; };
  session.train(*job.data.train, order, 0, 0, row.steps, hooks);
  const Trace trace = session.trace();
  row.measured_s.push_back(trace.step_s);
  row.loss = last.samples > 0 ? last.loss / static_cast<double>(last.samples) : 0;
  double bytes = 0;
  for (const RankTrace& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) {
      bytes += is_receive(event.action.kind) ? 0.0 : static_cast<double>(event.bytes);
    }
  }
  double busy_s = 0;
  for (const RankTrace& rank : trace.ranks) {
    busy_s += rank.compute_s;
  }
  const double all_s = static_cast<double>(trace.ranks.size() * trace.num_steps) * trace.step_s;
  row.bubbles.push_back(all_s > 0 ? 1 - busy_s / all_s : 0);
  row.bytes = bytes / static_cast<double>(std::max<int64_t>(1, trace.num_steps));
}

// A run of its own, since the measuring costs time.
void measure_stash(Row& row) {
  const Job& job = *row.job;
  const SampleOrder order(job.data.train->size(), job.config.train.batch, job.config.train.seed);
  Session session = session_of(row, true);
  const int64_t steps = job.plan.num_used_ranks() + 2;
  session.train(*job.data.train, order, 0, 0, std::min(steps, order.steps_per_epoch()), {});
  for (int rank = 0; rank < job.plan.workers; ++rank) {
    if (!job.plan.stages_of_rank(rank).empty()) {
      row.stash_bytes = std::max(row.stash_bytes, session.worker(rank).peak_stash_bytes());
    }
  }
}

int64_t steps_of(const Row& row, const CompareArgs& args) {
  const double expected_s = std::max(row.job->predicted.step_s, 1e-5);
  const int64_t fit = std::llround(kMeasurementS / expected_s);
  return args.steps > 0 ? args.steps
                        : std::clamp<int64_t>(fit, 4 + 2 * row.job->plan.num_used_ranks(), 2000);
}

template <typename Of>
int64_t most(const std::vector<RankSimulation>& ranks, const Of& of) {
  int64_t found = 0;
  for (const RankSimulation& rank : ranks) {
    found = std::max(found, of(rank));
  }
  return found;
}

// As it is measured: over whole steps, of a schedule without a flush in its steady period.
double bubble_of(const Row& row) {
  const Job& job = *row.job;
  double busy_s = 0;
  for (const RankTrace& rank : job.predicted.trace.ranks) {
    busy_s += rank.compute_s;
  }
  const auto steps = static_cast<double>(job.predicted.trace.num_steps);
  const double all_s =
      static_cast<double>(job.plan.num_used_ranks()) * steps * job.predicted.step_s;
  return all_s > 0 ? 1 - busy_s / all_s : 0;
}

Value to_value(const Row& row) {
  Value value = Value::map();
  value.set("schedule", Value::of(row.name));
  if (!row.refusal.empty()) {
    value.set("refused", Value::of(row.refusal));
    return value;
  }
  const Job& job = *row.job;
  value.set("policy", Value::of(job.config.parallel.policy));
  value.set("microbatches", Value::of(job.plan.microbatches));
  value.set("num_stages", Value::of(job.plan.num_stages()));
  value.set("predicted_s", Value::of(job.predicted.step_s));
  value.set("measured_s", Value::of(median(row.measured_s)));
  const auto [least, largest] = std::minmax_element(row.measured_s.begin(), row.measured_s.end());
  value.set("measured_spread", Value::of(*largest / *least - 1));
  value.set("predicted_bubble_fraction", Value::of(bubble_of(row)));
  value.set("measured_bubble_fraction", Value::of(median(row.bubbles)));
  const auto& ranks = job.predicted.ranks;
  value.set("predicted_memory_bytes",
            Value::of(most(ranks, [](const auto& rank) { return rank.memory.total(); })));
  value.set("predicted_peak_stash_bytes",
            Value::of(most(ranks, [](const auto& rank) { return rank.peak_stash_bytes; })));
  value.set("measured_peak_stash_bytes", Value::of(row.stash_bytes));
  value.set("bytes_a_step", Value::of(row.bytes));
  value.set("loss", Value::of(row.loss));
  value.set("steps", Value::of(row.steps));
  return value;
}

std::string table_of(const std::vector<Row>& rows) {
  TextTable table({"schedule", "microbatches", "predicted", "measured", "difference", "spread",
                   "bubble", "measured", "memory", "stash", "measured", "sent a step", "loss"});
  std::string notes;
  for (const Row& row : rows) {
    if (!row.refusal.empty()) {
      notes += fmt::format("{}: not run: {}\n", row.name, row.refusal);
      continue;
    }
    const Simulation& predicted = row.job->predicted;
    const double measured_s = median(row.measured_s);
    const auto [least, largest] = std::minmax_element(row.measured_s.begin(), row.measured_s.end());
    const double difference = measured_s / predicted.step_s - 1;
    const auto bytes = [](double count) { return format_bytes(count); };
    const auto peak = [&](const auto& of) {
      return bytes(static_cast<double>(most(predicted.ranks, of)));
    };
    table.row({row.name, fmt::format("{}", row.job->plan.microbatches),
               format_seconds(predicted.step_s), format_seconds(measured_s),
               fmt::format("{:+.1f}%", 100 * difference),
               fmt::format("{:.1f}%", 100 * (*largest / *least - 1)),
               fmt::format("{:.1f}%", 100 * bubble_of(row)),
               fmt::format("{:.1f}%", 100 * median(row.bubbles)),
               peak([](const auto& rank) { return rank.memory.total(); }),
               peak([](const auto& rank) { return rank.peak_stash_bytes; }),
               bytes(static_cast<double>(row.stash_bytes)), bytes(row.bytes),
               fmt::format("{:.4f}", row.loss)});
    if (std::abs(difference) > kAgreement) {
      notes += fmt::format(
          "{}: predicted and measured differ by {:+.1f}%; {} measurements from {} to {}\n",
          row.name, 100 * difference, row.measured_s.size(), format_seconds(*least),
          format_seconds(*largest));
    }
  }
  return table.str() + (notes.empty() ? "" : "\n" + notes);
}

}  // namespace

int run_compare(const CompareArgs& args, Output& output) {
  const std::vector<std::string> names = schedule_names(args.schedules);
  catch_signals();
  PreparationSink preparation(output);
  const PrepareOptions options{
      .cache_dir = cache_dir(), .fresh = args.run.fresh, .sink = &preparation};
  std::vector<Row> rows;
  for (const std::string& name : names) {
    rows.push_back(prepare_row(name, args, options));
    if (rows.back().job) {
      rows.back().steps = steps_of(rows.back(), args);
    }
  }
  for (int round = 0; round <= args.repeats; ++round) {
    for (Row& row : rows) {
      if (!row.job) {
        continue;
      }
      if (stop_requested()) {
        throw Error(ErrorCode::kInterrupted, "interrupted; nothing was written");
      }
      output.progress(fmt::format("round {} of {}: {}", round, args.repeats, row.name));
      try {
        if (round == 0) {
          measure_stash(row);  // also the first touch of memory, which no measurement should pay
        } else {
          measure(row);
        }
      } catch (const Error& error) {
        row.refusal = error.message();
        row.job.reset();
      }
    }
  }
  output.end_progress();
  Value answer = Value::map();
  Value list = Value::list();
  for (const Row& row : rows) {
    list.push(to_value(row));
  }
  answer.set("schedules", list);
  output.document(answer);
  output.text(table_of(rows));
  return std::all_of(rows.begin(), rows.end(), [](const Row& row) { return !row.job; }) ? 2 : 0;
}

}  // namespace millrace::cli
