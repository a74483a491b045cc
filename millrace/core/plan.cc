#include "millrace/core/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/core/internal/options.h"

namespace millrace {
namespace {

constexpr int64_t kMostWorkers = 1 << 20;
constexpr int64_t kMostMicrobatches = 1 << 30;
constexpr std::size_t kMostFindings = 20;

int bounded(Reader& reader, const char* key, int64_t most, int64_t fallback) {
  const int64_t value = reader.count(key, 1, fallback);
  if (value > most) {
    throw reader.error(key, fmt::format("expected at most {}, found {}", most, value));
  }
  return static_cast<int>(value);
}

// The first stage that names each layer and rank.
struct Places {
  std::map<std::string, int> stage_of_layer;
  std::map<int64_t, int> stage_of_rank;
};

PlanStage stage_from(Reader& reader, int index, Places& places) {
  PlanStage stage;
  stage.layers = reader.texts("layers");
  if (stage.layers.empty()) {
    throw reader
        .error("layers", fmt::format("stage {} has no layers; give it some or leave it out", index))
        .at_stage(index);
  }
  for (const std::string& layer : stage.layers) {
    const auto [earlier, is_new] = places.stage_of_layer.emplace(layer, index);
    if (!is_new) {
      throw reader
          .error("layers", fmt::format("layer {} stands twice: in stage {} and in stage {}",
                                       in_quotes(layer), earlier->second, index))
          .at_stage(index);
    }
  }
  const std::vector<int64_t> ranks = reader.integers("ranks");
  if (ranks.empty()) {
    throw reader.error("ranks", fmt::format("stage {} has no ranks; give it at least one", index))
        .at_stage(index);
  }
  for (const int64_t rank : ranks) {
    if (rank < 0 || rank >= kMostWorkers) {
      throw reader.error("ranks", fmt::format("expected ranks from 0 up, found {}", rank))
          .at_stage(index);
    }
    places.stage_of_rank.emplace(rank, index);
    if (std::find(stage.ranks.begin(), stage.ranks.end(), rank) != stage.ranks.end()) {
      throw reader.error("ranks", fmt::format("rank {} stands twice in stage {}", rank, index))
          .at_stage(index);
    }
    stage.ranks.push_back(static_cast<int>(rank));
  }
  reader.finish();
  return stage;
}

// A rank of the plan is in a stage or said to be idle: one that is in neither was forgotten.
void check_idle_ranks(Reader& reader, const Plan& plan, const Places& places) {
  std::set<int64_t> idle;
  if (reader.raw("idle_ranks") != nullptr) {
    for (const int64_t rank : reader.integers("idle_ranks")) {
      if (rank < 0 || rank >= plan.workers) {
        throw reader.error("idle_ranks", fmt::format("expected ranks from 0 to {}, found {}",
                                                     plan.workers - 1, rank));
      }
      if (!idle.insert(rank).second) {
        throw reader.error("idle_ranks", fmt::format("rank {} stands twice", rank));
      }
      if (const auto used = places.stage_of_rank.find(rank); used != places.stage_of_rank.end()) {
        throw reader.error("idle_ranks",
                           fmt::format("rank {} runs stage {}, so it is not idle; take it out here "
                                       "or there",
                                       rank, used->second));
      }
    }
  }
  for (int64_t rank = 0; rank < plan.workers; ++rank) {
    if (places.stage_of_rank.count(rank) == 0 && idle.count(rank) == 0) {
      throw reader.error("stages",
                         fmt::format("rank {} of the {} workers is in no stage; give it to one, or "
                                     "list it in `idle_ranks`",
                                     rank, plan.workers));
    }
  }
}

MemoryUse memory_from(Reader& reader) {
  MemoryUse memory;
  memory.weight_bytes = reader.count("weight_bytes", 0);
  memory.gradient_bytes = reader.count("gradient_bytes", 0);
  memory.optimizer_bytes = reader.count("optimizer_bytes", 0);
  memory.stash_bytes = reader.count("stash_bytes", 0);
  memory.border_bytes = reader.count("border_bytes", 0);
  memory.workspace_bytes = reader.count("workspace_bytes", 0);
  reader.finish();
  return memory;
}

// "ranks 0-3, 8": runs of three and more are drawn together.
std::string describe_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) {
      ++end;
    }
    if (end - i >= 3) {
      parts.push_back(fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    } else {
      end = i + 1;
      parts.push_back(fmt::format("{}", ranks[i]));
    }
    i = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(parts, ", ");
}

// Collects findings of check_plan while walking the stages' layers against the model's.
class Checker {
 public:
  Checker(const Plan& plan, const std::vector<std::string>& model,
          const std::vector<ProfileEdge>& edges)
      : plan_(plan), model_(model), edges_(edges), chain_(edges.empty() || is_chain(model, edges)) {
    for (std::size_t i = 0; i < model.size(); ++i) {
      index_.emplace(model[i], i);
    }
    stage_of_.assign(model.size(), -1);
  }

