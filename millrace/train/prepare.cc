#include "millrace/train/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <numeric>
#include <set>
#include <utility>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/core/lr_schedule.h"
#include "millrace/core/optimizer_keys.h"
#include "millrace/core/world_place.h"
#include "millrace/model/emulated.h"
#include "millrace/model/split.h"
#include "millrace/planner/placed.h"
#include "millrace/planner/planner.h"
#include "millrace/profiler/measure_cluster.h"
#include "millrace/profiler/measure_collectives.h"
#include "millrace/profiler/profile_model.h"
#include "millrace/rule/rule.h"
#include "millrace/runtime/optimizer.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/shard.h"
#include "millrace/schedule/split.h"
#include "millrace/train/session.h"
#include "millrace/train/split_prediction.h"

namespace millrace {
namespace {

// Bumped when what is measured, or how, changes: old cache entries are then ignored.
constexpr int kCacheVersion = 3;
// Processes wait so long for the one that measures; one that ends is noticed at once.
constexpr double kPatienceS = 24 * 3600;
// The size that the note on collectives speaks of.
constexpr double kNotedBytes = 4e6;

class Preparation {
 public:
  Preparation(const RunConfig& config, const PrepareOptions& options) : options_(options) {
    job_.config = config;
  }

  Job run() {
    check_names();
    load_data_and_model(job_.config, job_);
    check_before_measuring();
    machine_ = machine_name();
    make_cluster();
    make_reductions();
    make_plan_and_prediction();
    return std::move(job_);
  }

 private:
  const ParallelConfig& parallel() const { return job_.config.parallel; }
  const TrainConfig& train() const { return job_.config.train; }

  void check_names() const {
    optimizer_state(train());
    find_lr_schedule(train().lr_schedule);
    find_schedule(parallel().schedule);
    find_rule(parallel().rule);
    if (!parallel().plan_is_file()) {
      find_planner(parallel().plan);
    }
  }

  // Ranks that hold the parts of a replica of a stage.
  int parts() const {
    if (parallel().plan_is_file()) {
      return job_.plan.split_parts;
    }
    if (parallel().split == "none") {
      return 1;
    }
    return parallel().split_parts.value_or(std::max(1, parallel().workers / whole_ranks()));
  }

  // Ranks of the plan without splitting, as far as run.toml says.
  int whole_ranks() const {
    const std::vector<int>& replicas = parallel().replicas;
    const int sum = std::accumulate(replicas.begin(), replicas.end(), 0);
    return std::max(1,
                    replicas.size() > 1 ? sum : parallel().stages.value_or(1) * std::max(1, sum));
  }

  // What run.toml says of the ranks of one part.
  ParallelConfig parallel_of_part() const {
    ParallelConfig config = parallel();
    config.workers /= parts();
    return config;
  }

  void check_split() const {
    const bool splits = parallel().split != "none";
    const auto refuse = [](ErrorCode code, const char* key, const std::string& text) {
      throw Error(code, text).at_key(std::string("parallel.") + key);
    };
    if (!splits && parallel().split_parts) {
      refuse(
          ErrorCode::kInvalidArgument, "split_parts",
          "split_parts is of split = \"tensor\", and here no layer is split; set split, or leave "
          "split_parts out");
    }
    if (parallel().plan_is_file() &&
        (splits != (parts() > 1) || parallel().split_parts.value_or(parts()) != parts())) {
      refuse(ErrorCode::kInvalidArgument, "split",
             fmt::format("the plan {} is of {} parts a layer, and run.toml says otherwise; make "
                         "split and split_parts agree with its split_parts",
                         parallel().plan, parts()));
    }
    if (parts() == 1) {
      return;
    }
    if (parallel().shard != Shard::kNothing) {
      refuse(ErrorCode::kUnsupported, "shard",
             fmt::format("shard = \"{}\" divides whole layers among replicas, and split = "
                         "\"tensor\" has parts of them; set one of the two to \"none\"",
                         to_string(parallel().shard)));
    }
    if (parallel().workers % parts() != 0) {
      refuse(
          ErrorCode::kInvalidArgument, "split_parts",
          fmt::format("{} workers are not replicas of {} parts; make workers = replicas x stages "
                      "x split_parts",
                      parallel().workers, parts()));
    }
    if (split_layers(job_.model, parts()).empty()) {
      refuse(
          ErrorCode::kUnsupported, "split",
          fmt::format("no layer of {} can be split in {} parts: linear, conv2d and lstm can, that "
                      "are as wide and share no weight",
                      job_.model.name, parts()));
    }
    if (parallel().deal == "on-demand") {
      refuse(ErrorCode::kUnsupported, "deal",
             "deal = \"on-demand\" deals samples to whole replicas, and split = \"tensor\" makes "
             "them of several ranks; set deal = \"fixed\", or split = \"none\"");
    }
    if (job_.config.emulate) {
      refuse(ErrorCode::kUnsupported, "split",
             "an emulated device takes an action's time as a whole, in which no parts meet; leave "
             "[emulate] out, or set split = \"none\"");
    }
  }

