#include "millrace/runtime/versions.h"

#include <algorithm>
#include <string>
#include <utility>

namespace millrace {

WeightVersions::WeightVersions(const Stage& stage, at::Tensor initial) : stage_(&stage) {
  Buffer buffer;
  buffer.views = stage.views(initial);
  buffer.flat = std::move(initial);
  buffer.version = 0;
  buffers_.push_back(std::move(buffer));
}

void WeightVersions::start(const ActionList& actions, int stage, bool repeats) {
  for (Buffer& buffer : buffers_) {
    buffer.version = buffer.version == newest_version_ ? 0 : kNone;
  }
  newest_version_ = 0;
  repeats_ = repeats;
  last_read_.clear();
  step_index_.clear();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (action.stage != stage) {
      continue;
    }
    if (action.kind == ActionKind::kStep) {
      step_index_.push_back(i);
    }
    if (!is_compute(action.kind) || action.version == kNone) {
      continue;
    }
    const auto version = static_cast<std::size_t>(action.version);
    if (version >= last_read_.size()) {
      last_read_.resize(version + 1, 0);
    }
    last_read_[version] = i + 1;
  }
  // A repeated step reads only the version that is current when it starts; what it makes is read by
  // the next.
  if (repeats) {
    MILLRACE_CHECK(last_read_.size() <= 1 && step_index_.size() == 1,
                   "a repeated step reads one version and makes one");
  }
}

std::size_t WeightVersions::last_read(int64_t version) const {
  const auto v = static_cast<std::size_t>(repeats_ ? 0 : version);
  return v < last_read_.size() ? last_read_[v] : 0;
}

std::size_t WeightVersions::step_index(int64_t version) const {
  return step_index_.at(static_cast<std::size_t>(repeats_ ? 0 : version - 1));
}

const WeightVersions::Buffer& WeightVersions::find(int64_t version) const {
  for (const Buffer& buffer : buffers_) {
    if (buffer.version == version) {
      return buffer;
    }
  }
  throw Error(ErrorCode::kInternal, "weight version " + std::to_string(version) +
                                        " is read but not live; newest is " +
                                        std::to_string(newest_version_));
}

WeightVersions::Buffer& WeightVersions::find(int64_t version) {
  return const_cast<Buffer&>(std::as_const(*this).find(version));
}

const WeightViews& WeightVersions::read(int64_t version) const {
  const Buffer& buffer = find(version);
  MILLRACE_CHECK(buffer.flat.defined(), "weights are read before they were gathered");
  return buffer.views;
}
const at::Tensor& WeightVersions::flat(int64_t version) const { return find(version).flat; }

WeightVersions::Buffer& WeightVersions::free_buffer() {
  for (Buffer& buffer : buffers_) {
    if (buffer.version == kNone) {
      return buffer;
    }
  }
  Buffer buffer;
  buffer.flat = stage_->new_flat();
  buffer.views = stage_->views(buffer.flat);
  buffers_.push_back(std::move(buffer));
  return buffers_.back();
}

at::Tensor& WeightVersions::buffer_for(int64_t version) {
  MILLRACE_CHECK(version == newest_version_ + 1, "versions are made in order");
  const std::size_t index = step_index(version);
  for (Buffer& buffer : buffers_) {
    if (buffer.version != kNone && buffer.version != newest_version_ &&
        last_read(buffer.version) <= index) {
      buffer.version = kNone;
    }
  }
  making_ = version;
  if (last_read(newest_version_) <= index) {
    return find(newest_version_).flat;
  }
  Buffer& buffer = free_buffer();
  buffer.version = version;
  const auto live = std::count_if(buffers_.begin(), buffers_.end(),
                                  [](const Buffer& b) { return b.version != kNone; });
  peak_live_ = std::max(peak_live_, static_cast<int>(live));
  return buffer.flat;
}

void WeightVersions::made(int64_t version) {
  MILLRACE_CHECK(version == making_);
  const bool own_buffer = std::any_of(buffers_.begin(), buffers_.end(), [&](const Buffer& buffer) {
    return buffer.version == version;
  });
  if (!own_buffer) {
    find(newest_version_).version = version;  // written in place
  }
  newest_version_ = version;
  making_ = kNone;
}

void WeightVersions::release() {
  MILLRACE_CHECK(buffers_.size() == 1, "a sharded stage has one version of its weights");
  buffers_.front().flat.reset();
  buffers_.front().views.clear();
}

void WeightVersions::restore(at::Tensor flat) {
  buffers_.front().views = stage_->views(flat);
  buffers_.front().flat = std::move(flat);
}

int64_t WeightVersions::bytes() const {
  int64_t sum = 0;
  for (const Buffer& buffer : buffers_) {
    sum += buffer.flat.defined() ? static_cast<int64_t>(buffer.flat.nbytes()) : 0;
  }
  return sum;
}

at::Tensor& WeightVersions::newest() { return find(newest_version_).flat; }
const at::Tensor& WeightVersions::newest() const { return find(newest_version_).flat; }
const WeightViews& WeightVersions::newest_views() const { return find(newest_version_).views; }

}  // namespace millrace