  std::vector<std::string> run() {
    if (plan_.stages.empty()) {
      findings_.push_back("it has no stages");
    }
    if (plan_.stages.size() > model_.size()) {
      findings_.push_back(
          fmt::format("it has {} stages for a model of {} layers; a stage needs at "
                      "least one layer",
                      plan_.stages.size(), model_.size()));
    }
    for (int s = 0; s < plan_.num_stages(); ++s) {
      walk_stage(s);
    }
    find_gaps();
    find_edges_back();
    return std::move(findings_);
  }

 private:
  void walk_stage(int s) {
    const PlanStage& stage = plan_.stages[static_cast<std::size_t>(s)];
    if (stage.layers.empty()) {
      findings_.push_back(fmt::format("stage {} has no layers", s));
    }
    if (!chain_) {
      previous_.reset();  // order counts inside a stage only; across stages the edges decide
    }
    for (const std::string& layer : stage.layers) {
      const auto found = index_.find(layer);
      if (found == index_.end()) {
        findings_.push_back(fmt::format("stage {}: the model has no layer {}{}", s,
                                        in_quotes(layer), did_you_mean(layer, model_)));
        continue;
      }
      const std::size_t at = found->second;
      if (stage_of_[at] >= 0) {
        findings_.push_back(fmt::format("stage {}: layer {} is in stage {} already", s,
                                        in_quotes(layer), stage_of_[at]));
        continue;
      }
      stage_of_[at] = s;
      if (previous_ && at < *previous_) {
        findings_.push_back(
            fmt::format("stage {}: layer {} comes after {}, but before it in the model", s,
                        in_quotes(layer), in_quotes(model_[*previous_])));
      }
      previous_ = at;
    }
  }

  void find_gaps() {
    for (std::size_t i = 0; i < model_.size();) {
      if (stage_of_[i] >= 0) {
        ++i;
        continue;
      }
      std::size_t end = i + 1;
      while (end < model_.size() && stage_of_[end] < 0) {
        ++end;
      }
      // On a chain the stage before a gap is the likely home of what is missing.
      const std::string near =
          i > 0 && chain_ ? fmt::format(" (after stage {})", stage_of_[i - 1]) : "";
      findings_.push_back(
          end - i == 1 ? fmt::format("layer {} is in no stage{}", in_quotes(model_[i]), near)
                       : fmt::format("layers {} to {} are in no stage{}", in_quotes(model_[i]),
                                     in_quotes(model_[end - 1]), near));
      i = end;
    }
  }

  // An edge between names that the model lacks is a flaw of the edges, not of the plan.
  void find_edges_back() {
    if (chain_) {
      return;  // walk_stage() has found any disorder
    }
    for (const ProfileEdge& edge : edges_) {
      const auto from = index_.find(edge.from);
      const auto to = index_.find(edge.to);
      MILLRACE_CHECK(from != index_.end() && to != index_.end(), "an edge between unknown layers");
      const int from_stage = stage_of_[from->second];
      const int to_stage = stage_of_[to->second];
      if (from_stage >= 0 && to_stage >= 0 && to_stage < from_stage) {
        findings_.push_back(
            fmt::format("stage {}: layer {} needs the output of {}, which is in the "
                        "later stage {}",
                        to_stage, in_quotes(edge.to), in_quotes(edge.from), from_stage));
      }
    }
  }

  const Plan& plan_;
  const std::vector<std::string>& model_;
  const std::vector<ProfileEdge>& edges_;
  const bool chain_;
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<int> stage_of_;            // of each model layer; -1 when in none
  std::optional<std::size_t> previous_;  // model index of the layer before
  std::vector<std::string> findings_;
};

}  // namespace

int Plan::num_used_ranks() const {
  std::set<int> used;
  for (const PlanStage& stage : stages) {
    used.insert(stage.ranks.begin(), stage.ranks.end());
  }
  return static_cast<int>(used.size());
}

int Plan::max_replicas() const {
  std::size_t most = 0;
  for (const PlanStage& stage : stages) {
    most = std::max(most, stage.ranks.size());
  }
  return static_cast<int>(most) / split_parts;
}

const char* to_string(UpdateRule update) { return update == UpdateRule::kRound ? "round" : "step"; }

