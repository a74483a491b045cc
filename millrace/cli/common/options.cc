#include "millrace/cli/common/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <deque>
#include <string_view>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/find_world.h"
#include "millrace/cli/common/output.h"

namespace millrace::cli {
namespace {

Error wrong(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

// A number that is at least `least`.
CLI::Validator at_least(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        int64_t value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= least
                   ? std::string()
                   : fmt::format("expected a whole number of {} or more, found {}", least,
                                 in_quotes(text));
      },
      "");
}

// One subcommand while the parser is built: adds its options with the wording they share.
class Subcommand {
 public:
  Subcommand(CLI::App& root, const char* name, const char* text, const char* example, bool& json)
      : app_(root.add_subcommand(name, text)) {
    app_->set_help_flag("-h,--help", "this text");
    app_->allow_extras();  // so that what is unknown is refused in our words
    app_->footer(fmt::format("Example:\n  {}", example));
    app_->add_flag("--json", json, "JSON on stdout, human text on stderr");
  }

  // A value that must be given unless said otherwise.
  Subcommand& positional(const char* name, std::string& value, const char* text,
                         bool required = true) {
    app_->add_option(name, value, text)->type_name("")->required(required);
    if (required) {
      needed_.emplace_back(name, &value);
    }
    return *this;
  }
  Subcommand& required(const char* flags, std::string& value, const char* text) {
    app_->add_option(flags, value, text)->type_name("FILE")->required();
    needed_.emplace_back(flags, &value);
    return *this;
  }
  Subcommand& text(const char* flags, std::string& value, const char* type, const char* help) {
    CLI::Option* option = app_->add_option(flags, value, help)->type_name(type);
    if (!value.empty()) {
      option->capture_default_str();
    }
    return *this;
  }
  template <typename Number>
  Subcommand& count(const char* flags, Number& value, const char* help, bool show = true) {
    CLI::Option* option = app_->add_option(flags, value, help)->type_name("N")->check(at_least(1));
    if constexpr (std::is_integral_v<Number>) {
      if (show) {
        option->capture_default_str();
      }
    }
    return *this;
  }
  // May be given several times, one value each.
  Subcommand& texts(const char* flags, std::vector<std::string>& values, const char* type,
                    const char* help) {
    app_->add_option(flags, values, help)->type_name(type)->allow_extra_args(false);
    return *this;
  }
  Subcommand& flag(const char* flags, bool& value, const char* help) {
    app_->add_flag(flags, value, help);
    return *this;
  }

  CLI::App& app() { return *app_; }
  bool parsed() const { return app_->parsed(); }
  std::size_t count_of(const char* flag) const { return app_->get_option(flag)->count(); }

  void refuse_unknown() const {
    for (const std::string& extra : app_->remaining()) {
      if (extra.size() < 2 || extra[0] != '-') {
        throw refusal(fmt::format("one argument too many: {}", in_quotes(extra)));
      }
      const std::string flag = extra.substr(0, extra.find('='));
      throw refusal(
          fmt::format("unknown option {}{}", in_quotes(flag), did_you_mean(flag, option_names())));
    }
  }
  void refuse_missing() const {
    for (const auto& [name, value] : needed_) {
      if (value->empty()) {
        throw refusal(fmt::format("{} is missing", name));
      }
    }
  }
  Error refusal(const std::string& message) const {
    return wrong(fmt::format("{0}: {1}; see `millrace {0} --help`", app_->get_name(), message));
  }

 private:
  std::vector<std::string> option_names() const {
    std::vector<std::string> names;
    for (const CLI::Option* option : app_->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
    return names;
  }

  CLI::App* app_;
  std::vector<std::pair<const char*, const std::string*>> needed_;
};

void add_source(Subcommand& command, ScheduleSource& source) {
  command.positional("PLAN", source.plan, "a plan file; or one of the next two", false)
      .text("--name", source.name, "NAME", "a schedule by name (`millrace list schedules`)")
      .text(
          "--file", source.file, "FILE",
          "a schedule in the schedule language (.sched), or as JSON as `schedule --json` prints it")
      .count("--ranks", source.ranks, "with --name or a .sched file: ranks", false)
      .count("--chunks", source.chunks,
             "with these: stages that a rank holds; default: the schedule's own", false)
      .count("--microbatches", source.microbatches,
             "with a flush: microbatches of the step; without: minibatches, then drained")
      .text("--policy", source.policy, "NAME", "weight policy; default: the schedule's own");
}

void add_run(Subcommand& command, RunArgs& run, bool required = true) {
  command.positional("RUN", run.config, "the run's configuration, a TOML file", required)
      .texts("--set", run.set, "TABLE.KEY=VALUE", "override one key; may be repeated")
      .flag("--fresh", run.fresh, "measure again what is cached");
}

// The whole command line. Built anew for each parse; refers into `options`.
class Parser {
 public:
  explicit Parser(Options& options) : options_(options), root_("", "millrace") {
    root_.set_help_flag();
    root_.allow_extras();
    root_.require_subcommand(0, 1);
    root_.add_flag("--json", options.json, "");
    add_light();
    add_torch();
  }

