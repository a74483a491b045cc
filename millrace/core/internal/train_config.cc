#include "millrace/core/internal/train_config.h"

#include <fmt/format.h>

#include <limits>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/core/internal/choice.h"
#include "millrace/core/lr_schedule.h"
#include "millrace/core/optimizer_keys.h"

namespace millrace::internal {
namespace {

double fraction(Reader& reader, const char* key, double fallback) {
  const double value = reader.number(key, fallback);
  if (value < 0 || value >= 1) {
    throw reader.error(key, fmt::format("expected 0 or more and less than 1, found {}", value));
  }
  return value;
}

double positive(Reader& reader, const char* key, const char* what, double fallback) {
  const double value = reader.number(key, fallback);
  if (value <= 0) {
    throw reader.error(key, fmt::format("expected {} above 0, found {}", what, value));
  }
  return value;
}

void read_optimizer(Reader& reader, TrainConfig& config) {
  config.optimizer = reader.text("optimizer", config.optimizer);
  for (const OptimizerKey& key : optimizer_keys()) {
    if (reader.raw(key.name) == nullptr) {
      continue;
    }
    switch (key.range) {
      case OptimizerKey::Range::kFraction:
        config.*key.member = fraction(reader, key.name, 0);
        break;
      case OptimizerKey::Range::kZeroOrMore:
        config.*key.member = reader.quantity(key.name);
        break;
      case OptimizerKey::Range::kAboveZero:
        config.*key.member = positive(reader, key.name, "a number", 0);
        break;
      case OptimizerKey::Range::kCount:
        config.*key.member = static_cast<double>(reader.count(key.name, 1));
        break;
    }
  }
}

void read_milestones(Reader& reader, TrainConfig& config) {
  if (reader.raw("lr_milestones") == nullptr) {
    return;
  }
  config.lr_milestones = reader.integers("lr_milestones");
  int64_t before = 0;
  for (const int64_t epoch : config.lr_milestones) {
    if (epoch <= before) {
      throw reader.error(
          "lr_milestones",
          fmt::format("expected increasing epochs from 1, found {} after {}", epoch, before));
    }
    before = epoch;
  }
}

void read_lr(Reader& reader, TrainConfig& config) {
  config.lr = positive(reader, "lr", "a rate", config.lr);
  std::vector<std::string> names;
  for (const LrScheduleEntry& entry : lr_schedules()) {
    names.emplace_back(entry.name);
  }
  config.lr_schedule = choice(reader, "lr_schedule", names, config.lr_schedule);
  config.warmup_steps = reader.count("warmup_steps", 0, config.warmup_steps);
  config.lr_scaling = choice(reader, "lr_scaling", {"none", "replicas"}, config.lr_scaling);
  if (reader.raw("lr_step_epochs") != nullptr) {
    config.lr_step_epochs = reader.count("lr_step_epochs", 1);
  }
  read_milestones(reader, config);
  config.lr_decay = positive(reader, "lr_decay", "a factor", config.lr_decay);
  config.lr_power = positive(reader, "lr_power", "a power", config.lr_power);
  config.lr_end = reader.quantity("lr_end", config.lr_end);
  for (const char* key : {"lr_step_epochs", "lr_milestones", "lr_decay", "lr_power", "lr_end"}) {
    if (!reader.has(key) || takes_key(find_lr_schedule(config.lr_schedule).keys, key)) {
      continue;
    }
    std::vector<std::string> users;
    for (const LrScheduleEntry& entry : lr_schedules()) {
      if (takes_key(entry.keys, key)) {
        users.emplace_back(entry.name);
      }
    }
    throw reader.error(key, fmt::format("lr_schedule {} does not use this; {} does",
                                        in_quotes(config.lr_schedule), join(users, " or ")));
  }
  if (config.lr_schedule == "step" &&
      config.lr_step_epochs.has_value() == !config.lr_milestones.empty()) {
    throw reader.error(
        "lr_schedule",
        "expected lr_step_epochs (every so many epochs) or lr_milestones (at these epochs) "
        "beside `step`, one of the two");
  }
}

}  // namespace

TrainConfig train_from(Reader& reader) {
  TrainConfig config;
  config.epochs = reader.count("epochs", 1, config.epochs);
  if (reader.raw("max_steps") != nullptr) {
    config.max_steps = reader.count("max_steps", 1);
  }
  config.batch = reader.count("batch", 1, config.batch);
  read_optimizer(reader, config);
  read_lr(reader, config);
  if (reader.raw("clip_norm") != nullptr) {
    config.clip_norm = positive(reader, "clip_norm", "a norm", 1);
  }
  config.dtype = choice(reader, "dtype", {"float32", "float64"}, config.dtype);
  config.seed = static_cast<uint64_t>(reader.count("seed", 0, 1));
  config.batch_norm =
      choice(reader, "batch_norm", {"per_microbatch", "deferred"}, config.batch_norm);
  config.loading = choice(reader, "loading", {"parallel", "inline"}, config.loading);
  config.eval_every_epochs = reader.count("eval_every_epochs", 0, config.eval_every_epochs);
  config.checkpoint_every_epochs =
      reader.count("checkpoint_every_epochs", 0, config.checkpoint_every_epochs);
  config.keep_checkpoints = reader.count("keep_checkpoints", 0, config.keep_checkpoints);
  reader.finish();
  return config;
}

Value to_value(const TrainConfig& config) {
  MILLRACE_CHECK(config.seed <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                 "a seed above 2^63-1 has no form in a file");
  Value table = Value::map();
  table.set("epochs", Value::of(config.epochs));
  if (config.max_steps) {
    table.set("max_steps", Value::of(*config.max_steps));
  }
  table.set("batch", Value::of(config.batch));
  table.set("optimizer", Value::of(config.optimizer));
  for (const OptimizerKey& key : optimizer_keys()) {
    if (const std::optional<double>& value = config.*key.member) {
      table.set(key.name, key.range == OptimizerKey::Range::kCount
                              ? Value::of(static_cast<int64_t>(*value))
                              : Value::of(*value));
    }
  }
  table.set("lr", Value::of(config.lr));
  table.set("lr_schedule", Value::of(config.lr_schedule));
  table.set("warmup_steps", Value::of(config.warmup_steps));
  table.set("lr_scaling", Value::of(config.lr_scaling));
  const std::string keys = find_lr_schedule(config.lr_schedule).keys;
  if (config.lr_step_epochs) {
    table.set("lr_step_epochs", Value::of(*config.lr_step_epochs));
  }
  if (!config.lr_milestones.empty()) {
    Value& epochs = table.set("lr_milestones", Value::list());
    for (const int64_t epoch : config.lr_milestones) {
      epochs.push(Value::of(epoch));
    }
  }
  for (const auto& [key, value] :
       {std::pair("lr_decay", config.lr_decay), std::pair("lr_power", config.lr_power),
        std::pair("lr_end", config.lr_end)}) {
    if (takes_key(keys, key)) {
      table.set(key, Value::of(value));
    }
  }
  if (config.clip_norm) {
    table.set("clip_norm", Value::of(*config.clip_norm));
  }
  table.set("dtype", Value::of(config.dtype));
  table.set("seed", Value::of(static_cast<int64_t>(config.seed)));
  table.set("batch_norm", Value::of(config.batch_norm));
  table.set("loading", Value::of(config.loading));
  table.set("eval_every_epochs", Value::of(config.eval_every_epochs));
  table.set("checkpoint_every_epochs", Value::of(config.checkpoint_every_epochs));
  table.set("keep_checkpoints", Value::of(config.keep_checkpoints));
  return table;
}

}  // namespace millrace::internal