UpdateRule parse_update_rule(const std::string& text) {
  if (text == "round") {
    return UpdateRule::kRound;
  }
  if (text == "step") {
    return UpdateRule::kStep;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("expected `round` (a stage updates when each of its replicas had a "
                          "minibatch) or `step` (all stages update together), found {}",
                          in_quotes(text)));
}

const char* to_string(Recompute recompute) {
  return recompute == Recompute::kNothing ? "none"
         : recompute == Recompute::kStage ? "stage"
                                          : "layer";
}

Recompute parse_recompute(const std::string& text) {
  for (const Recompute each : {Recompute::kNothing, Recompute::kStage, Recompute::kLayer}) {
    if (text == to_string(each)) {
      return each;
    }
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("expected `none`, `stage` (keep a stage's inputs only) or `layer` (keep "
                          "each layer's inputs only), found {}",
                          in_quotes(text)));
}

const char* to_string(Shard shard) {
  switch (shard) {
    case Shard::kNothing:
      return "none";
    case Shard::kZero1:
      return "zero-1";
    case Shard::kZero2:
      return "zero-2";
    case Shard::kZero3:
      break;
  }
  return "zero-3";
}

Shard parse_shard(const std::string& text) {
  for (const Shard each : {Shard::kNothing, Shard::kZero1, Shard::kZero2, Shard::kZero3}) {
    if (text == to_string(each)) {
      return each;
    }
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("expected `none`, `zero-1` (replicas divide the optimizer's state), "
                          "`zero-2` (and gradients) or `zero-3` (and weights), found {}",
                          in_quotes(text)));
}

std::vector<int> Plan::stages_of_rank(int rank) const {
  std::vector<int> held;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& ranks = stages[s].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
      held.push_back(static_cast<int>(s));
    }
  }
  return held;
}

Plan plan_from(const Document& document) {
  Reader reader(document);
  // A plan may be written by hand: the two members are checked where they stand, not asked for.
  if (reader.has("artifact") || reader.has("version")) {
    expect_artifact(reader, "plan", 1);
  }
  Plan plan;
  plan.planner = reader.text("planner", plan.planner);
  plan.schedule = reader.text("schedule", plan.schedule);
  plan.rule = reader.text("rule", plan.rule);
  if (reader.has("rule_options")) {
    plan.rule_options = internal::options_from(reader, "rule_options");
  }
  plan.microbatches = bounded(reader, "microbatches", kMostMicrobatches, 1);
  try {
    plan.update = parse_update_rule(reader.text("update", to_string(plan.update)));
  } catch (const Error& error) {
    throw reader.error("update", error.message());
  }
  try {
    plan.recompute = parse_recompute(reader.text("recompute", to_string(plan.recompute)));
  } catch (const Error& error) {
    throw reader.error("recompute", error.message());
  }
  try {
    plan.shard = parse_shard(reader.text("shard", to_string(plan.shard)));
  } catch (const Error& error) {
    throw reader.error("shard", error.message());
  }
  plan.split_parts = bounded(reader, "split_parts", kMostWorkers, 1);
  plan.objective_s = reader.quantity("objective_s", 0.0);
  plan.minibatch_s = reader.quantity("minibatch_s", 0.0);
  plan.data_parallel_minibatch_s = reader.quantity("data_parallel_minibatch_s", 0.0);
  plan.one_worker_minibatch_s = reader.quantity("one_worker_minibatch_s", 0.0);
  Places places;
  for (Reader& item : reader.objects("stages")) {
    plan.stages.push_back(stage_from(item, plan.num_stages(), places));
    if (plan.stages.back().ranks.size() % static_cast<std::size_t>(plan.split_parts) != 0) {
      throw item.error("ranks", fmt::format("expected a multiple of split_parts = {}, found {}",
                                            plan.split_parts, plan.stages.back().ranks.size()));
    }
  }
  if (plan.stages.empty()) {
    throw reader.error("stages", "expected at least one stage, found none");
  }
  const int64_t highest = places.stage_of_rank.rbegin()->first;
  plan.workers = bounded(reader, "workers", kMostWorkers, highest + 1);
  if (highest >= plan.workers) {
    throw reader.error(
        "stages",
        fmt::format("rank {} of stage {} is beyond the {} workers (ranks 0 to "
                    "{}); raise `workers` or use a lower rank",
                    highest, places.stage_of_rank[highest], plan.workers, plan.workers - 1));
  }
  check_idle_ranks(reader, plan, places);
  if (reader.raw("memory") != nullptr) {
    for (Reader& item : reader.objects("memory")) {
      plan.memory.push_back(memory_from(item));
    }
    if (!plan.memory.empty() && plan.memory.size() != static_cast<std::size_t>(plan.workers)) {
      throw reader.error("memory", fmt::format("expected one entry for each of the {} workers, or "
                                               "none, found {}",
                                               plan.workers, plan.memory.size()));
    }
  }
  if (reader.has("notes")) {
    plan.notes = reader.texts("notes");
  }
  // `millrace plan --json` prints these two beside the plan; what it printed can be read back.
  reader.raw("simulated_step_s");
  reader.raw("simulation");
  reader.finish();
  return plan;
}

