#include "millrace/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/core/lr_schedule.h"
#include "millrace/train/checkpoint.h"
#include "millrace/train/resume.h"
#include "millrace/train/session.h"

namespace millrace {
namespace {

// Speed over a sliding stretch, so that the progress line neither flickers nor lags behind.
class Speedometer {
 public:
  // `time_scale`: real seconds of one that is told.
  explicit Speedometer(double time_scale) : time_scale_(time_scale) {}
  void add(int64_t samples) {
    samples_ += samples;
    const double now = now_s();
    if (now - stretch_start_s_ >= kStretchS) {
      samples_per_s_ = static_cast<double>(samples_) / (now - stretch_start_s_);
      samples_ = 0;
      stretch_start_s_ = now;
    } else if (samples_per_s_ == 0) {
      early_ = static_cast<double>(samples_) / std::max(now - stretch_start_s_, 1e-9);
    }
  }
  // Time that was not training (an evaluation, a checkpoint) does not count.
  void restart() {
    samples_ = 0;
    stretch_start_s_ = now_s();
  }
  double samples_per_s() const { return samples_per_s_ > 0 ? samples_per_s_ : early_; }

 private:
  static constexpr double kStretchS = 1.0;
  double now_s() const { return monotonic_s() / time_scale_; }

  double time_scale_;
  int64_t samples_ = 0;
  double stretch_start_s_ = now_s();
  double samples_per_s_ = 0;
  double early_ = 0;
};

class Run {
 public:
  Run(const Job& job, const TrainOptions& options)
      : job_(job),
        options_(options),
        order_(job.data.train->size(), job.config.train.batch, job.config.train.seed),
        lr_(job.config.train, order_.steps_per_epoch()),
        session_({.model = &job.model,
                  .world = options.world,
                  .plan = job.plan,
                  .policy = job.config.parallel.policy,
                  .blend_lambda = job.config.parallel.blend_lambda,
                  .train = job.config.train,
                  .timeout_s = job.config.parallel.timeout_s,
                  .on_demand = job.config.parallel.deal == "on-demand",
                  .emulation = job.emulation_or_null()}),
        time_scale_(job.emulation ? job.emulation->time_scale : 1),
        speed_(time_scale_) {
    total_steps_ = total_steps(job.config.train, order_.steps_per_epoch());
  }

  TrainResult run() {
    if (options_.resume) {
      resume(*options_.resume);
    }
    first_step_ = step_;
    const double start_s = monotonic_s();
    bool evaluated = false;
    while (step_ < total_steps_ && !stopped_) {
      evaluated = train_epoch();
      if (step_in_epoch_ == 0 && due(job_.config.train.checkpoint_every_epochs)) {
        save();
      }
    }
    if (!stopped_ && !evaluated) {
      evaluate();
    }
    if (saved_at_ != step_) {
      save();
    }
    TrainResult result;
    result.measured = session_.trace();
    result.done.run_dir = options_.run_dir;
    result.done.steps = step_ - first_step_;
    result.done.samples = samples_;
    result.done.train_s = (monotonic_s() - start_s) / time_scale_;
    result.done.accuracy = accuracy_;
    result.done.interrupted = stopped_;
    return result;
  }

 private:
  bool stop_requested() const { return options_.stop_requested && options_.stop_requested(); }

  // Whether the run is to end: as all processes see it, so that all do the same from here on.
  bool agree_to_stop() {
    stopped_ = stopped_ || session_.agree(stop_requested());
    return stopped_;
  }
  void alive(TrainOptions::Phase phase, int64_t step) const {
    if (options_.on_alive) {
      options_.on_alive(phase, step);
    }
  }
  bool leads() const { return session_.world().leads(); }

  // Whether something that happens every `epochs` is due at this epoch's end.
  bool due(int64_t epochs) const { return epochs > 0 && epoch_ % epochs == 0; }

  // Trains to the epoch's end or the run's; returns whether it ended with an evaluation.
  bool train_epoch() {
    const int64_t in_epoch = order_.steps_per_epoch() - step_in_epoch_;
    const int64_t wanted = std::min(in_epoch, total_steps_ - step_);
    speed_.restart();
    StepHooks hooks;
    hooks.on_step = [this, base = step_, base_in_epoch = step_in_epoch_](int64_t step,
                                                                         const LossSums& sums) {
      report_step(base + step + 1, base_in_epoch + step + 1, sums);
      if (!told_first_steps_ && !session_.world().spans_processes()) {
        tell_first_steps(session_.first_steps());
      }
    };
    hooks.on_norm = [this](int64_t /*step*/, double norm) { gradient_norm_ = norm; };
    hooks.stop_requested = [this] { return stop_requested(); };
    hooks.on_alive = [this, base = step_](int64_t step) {
      alive(TrainOptions::Phase::kTraining, base + std::max<int64_t>(step, 0));
    };
    hooks.on_wait = options_.on_wait;
    const int64_t done =
        session_.train(*job_.data.train, order_, epoch_, step_in_epoch_, wanted, hooks);
    step_ += done;
    step_in_epoch_ += done;
    if (!told_first_steps_ && step_ - first_step_ >= Recorder::kFirstSteps) {
      tell_first_steps(session_.all_first_steps());
    }
    agree_to_stop();
    if (step_in_epoch_ < order_.steps_per_epoch()) {
      return false;
    }
    step_in_epoch_ = 0;
    ++epoch_;
    if (!stopped_ && due(job_.config.train.eval_every_epochs)) {
      evaluate();
      return true;
    }
    return false;
  }

