// Reading and checking of run.toml (catalog.h).
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/collective/codec.h"
#include "millrace/collective/program.h"
#include "millrace/core/cluster.h"
#include "millrace/core/optimizer_keys.h"
#include "millrace/core/plan.h"
#include "millrace/core/profile.h"
#include "millrace/planner/planner.h"
#include "millrace/rule/rule.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/registry.h"

namespace millrace::cli {
namespace {

// Ranks beyond these are not tried when asking whether a schedule takes any number of them.
constexpr int kMostRanksTried = 64;

// The checks that need the registries, each refusal placed where its key stands.
class Checker {
 public:
  Checker(const Document& document, RunConfig& config) : document_(document), config_(config) {}

  void run() {
    if (!config_.emulates_model()) {
      check_options("model", "models", config_.model.name, config_.model.options);
    }
    check_options("data", "datasets", config_.data.name, config_.data.options);
    at("parallel", "rule", [&] { find_rule(parallel().rule); });
    check_rule_options();
    at("parallel", "codec", [&] { make_codec(parallel()); });
    at("parallel", "collective", [&] {
      if (parallel().collective != "auto") {
        find_collective(parallel().collective);
      }
    });
    at("parallel", "schedule", [&] {
      const Recompute asked = find_schedule(parallel().schedule).builtin->recompute;
      if (parallel().recompute == Recompute::kNothing) {
        config_.parallel.recompute = asked;
      }
    });
    if (!parallel().policy.empty()) {
      at("parallel", "policy", [&] { find_policy(parallel().policy); });
    }
    settle_train();
    check_cluster();
    check_emulation();
    if (parallel().plan_is_file()) {
      check_plan_file();
    } else {
      at("parallel", "plan", [&] { find_planner(parallel().plan); });
      if (!parallel().planner_chooses_run()) {
        check_schedule(parallel().stages);
      }
      check_clipping(parallel().stages);
    }
  }

 private:
  const ParallelConfig& parallel() const { return config_.parallel; }

  Error error(const char* table, const std::string& key, const std::string& message) const {
    Reader root(document_);
    if (root.raw(table) == nullptr) {  // the default was refused
      return root.error("", message).at_key(fmt::format("{}.{}", table, key));
    }
    return root.object(table).error(key, message);
  }

  // The same refusal at the place of a key.
  Error placed(const Error& refusal, const char* table, const std::string& key) const {
    const Error place = error(table, key, refusal.message());
    Error result(refusal.code(), refusal.message());
    result.in_file(place.file().value_or(""), place.line().value_or(0));
    return result.at_key(place.key().value_or(key));
  }

  // Runs a check; what it refuses gets the key's place, unless it names a place of its own.
  template <typename Check>
  void at(const char* table, const std::string& key, const Check& check) const {
    try {
      check();
    } catch (const Error& refusal) {
      if (refusal.file()) {
        throw;
      }
      throw placed(refusal, table, key);
    }
  }

  void check_rule_options() const {
    const RuleEntry& rule = find_rule(parallel().rule);
    const auto refuse = [this](const Error& refusal) {
      const std::string key = refusal.key().value_or("");
      if (key.starts_with("rule.")) {
        throw placed(refusal, "rule", key.substr(sizeof("rule.") - 1));
      }
      throw placed(refusal, "parallel", "rule");
    };
    RuleConfig config;
    try {
      config.options = settle_rule(rule, config_.rule_options);
    } catch (const Error& refusal) {
      refuse(refusal);
    }
    // How many replicas a stage gets, the plan says: what suits no number of them is refused here.
    std::optional<Error> first;
    for (config.num_members = parallel().workers; config.num_members >= 1; --config.num_members) {
      try {
        rule.make(config);
        return;
      } catch (const Error& refusal) {
        first = first.value_or(refusal);
      }
    }
    refuse(*first);
  }

  [[noreturn]] void unsupported(const std::string& key, const std::string& message) const {
    throw placed(Error(ErrorCode::kUnsupported, message), "parallel", key);
  }

