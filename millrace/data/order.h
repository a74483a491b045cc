// The one global order of samples: a permutation from (seed, epoch), cut into steps. The same for
// any number of workers, stages and microbatches; nothing is dropped: the last step of an epoch may
// be smaller. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace {

class SampleOrder {
 public:
  // `batch` global samples a step. Throws Error(kInvalidArgument) unless both are at least 1.
  SampleOrder(int64_t num_samples, int64_t batch, uint64_t seed);

  int64_t num_samples() const { return num_samples_; }
  int64_t steps_per_epoch() const;                  // the last one may be smaller
  int64_t step_begin(int64_t step_in_epoch) const;  // first position of a step in the epoch's order
  int64_t step_size(int64_t step_in_epoch) const;

  // All sample indices of an epoch, in order of use. Pure: the same on every call, thread and
  // machine.
  std::vector<int64_t> epoch(int64_t epoch) const;

 private:
  int64_t num_samples_;
  int64_t batch_;
  uint64_t seed_;
};

}  // namespace millrace
