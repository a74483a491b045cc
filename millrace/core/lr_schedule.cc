#include "millrace/core/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

double constant(const TrainConfig& config, const LrPoint& /*point*/) { return config.lr; }

double step(const TrainConfig& config, const LrPoint& point) {
  const int64_t decays = config.lr_step_epochs
                             ? point.epoch / *config.lr_step_epochs
                             : std::upper_bound(config.lr_milestones.begin(),
                                                config.lr_milestones.end(), point.epoch) -
                                   config.lr_milestones.begin();
  return config.lr * std::pow(config.lr_decay, static_cast<double>(decays));
}

double cosine(const TrainConfig& config, const LrPoint& point) {
  return config.lr_end +
         (config.lr - config.lr_end) * 0.5 * (1 + std::cos(std::numbers::pi * point.progress));
}

double polynomial(const TrainConfig& config, const LrPoint& point) {
  return config.lr_end +
         (config.lr - config.lr_end) * std::pow(1 - point.progress, config.lr_power);
}

}  // namespace

int64_t total_steps(const TrainConfig& config, int64_t steps_per_epoch) {
  const int64_t steps = config.epochs * steps_per_epoch;
  return config.max_steps ? std::min(steps, *config.max_steps) : steps;
}

const std::vector<LrScheduleEntry>& lr_schedules() {
  static const std::vector<LrScheduleEntry> entries = {
      {"constant", "lr all the time", "", constant},
      {"step", "lr x lr_decay^k: k epochs of lr_milestones are past, or k times lr_step_epochs",
       "lr_step_epochs lr_milestones lr_decay=0.1", step},
      {"cosine", "from lr to lr_end along half a cosine over the run", "lr_end=0", cosine},
      {"polynomial", "lr_end + (lr - lr_end) (1 - share of the run)^lr_power",
       "lr_power=1 lr_end=0", polynomial},
  };
  return entries;
}

const LrScheduleEntry& find_lr_schedule(const std::string& name) {
  std::vector<std::string> names;
  for (const LrScheduleEntry& entry : lr_schedules()) {
    if (entry.name == name) {
      return entry;
    }
    names.emplace_back(entry.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown learning rate schedule {}{}; there are {}", in_quotes(name),
                          did_you_mean(name, names), join(names, ", ")))
      .at_key("train.lr_schedule");
}

double scale_of_epoch(int replicas, int64_t epoch) {
  constexpr int64_t kRisingEpochs = 5;
  if (epoch >= kRisingEpochs) {
    return replicas;
  }
  return std::pow(static_cast<double>(replicas), static_cast<double>(epoch) / kRisingEpochs);
}

LrSchedule::LrSchedule(const TrainConfig& config, int64_t steps_per_epoch)
    : config_(config),
      entry_(&find_lr_schedule(config.lr_schedule)),
      steps_per_epoch_(steps_per_epoch),
      total_steps_(total_steps(config, steps_per_epoch)) {
  MILLRACE_CHECK(steps_per_epoch >= 1, "an epoch has at least one step");
}

double LrSchedule::at(int64_t step) const {
  const int64_t warmup = config_.warmup_steps;
  const int64_t decaying = std::max<int64_t>(1, total_steps_ - warmup);
  const LrPoint point{
      .progress =
          std::clamp(static_cast<double>(step - warmup) / static_cast<double>(decaying), 0.0, 1.0),
      .epoch = step / steps_per_epoch_};
  double rate = entry_->rate(config_, point);
  if (config_.lr_scaling == "replicas") {
    rate *= scale_of_epoch(config_.lr_replicas, point.epoch);
  }
  return step < warmup ? rate * static_cast<double>(step + 1) / static_cast<double>(warmup) : rate;
}

}  // namespace millrace