  void settle_train() {
    std::vector<OptimizerText> offered;
    for (const CatalogItem& item : find_kind("optimizers").items) {
      offered.push_back({item.name, item.facts.front().second});
    }
    try {
      settle_optimizer(config_.train, offered);
    } catch (const Error& refusal) {
      throw placed(refusal, "train", refusal.key().value_or("").substr(sizeof("train.") - 1));
    }
  }

  // "depth=8 width=256": the known keys, and by their defaults the kinds of their values.
  void check_options(const char* table, const char* kind, const std::string& name,
                     const Value& options) const {
    const CatalogItem* item = nullptr;
    at(table, "name", [&] { item = &find_item(find_kind(kind), name); });
    std::vector<std::string> known;
    std::vector<std::string> defaults;
    for (const auto& fact : item->facts) {
      for (const std::string& option : split(fact.second, ' ')) {
        const std::size_t equals = option.find('=');
        if (fact.first == "options" && equals != std::string::npos) {
          known.push_back(option.substr(0, equals));
          defaults.push_back(option.substr(equals + 1));
        }
      }
    }
    for (const auto& [key, value] : options.object) {
      const auto found = std::find(known.begin(), known.end(), key);
      if (found == known.end()) {
        std::vector<std::string> names = known;
        names.emplace_back("name");
        throw error(table, key,
                    fmt::format("unknown key{}; {} takes {}", did_you_mean(key, names),
                                in_quotes(name), known.empty() ? "no options" : join(known, ", ")));
      }
      check_kind(table, key, value, defaults[static_cast<std::size_t>(found - known.begin())]);
    }
  }

  void check_kind(const char* table, const std::string& key, const Value& value,
                  const std::string& standard) const {
    const bool yes_or_no = standard == "true" || standard == "false";
    // No default at all, as of a path that must be given, stands for text.
    const bool number =
        !standard.empty() && standard.find_first_not_of("+-.0123456789e") == std::string::npos;
    const bool whole = number && standard.find_first_of(".e") == std::string::npos;
    const bool fits = yes_or_no ? value.kind == Value::Kind::kBool
                      : whole   ? value.kind == Value::Kind::kInteger
                      : number
                          ? value.kind == Value::Kind::kInteger || value.kind == Value::Kind::kFloat
                          : value.kind == Value::Kind::kString;
    if (!fits) {
      throw error(table, key,
                  fmt::format("expected {}, found {}",
                              yes_or_no ? "true or false"
                              : whole   ? "a whole number"
                              : number  ? "a number"
                                        : "text between quotes",
                              value.kind == Value::Kind::kString ? in_quotes(value.string)
                                                                 : to_json(value, -1)));
    }
  }

  // Told where it is named; what is wrong inside it is told with its own name and line.
  static void check_exists(const std::string& path, const std::string& hint) {
    if (!std::filesystem::is_regular_file(path)) {
      throw Error(ErrorCode::kBadFile, fmt::format("there is no file {}{}", in_quotes(path), hint));
    }
  }

