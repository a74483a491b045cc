#include "millrace/runtime/stage_peers.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

// Above those of actions, engines, rules and sessions.
constexpr uint8_t kPartMessage = 121;

}  // namespace

StagePeers::StagePeers(Communicator& communicator, std::vector<int> ranks, int part, int stage)
    : communicator_(communicator), ranks_(std::move(ranks)), part_(part), stage_(stage) {
  std::vector<int> members = ranks_;
  std::sort(members.begin(), members.end());
  group_ = communicator.group(members, stage);
}

at::Tensor StagePeers::gather(const at::Tensor& own, int64_t dim) {
  const MessageTag tag{.kind = kPartMessage, .stage = stage_, .microbatch = number_++};
  std::vector<at::Tensor> tensors(ranks_.size());
  tensors[static_cast<std::size_t>(part_)] = own.contiguous();
  for (const int rank : ranks_) {
    if (rank != communicator_.rank()) {
      const Transfer sent = communicator_.send(rank, tag, tensors[static_cast<std::size_t>(part_)]);
      transfer_.wait_s += sent.wait_s;
      transfer_.bytes += sent.bytes;
    }
  }
  for (std::size_t part = 0; part < ranks_.size(); ++part) {
    if (ranks_[part] != communicator_.rank()) {
      Transfer received;
      tensors[part] = communicator_.receive(ranks_[part], tag, nullptr, &received);
      transfer_.wait_s += received.wait_s;
    }
  }
  return at::cat(tensors, dim);
}

at::Tensor StagePeers::sum(at::Tensor own) {
  const Transfer moved = group_->all_reduce_sum(own);
  transfer_.wait_s += moved.wait_s;
  transfer_.bytes += moved.bytes;
  return own;
}

Transfer StagePeers::take_transfer() { return std::exchange(transfer_, Transfer{}); }

}  // namespace millrace
