// WeightVersions: the live versions of one stage's parameters, each a flat buffer of its own while
// an action still to come reads it. Obeys the schedule's annotation; decides nothing.
//
// One object a rank, used from that rank's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "millrace/core/action.h"
#include "millrace/model/stage.h"

namespace millrace {

class WeightVersions {
 public:
  // `initial` becomes version 0 of the first segment.
  WeightVersions(const Stage& stage, at::Tensor initial);

  // Starts a segment: the newest weights become version 0, and those of `actions` (annotated) that
  // are of `stage` tell until when each version is read. With `repeats` the list is run again and
  // again, each time on versions one higher.
  void start(const ActionList& actions, int stage, bool repeats);

  // Views of a version that an action reads, and its flat buffer. Throws kInternal when it is not
  // live.
  const WeightViews& read(int64_t version) const;
  const at::Tensor& flat(int64_t version) const;

  // The buffer that the STEP making `version` (newest + 1) writes to: the newest's own when no
  // later action reads that, else another one. Call made() after writing.
  at::Tensor& buffer_for(int64_t version);
  void made(int64_t version);

  at::Tensor& newest();
  const at::Tensor& newest() const;
  const WeightViews& newest_views() const;
  int64_t newest_version() const { return newest_version_; }
  int peak_live() const { return peak_live_; }  // versions, over all segments

  // Of a sharded stage, which has one version: its memory is given back, and read() throws, until
  // restore() brings the same weights in another buffer.
  void release();
  void restore(at::Tensor flat);
  int64_t bytes() const;  // of all buffers now

 private:
  struct Buffer {
    at::Tensor flat;
    WeightViews views;
    int64_t version = kNone;  // kNone: free
  };
  Buffer& free_buffer();
  Buffer& find(int64_t version);
  const Buffer& find(int64_t version) const;
  std::size_t last_read(int64_t version) const;
  std::size_t step_index(int64_t version) const;

  const Stage* stage_;
  std::vector<Buffer> buffers_;
  std::vector<std::size_t>
      last_read_;  // per version: one past the index of its last reader; 0: none
  std::vector<std::size_t> step_index_;  // per version made, from version 1: index of its STEP
  bool repeats_ = false;
  int64_t newest_version_ = 0;
  int64_t making_ = kNone;
  int peak_live_ = 1;
};

}  // namespace millrace