  void run(int argc, char** argv) {
    try {
      root_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      throw;
    } catch (const CLI::ParseError& error) {
      // What was unknown explains most other complaints, so it goes first.
      refuse_unknown_command();
      const Subcommand* command = parsed_command();
      if (command == nullptr) {
        throw wrong(fmt::format("{}; see `millrace --help`", error.what()));
      }
      command->refuse_unknown();
      if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
        command->refuse_missing();
      }
      throw command->refusal(error.what());
    }
    refuse_unknown_command();
    const Subcommand* command = parsed_command();
    if (command == nullptr) {
      throw wrong("which subcommand? `millrace --help` lists them");
    }
    command->refuse_unknown();
    command->refuse_missing();
    if (options_.command == Command::kProfile) {
      refuse_profile_of_what(*command);
      if (options_.profile.kernels && command->count_of("--output") == 0) {
        options_.profile.output = "kernels.json";
      }
    }
    if (options_.command == Command::kTrain && !options_.train.engine.empty()) {
      check_engine(options_.train.engine);
    }
  }

  std::string help() const { return root_.help(); }

 private:
  Subcommand& add(Command id, const char* name, const char* text, const char* example) {
    commands_.emplace_back(Subcommand(root_, name, text, example, options_.json), id);
    return commands_.back().first;
  }

