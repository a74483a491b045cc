#include "millrace/profiler/kernel_profile.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/model/stage.h"
#include "millrace/profiler/internal/busy_ranks.h"
#include "millrace/profiler/internal/kernel_alone.h"
#include "millrace/profiler/internal/kernel_findings.h"
#include "millrace/profiler/internal/kernel_recorder.h"
#include "millrace/profiler/internal/marked_model.h"
#include "millrace/runtime/optimizer.h"

namespace millrace {
namespace {

using internal::KernelMark;
using internal::KernelRecorder;
using internal::OperatorCall;
using internal::RecordedRow;

constexpr int kWarmUpSteps = 2;
constexpr int64_t kLeastSteps = 5;
constexpr int64_t kMostSteps = 1000;
constexpr double kShareRunAlone = 0.002;  // of the step: primitives below it are not run alone

// One rank's copy of the whole model, trained as a worker without peers does it.
class Steps {
 public:
  // `model` is the marked one.
  Steps(const KernelRequest& request, const Model& model)
      : request_(request),
        dtype_(model.dtype()),
        stage_(model, 0, static_cast<int>(model.layers.size())),
        buffers_(stage_.new_buffers()),
        weights_(stage_.new_flat()),
        sums_(stage_.new_flat()),
        indices_(static_cast<std::size_t>(request.samples)) {
    stage_.initialize(weights_, 1);
    weight_views_ = stage_.views(weights_);
    sum_views_ = stage_.views(sums_);
    if (stage_.flat_elements() > 0) {
      optimizer_ = make_optimizer(request.train, flat_layout(stage_, dtype_));
    }
  }

  void run() {
    for (int m = 0; m < request_.microbatches; ++m) {
      Batch batch;
      {
        const KernelMark mark(KernelRowKind::kLoading, "loading", "loading");
        for (int64_t& index : indices_) {
          index = next_++ % request_.dataset->size();
        }
        batch = request_.dataset->get(indices_.data(), request_.samples, dtype_);
      }
      Stash stash;
      LossSums loss;
      const LayerContext context{.training = true, .buffers = buffers_};
      stage_.forward(context, {batch.input}, weight_views_, batch.target, stash, loss);
      stage_.backward(stash, weight_views_, {}, sum_views_);
    }
    if (optimizer_ != nullptr) {
      const KernelMark mark(KernelRowKind::kUpdate, request_.train.optimizer, "update");
      const auto samples = static_cast<double>(request_.samples * request_.microbatches);
      optimizer_->update(weights_, weights_, sums_, {.samples = samples, .lr = request_.train.lr});
    }
  }