  void check_cluster() const {
    if (parallel().cluster == "auto") {
      return;
    }
    at("parallel", "cluster", [&] {
      check_exists(parallel().cluster, did_you_mean(parallel().cluster, {"auto"}));
      const Cluster cluster = cluster_from(read_document(parallel().cluster));
      if (cluster.num_devices() < parallel().workers) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{} devices in {}, but workers = {}; use fewer workers or another "
                                "cluster file",
                                cluster.num_devices(), parallel().cluster, parallel().workers));
      }
      if (config_.emulate) {
        emulated_cluster(*config_.emulate, cluster);
      }
    });
  }

  void check_emulation() const {
    if (!config_.emulates_model()) {
      return;
    }
    at("emulate", "profile", [&] {
      check_exists(config_.emulate->profile, "");
      profile_from(read_document(config_.emulate->profile));
    });
  }

  // Why the schedule refuses so many ranks, one stage on each, or, where it has a shape of its own,
  // that of run.toml.
  std::optional<std::string> refusal(int ranks, int microbatches) const {
    const ScheduleEntry& entry = find_schedule(parallel().schedule);
    if (entry.builtin->deals) {
      return entry.builtin->offers({ranks, microbatches});
    }
    ParallelConfig config = parallel();
    config.microbatches = microbatches;
    return why_refused(entry, schedule_config(config));
  }

  // Whether the schedule offers what is set; with the stages left free, whether it offers any.
  void check_schedule(std::optional<int> stages) const {
    const int microbatches = parallel().microbatches;
    const int least = stages.value_or(1);
    const int most = stages.value_or(std::min(parallel().workers, kMostRanksTried));
    const auto refused_for_all = [&](int count) {
      for (int ranks = least; ranks <= most; ++ranks) {
        if (!refusal(ranks, count)) {
          return false;
        }
      }
      return true;
    };
    const std::string schedule = parallel().schedule;
    if (refused_for_all(microbatches)) {
      // Named is the key whose change would help.
      constexpr int kCountsTried = 64;
      bool another_count = false;
      for (int count = 1; count <= kCountsTried && !another_count; ++count) {
        another_count = !refused_for_all(count);
      }
      const char* key = another_count ? "microbatches" : stages ? "stages" : "schedule";
      const std::string reason = *refusal(least, microbatches);
      unsupported(key, find_schedule(schedule).builtin->deals
                           ? fmt::format("schedule {}: {}", schedule, reason)
                           : reason);
    }
    check_policy();
  }

  void check_policy() const {
    const std::string schedule = parallel().schedule;
    const std::vector<std::string> fitting = find_schedule(schedule).builtin->policies();
    if (!parallel().policy.empty() &&
        std::find(fitting.begin(), fitting.end(), parallel().policy) == fitting.end()) {
      unsupported("policy",
                  fmt::format("schedule {} does not take weight policy {}; it takes {}", schedule,
                              in_quotes(parallel().policy), join(fitting, ", ")));
    }
  }

  bool has_flush() const {
    return millrace::has_flush(*find_schedule(parallel().schedule).builtin);
  }

  // Lowering refuses it too, but after the profiling.
  void check_clipping(std::optional<int> stages) const {
    const bool single = parallel().plan == "data-parallel" || parallel().plan == "one";
    const int most_stages = stages.value_or(single ? 1 : parallel().workers);
    if (config_.train.clip_norm && most_stages > 1 && !has_flush()) {
      throw placed(Error(ErrorCode::kUnsupported,
                         fmt::format("schedule {} has no flush: its stages update at different "
                                     "times, so the gradient of the whole model, whose norm this "
                                     "limits, is never there at once; use a schedule with a flush "
                                     "such as 1f1b, or stages = 1",
                                     parallel().schedule)),
                   "train", "clip_norm");
    }
  }

  void check_plan_file() const {
    at("parallel", "plan", [&] {
      check_exists(parallel().plan, "");
      const Plan plan = plan_from(read_document(parallel().plan));
      if (plan.workers > parallel().workers) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{} is for {} workers, but workers = {}; set workers = {}",
                                parallel().plan, plan.workers, parallel().workers, plan.workers));
      }
      Plan adopted = plan;
      adopted.schedule = parallel().schedule;
      adopted.microbatches = parallel().microbatches;
      check_policy();
      const Schedule schedule = make_schedule(adopted.schedule, schedule_config(adopted));
      check_clipping(plan.num_stages());
      std::optional<int64_t> size;
      if (parallel().microbatch_size) {
        size = *parallel().microbatch_size;
      }
      at("train", "batch", [&] {
        check_batch(config_.train.batch, size, parallel().microbatches,
                    schedule.num_microbatches / adopted.microbatches);
      });
    });
  }

  const Document& document_;
  RunConfig& config_;  // unset keys get what the optimizer and the schedule say
};

}  // namespace

RunConfig read_run_config(const std::string& file, const std::vector<std::string>& settings) {
  Document document = read_document(file);
  for (const std::string& setting : settings) {
    apply_setting(document, setting);
  }
  RunConfig config = run_config_from(document);
  Checker(document, config).run();
  return config;
}

}  // namespace millrace::cli