  void add_light() {
    add(Command::kList, "list", "What can be named here: schedules, rules, planners, models, ...",
        "millrace list schedules")
        .positional("KIND", options_.list.kind,
                    "schedules, policies, rules, planners, models, datasets, optimizers, "
                    "lr-schedules, collectives, codecs or engines; default: all",
                    false);

    PlanArgs& plan = options_.plan;
    Subcommand& plan_command =
        add(Command::kPlan, "plan", "Choose stages and replicas from a profile and a cluster",
            "millrace plan examples/profile.json --cluster examples/cluster.toml --straight -o "
            "plan.json");
    plan_command.positional("PROFILE", plan.profile, "the layers' costs (`millrace profile`)")
        .required("--cluster", plan.cluster, "devices and links (`millrace doctor --measure`)")
        .text("--planner", plan.planner, "NAME", "who plans (`millrace list planners`)")
        .count("-n,--workers", plan.workers, "devices to use; default: all of the cluster", false)
        .count("--stages", plan.stages, "exactly so many stages")
        .flag("--straight", plan.straight, "one worker a stage")
        .text("--schedule", plan.schedule, "NAME",
              "schedule that will run the plan; default: the planner's choice, or pipedream")
        .text("--rule", plan.rule, "NAME",
              "exchange rule among replicas; default: the planner's choice, or bsp")
        .text("--shard", plan.shard, "NAME", "state that replicas divide: none, zero-1, -2 or -3")
        .count("--microbatches", plan.microbatches,
               "microbatches of a minibatch, each of the profile's size; default: 1, cut further "
               "where the planner chooses")
        .text("-o,--output", plan.output, "FILE", "write the plan there");
    plan_command.app()
        .add_option("--replicas", plan.replicas, "of every stage, or one number a stage: 2,1")
        ->type_name("N")
        ->delimiter(',')
        ->check(at_least(1))
        ->allow_extra_args(false);

    ScheduleArgs& schedule = options_.schedule;
    Subcommand& schedule_command =
        add(Command::kSchedule, "schedule", "Show the order of work on every rank, checked",
            "millrace schedule --name 1f1b --ranks 4 --microbatches 8\n  millrace schedule --name "
            "auto --profile examples/profile.json --cluster examples/cluster.toml --ranks 2 "
            "--microbatches 8 -o my.sched");
    add_source(schedule_command, schedule.source);
    schedule_command
        .text("--draw", schedule.draw, "FORM", "the picture, time by rank, as text, svg or html")
        .flag("--lowered", schedule.lowered,
              "the complete actions: sends, receives, weight versions, updates")
        .text("--slots", schedule.slots, "F:B", "lengths of a forward and a backward as drawn")
        .text("-o,--output", schedule.output, "FILE", "write there instead of stdout")
        .text("--profile", schedule.profile, "FILE",
              "with --name auto, which searches for a schedule: the layers' costs")
        .text("--cluster", schedule.cluster, "FILE", "with --name auto: devices and links");
    schedule_command.app()
        .add_option("--memory", schedule.memory_bytes,
                    "with --name auto: most bytes on a rank; default: the cluster's")
        ->type_name("BYTES")
        ->check(at_least(1));

    SimulateArgs& simulate = options_.simulate;
    Subcommand& simulate_command =
        add(Command::kSimulate, "simulate", "Step time, bubble and memory of each rank, predicted",
            "millrace simulate plan.json --profile examples/profile.json --cluster "
            "examples/cluster.toml\n  millrace simulate --name gpipe --ranks 4 --microbatches 8 "
            "--slots 1:2");
    add_source(simulate_command, simulate.source);
    simulate_command.text("--profile", simulate.profile, "FILE", "the layers' costs")
        .text("--cluster", simulate.cluster, "FILE", "devices and links")
        .text("--slots", simulate.slots, "F:B",
              "without a profile: slots of a forward and a backward; 1:2 if left out")
        .count("--batch", simulate.batch,
               "samples of a minibatch; default: the profile's samples x microbatches")
        .text("--trace", simulate.trace, "FILE", "write what runs when as a Trace")
        .text("--draw", simulate.draw, "FORM", "write the picture, time by rank, as svg or html")
        .text("-o,--output", simulate.output, "FILE", "where --draw writes");

    add(Command::kReport, "report", "Rebuild the HTML page of a run",
        "millrace report runs/fashion_mnist")
        .positional("DIR", options_.report.dir, "the run's folder")
        .text("--draw", options_.report.draw, "FORM",
              "also write timeline.svg or timeline.html there: svg or html");

    add(Command::kReplay, "replay", "A real run's data-flow graph: critical path, what-if",
        "millrace replay runs/fashion_mnist --set link.bandwidth=x2\n  "
        "millrace replay runs/fashion_mnist --optimize")
        .positional("DIR", options_.replay.dir, "the run's folder")
        .texts(
            "--set", options_.replay.set, "KEY=VALUE",
            "what if; may be repeated. link, message, reduce or linkA-B, .bandwidth or .latency; "
            "device, rankN or stageN, .speed; values are factors (x2) or bytes per second, "
            "seconds")
        .flag("--optimize", options_.replay.optimize,
              "propose gradient fusion, partition, operator fusion and recompute")
        .text("--trace", options_.replay.trace, "FILE",
              "write what runs when in the replay, all of --set applied, as a Trace");
  }

