#include "millrace/data/order.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/base/random.h"

namespace millrace {

SampleOrder::SampleOrder(int64_t num_samples, int64_t batch, uint64_t seed)
    : num_samples_(num_samples), batch_(batch), seed_(seed) {
  if (num_samples < 1 || batch < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected at least one sample and a batch of at least 1, found {} "
                            "samples and a batch of {}",
                            num_samples, batch));
  }
}

// Not (num_samples_ + batch_ - 1) / batch_: a huge batch would overflow.
int64_t SampleOrder::steps_per_epoch() const { return (num_samples_ - 1) / batch_ + 1; }

int64_t SampleOrder::step_begin(int64_t step_in_epoch) const {
  MILLRACE_CHECK(step_in_epoch >= 0 && step_in_epoch < steps_per_epoch());
  return step_in_epoch * batch_;
}

int64_t SampleOrder::step_size(int64_t step_in_epoch) const {
  return std::min(batch_, num_samples_ - step_begin(step_in_epoch));
}

std::vector<int64_t> SampleOrder::epoch(int64_t epoch) const {
  const RandomKey key = RandomKey(seed_).with("order").with(static_cast<uint64_t>(epoch));
  return permutation(key, num_samples_);
}

}  // namespace millrace
