// ShardGroup: how the replicas of a sharded stage exchange: reduce-scatter and all-gather of flat
// buffers, by messages that every engine carries. Each replica sends every other one what that one
// needs, so that it sends (P-1)/P of the buffer in either, the least that there is.
//
// One object a replica, used from its rank's thread; all replicas make the same calls in the same
// order. What is handed over is not copied where the engine can do without: see what each call says
// about its buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/core/shard_range.h"

namespace millrace {

// MessageTag::kind of its messages; `stage` is the stage, `microbatch` counts calls.
inline constexpr uint8_t kShardMessage = 113;

class ShardGroup {
 public:
  // `ranks`: the stage's, ascending, this one among them; `elements`: of its flat buffers.
  ShardGroup(Communicator& communicator, int stage, std::vector<int> ranks, int64_t elements);

  int num_members() const { return static_cast<int>(ranks_.size()); }
  int member() const { return member_; }
  ShardRange range(int member) const { return shard_range(member, num_members(), elements_); }
  ShardRange own() const { return range(member_); }

  // All of these block until the other replicas' parts are here, and throw what
  // Communicator::receive throws. They return what was waited and what this replica sent.
  //
  // `sum` [own().size()] becomes the sum of all replicas' `whole` [elements] over the own range, or
  // with `adds` is increased by it, added in member order on every element: equal bits for any
  // timing. Others read `whole` until they are through with the same call: it is not written to
  // before a later call with them ended; `sum` may be the own range of it.
  Transfer reduce_scatter(const at::Tensor& whole, at::Tensor& sum, bool adds);
  // `whole` becomes all replicas' `own` [own().size()], joined. Others read `own` as above; it may
  // be that range of `whole`.
  Transfer all_gather(const at::Tensor& own, at::Tensor& whole);
  // The same of copies, in a tensor of its own, for members that want it: all, or with `root` that
  // one; an undefined tensor for the others. `own` may be written to at once.
  at::Tensor join(const at::Tensor& own);
  at::Tensor join_at(int root, const at::Tensor& own);
  // One tensor of equal shape and dtype from each member, at `root`; empty at the others.
  std::vector<at::Tensor> collect(int root, const at::Tensor& own);

 private:
  void send(int member, const at::Tensor& part, Transfer& transfer);
  at::Tensor receive(int member, const at::Tensor& like, Transfer& transfer);

  Communicator& communicator_;
  int stage_;
  std::vector<int> ranks_;
  int member_;
  int64_t elements_;
  int64_t call_ = 0;
};

}  // namespace millrace