  void add_torch() {
    TrainArgs& train = options_.train;
    Subcommand& train_command =
        add(Command::kTrain, "train", "Profile, plan, predict and train; then compare",
            "millrace train examples/fashion_mnist.toml --set train.epochs=1\n  "
            "millrace train examples/fashion_mnist.toml -n 4 --processes 4 --engine gloo");
    add_run(train_command, train.run);
    train_command.count("-n,--workers", train.workers, "in place of [parallel] workers")
        .count("--processes", train.processes,
               "start so many processes, which share the workers; default: 1, or the world that "
               "torchrun, mpirun or Slurm made")
        .text("--engine", train.engine, "NAME",
              "what joins processes: gloo, nccl or mpi; default: gloo, under mpirun mpi")
        .text("--hosts", train.hosts, "FILE",
              "start them over ssh: one host a line, with slots=N for several processes")
        .text("--plan", train.plan, "FILE", "a plan file, in place of [parallel] plan")
        .text("--resume", train.resume, "DIR", "go on from a run folder or checkpoint")
        .text("--run-dir", train.run_dir, "DIR", "where to write; default: runs/NAME")
        .flag("--dry-run", train.dry_run, "show the plan and its prediction, train nothing");

    Subcommand& verify =
        add(Command::kVerify, "verify", "Loss and every gradient against one process",
            "millrace verify examples/fashion_mnist.toml --steps 4");
    add_run(verify, options_.verify.run);
    verify
        .text("--break", options_.verify.fault, "WHAT",
              "spoil one thing on purpose, to see that it is found")
        .count("--steps", options_.verify.steps, "steps to compare");

    Subcommand& compare =
        add(Command::kCompare, "compare", "Schedules side by side: predicted and measured",
            "millrace compare examples/fashion_mnist.toml --schedules 1f1b,zb-h1 "
            "--set parallel.microbatches=4");
    add_run(compare, options_.compare.run);
    compare
        .text("--schedules", options_.compare.schedules, "A,B",
              "which ones; default: all that `millrace list schedules` names")
        .count("--steps", options_.compare.steps,
               "steps of each measurement; default: about a second's")
        .count("--repeats", options_.compare.repeats, "measurements of each, in turn");

    Subcommand& profile = add(Command::kProfile, "profile", "Measure the layers of a model",
                              "millrace profile examples/fashion_mnist.toml -o profile.json\n  "
                              "millrace profile examples/fashion_mnist.toml --kernels\n  "
                              "millrace profile --from vgg16.graph.txt --samples 64 -o vgg16.json");
    add_run(profile, options_.profile.run, false);
    profile
        .text("--from", options_.profile.from, "FILE",
              "measure nothing: read a layer graph of PipeDream's profiler")
        .text("--predict", options_.profile.predict, "FILE",
              "predict the layers' times by a model of `millrace bench latency`")
        .count("--observe", options_.profile.observe,
               "with --predict: layers to measure, which refine it for this machine", false)
        .count("--samples", options_.profile.samples,
               "samples at a time; default: a microbatch, with --from 1")
        .flag("--kernels", options_.profile.kernels,
              "a step's primitives in place of layers, and what to mend; writes kernels.json")
        .text("-o,--output", options_.profile.output, "FILE", "where to write");

    add(Command::kEval, "eval", "A checkpoint on its test set, every sample once",
        "millrace eval runs/fashion_mnist")
        .positional("DIR", options_.eval.dir, "a run folder or a checkpoint");

    add(Command::kDoctor, "doctor", "What this machine offers: engines, threads, BLAS, datasets",
        "millrace doctor --measure -o cluster.toml")
        .flag("--measure", options_.doctor.measure,
              "measure products, memory and links too, and write a cluster file")
        .count("-n,--workers", options_.doctor.workers, "workers to measure between")
        .text("-o,--output", options_.doctor.output, "FILE", "where --measure writes");

    add(Command::kBench, "bench", "Throughput, overhead, prediction: medians of alternating runs",
        "millrace bench overhead")
        .positional(
            "WHAT", options_.bench.what,
            "throughput, overhead, prediction, emulation, rules, loading, latency or collectives")
        .positional("RUN", options_.bench.config,
                    "of emulation: a configuration with [emulate]; of rules: any", false)
        .texts("--set", options_.bench.set, "TABLE.KEY=VALUE",
               "of emulation and rules: override one key")
        .texts("--rule", options_.bench.rules, "NAME[:KEY=VALUE,...]",
               "of rules: may be repeated, with options and lr; default: all")
        .texts("--model", options_.bench.models, "NAME", "may be repeated; default: lenet and mlp")
        .text("--engine", options_.bench.engine, "NAME", "of collectives: gloo or mpi")
        .count("--layers", options_.bench.layers, "of latency: how many to measure")
        .text("-o,--output", options_.bench.output, "FOLDER",
              "of latency: where measurements and model.json are written")
        .text("--from", options_.bench.from, "FOLDER",
              "of latency: learn from the measurements there")
        .count("--repeats", options_.bench.repeats, "runs of each");
  }

  // The subcommand that was named, or null; sets the options' command.
  const Subcommand* parsed_command() {
    for (const auto& [command, id] : commands_) {
      if (command.parsed()) {
        options_.command = id;
        return &command;
      }
    }
    return nullptr;
  }

  void refuse_profile_of_what(const Subcommand& command) const {
    const ProfileArgs& args = options_.profile;
    if (args.from.empty() && args.run.config.empty()) {
      throw command.refusal("RUN is missing, or --from FILE in its place");
    }
    if (!args.from.empty() && !args.run.config.empty()) {
      throw command.refusal("RUN and --from exclude each other; give one");
    }
    if (!args.from.empty() && !args.predict.empty()) {
      throw command.refusal("--from and --predict exclude each other; give one");
    }
    if (args.predict.empty() && args.observe > 0) {
      throw command.refusal("--observe goes with --predict");
    }
    if (!args.from.empty() && args.kernels) {
      throw command.refusal("--kernels measures a RUN; --from measures nothing");
    }
    if (!args.predict.empty() && args.kernels) {
      throw command.refusal("--kernels and --predict exclude each other; give one");
    }
    if (!args.from.empty() && (!args.run.set.empty() || args.run.fresh)) {
      throw command.refusal("--set and --fresh go with RUN; --from reads what was measured");
    }
  }

