// RecordedRun: copies of what every update of a run read and made, for `verify`. Ranks' threads
// write at once; read once they are done.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "millrace/runtime/worker.h"

namespace millrace::internal {

class RecordedRun final : public UpdateObserver {
 public:
  // One step of a replica's optimizer, as a rule asked for it.
  struct OptimizerCall {
    int64_t step = 0;  // of the update at hand
    at::Tensor mean_gradient;
    at::Tensor before;  // the weights that it was given
  };

  void before_update(int stage, int replica, int64_t step, const at::Tensor& gradient_sum,
                     double samples, const at::Tensor& before) override {
    OptimizerCall call{step, gradient_sum.div(samples), before.clone()};
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_[{stage, replica}].push_back(std::move(call));
  }

  void after_update(int stage, int replica, int64_t step, const at::Tensor& after) override {
    at::Tensor copy = after.clone();
    const std::lock_guard<std::mutex> lock(mutex_);
    after_[{stage, replica}][step] = std::move(copy);
  }

  // In the order of making.
  const std::vector<OptimizerCall>& calls(int stage, int replica) const {
    static const std::vector<OptimizerCall> none;
    const auto found = calls_.find({stage, replica});
    return found == calls_.end() ? none : found->second;
  }
  // The weights after each update, by its last step.
  const std::map<int64_t, at::Tensor>& after(int stage, int replica) const {
    return after_.at({stage, replica});
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::vector<OptimizerCall>> calls_;  // by stage and replica
  std::map<std::pair<int, int>, std::map<int64_t, at::Tensor>> after_;
};

}  // namespace millrace::internal
