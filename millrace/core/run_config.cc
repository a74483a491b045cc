#include "millrace/core/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/core/internal/choice.h"
#include "millrace/core/internal/options.h"
#include "millrace/core/internal/train_config.h"

namespace millrace {
namespace {

constexpr int64_t kMostWorkers = 1 << 20;
constexpr int64_t kMostMicrobatches = 1 << 30;

int64_t bounded(Reader& reader, const char* key, int64_t most, int64_t fallback) {
  const int64_t value = reader.count(key, 1, fallback);
  if (value > most) {
    throw reader.error(key, fmt::format("expected at most {}, found {}", most, value));
  }
  return value;
}

std::string name_at(Reader& reader, const char* key, const std::string& fallback) {
  std::string value = reader.text(key, fallback);
  if (value.empty()) {
    throw reader.error(key, "expected a name, found empty text");
  }
  return value;
}

// `name` and all other keys of [model] or [data].
template <typename Config>
Config named_from(Reader& root, const char* table) {
  Reader reader = root.object(table);
  Config config;
  config.name = reader.text("name");
  if (config.name.empty()) {
    throw reader.error("name", "expected a name, found empty text");
  }
  config.options = internal::options_from(root, table, "name");
  return config;
}

// The data of an emulated model where none is named; samples cost no memory.
DataConfig emulated_data(int64_t batch) {
  constexpr int64_t kSteps = 256;
  DataConfig config;
  config.name = "synthetic";
  config.options.set("samples", Value::of(kSteps * batch));
  config.options.set("test_samples", Value::of(batch));
  config.options.set("height", Value::of(1));
  config.options.set("width", Value::of(16));
  return config;
}

std::vector<int> replicas_from(Reader& reader) {
  const Value* value = reader.raw("replicas");
  if (value == nullptr) {
    return {};
  }
  const bool is_list = value->kind == Value::Kind::kArray;
  const std::vector<int64_t> numbers =
      is_list ? reader.integers("replicas") : std::vector<int64_t>{reader.integer("replicas")};
  if (numbers.empty()) {
    throw reader.error("replicas", "expected a number, or one for each stage, found an empty list");
  }
  std::vector<int> replicas;
  for (const int64_t number : numbers) {
    if (number < 1 || number > kMostWorkers) {
      throw reader.error(
          "replicas", fmt::format("expected numbers from 1 to {}, found {}", kMostWorkers, number));
    }
    replicas.push_back(static_cast<int>(number));
  }
  return replicas;
}

// Whether stages, replicas and workers can hold together at all.
void check_ranks(const ParallelConfig& config, const Reader& reader) {
  if (config.plan_is_file()) {
    for (const char* key : {"stages", "replicas"}) {
      if (reader.has(key)) {
        throw reader.error(key, fmt::format("the plan file {} fixes this already; leave out one of "
                                            "the two",
                                            in_quotes(config.plan)));
      }
    }
    return;
  }
  if (config.stages && *config.stages > config.workers) {
    throw reader.error("stages", fmt::format("{} stages need as many workers, found workers = {}",
                                             *config.stages, config.workers));
  }
  if (config.replicas.empty()) {
    return;
  }
  if (config.stages && config.replicas.size() > 1 &&
      config.replicas.size() != static_cast<std::size_t>(*config.stages)) {
    throw reader.error("replicas", fmt::format("expected one number, or one for each of the {} "
                                               "stages, found {}",
                                               *config.stages, config.replicas.size()));
  }
  int64_t ranks = 0;
  for (const int count : config.replicas) {
    ranks += count;
  }
  if (config.replicas.size() == 1) {
    ranks *= config.stages.value_or(1);
  }
  if (ranks > config.workers) {
    throw reader.error("replicas",
                       fmt::format("the stages' replicas need {} workers, found workers = "
                                   "{}; lower replicas or raise workers",
                                   ranks, config.workers));
  }
}

// Replica numbers that the config leaves no choice about; empty when the planner decides.
std::vector<int> fixed_replicas(const ParallelConfig& config) {
  if (!config.replicas.empty()) {
    return config.replicas;
  }
  const bool one_each = config.workers == 1 || config.stages.value_or(0) == config.workers;
  return one_each ? std::vector<int>{1} : std::vector<int>{};
}

ParallelConfig parallel_from(Reader& reader) {
  ParallelConfig config;
  config.workers = static_cast<int>(bounded(reader, "workers", kMostWorkers, config.workers));
  config.plan = name_at(reader, "plan", config.plan);
  if (reader.raw("stages") != nullptr) {
    config.stages = static_cast<int>(bounded(reader, "stages", kMostWorkers, 1));
  }
  config.replicas = replicas_from(reader);
  config.cluster = name_at(reader, "cluster", config.cluster);
  config.schedule = name_at(reader, "schedule", config.schedule);
  config.policy = reader.text("policy", config.policy);
  config.rule = name_at(reader, "rule", config.rule);
  config.collective = name_at(reader, "collective", config.collective);
  config.codec = name_at(reader, "codec", config.codec);
  for (const auto& [key, member] :
       {std::pair("codec_exponent_bits", &ParallelConfig::codec_exponent_bits),
        std::pair("codec_mantissa_bits", &ParallelConfig::codec_mantissa_bits)}) {
    if (reader.raw(key) == nullptr) {
      continue;
    }
    if (config.codec != "accept") {
      throw reader.error(key, fmt::format("codec {} has no widths to choose; codec accept has",
                                          in_quotes(config.codec)));
    }
    config.*member = static_cast<int>(bounded(reader, key, 64, 1));
  }
  config.deal = internal::choice(reader, "deal", {"fixed", "on-demand"}, config.deal);
  config.microbatches =
      static_cast<int>(bounded(reader, "microbatches", kMostMicrobatches, config.microbatches));
  if (reader.raw("microbatch_size") != nullptr) {
    config.microbatch_size =
        static_cast<int>(bounded(reader, "microbatch_size", kMostMicrobatches, 1));
  }
  config.update = parse_update_rule(
      internal::choice(reader, "update", {"round", "step"}, to_string(config.update)));
  if (reader.raw("chunks") != nullptr) {
    config.chunks = static_cast<int>(bounded(reader, "chunks", kMostWorkers, 1));
  }
  config.recompute = parse_recompute(internal::choice(
      reader, "recompute", {"none", "stage", "layer"}, to_string(config.recompute)));
  config.shard = parse_shard(internal::choice(
      reader, "shard", {"none", "zero-1", "zero-2", "zero-3"}, to_string(config.shard)));
  config.split = internal::choice(reader, "split", {"none", "tensor"}, config.split);
  if (reader.raw("split_parts") != nullptr) {
    config.split_parts = static_cast<int>(bounded(reader, "split_parts", kMostWorkers, 1));
  }
  config.blend_lambda = reader.number("blend_lambda", config.blend_lambda);
  if (!(config.blend_lambda >= 0)) {
    throw reader.error("blend_lambda",
                       fmt::format("expected 0 or more, up to inf, found {}", config.blend_lambda));
  }
  config.timeout_s = reader.number("timeout_s", config.timeout_s);
  if (config.timeout_s <= 0) {
    throw reader.error("timeout_s",
                       fmt::format("expected more than 0 seconds, found {}", config.timeout_s));
  }
  if (config.planner_chooses_run()) {
    for (const char* key : {"schedule", "rule", "microbatches", "recompute"}) {
      if (reader.raw(key) == nullptr) {
        config.free.emplace_back(key);
      }
    }
  }
  reader.finish();
  check_ranks(config, reader);
  return config;
}

// It becomes a folder's name.
std::string run_name(Reader& reader, const std::string& file) {
  const std::string stem = std::filesystem::path(file).stem().string();
  const bool given = reader.raw("name") != nullptr;
  std::string name = given ? reader.text("name") : stem.empty() ? "run" : stem;
  const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  if (name.empty() || name == "." || name == ".." || has_control ||
      name.find('/') != std::string::npos) {
    throw reader.error(
        "name", fmt::format("expected a name that can be a folder's, found {}", in_quotes(name)));
  }
  return name;
}

// `microbatches` follows from the other three where it is not given; then the equation must hold.
void settle_batch(RunConfig& config, Reader& reader, bool microbatches_given) {
  ParallelConfig& parallel = config.parallel;
  if (parallel.microbatch_size && parallel.leaves("microbatches")) {
    return;  // the planner takes what holds the equation
  }
  const int64_t batch = config.train.batch;
  std::vector<int> replicas = fixed_replicas(parallel);
  const int64_t size = parallel.microbatch_size.value_or(1);
  if (parallel.microbatch_size && !microbatches_given && !replicas.empty()) {
    const int64_t rest = size * *std::max_element(replicas.begin(), replicas.end());
    if (batch % rest == 0 && batch / rest <= kMostMicrobatches) {
      parallel.microbatches = static_cast<int>(batch / rest);
    }
  }
  if (replicas.empty()) {
    // The planner will choose among 1..workers; refuse what no choice can mend.
    const int64_t rest = size * parallel.microbatches;
    const bool some_fit = parallel.microbatch_size && batch % rest == 0 && batch / rest >= 1 &&
                          batch / rest <= parallel.workers;
    replicas = {some_fit ? static_cast<int>(batch / rest) : 1};
  }
  try {
    check_batch(batch, parallel.microbatch_size, parallel.microbatches,
                *std::max_element(replicas.begin(), replicas.end()));
  } catch (const Error& error) {
    if (reader.has("train")) {
      throw reader.object("train").error("batch", error.message());
    }
    throw reader.error("", error.message()).at_key("train.batch");
  }
}

}  // namespace

bool ParallelConfig::plan_is_file() const {
  const auto ends_with = [this](std::string_view tail) {
    return plan.size() > tail.size() &&
           plan.compare(plan.size() - tail.size(), tail.size(), tail) == 0;
  };
  return ends_with(".json") || ends_with(".toml") || plan.find('/') != std::string::npos;
}

bool ParallelConfig::leaves(const std::string& key) const {
  return std::find(free.begin(), free.end(), key) != free.end();
}

bool ParallelConfig::planner_chooses_run() const {
  return plan == "auto" || plan == "pipedream-2bw";
}

RunConfig run_config_from(const Document& document) {
  Reader reader(document);
  RunConfig config;
  config.name = run_name(reader, document.file);
  // These tables may be left out: every key in them has a default.
  bool microbatches_given = false;
  if (const Value* parallel = reader.raw("parallel")) {
    Reader table = reader.object("parallel");
    config.parallel = parallel_from(table);
    microbatches_given = parallel->find("microbatches") != nullptr;
  }
  if (reader.raw("train") != nullptr) {
    Reader table = reader.object("train");
    config.train = internal::train_from(table);
  }
  if (reader.raw("emulate") != nullptr) {
    Reader table = reader.object("emulate");
    config.emulate = emulate_config_from(table, config.parallel.workers);
  }
  if (reader.raw("rule") != nullptr) {
    config.rule_options = internal::options_from(reader, "rule");
  }
  if (!config.emulates_model()) {
    config.model = named_from<ModelConfig>(reader, "model");
  } else if (reader.raw("model") != nullptr) {
    throw reader.error("model", fmt::format("[emulate] makes the model from the profile {}; leave "
                                            "out one of the two",
                                            in_quotes(config.emulate->profile)));
  }
  if (!config.emulates_model() || reader.raw("data") != nullptr) {
    config.data = named_from<DataConfig>(reader, "data");
  } else {
    config.data = emulated_data(config.train.batch);
  }
  reader.finish();
  settle_batch(config, reader, microbatches_given);
  return config;
}

Value to_value(const RunConfig& config) {
  Value root = Value::map();
  root.set("name", Value::of(config.name));
  const auto add_named = [&root](const char* table, const std::string& name, const Value& options) {
    Value& value = root.set(table, Value::map());
    value.set("name", Value::of(name));
    for (const auto& [key, option] : options.object) {
      value.set(key, option);
    }
  };
  if (!config.emulates_model()) {
    add_named("model", config.model.name, config.model.options);
  }
  add_named("data", config.data.name, config.data.options);

  const ParallelConfig& parallel = config.parallel;
  Value& p = root.set("parallel", Value::map());
  p.set("workers", Value::of(parallel.workers));
  p.set("plan", Value::of(parallel.plan));
  if (parallel.stages) {
    p.set("stages", Value::of(*parallel.stages));
  }
  if (parallel.replicas.size() == 1) {
    p.set("replicas", Value::of(parallel.replicas[0]));
  } else if (!parallel.replicas.empty()) {
    Value& list = p.set("replicas", Value::list());
    for (const int count : parallel.replicas) {
      list.push(Value::of(count));
    }
  }
  p.set("cluster", Value::of(parallel.cluster));
  const auto set_unless_free = [&](const char* key, Value value) {
    if (!parallel.leaves(key)) {
      p.set(key, std::move(value));
    }
  };
  set_unless_free("schedule", Value::of(parallel.schedule));
  p.set("policy", Value::of(parallel.policy));
  set_unless_free("rule", Value::of(parallel.rule));
  p.set("collective", Value::of(parallel.collective));
  p.set("codec", Value::of(parallel.codec));
  if (parallel.codec_exponent_bits) {
    p.set("codec_exponent_bits", Value::of(*parallel.codec_exponent_bits));
  }
  if (parallel.codec_mantissa_bits) {
    p.set("codec_mantissa_bits", Value::of(*parallel.codec_mantissa_bits));
  }
  p.set("deal", Value::of(parallel.deal));
  set_unless_free("microbatches", Value::of(parallel.microbatches));
  if (parallel.microbatch_size) {
    p.set("microbatch_size", Value::of(*parallel.microbatch_size));
  }
  p.set("update", Value::of(to_string(parallel.update)));
  if (parallel.chunks) {
    p.set("chunks", Value::of(*parallel.chunks));
  }
  set_unless_free("recompute", Value::of(to_string(parallel.recompute)));
  p.set("shard", Value::of(to_string(parallel.shard)));
  p.set("split", Value::of(parallel.split));
  if (parallel.split_parts) {
    p.set("split_parts", Value::of(*parallel.split_parts));
  }
  p.set("blend_lambda", Value::of(parallel.blend_lambda));
  p.set("timeout_s", Value::of(parallel.timeout_s));

  if (!config.rule_options.object.empty()) {
    root.set("rule", config.rule_options);
  }
  root.set("train", internal::to_value(config.train));
  if (config.emulate) {
    root.set("emulate", to_value(*config.emulate));
  }
  return root;
}

}  // namespace millrace
