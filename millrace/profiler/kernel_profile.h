// Kernel profile: where the seconds of a training step go, primitive by primitive, and what could
// be mended. Made by `millrace profile --kernels`; docs/kernels.md says how to read it.
//
// Source: "Deep Learning Models on CPUs: A Methodology for Efficient Training" (ProfileDNN, Fu et
// al., JMLTAP 2023): group primitives by kind and shape, compare each with the same primitive
// alone, classify what is lost. The tool was not published: how time is attributed, the classes'
// exact rules and what each would save at most are our reconstruction.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/core/run_config.h"
#include "millrace/data/dataset.h"
#include "millrace/model/model.h"

namespace millrace {

// What a row's seconds were spent in.
enum class KernelRowKind {
  kOperator,   // a libtorch operator, oneDNN's among them
  kLayer,      // a layer outside of any operator: our own kernel, and what calling operators costs
  kLoss,       // the same of the loss
  kLoading,    // the dataset, with all that it calls
  kUpdate,     // the optimizer outside of any operator
  kStage,      // between the layers: sums of gradients, stashes
  kRecording,  // the recording itself
};
const char* to_string(KernelRowKind kind);  // "operator", "layer", ...

// One primitive: all calls of one operator on tensors of the same shapes, strides and types, or all
// time of one kind of layer outside of operators.
struct KernelRow {
  KernelRowKind kind = KernelRowKind::kOperator;
  std::string name;    // "aten::addmm", "batch_norm2d", "sgd"
  std::string shapes;  // of the tensors that it takes: "[16, 64] [64, 32]s", s where not contiguous
  std::string dtype;   // of the first of them; empty where there is none
  std::vector<std::string> layers;  // in which it ran, in order of first use
  double calls = 0;                 // a step, mean
  double self_s = 0;                // a step, mean, without what ran inside of it
  double total_s = 0;               // the same with it, but for the recording
  double bytes = 0;                 // read and written by one call at least; 0 where unknown
  double flops = 0;                 // of one call, counted from shapes; 0 where unknown
  std::optional<double> alone_s;    // one call with nothing before or beside it, median, warm
  // A convolution alone whose tensors are in oneDNN's own layout already.
  std::optional<double> blocked_s;

  // How much longer a call takes in the step than alone; nothing where that was not measured.
  std::optional<double> ratio() const;
};

// What could be mended. No two add up: a second may be in several.
enum class KernelFindingKind {
  kReorder,    // elements only change their place or type
  kPointwise,  // passes over the same elements that could be one
  kFallback,   // a kernel that is not the fast one for these shapes
  kInStep,     // slower in the step than alone: caches, memory shared with others
  kThreads,    // cores idle, or more threads than cores
  kLoading,    // samples are fetched while nothing else is done
};
const char* to_string(KernelFindingKind kind);  // "reorder", "pointwise", ...

struct KernelFinding {
  KernelFindingKind kind = KernelFindingKind::kReorder;
  std::string what;                 // a sentence: the primitives, and what to do
  std::vector<std::string> layers;  // where
  double saves_at_most_s = 0;       // a step
};

// Pointwise operators one after the other, each on what the one before made.
struct PointwiseChain {
  std::vector<int> rows;
  double calls = 0;      // a step
  double total_s = 0;    // a step, all members
  double longest_s = 0;  // a step, the member that takes longest
};

struct KernelProfile {
  std::string model;
  std::string machine;
  std::string dtype;
  int64_t samples = 0;          // a microbatch
  int microbatches = 1;         // a step
  int busy_ranks = 1;           // that trained meanwhile, this one included
  int threads = 1;              // of libtorch, a rank
  int cores = 1;                // of the machine
  int64_t steps = 0;            // recorded
  double step_s = 0;            // mean of the recorded steps
  double plain_step_s = 0;      // median of as many steps that were not recorded
  std::vector<KernelRow> rows;  // longest self_s first; they sum to step_s
  std::vector<PointwiseChain> chains;
  std::vector<KernelFinding> findings;  // what saves most first

  double sum_s() const;  // of all rows
};
Value to_value(const KernelProfile& profile);

struct KernelRequest {
  const Model* model = nullptr;
  const Dataset* dataset = nullptr;
  int64_t samples = 1;
  int microbatches = 1;
  int busy_ranks = 1;
  TrainConfig train;      // its optimizer
  double seconds = 2;     // spent recording, at least; and at least 5 steps
  double alone_s = 0.03;  // spent on each primitive alone, at least; 0: none is run alone
  std::string machine;
  std::function<void(double fraction)> progress;  // may be empty; called from one thread
};

// Trains one rank's copy of the whole model, no communication, on one thread while the other ranks
// do the same, records its steps, then runs each primitive of weight alone, and ranks what it
// finds. Costs nothing when it is not called: the hooks live on its own thread only.
KernelProfile profile_kernels(const KernelRequest& request);

}  // namespace millrace
