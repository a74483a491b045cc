// The command line of both programs: one struct a subcommand, one parser. `millrace` parses, runs
// what needs no libtorch, and hands the rest, arguments unchanged, to `millrace-torch`, which
// parses the same way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::cli {

struct ListArgs {
  std::string kind;  // empty: all kinds
};

struct PlanArgs {
  std::string profile;
  std::string cluster;
  std::string planner = "pipedream";
  int workers = 0;  // 0: all devices of the cluster
  std::optional<int> stages;
  std::vector<int> replicas;
  bool straight = false;
  // Empty: the planner's choice where it chooses; else pipedream, bsp and 1.
  std::string schedule;
  std::string rule;
  std::optional<int> microbatches;
  std::string shard = "none";
  std::string output;  // -o plan.json
};

// What `schedule` and `simulate` take in place of a plan.
struct ScheduleSource {
  std::string plan;                 // positional, may be empty
  std::string name;                 // --name
  int ranks = 0;                    // --ranks
  int chunks = 0;                   // --chunks; 0: the schedule's own
  std::optional<int> microbatches;  // --microbatches: with a flush, of a step; without, minibatches
  std::string policy;               // --policy
  std::string file;                 // --file: a .sched file, or a schedule as JSON
};

struct ScheduleArgs {
  ScheduleSource source;
  std::string draw = "text";  // text, svg, html
  bool lowered = false;       // with sends, receives, versions, updates
  std::string slots = "1:2";  // F:B used for drawing
  std::string output;         // -o: what else would go to stdout
  // With --name auto, which searches for a schedule.
  std::string profile;
  std::string cluster;
  double memory_bytes = 0;  // 0: the cluster's
};

struct SimulateArgs {
  ScheduleSource source;
  std::string profile;
  std::string cluster;
  std::string slots;             // F:B
  std::optional<int64_t> batch;  // default: the profile's samples x microbatches
  std::string trace;             // --trace out.json
  std::string draw;              // svg, html: a picture, written to `output`
  std::string output;            // -o
};

struct ReportArgs {
  std::string dir;
  std::string draw;  // svg, html: a picture of the lanes too
};

struct ReplayArgs {
  std::string dir;
  std::vector<std::string> set;  // --set: what-if questions, see replay/what_if.h
  bool optimize = false;         // --optimize: proposals with what they would gain
  std::string trace;             // --trace out.json: of the replay, with what was set
};

// Torch side.
struct RunArgs {                 // shared by train, verify, profile
  std::string config;            // run.toml
  std::vector<std::string> set;  // --set a.b=c
  bool fresh = false;            // measure again even when cached
};

struct TrainArgs {
  RunArgs run;
  std::optional<int> workers;  // -n
  // --processes: over which the ranks are spread; default: the world that is found (find_world.h),
  // or with --hosts one a slot, or one.
  std::optional<int> processes;
  std::string engine;  // --engine: what joins the processes; empty: as find_world.h chooses
  std::string hosts;   // --hosts: a file, see hosts.h
  std::string plan;    // --plan plan.json
  std::string resume;
  std::string run_dir;  // --run-dir; default runs/NAME, or runs/NAME-2 when it exists
  bool dry_run = false;
};

struct VerifyArgs {
  RunArgs run;
  std::string fault;  // --break
  int64_t steps = 8;
};

struct CompareArgs {
  RunArgs run;
  std::string schedules;  // --schedules a,b; empty: all
  int64_t steps = 0;      // of each measurement; 0: as many as take about a second
  int repeats = 5;
};

struct ProfileArgs {
  RunArgs run;
  std::string from;  // --from: a layer graph of PipeDream's profiler, in place of a run
  std::optional<int64_t> samples;  // default: one microbatch; with `from`, what it was profiled at
  std::string predict;             // --predict: a latency model, in place of measuring
  int observe = 0;                 // --observe: times of so many layers are measured to refine it
  bool kernels = false;            // --kernels: primitives in place of layers
  std::string output = "profile.json";  // with `kernels`, by default kernels.json
};

struct EvalArgs {
  std::string dir;  // run folder or checkpoint
};

struct DoctorArgs {
  bool measure = false;
  int workers = 2;
  std::string output = "cluster.toml";
};

struct BenchArgs {
  std::string what;    // throughput, overhead, prediction, emulation, rules, loading, latency,
                       // collectives
  std::string config;  // emulation: a run.toml with [emulate]; rules: a run.toml
  std::vector<std::string> set;     // emulation, rules: settings over it
  std::vector<std::string> rules;   // rules: "NAME" or "NAME:KEY=VALUE,..."; default all
  std::vector<std::string> models;  // throughput and prediction; default lenet and mlp
  std::string engine = "gloo";      // collectives: what joins the two processes
  int layers = 1000;                // latency: how many to measure
  std::string output = "latency";   // latency: the folder to write to
  std::string from;                 // latency: such a folder, whose measurements are taken
  int repeats = 5;
};

enum class Command {
  kNone,
  kList,
  kPlan,
  kSchedule,
  kSimulate,
  kReport,
  kReplay,
  kTrain,
  kVerify,
  kCompare,
  kProfile,
  kEval,
  kDoctor,
  kBench
};

struct Options {
  Command command = Command::kNone;
  // Every subcommand's --json: machine-readable output on stdout, human text on stderr.
  bool json = false;
  ListArgs list;
  PlanArgs plan;
  ScheduleArgs schedule;
  SimulateArgs simulate;
  ReportArgs report;
  ReplayArgs replay;
  TrainArgs train;
  VerifyArgs verify;
  CompareArgs compare;
  ProfileArgs profile;
  EvalArgs eval;
  DoctorArgs doctor;
  BenchArgs bench;
};

// Parses the command line. When help or the version was asked for, or the arguments are wrong,
// prints what is to be printed and returns the exit status (0 or 2) in `exit_status`; with --json a
// wrong argument is the JSON error. Every subcommand's --help ends with an example.
Options parse(int argc, char** argv, std::optional<int>& exit_status);

// Whether `millrace` hands these to the program that links libtorch.
bool needs_torch(const Options& options);

// --set, and what -n and --plan mean in its terms, in the order in which they apply.
std::vector<std::string> all_settings(const TrainArgs& args);

}  // namespace millrace::cli