  void refuse_unknown_command() const {
    const std::vector<std::string> extras = root_.remaining();
    if (extras.empty()) {
      return;
    }
    std::vector<std::string> names;
    for (const CLI::App* command : root_.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
    }
    const bool option = extras[0].size() > 1 && extras[0][0] == '-';
    if (option) {
      names = {"--help", "--version", "--json"};
    }
    throw wrong(fmt::format("unknown {} {}{}; `millrace --help` lists what there is",
                            option ? "option" : "subcommand", in_quotes(extras[0]),
                            did_you_mean(extras[0], names)));
  }

  Options& options_;
  CLI::App root_;
  std::deque<std::pair<Subcommand, Command>> commands_;
};

constexpr const char* kOverview =
    R"(millrace {}: trains neural networks across devices, pipeline- and data-parallel

Usage: millrace COMMAND [ARGUMENTS]

See and plan, in milliseconds
  list       what can be named: schedules, rules, planners, models, datasets, ...
  schedule   the order of work on every rank, drawn and checked
  plan       stages and replicas from a profile and a cluster
  simulate   step time, bubble and memory, predicted

Measure this machine
  doctor     what it offers; --measure writes a cluster file
  profile    what each layer of a model costs here

Train and prove
  train      profile, plan, predict, train, compare
  verify     loss and every gradient against one process
  compare    schedules side by side: predicted and measured
  eval       a checkpoint on its test set
  report     the HTML page of a run
  replay     what a run waited for, and what it would gain
  bench      throughput, overhead and prediction, measured

Try first:  millrace schedule --name 1f1b --ranks 4 --microbatches 8
Then:       millrace train examples/fashion_mnist.toml
Each command explains itself: millrace COMMAND --help
)";

bool has_argument(int argc, char** argv, std::string_view text) {
  for (int i = 1; i < argc; ++i) {
    if (argv[i] == text) {
      return true;
    }
  }
  return false;
}

// What needs no parser: no arguments, the overview, the version. Nothing when it is none of these.
std::optional<std::string> answer_at_once(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (argc <= 1 || first == "--help" || first == "-h" || (first == "help" && argc == 2)) {
    return fmt::format(kOverview, MILLRACE_VERSION);
  }
  if (first == "--version" || first == "-V") {
    return fmt::format("millrace {}\n", MILLRACE_VERSION);
  }
  return std::nullopt;
}

}  // namespace

Options parse(int argc, char** argv, std::optional<int>& exit_status) {
  Options options;
  const bool json = has_argument(argc, argv, "--json");
  const int status = guarded(json, [&] {
    if (const std::optional<std::string> text = answer_at_once(argc, argv)) {
      Output(false).text(*text);
      exit_status = 0;
      return 0;
    }
    // `millrace help plan` is `millrace plan --help`.
    std::string help_flag = "--help";
    std::vector<char*> arguments(argv, argv + argc);
    if (std::string_view(argv[1]) == "help") {
      arguments.erase(arguments.begin() + 1);
      arguments.resize(2);
      arguments.push_back(help_flag.data());
    }
    Parser parser(options);
    try {
      parser.run(static_cast<int>(arguments.size()), arguments.data());
    } catch (const CLI::CallForHelp&) {
      Output(false).text(parser.help());
      exit_status = 0;
    }
    return 0;
  });
  if (status != 0) {
    exit_status = status;
  }
  return options;
}

bool needs_torch(const Options& options) {
  switch (options.command) {
    case Command::kProfile:
      return options.profile.from.empty();
    case Command::kTrain:
    case Command::kVerify:
    case Command::kCompare:
    case Command::kEval:
    case Command::kDoctor:
    case Command::kBench:
      return true;
    case Command::kNone:
    case Command::kList:
    case Command::kPlan:
    case Command::kSchedule:
    case Command::kSimulate:
    case Command::kReport:
    case Command::kReplay:
      return false;
  }
  return false;
}

std::vector<std::string> all_settings(const TrainArgs& args) {
  std::vector<std::string> settings = args.run.set;
  if (args.workers) {
    settings.push_back(fmt::format("parallel.workers={}", *args.workers));
  }
  if (!args.plan.empty()) {
    // Quoted as JSON, which TOML reads too: a path may hold quotes and backslashes.
    settings.push_back("parallel.plan=" + to_json(Value::of(args.plan), -1));
  }
  return settings;
}

}  // namespace millrace::cli
