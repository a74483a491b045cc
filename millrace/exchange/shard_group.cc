#include "millrace/exchange/shard_group.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/comm/inproc/sum.h"

namespace millrace {
namespace {

at::Tensor slice(const at::Tensor& whole, ShardRange range) {
  return whole.narrow(0, range.begin, range.size());
}

template <class T>
void sum_parts(const std::vector<at::Tensor>& parts, at::Tensor& out) {
  std::vector<const T*> buffers;
  buffers.reserve(parts.size());
  for (const at::Tensor& part : parts) {
    buffers.push_back(part.data_ptr<T>());
  }
  sum_into<T>(buffers, out.numel(), out.data_ptr<T>());
}

}  // namespace

ShardGroup::ShardGroup(Communicator& communicator, int stage, std::vector<int> ranks,
                       int64_t elements)
    : communicator_(communicator),
      stage_(stage),
      ranks_(std::move(ranks)),
      member_(static_cast<int>(std::find(ranks_.begin(), ranks_.end(), communicator.rank()) -
                               ranks_.begin())),
      elements_(elements) {
  MILLRACE_CHECK(member_ < num_members(), "the rank is no replica of the stage");
}

void ShardGroup::send(int member, const at::Tensor& part, Transfer& transfer) {
  if (part.numel() == 0) {
    return;  // the receiver knows as much
  }
  const MessageTag tag{
      .kind = kShardMessage, .stage = stage_, .microbatch = call_, .to_stage = stage_};
  transfer.bytes += communicator_.send(ranks_[static_cast<std::size_t>(member)], tag, part).bytes;
}

at::Tensor ShardGroup::receive(int member, const at::Tensor& like, Transfer& transfer) {
  if (like.numel() == 0) {
    return like;
  }
  const MessageTag tag{
      .kind = kShardMessage, .stage = stage_, .microbatch = call_, .to_stage = stage_};
  const Fingerprint expected = fingerprint_of(like);
  Transfer received;
  at::Tensor part =
      communicator_.receive(ranks_[static_cast<std::size_t>(member)], tag, &expected, &received);
  transfer.wait_s += received.wait_s;
  return part;
}

Transfer ShardGroup::reduce_scatter(const at::Tensor& whole, at::Tensor& sum, bool adds) {
  MILLRACE_CHECK(whole.numel() == elements_ && sum.numel() == own().size());
  ++call_;
  Transfer transfer;
  for (int other = 0; other < num_members(); ++other) {
    if (other != member_) {
      send(other, slice(whole, range(other)), transfer);
    }
  }
  const at::Tensor own_part = slice(whole, own());
  std::vector<at::Tensor> parts;
  for (int other = 0; other < num_members(); ++other) {
    parts.push_back(other == member_ ? own_part : receive(other, own_part, transfer));
  }
  at::Tensor total = at::empty(own_part.sizes(), own_part.options());
  if (whole.scalar_type() == at::kDouble) {
    sum_parts<double>(parts, total);
  } else {
    MILLRACE_CHECK(whole.scalar_type() == at::kFloat, "gradients are float32 or float64");
    sum_parts<float>(parts, total);
  }
  if (adds) {
    sum.add_(total);
  } else {
    sum.copy_(total);
  }
  return transfer;
}

Transfer ShardGroup::all_gather(const at::Tensor& own_part, at::Tensor& whole) {
  MILLRACE_CHECK(whole.numel() == elements_ && own_part.numel() == own().size());
  ++call_;
  Transfer transfer;
  for (int other = 0; other < num_members(); ++other) {
    if (other != member_) {
      send(other, own_part, transfer);
    }
  }
  for (int other = 0; other < num_members(); ++other) {
    at::Tensor place = slice(whole, range(other));
    if (other != member_) {
      place.copy_(receive(other, place, transfer));
    } else if (place.numel() > 0 && place.data_ptr() != own_part.data_ptr()) {
      place.copy_(own_part);
    }
  }
  return transfer;
}

at::Tensor ShardGroup::join(const at::Tensor& own_part) {
  at::Tensor whole = at::empty({elements_}, own_part.options());
  all_gather(own_part.clone(), whole);
  return whole;
}

at::Tensor ShardGroup::join_at(int root, const at::Tensor& own_part) {
  ++call_;
  Transfer transfer;
  if (member_ != root) {
    send(root, own_part.clone(), transfer);
    return {};
  }
  at::Tensor whole = at::empty({elements_}, own_part.options());
  for (int other = 0; other < num_members(); ++other) {
    at::Tensor place = slice(whole, range(other));
    place.copy_(other == member_ ? own_part : receive(other, place, transfer));
  }
  return whole;
}

std::vector<at::Tensor> ShardGroup::collect(int root, const at::Tensor& own_part) {
  ++call_;
  Transfer transfer;
  std::vector<at::Tensor> all;
  if (member_ != root) {
    send(root, own_part.clone(), transfer);
    return all;
  }
  for (int other = 0; other < num_members(); ++other) {
    all.push_back(other == member_ ? own_part.clone() : receive(other, own_part, transfer));
  }
  return all;
}

}  // namespace millrace