  void check_before_measuring() {
    const auto num_layers = static_cast<int>(job_.model.layers.size());
    // An epoch's order and the actions of a pipeline without a flush are held in memory.
    constexpr int64_t kMostSamples = 1'000'000'000;
    if (job_.data.train->size() > kMostSamples) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} training samples; offered are at most {}",
                              job_.data.train->size(), kMostSamples))
          .at_key("data");
    }
    if (parallel().stages && *parallel().stages > num_layers) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} stages for the {} layers of {}; use at most {}",
                              *parallel().stages, num_layers, job_.model.name, num_layers))
          .at_key("parallel.stages");
    }
    // Refuses what the schedule does not offer, before anything is measured.
    if (!parallel().plan_is_file() && !parallel().planner_chooses_run()) {
      const ScheduleConfig straight{.num_ranks = parallel().stages.value_or(1),
                                    .num_microbatches = parallel().microbatches};
      make_schedule(parallel().schedule, deals() ? straight : schedule_config(parallel_of_part()),
                    parallel().policy);
    }
    if (!parallel().planner_chooses_run()) {
      check_batch_norm();  // else once it has chosen
      check_sharding();
    }
    if (parallel().plan_is_file()) {
      job_.plan = plan_from(read_document(parallel().plan));
      adopt_plan_file();
    }
    check_split();
  }

  // Those of [rule], and where a rule makes the optimizer's step itself, its momentum and decay.
  Value rule_options() const {
    const RuleEntry& rule = find_rule(parallel().rule);
    Value options = job_.config.rule_options;
    const Value settled = settle_rule(rule, options).values();
    const Value* density = settled.find("density");
    if (rule.name != "gradient-flow" || density == nullptr || density->number >= 1) {
      return options;
    }
    if (train().optimizer != "sgd") {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("rule gradient-flow with density below 1 makes steps of SGD with "
                              "momentum itself; set optimizer = \"sgd\" in place of \"{}\", or "
                              "density = 1",
                              train().optimizer))
          .at_key("train.optimizer");
    }
    if (settled.find("momentum")->number < 0) {
      options.set("momentum", Value::of(train().momentum.value_or(0)));
    }
    if (settled.find("decay")->number < 0) {
      options.set("decay", Value::of(train().weight_decay.value_or(0)));
    }
    return options;
  }

  // What the rule cannot do with this plan, and what is worth knowing.
  void check_rule() {
    const RuleEntry& rule = find_rule(job_.plan.rule);
    int most = 1;
    for (const PlanStage& stage : job_.plan.stages) {
      const int replicas = static_cast<int>(stage.ranks.size()) / job_.plan.split_parts;
      most = std::max(most, replicas);
      if (replicas > 1) {
        RuleConfig config;
        config.num_members = replicas;
        config.options = settle_rule(rule, job_.plan.rule_options);
        rule.make(config);
      }
    }
    if (most == 1) {
      if (job_.plan.shard != Shard::kNothing) {
        note(fmt::format("shard {} has nothing to do: no stage has replicas",
                         to_string(job_.plan.shard)));
      }
      if (rule.name != "bsp") {
        note(fmt::format("rule {} has nothing to do: no stage has replicas", rule.name));
      }
      return;
    }
    check_rule_of_parts(rule);
    if (train().clip_norm && !rule.traits.sums_gradients) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("clip_norm needs the norm of the sum over all replicas, which rule {} "
                      "does not make in each update; leave clip_norm out, or set rule = "
                      "\"bsp\"",
                      rule.name))
          .at_key("train.clip_norm");
    }
    const bool adaptive = train().optimizer != "sgd";
    if (adaptive && !rule.traits.sums_gradients) {
      note(
          fmt::format("optimizer {} is not linear in the gradient: where rule {} gives it each "
                      "replica's own, what it makes of them differs from one process",
                      train().optimizer, rule.name));
    }
    if (parallel().deal == "on-demand") {
      if (!rule.traits.any_pace) {
        throw Error(ErrorCode::kUnsupported,
                    fmt::format("deal = \"on-demand\" lets replicas do unequal numbers of updates, "
                                "and rule {} needs equal ones; set deal = \"fixed\"",
                                rule.name))
            .at_key("parallel.deal");
      }
      if (spans_processes()) {
        throw Error(ErrorCode::kUnsupported,
                    "deal = \"on-demand\" is for ranks of one process; leave --processes out, or "
                    "set deal = \"fixed\"")
            .at_key("parallel.deal");
      }
    }
    if (!rule.traits.equal_replicas) {
      note(
          fmt::format("rule {}: replicas hold weights of their own; evaluations and checkpoints "
                      "use those they agree on, and --resume starts all replicas from them",
                      rule.name));
    }
  }

  // Parts of a replica must come to equal weights of the layers that are whole on all of them: a
  // rule may go neither by who comes first nor by which elements stand beside one another.
  void check_rule_of_parts(const RuleEntry& rule) const {
    const Value* density = job_.plan.rule_options.find("density");
    const bool chooses = density != nullptr && density->number < 1;
    if (job_.plan.split_parts > 1 && (rule.traits.serves || rule.traits.ordered || chooses)) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("rule {} goes by the order of arrival or chooses elements of a rank's "
                      "vector, and the parts of a split layer would go apart; set split = "
                      "\"none\", or rule = \"bsp\"",
                      chooses ? rule.name + " with density below 1" : rule.name))
          .at_key("parallel.rule");
    }
  }

  // Says when running statistics move, where that depends on the microbatches.
  void check_batch_norm() {
    const bool deferred = train().batch_norm == "deferred";
    if (deferred && !has_flush(*find_schedule(parallel().schedule).builtin)) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("batch_norm = \"deferred\" updates running statistics once a step, and "
                      "schedule {} has no flush at which all of a step's microbatches are "
                      "through; set batch_norm = \"per_microbatch\"",
                      parallel().schedule))
          .at_key("train.batch_norm");
    }
    if (job_.model.mixes_samples() && parallel().microbatches > 1) {
      note(deferred
               ? "batch norm: normalizes by microbatch; running statistics move once a step, by "
                 "all its samples (batch_norm = \"deferred\")"
               : "batch norm: normalizes and moves running statistics by microbatch; batch_norm = "
                 "\"deferred\" moves them once a step");
    }
  }

  void check_sharding() const {
    Plan plan;
    plan.shard = parallel().shard;
    plan.rule = parallel().rule;
    Schedule schedule;
    schedule.name = parallel().schedule;
    schedule.flush = has_flush(*find_schedule(parallel().schedule).builtin);
    check_shard(plan, schedule);
    if (plan.shard != Shard::kNothing && parallel().deal == "on-demand") {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("shard = \"{}\" has replicas meet in every run of microbatches, and "
                              "deal = \"on-demand\" lets them go at their own pace; set deal = "
                              "\"fixed\"",
                              to_string(plan.shard)))
          .at_key("parallel.deal");
    }
  }

  // A plan file says layers and ranks; schedule, rule and microbatches are run.toml's.
  void adopt_plan_file() {
    Plan& plan = job_.plan;
    check_plan(plan, job_.model.layer_names(), job_.model.edges(), parallel().plan);
    if (plan.workers > parallel().workers) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the plan is for {} workers, but [parallel] workers = {}",
                              plan.workers, parallel().workers))
          .in_file(parallel().plan);
    }
    check_stages();
    plan.workers = parallel().workers;
    apply_config(plan);
  }

  void check_stages() const {
    for (const std::vector<int>& layers : stage_layers(job_.plan, job_.model)) {
      check_ties(job_.model, layers);
    }
  }

  void apply_config(Plan& plan) const {
    plan.schedule = parallel().schedule;
    plan.rule = parallel().rule;
    plan.rule_options = rule_options();
    plan.microbatches = parallel().microbatches;
    plan.update = parallel().update;
    plan.recompute = parallel().recompute;
    plan.shard = parallel().shard;
  }

  std::string cache_file(const std::string& what) const {
    std::string key;
    for (const char c : what) {
      const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.';
      key += plain ? c : '-';
    }
    return fmt::format("{}/{}-v{}.json", options_.cache_dir, key, kCacheVersion);
  }

  // A cached document, unless there is none, it is damaged, or a fresh one was asked for.
  template <typename Read>
  bool from_cache(const std::string& file, const Read& read) const {
    if (options_.cache_dir.empty() || options_.fresh || !std::filesystem::exists(file)) {
      return false;
    }
    try {
      read(read_document(file));
      return true;
    } catch (const Error&) {
      return false;  // measured again and overwritten
    }
  }

  // A cache that cannot be written costs time, not the run.
  void into_cache(const std::string& file, const Value& value) {
    if (options_.cache_dir.empty()) {
      return;
    }
    try {
      make_directories(options_.cache_dir);
      write_file_atomically(file, to_json(value) + "\n");
    } catch (const Error& error) {
      note(fmt::format("the measurement was not cached: {}", error.what()));
    }
  }

  void note(const std::string& text) {
    if (options_.sink != nullptr) {
      options_.sink->on_note(text);
    }
  }

  // The cluster of the prediction and, where [emulate] stands, of the run.
  void make_cluster() {
    const std::optional<EmulateConfig>& emulate = job_.config.emulate;
    const bool given = parallel().cluster != "auto";
    if (!given && job_.config.emulates_model()) {
      job_.cluster = free_cluster(parallel().workers);
    } else {
      find_cluster();
    }
    if (!emulate) {
      return;
    }
    job_.cluster = emulated_cluster(*emulate, std::move(job_.cluster));
    if (job_.config.emulates_model()) {
      // Real actions have a real overhead, which nobody emulates.
      job_.cluster.action_overhead_s = 0;
    }
    job_.emulation = emulation_config(*emulate, job_.cluster, !given);
    job_.notes.push_back(emulation_note());
  }

  // Nothing is measured where the cluster was given: then programs are timed on that one.
  std::vector<CollectiveFit> measured_collectives() {
    if (parallel().cluster != "auto") {
      return {};
    }
    return collective_fits_from(shared([] { return std::optional<Value>(); },
                                       [&] {
                                         note("measuring collectives between processes");
                                         return to_value(measure_collectives(
                                             *options_.world, parallel().collective,
                                             job_.cluster.levels.back().bandwidth_bytes_per_s));
                                       }));
  }

  void make_reductions() {
    find_codec(parallel().codec);
    const bool encodes = parallel().codec != "none";
    if (!spans_processes()) {
      if (encodes) {
        job_.notes.push_back(
            fmt::format("codec {} is of no use here: ranks of one process sum in its memory, and "
                        "nothing is encoded",
                        parallel().codec));
      }
      return;
    }
    if (encodes && train().dtype != "float32") {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("codec {} encodes float32, and this run's dtype is {}",
                              parallel().codec, train().dtype))
          .at_key("parallel.codec");
    }
    std::shared_ptr<const Codec> made;
    if (encodes) {
      made = make_codec(parallel());
    }
    job_.reductions = std::make_shared<Reductions>(
        job_.cluster, parallel().workers, options_.world->num_processes(), parallel().collective,
        std::move(made), measured_collectives());
    const auto elements = static_cast<int64_t>(kNotedBytes / 4);
    std::vector<int> leaders;
    for (int process = 0; process < options_.world->num_processes(); ++process) {
      leaders.push_back(
          ranks_of_process(parallel().workers, options_.world->num_processes(), process).front());
    }
    const TimedCollective chosen = job_.reductions->choose(leaders, elements, 4);
    job_.notes.push_back(fmt::format("between processes {} of gradients are summed in {} by {}",
                                     format_bytes(kNotedBytes), format_seconds(chosen.seconds),
                                     chosen.name));
  }

  AllReduceSeconds all_reduce_s() const {
    if (job_.reductions == nullptr) {
      return {};
    }
    return [reductions = job_.reductions](const std::vector<int>& ranks, double bytes) {
      return reductions->seconds(ranks, bytes);
    };
  }

  std::string emulation_note() const {
    const EmulateConfig& emulate = *job_.config.emulate;
    std::string text = "emulated devices and links: all times are theirs";
    if (emulate.time_scale != 1) {
      text += fmt::format(", and last {:g} times as long here", emulate.time_scale);
    }
    if (job_.config.emulates_model()) {
      text += "; the model stands for the profile's, its losses mean nothing";
    }
    return text;
  }

  void find_cluster() {
    if (parallel().cluster != "auto") {
      job_.cluster = cluster_from(read_document(parallel().cluster));
      if (job_.cluster.num_devices() < parallel().workers) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{} devices for [parallel] workers = {}",
                                job_.cluster.num_devices(), parallel().workers))
            .in_file(parallel().cluster);
      }
      return;
    }
    const std::string file =
        cache_file(fmt::format("cluster {} workers {}", machine_, parallel().workers));
    job_.cluster = cluster_from(shared(
        [&] {
          Cluster found;
          // A network is not known by its machines' names: between processes it is measured anew.
          const bool cached = !spans_processes() && from_cache(file, [&](const Document& document) {
            found = cluster_from(document);
          });
          return cached ? std::optional<Value>(to_value(found)) : std::nullopt;
        },
        [&] {
          note(fmt::format("measuring hand-over and reduction between {} workers",
                           parallel().workers));
          if (spans_processes()) {
            return to_value(measure_cluster(*options_.world, machine_));
          }
          const Cluster found = measure_cluster(parallel().workers, machine_);
          into_cache(file, to_value(found));
          return to_value(found);
        }));
  }

  bool spans_processes() const {
    return options_.world != nullptr && options_.world->spans_processes();
  }
  bool leads() const { return options_.world == nullptr || options_.world->leads(); }

  // One document for all processes, so that all plan alike: what the leading one finds, or else
  // what it makes. `make` is called in every process, since measuring may need all.
  Document shared(const std::function<std::optional<Value>()>& find,
                  const std::function<Value()>& make) {
    const std::string kFile = "measurement";
    std::optional<Value> own = leads() ? find() : std::nullopt;
    if (!spans_processes()) {
      return parse_json(to_json(own ? *own : make(), -1), kFile);
    }
    std::string text = options_.world->exchange(own ? to_json(*own, -1) : "", kPatienceS)[0];
    if (text.empty()) {
      const Value made = make();
      text = options_.world->exchange(leads() ? to_json(made, -1) : "", kPatienceS)[0];
    }
    return parse_json(text, kFile);
  }

  // What an update reads and writes: the optimizer and the buffers of its state.
  std::string optimizer_key() const {
    return join(optimizer_state(train()).buffers, "+") + " " + train().optimizer;
  }

  // Ranks of this process that work: of the plan, once there is one. A process without any measures
  // as one.
  int busy_here() const {
    if (!spans_processes()) {
      return job_.plan.stages.empty() ? parallel().workers : job_.plan.num_used_ranks();
    }
    std::set<int> used;
    for (const PlanStage& stage : job_.plan.stages) {
      used.insert(stage.ranks.begin(), stage.ranks.end());
    }
    const std::vector<int>& here = options_.world->local_ranks();
    return std::max(1, static_cast<int>(std::count_if(here.begin(), here.end(), [&](int rank) {
                      return used.empty() || used.contains(rank);
                    })));
  }

  Profile profile_for(int64_t samples) {
    if (job_.emulation && job_.emulation->profile) {
      return *job_.emulation->profile;  // times are scaled by samples wherever a profile is used
    }
    const std::string options = to_json(job_.config.model.options, -1);
    const int busy_ranks = busy_here();
    const std::string others =
        spans_processes() ? fmt::format(" of {} processes", options_.world->num_processes()) : "";
    const std::string file = cache_file(
        fmt::format("profile {} {:08x} {} {:08x} {} {} {} samples {} busy {}{}", job_.model.name,
                    crc32_of(options.data(), options.size()), job_.config.data.name, data_key(),
                    train().dtype, optimizer_key(), machine_, samples, busy_ranks, others));
    return profile_from(shared(
        [&]() -> std::optional<Value> {
          Profile profile;
          const bool cached = from_cache(file, [&](const Document& document) {
            profile = profile_from(document);
            std::vector<std::string> names;
            for (const LayerProfile& layer : profile.layers) {
              names.push_back(layer.name);
            }
            if (names != job_.model.layer_names()) {
              throw Error(ErrorCode::kBadFile, "cached profile of another model");
            }
          });
          if (!cached) {
            return std::nullopt;
          }
          note(fmt::format("profile of {} at {} samples: cached in {}", job_.model.name, samples,
                           file));
          return to_value(profile);
        },
        // All processes measure at the same time, each with its own ranks, so that those that share
        // a machine are busy as in training; the leading one's figures hold.
        [&] { return measure_profile(file, samples, busy_ranks); }));
  }

  Value measure_profile(const std::string& file, int64_t samples, int busy_ranks) {
    const std::string what = fmt::format("profiling {} at {} samples, {} busy workers",
                                         job_.model.name, samples, busy_ranks);
    note(what);
    ProfileRequest request;
    request.model = &job_.model;
    request.dataset = job_.data.train.get();
    request.samples = samples;
    request.busy_ranks = busy_ranks;
    request.train = train();
    request.machine = machine_;
    request.seconds = options_.profile_s;
    request.peak = false;  // no prediction goes by it
    if (options_.sink != nullptr) {
      request.progress = [this, what](double fraction) {
        options_.sink->on_progress(what, fraction);
      };
    }
    Value profile = to_value(profile_model(request));
    if (leads()) {
      into_cache(file, profile);
    }
    return profile;
  }

  // Shapes of the data change the model's cost, so they are part of a profile's key.
  uint32_t data_key() const {
    const std::string text = to_string(job_.data.train->input());
    return crc32_of(text.data(), text.size());
  }

  int64_t samples_per_part(int64_t replicas) const {
    const int64_t parts = parallel().microbatches * replicas;
    return std::max<int64_t>(1, (train().batch + parts - 1) / parts);
  }

  void make_plan_and_prediction() {
    const Profile whole = profile_for(samples_per_part(1));
    // A planner weighs minibatches; the profile is of one microbatch.
    Profile minibatch = whole;
    scale(minibatch,
          static_cast<double>(train().batch) / static_cast<double>(whole.samples_per_microbatch));
    PlanRequest request{.profile = minibatch,
                        .cluster = job_.cluster,
                        .workers = parallel().workers,
                        .stages = parallel().stages,
                        .replicas = parallel().replicas,
                        .straight = false};
    fix_run(request);
    // Planned for the ranks of one part, which then stand for all.
    const int num_parts = parts();
    const Profile part = profile_of_part(minibatch, job_.model, num_parts, job_.cluster);
    PlanRequest of_part{.profile = part,
                        .cluster = job_.cluster,
                        .workers = parallel().workers / num_parts,
                        .stages = parallel().stages,
                        .replicas = parallel().replicas,
                        .straight = false};
    fix_run(of_part);
    if (parallel().planner_chooses_run()) {
      choose_run(of_part);
      job_.plan = split_plan(job_.plan, num_parts);
    } else if (!parallel().plan_is_file() && !deals()) {
      of_part.stages.reset();
      of_part.replicas.clear();
      job_.plan = make_placed_plan(parallel().plan, of_part, parallel().schedule,
                                   schedule_config(parallel_of_part()));
      apply_config(job_.plan);
      check_stages();
      job_.plan = split_plan(job_.plan, num_parts);
    } else if (!parallel().plan_is_file()) {
      job_.plan = make_plan(parallel().plan, of_part);
      check_stages();
      apply_config(job_.plan);
      job_.plan = split_plan(job_.plan, num_parts);
    } else {
      PlanRequest free = request;
      free.stages.reset();
      free.replicas.clear();
      const Plan formula = make_plan("one", free);
      job_.plan.data_parallel_minibatch_s = formula.data_parallel_minibatch_s;
      job_.plan.one_worker_minibatch_s = formula.one_worker_minibatch_s;
      job_.plan.minibatch_s = pipedream_minibatch_s(plan_of_part(job_.plan, 0), part, job_.cluster);
    }
    check_rule();
    job_.config.train.lr_replicas = job_.plan.max_replicas();
    // Into microbatches, and over replicas or copies unless each takes whole minibatches.
    const int64_t replicas =
        make_schedule(job_.plan.schedule, schedule_config(job_.plan)).num_microbatches /
        job_.plan.microbatches;
    job_.num_split_replicas = replicas;
    check_batch(train().batch,
                parallel().microbatch_size ? std::optional<int64_t>(*parallel().microbatch_size)
                                           : std::nullopt,
                parallel().microbatches, replicas);
    job_.profile = replicas == 1 && job_.plan.num_used_ranks() == parallel().workers &&
                           whole.samples_per_microbatch == samples_per_part(1)
                       ? whole
                       : profile_for(samples_per_part(replicas));
    job_.simulated_as = of_this_run();
    if (num_parts > 1) {
      job_.predicted =
          simulate_plan(plan_of_part(job_.plan, 0),
                        profile_of_part(job_.profile, job_.model, num_parts, job_.cluster),
                        job_.cluster, train().batch, job_.simulated_as);
      spread_over_parts(job_.predicted, job_.plan);
      job_.notes.push_back(split_note());
    } else {
      job_.predicted =
          simulate_plan(job_.plan, job_.profile, job_.cluster, train().batch, job_.simulated_as);
    }
    job_.plan.memory.clear();
    for (std::size_t rank = 0; rank < job_.predicted.ranks.size(); ++rank) {
      const MemoryUse& memory = job_.predicted.ranks[rank].memory;
      job_.plan.memory.push_back(memory);
      const auto bytes = static_cast<double>(memory.total());
      if (bytes > job_.cluster.memory_bytes) {
        job_.notes.push_back(
            fmt::format("rank {} is predicted to need {}, and a device has {}; use more "
                        "microbatches, recompute "
                        "or another schedule",
                        rank, format_bytes(bytes), format_bytes(job_.cluster.memory_bytes)));
      }
    }
    job_.alternatives.push_back(
        {"this plan", describe(job_.plan), job_.predicted.step_s, job_.plan.minibatch_s});
    add_alternatives(request, whole);
  }

  // What the plan will run under, but for what the file leaves to the planner.
  void fix_run(PlanRequest& request) const {
    const ParallelConfig& config = parallel();
    request.run = of_this_run();
    request.rule_options = rule_options();
    if (!config.leaves("schedule")) {
      request.schedule = config.schedule;
    }
    if (!config.leaves("rule")) {
      request.rule = config.rule;
    }
    if (!config.leaves("microbatches")) {
      request.microbatches = config.microbatches;
    }
    if (!config.leaves("recompute") || config.recompute != Recompute::kNothing) {
      request.recompute = config.recompute;  // also what a schedule's file asks for
    }
  }

  // Stages and, of what the file leaves free, schedule, rule, microbatches and recompute.
  void choose_run(PlanRequest& request) {
    ParallelConfig& config = job_.config.parallel;
    request.refuses = [this](const Plan& plan) { return why_not(plan); };
    request.ranked = [this](const RankedPlan& ranked) {
      note(fmt::format("{} a step: {}, {} in {} microbatches, rule {}, recompute {}; {}",
                       format_seconds(ranked.step_s), describe(ranked.plan), ranked.plan.schedule,
                       ranked.plan.microbatches, ranked.plan.rule, to_string(ranked.plan.recompute),
                       ranked.reason));
    };
    job_.plan = make_plan(config.plan, request);
    job_.notes.insert(job_.notes.end(), job_.plan.notes.begin(), job_.plan.notes.end());
    config.schedule = job_.plan.schedule;
    config.rule = job_.plan.rule;
    config.microbatches = job_.plan.microbatches;
    config.recompute = job_.plan.recompute;
    config.free.clear();
    check_stages();
    check_batch_norm();
    check_sharding();
    apply_config(job_.plan);
  }

  // What a profile does not show.
  std::optional<std::string> why_not(const Plan& plan) const {
    const ScheduleBuiltin& builtin = *find_schedule(plan.schedule).builtin;
    if (train().batch_norm == "deferred" && !has_flush(builtin)) {
      return "batch_norm = \"deferred\" needs a flush";
    }
    if (train().clip_norm && plan.num_stages() > 1 && !has_flush(builtin)) {
      return "clip_norm needs a flush";
    }
    if (parallel().shard != Shard::kNothing && (!has_flush(builtin) || plan.rule != "bsp")) {
      return "sharded state needs a flush and rule bsp";
    }
    const std::vector<std::string> policies = builtin.policies();
    if (!parallel().policy.empty() &&
        std::find(policies.begin(), policies.end(), parallel().policy) == policies.end()) {
      return "the schedule does not take the weight policy";
    }
    if (train().clip_norm && plan.max_replicas() > 1 &&
        !find_rule(plan.rule).traits.sums_gradients) {
      return "clip_norm needs the sum of gradients";
    }
    try {
      const ScheduleConfig shape = schedule_config(plan);
      if (parallel().chunks && std::max(shape.chunks, 1) != *parallel().chunks) {
        return "another number of chunks";
      }
      check_batch(train().batch,
                  parallel().microbatch_size ? std::optional<int64_t>(*parallel().microbatch_size)
                                             : std::nullopt,
                  plan.microbatches, shape.num_parts() / plan.microbatches);
      for (const std::vector<int>& layers : stage_layers(plan, job_.model)) {
        check_ties(job_.model, layers);
      }
    } catch (const Error& error) {
      return error.message();
    }
    return std::nullopt;
  }

  std::string split_note() const {
    const std::set<std::string> split = split_layers(job_.model, job_.plan.split_parts);
    return fmt::format("split in {} parts: {}; other layers are whole on all parts",
                       job_.plan.split_parts,
                       join(std::vector<std::string>(split.begin(), split.end()), ", "));
  }

  PlanSimulation of_this_run() const {
    PlanSimulation run{.policy = parallel().policy,
                       .optimizer_buffers = num_optimizer_buffers(),
                       .clips = train().clip_norm.has_value(),
                       .all_reduce_s = all_reduce_s(),
                       .seed = train().seed,
                       .overlaps = !job_.config.emulate,
                       .on_demand = parallel().deal == "on-demand"};
    for (int rank = 0; rank < parallel().workers; ++rank) {
      run.node_of_rank.push_back(options_.world == nullptr ? 0 : options_.world->process_of(rank));
    }
    if (job_.config.emulate && job_.config.emulate->spell_steps > 0) {
      run.slowdown = [emulate = *job_.config.emulate, workers = parallel().workers](int rank,
                                                                                    int64_t step) {
        return spell_slowdown(emulate, rank, workers, step);
      };
    }
    return run;
  }

  bool deals() const { return find_schedule(parallel().schedule).builtin->deals; }

  int num_optimizer_buffers() const {
    return static_cast<int>(optimizer_state(train()).buffers.size());
  }

  static void scale(Profile& profile, double factor) {
    for (LayerProfile& layer : profile.layers) {
      layer.forward_s *= factor;
      layer.input_gradient_s *= factor;
      layer.weight_gradient_s *= factor;
      layer.output_bytes = static_cast<int64_t>(static_cast<double>(layer.output_bytes) * factor);
      layer.stash_bytes = static_cast<int64_t>(static_cast<double>(layer.stash_bytes) * factor);
      layer.kept_bytes = static_cast<int64_t>(static_cast<double>(layer.kept_bytes) * factor);
      layer.shared_stash_bytes =
          static_cast<int64_t>(static_cast<double>(layer.shared_stash_bytes) * factor);
    }
    profile.samples_per_microbatch =
        static_cast<int64_t>(static_cast<double>(profile.samples_per_microbatch) * factor);
  }

  void add_alternatives(const PlanRequest& request, const Profile& whole) {
    PlanRequest free = request;
    free.stages.reset();
    free.replicas.clear();
    struct Choice {
      const char* name;
      const char* planner;
    };
    const Choice choices[] = {{"free choice of pipedream", "pipedream"},
                              {"plain data parallel", "data-parallel"},
                              {"one worker", "one"}};
    for (const Choice& choice : choices) {
      Plan plan;
      try {
        plan = make_plan(choice.planner, free);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kInvalidArgument) {
          throw;
        }
        // Only a row of the table: what cannot be had, memory lacking for instance, stops no run.
        job_.notes.push_back(fmt::format("{}: {}", choice.name, error.message()));
        job_.alternatives.push_back({choice.name, "-", 0, 0});
        continue;
      }
      apply_config(plan);
      plan.shard = Shard::kNothing;
      const bool replicated = std::any_of(plan.stages.begin(), plan.stages.end(),
                                          [](const PlanStage& s) { return s.ranks.size() > 1; });
      // Plain data parallelism splits each minibatch, whatever the schedule of this run does; and
      // one with a placement of its own is no judge of other plans.
      if ((replicated && plan.num_stages() == 1) || !deals()) {
        plan.schedule = "1f1b";
      }
      // Without its own policy: the alternative may run under another schedule.
      PlanSimulation alternative = of_this_run();
      alternative.policy.clear();
      alternative.clips = false;
      alternative.optimizer_buffers = 1;
      const double predicted_s =
          simulate_plan(plan, whole, job_.cluster, train().batch, alternative).step_s;
      job_.alternatives.push_back({choice.name, describe(plan), predicted_s, plan.minibatch_s});
    }
    const double own_s = job_.alternatives.front().predicted_s;
    const Alternative& data_parallel = job_.alternatives[2];
    if (job_.plan.num_stages() > 1 && data_parallel.predicted_s > 0 &&
        data_parallel.predicted_s < own_s) {
      job_.notes.push_back(fmt::format(
          "plain data parallel is predicted to be faster here: {} a step against {}; to use it set "
          "plan = \"data-parallel\", schedule = \"1f1b\" and leave stages and replicas out",
          format_seconds(data_parallel.predicted_s), format_seconds(own_s)));
    }
    if (job_.plan.num_used_ranks() < parallel().workers) {
      job_.notes.push_back(fmt::format("the plan leaves {} of {} workers idle",
                                       parallel().workers - job_.plan.num_used_ranks(),
                                       parallel().workers));
    }
  }

  PrepareOptions options_;
  std::string machine_;
  Job job_;
};

}  // namespace

