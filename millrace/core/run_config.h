// RunConfig: run.toml as a value, with every default filled in. Read and checked by the light
// program before anything is launched, so that all ranks see one effective configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/core/emulate_config.h"
#include "millrace/core/plan.h"

namespace millrace {

struct ModelConfig {
  std::string name;
  Value options = Value::map();  // the model's own keys, e.g. depth, width
  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  std::string name;
  Value options = Value::map();  // e.g. samples, path
  bool operator==(const DataConfig&) const = default;
};

struct ParallelConfig {
  int workers = 1;
  std::string plan = "pipedream";  // a planner's name, or a plan file when it ends in .json or
                                   // .toml or holds a '/'
  std::optional<int> stages;
  std::vector<int> replicas;  // empty: free; one number for every stage, or one a stage
  std::string cluster = "auto";
  std::string schedule = "1f1b";
  std::string policy;  // empty: the schedule's own
  std::string rule = "bsp";
  // What sums gradients between processes: a name of `millrace list collectives`, or "auto", the
  // one that is fastest on the cluster for each size.
  std::string collective = "auto";
  // Who takes which samples: every replica its part of each step, or, with an exchange rule that
  // lets replicas run at paces of their own, the next part whoever asks first.
  std::string deal = "fixed";  // or "on-demand"
  std::string codec = "none";  // of gradients between processes: `millrace list codecs`
  // Keys of codec accept; unset: its own (millrace/collective/codec.h).
  std::optional<int> codec_exponent_bits;
  std::optional<int> codec_mantissa_bits;
  int microbatches = 1;
  UpdateRule update = UpdateRule::kRound;  // of replicated stages without a flush
  std::optional<int> chunks;  // stages a rank (of each direction); unset: the schedule's own
  Recompute recompute = Recompute::kNothing;
  Shard shard = Shard::kNothing;
  std::string split = "none";      // or "tensor": layers are split over ranks
  std::optional<int> split_parts;  // so many ranks a replica; unset: all workers of a stage
  double blend_lambda = 1;         // of policy blend; may be infinite
  std::optional<int>
      microbatch_size;    // when set: batch = microbatch_size x microbatches x replicas
  double timeout_s = 60;  // deadline of every wait on another rank
  // Which of schedule, rule, microbatches and recompute the file does not name and so leaves to a
  // planner that chooses them; empty where the planner does not, and once it has chosen.
  std::vector<std::string> free;
  bool leaves(const std::string& key) const;  // whether `free` has it
  bool plan_is_file() const;
  // Whether `plan` names a planner that also chooses what `free` speaks of.
  bool planner_chooses_run() const;
  bool operator==(const ParallelConfig&) const = default;
};

struct TrainConfig {
  int64_t epochs = 1;
  std::optional<int64_t> max_steps;  // stop after so many updates, whatever the epochs
  int64_t batch = 128;               // global samples per step
  std::string optimizer = "sgd";
  // Keys of optimizers; unset: the optimizer's own default (millrace/core/optimizer_keys.h).
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  std::optional<double> beta1;
  std::optional<double> beta2;
  std::optional<double> epsilon;
  std::optional<double> accumulate;  // a whole number
  double lr = 0.05;
  // Keys of learning rate schedules (millrace/core/lr_schedule.h); each is used by some only.
  std::string lr_schedule = "constant";
  int64_t warmup_steps = 0;
  // Whether replicas raise the rate: "none", or "replicas", by as many as there are, over the first
  // five epochs (millrace/core/lr_schedule.h).
  std::string lr_scaling = "none";
  // Of the plan's stage with the most; no key: filled in when the plan is known.
  int lr_replicas = 1;
  std::optional<int64_t> lr_step_epochs;
  std::vector<int64_t> lr_milestones;  // epochs, increasing
  double lr_decay = 0.1;
  double lr_power = 1.0;
  double lr_end = 0.0;
  std::optional<double> clip_norm;  // most that the norm of the mean gradient may be
  // When a training forward's statistics reach batch norm's running ones: with its microbatch, or
  // once a step, as those of all the step's samples (needs a flush).
  std::string batch_norm = "per_microbatch";  // or "deferred"
  // Who prepares the next microbatches' samples: a thread beside each rank, or the rank itself.
  std::string loading = "parallel";  // or "inline"
  std::string dtype = "float32";
  uint64_t seed = 1;
  int64_t eval_every_epochs = 1;        // 0: only at the end
  int64_t checkpoint_every_epochs = 1;  // 0: only at the end or when interrupted
  int64_t keep_checkpoints = 3;         // the newest so many stay; 0: all
  bool operator==(const TrainConfig&) const = default;
};

struct RunConfig {
  std::string name;  // names the run folder; defaults to the file's stem
  ModelConfig model;
  DataConfig data;
  ParallelConfig parallel;
  TrainConfig train;
  std::optional<EmulateConfig> emulate;
  Value rule_options = Value::map();  // [rule]: keys of parallel.rule, see millrace/rule/rule.h
  // Whether the model is made from a profile, and so has no [model].
  bool emulates_model() const { return emulate && !emulate->profile.empty(); }
  bool operator==(const RunConfig&) const = default;
};

// Reads and checks everything that needs no registry: keys, types, ranges, and the batch
// arithmetic. The document's file name gives errors their place.
RunConfig run_config_from(const Document& document);
Value to_value(const RunConfig& config);  // every key, defaults included

// Applies "a.b=c" settings (TOML value syntax; a bare word is a string) over a parsed document.
// A setting's errors name it as file "--set a.b=c".
void apply_setting(Document& document, const std::string& setting);

// batch = microbatch_size x microbatches x replicas, as text and as a check (case C44): refuses
// zero or negative numbers, more microbatch parts than samples, a set microbatch_size that does not
// divide; shows the equation and the nearest values that hold. `replicas` is the number of replicas
// of a stage.
void check_batch(int64_t batch, std::optional<int64_t> microbatch_size, int64_t microbatches,
                 int64_t replicas);
std::string batch_equation(int64_t batch, int64_t microbatches, int64_t replicas);

// Sizes of `parts` parts of `total` samples, larger first: 10 into 4 is 3, 3, 2, 2.
std::vector<int64_t> split_evenly(int64_t total, int64_t parts);

}  // namespace millrace