  void report_step(int64_t step, int64_t step_in_epoch, const LossSums& sums) {
    samples_ += sums.samples;
    speed_.add(sums.samples);
    StepEvent event;
    event.step = step;
    event.epoch = epoch_;
    event.step_in_epoch = step_in_epoch;
    event.steps_in_epoch = order_.steps_per_epoch();
    event.total_steps = total_steps_;
    event.loss = sums.loss / static_cast<double>(sums.samples);
    event.samples = sums.samples;
    event.samples_per_s = speed_.samples_per_s();
    event.lr = lr_.at(step - 1);
    event.gradient_norm = gradient_norm_;
    const double samples_left =
        static_cast<double>(total_steps_ - step) * static_cast<double>(job_.config.train.batch);
    // That a person waits for: real seconds.
    event.time_left_s =
        event.samples_per_s > 0 ? samples_left / event.samples_per_s * time_scale_ : 0;
    options_.sink->on_step(event);
    if (!std::isfinite(event.loss) && !warned_) {
      warned_ = true;
      options_.sink->on_note(
          fmt::format("the loss is {} at step {}: training has diverged; a smaller lr helps",
                      event.loss, step));
    }
  }

  void tell_first_steps(const std::optional<Trace>& measured) {
    told_first_steps_ = measured.has_value();
    if (told_first_steps_ && leads() && options_.on_first_steps) {
      options_.on_first_steps(*measured);
    }
  }

  void evaluate() {
    alive(TrainOptions::Phase::kEvaluating, step_);
    const LossSums sums = session_.evaluate(*job_.data.test, job_.config.train.batch,
                                            [this] { return agree_to_stop(); });
    if (sums.samples != job_.data.test->size()) {
      return;  // a stop came in between: no figure over a part of the set
    }
    EvalEvent event;
    event.epoch = epoch_;
    event.step = step_;
    event.samples = sums.samples;
    event.correct = sums.correct;
    event.loss = sums.loss / static_cast<double>(sums.samples);
    event.predictions = sums.samples * job_.model.predictions();
    event.accuracy = static_cast<double>(sums.correct) / static_cast<double>(event.predictions);
    accuracy_ = event.accuracy;
    options_.sink->on_eval(event);
  }

  void save() {
    alive(TrainOptions::Phase::kSaving, step_);
    CheckpointManifest manifest;
    manifest.model = job_.model.name;
    manifest.step = step_;
    manifest.epoch = epoch_;
    manifest.step_in_epoch = step_in_epoch_;
    manifest.batch = job_.config.train.batch;
    manifest.samples = job_.data.train->size();
    manifest.seed = job_.config.train.seed;
    manifest.optimizer = job_.config.train.optimizer;
    const std::vector<NamedTensor> state = session_.state();
    saved_at_ = step_;
    if (leads()) {
      const std::string path = save_checkpoint(options_.run_dir + "/checkpoints", manifest, state,
                                               job_.config.train.keep_checkpoints);
      options_.sink->on_checkpoint({path, step_});
    }
  }

  void resume(const std::string& where) {
    const std::string path = resolve_checkpoint(where);
    const LoadedCheckpoint checkpoint = read_checkpoint(path);
    const CheckpointManifest& manifest = checkpoint.manifest;
    check_resume(manifest, job_, path);
    load_into(checkpoint, session_);
    step_ = manifest.step;
    epoch_ = manifest.epoch;
    step_in_epoch_ = manifest.step_in_epoch;
    // A checkpoint of another run is not one of this run's.
    std::error_code ignored;
    const bool own = session_.agree(
        leads() && std::filesystem::equivalent(std::filesystem::path(path).parent_path(),
                                               options_.run_dir + "/checkpoints", ignored));
    saved_at_ = own ? step_ : -1;
    options_.sink->on_note(fmt::format("resumed from {} at step {}", path, step_));
    if (step_ >= total_steps_) {
      options_.sink->on_note("nothing is left to train: the checkpoint is at this run's last step");
    }
  }

  const Job& job_;
  const TrainOptions& options_;
  SampleOrder order_;
  LrSchedule lr_;
  Session session_;
  double time_scale_;  // of an emulation, whose seconds are told; else 1
  Speedometer speed_;
  int64_t total_steps_ = 0;
  int64_t step_ = 0;
  int64_t first_step_ = 0;  // of this run, where it resumed
  int64_t epoch_ = 0;
  int64_t step_in_epoch_ = 0;
  int64_t samples_ = 0;
  std::optional<double> gradient_norm_;  // of the step that is told next
  int64_t saved_at_ = -1;
  double accuracy_ = 0;
  bool stopped_ = false;
  bool warned_ = false;
  bool told_first_steps_ = false;
};

}  // namespace

TrainResult train(const Job& job, const TrainOptions& options) { return Run(job, options).run(); }

}  // namespace millrace