void load_data_and_model(const RunConfig& config, Job& job) {
  const DataEntry& data = find_dataset(config.data.name);
  Document data_options{"[data]", config.data.options};
  Reader data_reader(data_options);
  job.data = data.make(data_reader, config.train.seed);
  data_reader.finish();
  if (config.emulates_model()) {
    const Profile profile = profile_from(read_document(config.emulate->profile));
    TensorSpec input = job.data.train->input();
    input.dtype = float_dtype(config.train.dtype);
    job.model = emulated_model(profile, config.emulate->shrink.value_or(default_shrink(profile)),
                               input, job.data.train->num_classes());
    check_model(job.model);
    return;
  }
  const ModelEntry& model = find_model(config.model.name);
  Document model_options{"[model]", config.model.options};
  Reader model_reader(model_options);
  ModelRequest request{.options = model_reader,
                       .input = job.data.train->input(),
                       .num_classes = job.data.train->num_classes()};
  request.dtype = float_dtype(config.train.dtype);
  if (at::isFloatingType(request.input.dtype)) {
    request.input.dtype = request.dtype;
  }
  job.model = model.make(request);
  model_reader.finish();
  check_model(job.model);
  // Floating targets come in the model's dtype, whichever that is.
  TensorSpec target = job.data.train->target();
  if (at::isFloatingType(target.dtype) && at::isFloatingType(job.model.target.dtype)) {
    target.dtype = job.model.target.dtype;
  }
  if (job.model.target != target) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the model \"{}\" learns targets of {}, but those of the data \"{}\" "
                            "are {}; choose data that fits the model",
                            config.model.name, to_string(job.model.target), config.data.name,
                            to_string(target)))
        .at_key("data");
  }
}

