// The laws of exchange rules: for each, what the replicas of one stage must hold after every update
// and at the end, from the plain formulas, in one thread. They share no code with the rules: a law
// that is written out again is what a rule is judged by.
//
// Source of the formulas: the papers that the rules name; where those leave something open, each
// rule's own file says what it does, and its law says the same in other words.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/core/run_config.h"
#include "millrace/model/stage.h"
#include "millrace/rule/rule.h"
#include "millrace/runtime/optimizer.h"
#include "millrace/train/internal/comparison.h"
#include "millrace/train/internal/recorded_run.h"

namespace millrace::internal {

// What is known of one stage in the verified steps. All tensors are flat, float64. [step][replica]
// unless said otherwise.
struct StageRun {
  int stage = 0;
  const Stage* layout = nullptr;
  const TrainConfig* train = nullptr;
  RuleOptions options;
  int64_t first_step = 0;  // the run's number of step 0

  // The oracle's: gradient sums of each replica's own samples at the weights that the run had
  // there, and the losses of these on the last stage (NaN elsewhere).
  std::vector<std::vector<at::Tensor>> gradients;
  std::vector<std::vector<double>> own_samples;
  std::vector<std::vector<double>> own_losses;  // sums
  std::vector<double> samples;                  // by step
  std::vector<double> lr;                       // by step

  // The run's.
  at::Tensor initial;
  std::vector<std::vector<at::Tensor>> after;                         // weights after the update
  std::vector<at::Tensor> last;                                       // by replica, at the end
  at::Tensor settled;                                                 // what replicas agree on
  std::vector<const std::vector<RecordedRun::OptimizerCall>*> calls;  // by replica

  int num_replicas() const { return static_cast<int>(calls.size()); }
  int64_t num_steps() const { return static_cast<int64_t>(after.size()); }
  const at::Tensor& gradient(int64_t step, int replica) const {
    return gradients[static_cast<std::size_t>(step)][static_cast<std::size_t>(replica)];
  }
  double own(int64_t step, int replica) const {
    return own_samples[static_cast<std::size_t>(step)][static_cast<std::size_t>(replica)];
  }
  double all(int64_t step) const { return samples[static_cast<std::size_t>(step)]; }
  double rate(int64_t step) const { return lr[static_cast<std::size_t>(step)]; }
  const at::Tensor& weights_after(int64_t step, int replica) const {
    return after[static_cast<std::size_t>(step)][static_cast<std::size_t>(replica)];
  }
  const at::Tensor& weights_before(int64_t step, int replica) const {
    return step == 0 ? initial : weights_after(step - 1, replica);
  }
};

// What a law compares with. Deltas are those of optimizers of its own, one a replica.
class Judge {
 public:
  Judge(const StageRun& run, Comparison& compare);

  // What the replica's next step of the optimizer must add to `weights`; the run's must have been
  // given this gradient, in this update. `gradient` stays as it is.
  at::Tensor optimize(int replica, int64_t step, const at::Tensor& weights,
                      const at::Tensor& gradient, double samples, double lr);
  // The same of the replica's own samples, on the weights that it has before the update; zeros, and
  // no step, without samples.
  at::Tensor optimize_own(int replica, int64_t step);

  void expect(int replica, int64_t step, const std::string& when, const at::Tensor& run,
              const at::Tensor& oracle);
  void expect_after(int64_t step, int replica, const at::Tensor& oracle);
  void expect_all_after(int64_t step, const std::vector<at::Tensor>& oracle);
  void expect_last(int replica, const at::Tensor& oracle);
  void expect_settled(const at::Tensor& oracle);
  // No replica's optimizer made more steps than the law asked for.
  void expect_no_more_steps();
  double tolerance() const { return compare_.tolerance(); }
  void say(const std::string& note) { compare_.say(note); }

 private:
  const StageRun& run_;
  Comparison& compare_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
  std::vector<std::size_t> num_calls_;
};

struct RuleLaw {
  const char* rule;
  const char* text;  // what is compared, in a line
  void (*check)(const StageRun& run, Judge& judge);
};
// Null for a rule that has none here.
const RuleLaw* find_law(const std::string& rule);
// Of a stage with one replica, whatever the rule.
void check_alone(const StageRun& run, Judge& judge);

void check_gradient_sum(const StageRun& run, Judge& judge);
void check_average(const StageRun& run, Judge& judge);
void check_local_sgd(const StageRun& run, Judge& judge);
void check_pipe_sgd(const StageRun& run, Judge& judge);
void check_gradient_flow(const StageRun& run, Judge& judge);
void check_daso(const StageRun& run, Judge& judge);
void check_decentralized(const StageRun& run, Judge& judge);
void check_slim(const StageRun& run, Judge& judge);
void check_gosgd(const StageRun& run, Judge& judge);
void check_easgd(const StageRun& run, Judge& judge);
void check_asgd(const StageRun& run, Judge& judge);
void check_downpour(const StageRun& run, Judge& judge);
void check_server_async(const StageRun& run, Judge& judge);
void check_server_bounded(const StageRun& run, Judge& judge);
void check_dssp(const StageRun& run, Judge& judge);

}  // namespace millrace::internal