Value to_value(const Plan& plan) {
  Value root = Value::map();
  root.set("artifact", Value::of("plan"));
  root.set("version", Value::of(1));
  root.set("planner", Value::of(plan.planner));
  root.set("schedule", Value::of(plan.schedule));
  root.set("rule", Value::of(plan.rule));
  if (!plan.rule_options.object.empty()) {
    root.set("rule_options", plan.rule_options);
  }
  root.set("microbatches", Value::of(plan.microbatches));
  root.set("update", Value::of(to_string(plan.update)));
  root.set("recompute", Value::of(to_string(plan.recompute)));
  root.set("shard", Value::of(to_string(plan.shard)));
  root.set("split_parts", Value::of(plan.split_parts));
  root.set("workers", Value::of(plan.workers));
  root.set("objective_s", Value::of(plan.objective_s));
  root.set("minibatch_s", Value::of(plan.minibatch_s));
  root.set("data_parallel_minibatch_s", Value::of(plan.data_parallel_minibatch_s));
  root.set("one_worker_minibatch_s", Value::of(plan.one_worker_minibatch_s));
  Value stages = Value::list();
  for (const PlanStage& stage : plan.stages) {
    Value item = Value::map();
    Value& layers = item.set("layers", Value::list());
    for (const std::string& layer : stage.layers) {
      layers.push(Value::of(layer));
    }
    Value& ranks = item.set("ranks", Value::list());
    for (const int rank : stage.ranks) {
      ranks.push(Value::of(rank));
    }
    stages.push(std::move(item));
  }
  root.set("stages", std::move(stages));
  if (plan.num_used_ranks() < plan.workers) {
    Value idle = Value::list();
    for (int rank = 0; rank < plan.workers; ++rank) {
      if (plan.stages_of_rank(rank).empty()) {
        idle.push(Value::of(rank));
      }
    }
    root.set("idle_ranks", std::move(idle));
  }
  if (!plan.memory.empty()) {
    Value memory = Value::list();
    for (const MemoryUse& use : plan.memory) {
      Value item = Value::map();
      item.set("weight_bytes", Value::of(use.weight_bytes));
      item.set("gradient_bytes", Value::of(use.gradient_bytes));
      item.set("optimizer_bytes", Value::of(use.optimizer_bytes));
      item.set("stash_bytes", Value::of(use.stash_bytes));
      item.set("border_bytes", Value::of(use.border_bytes));
      item.set("workspace_bytes", Value::of(use.workspace_bytes));
      memory.push(std::move(item));
    }
    root.set("memory", std::move(memory));
  }
  if (!plan.notes.empty()) {
    Value& notes = root.set("notes", Value::list());
    for (const std::string& note : plan.notes) {
      notes.push(Value::of(note));
    }
  }
  return root;
}

void check_plan(const Plan& plan, const std::vector<std::string>& model_layers,
                const std::vector<ProfileEdge>& edges, const std::string& file) {
  std::vector<std::string> findings = Checker(plan, model_layers, edges).run();
  if (findings.empty()) {
    return;
  }
  const std::size_t count = findings.size();
  if (count > kMostFindings) {
    findings.resize(kMostFindings);
    findings.push_back(fmt::format("and {} more", count - kMostFindings));
  }
  Error error(
      ErrorCode::kInvalidArgument,
      fmt::format("the plan does not fit the model (every layer once, {}): {}",
                  edges.empty() || is_chain(model_layers, edges) ? "in order"
                                                                 : "no edge to an earlier stage",
                  join(findings, "; ")));
  if (!file.empty()) {
    error.in_file(file);
  }
  throw error;
}

std::string describe(const Plan& plan) {
  std::vector<std::string> parts;
  for (const PlanStage& stage : plan.stages) {
    std::string layers = stage.layers.empty() ? "(no layers)" : stage.layers.front();
    if (stage.layers.size() > 1) {
      layers += ".." + stage.layers.back();
    }
    parts.push_back(layers + " -> " + describe_ranks(stage.ranks));
  }
  return join(parts, " | ");
}

}  // namespace millrace