Job prepare(const RunConfig& config, const PrepareOptions& options) {
  return Preparation(config, options).run();
}

double predict_epoch_s(const Job& job, int64_t num_steps) {
  PlanSimulation run = job.simulated_as;
  run.num_steps = num_steps;
  const int parts = job.plan.split_parts;
  const Profile profile =
      parts > 1 ? profile_of_part(job.profile, job.model, parts, job.cluster) : job.profile;
  return simulate_plan(plan_of_part(job.plan, 0), profile, job.cluster, job.config.train.batch, run)
      .trace.window_s;
}

namespace {

// "easgd: tau 10, alpha 0.5; parts dealt on demand"
std::string describe_rule(const Job& job) {
  std::string text = job.plan.rule;
  const Value options = settle_rule(find_rule(job.plan.rule), job.plan.rule_options).values();
  const char* separator = ": ";
  for (const auto& [key, value] : options.object) {
    text += fmt::format("{}{} {}", std::exchange(separator, ", "), key,
                        value.kind == Value::Kind::kString ? value.string : to_json(value, -1));
  }
  return job.config.parallel.deal == "on-demand" ? text + "; parts dealt on demand" : text;
}

// "adam: lr 0.001, cosine after 100 warm-up steps; beta1 0.9, ..."
std::string describe_optimizer(const TrainConfig& config) {
  std::string text = fmt::format("{}: lr {}, {}", config.optimizer, config.lr, config.lr_schedule);
  if (config.warmup_steps > 0) {
    text += fmt::format(" after {} warm-up steps", config.warmup_steps);
  }
  if (config.lr_scaling == "replicas") {
    text += ", x";
    for (int64_t epoch = 0; epoch <= 5; ++epoch) {
      text += fmt::format("{}{:.3g}", epoch == 0 ? " " : ", ",
                          scale_of_epoch(config.lr_replicas, epoch));
    }
    text += fmt::format(" in epochs 0 to 5 and on ({} replicas)", config.lr_replicas);
  }
  std::vector<std::string> keys;
  for (const OptimizerKey& key : optimizer_keys()) {
    if (config.*key.member) {
      keys.push_back(fmt::format("{} {}", key.name, *(config.*key.member)));
    }
  }
  if (config.clip_norm) {
    keys.push_back(fmt::format("clipped at norm {}", *config.clip_norm));
  }
  return keys.empty() ? text : text + "; " + join(keys, ", ");
}

}  // namespace

