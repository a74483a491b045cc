#include "millrace/runtime/feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {

Feed::Feed(const Dataset& dataset, std::vector<int64_t> order, int64_t batch, int64_t first_step,
           int64_t parts, at::ScalarType dtype)
    : dataset_(&dataset),
      order_(std::move(order)),
      batch_(batch),
      first_step_(first_step),
      parts_(parts),
      dtype_(dtype) {
  MILLRACE_CHECK(batch >= 1 && parts >= 1 && first_step >= 0);
}

int64_t Feed::num_steps() const {
  const auto samples = static_cast<int64_t>(order_.size());
  return std::max<int64_t>(0, (samples + batch_ - 1) / batch_ - first_step_);
}

int64_t Feed::step_samples(int64_t step) const {
  const int64_t begin = (first_step_ + step) * batch_;
  return std::clamp<int64_t>(static_cast<int64_t>(order_.size()) - begin, 0, batch_);
}

Feed::Part Feed::find(int64_t microbatch) const {
  const int64_t step = microbatch / parts_;
  const int64_t part = microbatch % parts_;
  const int64_t samples = step_samples(step);
  // The first `samples % parts_` parts hold one sample more (split_evenly, without the vector).
  const int64_t base = samples / parts_;
  const int64_t larger = samples % parts_;
  const int64_t offset = part * base + std::min(part, larger);
  return {(first_step_ + step) * batch_ + offset, base + (part < larger ? 1 : 0)};
}

int64_t Feed::part_samples(int64_t microbatch) const { return find(microbatch).size; }

int64_t Feed::first_place(int64_t microbatch) const {
  return find(microbatch).begin - (first_step_ + microbatch / parts_) * batch_;
}

Batch Feed::part(int64_t microbatch) const {
  const Part part = find(microbatch);
  try {
    return dataset_->get(order_.data() + part.begin, part.size, dtype_);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    blame_sample(part);
    throw;
  }
}

// Asks for the samples of a part that failed one by one, and throws what the first one that fails
// alone throws, with its index. A dataset need not know which of many it was.
void Feed::blame_sample(const Part& part) const {
  for (int64_t i = part.begin; i < part.begin + part.size; ++i) {
    const int64_t index = order_[static_cast<std::size_t>(i)];
    const auto named = [index](const std::string& message) {
      return fmt::format("sample {} of the data cannot be loaded: {}", index, message);
    };
    try {
      dataset_->get(&index, 1, dtype_);
    } catch (const Error& error) {
      Error blamed(error.code(), named(error.message()));
      if (error.file()) {
        blamed.in_file(*error.file(), error.line().value_or(0));
      }
      if (error.key()) {
        blamed.at_key(*error.key());
      }
      throw Error(blamed);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(ErrorCode::kBadFile, named(error.what()));
    }
  }
}

}  // namespace millrace
