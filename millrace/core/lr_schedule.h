// LrSchedule: the learning rate of every update, a pure function of its number. The same on every
// rank, in the run's events, in the oracle, and after a resume.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/run_config.h"

namespace millrace {

// Updates of a whole run: epochs x steps an epoch, or max_steps where that is less.
int64_t total_steps(const TrainConfig& config, int64_t steps_per_epoch);

// Where an update stands.
struct LrPoint {
  double progress = 0;  // share of the updates after warm-up that went before, 0 up to below 1
  int64_t epoch = 0;    // from 0
};

struct LrScheduleEntry {
  const char* name;
  const char* text;
  const char* keys;  // of [train], with defaults: "lr_end=0 lr_power=1"
  double (*rate)(const TrainConfig& config, const LrPoint& point);
};
const std::vector<LrScheduleEntry>& lr_schedules();
// Throws Error(kInvalidArgument) with the nearest name.
const LrScheduleEntry& find_lr_schedule(const std::string& name);

// What `replicas` workers multiply the rate by in an epoch, from 0: replicas^(epoch / 5), up to
// `replicas` itself from epoch 5 on. "Theano-MPI: a Theano-based Distributed Training Framework",
// Euro-Par 2016 workshops, and its code.
double scale_of_epoch(int replicas, int64_t epoch);

class LrSchedule {
 public:
  // Throws Error(kInvalidArgument) for an unknown schedule.
  LrSchedule(const TrainConfig& config, int64_t steps_per_epoch);

  // Of the update that makes step `step` + 1 of the run (from 0). In a pipeline without a flush:
  // of the update that applies minibatch `step`. Updates 0 .. warmup_steps - 1 are scaled by
  // (step + 1) / warmup_steps; update warmup_steps is the first at the schedule's own start.
  // With lr_scaling = "replicas" all of that is multiplied by scale_of_epoch(replicas, epoch).
  double at(int64_t step) const;

 private:
  TrainConfig config_;
  const LrScheduleEntry* entry_;
  int64_t steps_per_epoch_;
  int64_t total_steps_;
};

}  // namespace millrace