 private:
  const KernelRequest& request_;
  at::ScalarType dtype_;
  Stage stage_;
  Tensors buffers_;
  at::Tensor weights_;
  at::Tensor sums_;
  WeightViews weight_views_;
  WeightViews sum_views_;
  std::unique_ptr<Optimizer> optimizer_;  // null for a model without parameters
  std::vector<int64_t> indices_;
  int64_t next_ = 0;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Recording {
  std::vector<RecordedRow> rows;
  std::vector<PointwiseChain> chains;
  std::vector<double> plain_s;
  int64_t steps = 0;
  double recorded_s = 0;
  int threads = 1;
};

// Plain and recorded steps in turn, until enough; then `done` is set, so that the others end.
Recording record(const KernelRequest& request, const Model& model, std::atomic<bool>& done) {
  Recording recording;
  Steps steps(request, model);
  for (int i = 0; i < kWarmUpSteps; ++i) {
    steps.run();
  }
  const double begin_s = monotonic_s();
  KernelRecorder recorder;
  while (!done) {
    const double plain_begin_s = monotonic_s();
    steps.run();
    recording.plain_s.push_back(monotonic_s() - plain_begin_s);
    recorder.begin_step();
    steps.run();
    recorder.end_step();
    const double spent_s = monotonic_s() - begin_s;
    if (request.progress) {
      request.progress(std::min(
          1.0, std::min(spent_s / std::max(request.seconds, 1e-9),
                        static_cast<double>(recorder.steps()) / static_cast<double>(kLeastSteps))));
    }
    if (recorder.steps() >= kMostSteps ||
        (recorder.steps() >= kLeastSteps && spent_s >= request.seconds)) {
      break;
    }
  }
  recording.rows = recorder.rows();
  recording.chains = recorder.chains();
  recording.steps = recorder.steps();
  recording.recorded_s = recorder.recorded_s();
  recording.threads = at::get_num_threads();
  done = true;
  return recording;
}

// The measured rank's recording, while the others train.
Recording record_among_busy(const KernelRequest& request) {
  const Model model = internal::marked_model(*request.model);
  std::atomic<bool> done{false};
  Recording recording;
  const auto keep_busy = [&] {
    Steps steps(request, model);
    while (!done) {
      steps.run();
    }
  };
  internal::run_among_busy(
      request.busy_ranks, [&] { recording = record(request, model, done); }, keep_busy,
      [&] { done = true; });
  return recording;
}

// Runs alone what weighs enough, on a thread that is like a rank's.
void run_alone(const KernelRequest& request, KernelProfile& profile,
               const std::vector<OperatorCall>& calls) {
  std::thread([&] {
    at::set_num_threads(1);
    for (std::size_t r = 0; r < profile.rows.size(); ++r) {
      KernelRow& row = profile.rows[r];
      if (row.kind == KernelRowKind::kOperator && row.self_s >= kShareRunAlone * profile.step_s) {
        row.alone_s = internal::time_alone(calls[r], request.alone_s);
        row.blocked_s = internal::time_blocked(calls[r], request.alone_s);
      }
    }
  }).join();
}

}  // namespace

const char* to_string(KernelRowKind kind) {
  switch (kind) {
    case KernelRowKind::kOperator:
      return "operator";
    case KernelRowKind::kLayer:
      return "layer";
    case KernelRowKind::kLoss:
      return "loss";
    case KernelRowKind::kLoading:
      return "loading";
    case KernelRowKind::kUpdate:
      return "update";
    case KernelRowKind::kStage:
      return "stage";
    case KernelRowKind::kRecording:
      return "recording";
  }
  return "";
}

const char* to_string(KernelFindingKind kind) {
  switch (kind) {
    case KernelFindingKind::kReorder:
      return "reorder";
    case KernelFindingKind::kPointwise:
      return "pointwise";
    case KernelFindingKind::kFallback:
      return "fallback";
    case KernelFindingKind::kInStep:
      return "in-step";
    case KernelFindingKind::kThreads:
      return "threads";
    case KernelFindingKind::kLoading:
      return "loading";
  }
  return "";
}

std::optional<double> KernelRow::ratio() const {
  if (!alone_s || *alone_s <= 0 || calls <= 0) {
    return std::nullopt;
  }
  return total_s / calls / *alone_s;
}

double KernelProfile::sum_s() const {
  return std::accumulate(rows.begin(), rows.end(), 0.0,
                         [](double sum, const KernelRow& row) { return sum + row.self_s; });
}

KernelProfile profile_kernels(const KernelRequest& request) {
  MILLRACE_CHECK(request.model != nullptr && request.dataset != nullptr && request.samples >= 1 &&
                 request.microbatches >= 1);
  check_model(*request.model);
  Recording recording = record_among_busy(request);

  KernelProfile profile;
  profile.model = request.model->name;
  profile.machine = request.machine;
  profile.dtype = dtype_name(request.model->dtype());
  profile.samples = request.samples;
  profile.microbatches = request.microbatches;
  profile.busy_ranks = request.busy_ranks;
  profile.threads = recording.threads;
  profile.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  profile.steps = recording.steps;
  profile.step_s = recording.recorded_s / static_cast<double>(recording.steps);
  profile.plain_step_s = median(recording.plain_s);

  std::vector<std::size_t> order(recording.rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return recording.rows[a].row.self_s > recording.rows[b].row.self_s;
  });
  std::vector<int> place(order.size());
  std::vector<OperatorCall> calls;
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<int>(i);
    profile.rows.push_back(std::move(recording.rows[order[i]].row));
    calls.push_back(std::move(recording.rows[order[i]].call));
  }
  profile.chains = std::move(recording.chains);
  for (PointwiseChain& chain : profile.chains) {
    for (int& row : chain.rows) {
      row = place[static_cast<std::size_t>(row)];
    }
  }
  if (request.alone_s > 0) {
    run_alone(request, profile, calls);
  }
  profile.findings = internal::find_what_to_mend(profile, calls);
  return profile;
}

}  // namespace millrace
