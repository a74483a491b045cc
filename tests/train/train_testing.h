// What several tests of this folder share.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "millrace/core/run_config.h"
#include "millrace/train/session.h"

namespace millrace::testing {

// float64, so that sums in another order agree within 1e-9.
inline TrainConfig config_of(int64_t batch, double lr = 0.1) {
  TrainConfig config;
  config.batch = batch;
  config.lr = lr;
  config.dtype = "float64";
  return config;
}

// Copies of all tensors by name.
inline std::map<std::string, at::Tensor> state_of(Session& session) {
  std::map<std::string, at::Tensor> state;
  for (const NamedTensor& tensor : session.state()) {
    state[tensor.name] = tensor.tensor.clone();
  }
  return state;
}

}  // namespace millrace::testing