std::string describe(const Job& job) {
  const RunConfig& config = job.config;
  std::string text;
  text += fmt::format("model     {}: {} layers, {} parameters, {}\n", job.model.name,
                      job.model.layers.size(), format_count(job.model.num_parameters()),
                      config.train.dtype);
  text += fmt::format("data      {}: {} training and {} test samples\n", config.data.name,
                      format_count(job.data.train->size()), format_count(job.data.test->size()));
  text += fmt::format(
      "batch     {}\n",
      batch_equation(config.train.batch, config.parallel.microbatches, job.num_split_replicas));
  text += fmt::format("optimizer {}\n", describe_optimizer(config.train));
  text += fmt::format("schedule  {}, rule {}", job.plan.schedule, describe_rule(job));
  text += job.plan.shard == Shard::kNothing
              ? "\n"
              : fmt::format(", state sharded by {}\n", to_string(job.plan.shard));
  text += fmt::format("plan      {} (by {})\n\n", describe(job.plan), job.plan.planner);
  TextTable alternatives({"predicted", "step", "samples/s", "formula", "stages"});
  for (const Alternative& row : job.alternatives) {
    const bool simulated = row.predicted_s > 0;
    alternatives.row({row.name, simulated ? format_seconds(row.predicted_s) : "-",
                      simulated ? fmt::format("{:.0f}", static_cast<double>(config.train.batch) /
                                                            row.predicted_s)
                                : "-",
                      row.objective_s > 0 ? format_seconds(row.objective_s) : "-", row.plan});
  }
  text += alternatives.str() + "\n";
  TextTable memory({"memory", "weights", "gradients", "optimizer", "stash", "borders", "total"});
  for (std::size_t rank = 0; rank < job.plan.memory.size(); ++rank) {
    const MemoryUse& use = job.plan.memory[rank];
    const auto bytes = [](int64_t n) { return format_bytes(static_cast<double>(n)); };
    memory.row({fmt::format("rank {}", rank), bytes(use.weight_bytes), bytes(use.gradient_bytes),
                bytes(use.optimizer_bytes), bytes(use.stash_bytes), bytes(use.border_bytes),
                bytes(use.total())});
  }
  text += memory.str();
  for (const std::string& note : job.notes) {
    text += "\nnote: " + note + "\n";
  }
  return text;
}

}  // namespace millrace
