#include "millrace/comm/joined/program.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace millrace {
namespace {

using Kind = CollectiveOp::Kind;

// place = parts[0] + parts[1] + ... from the left; `place` may be one of them.
template <class T>
void sum_parts(T* place, const std::vector<const T*>& parts, int64_t size) {
  if (parts.size() == 1) {
    std::memmove(place, parts[0], static_cast<std::size_t>(size) * sizeof(T));
    return;
  }
  if (parts.size() == 2) {
    const T* a = parts[0];
    const T* b = parts[1];
    // `place` is either part or neither: never one of them shifted.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
    for (int64_t i = 0; i < size; ++i) {
      place[i] = a[i] + b[i];
    }
    return;
  }
  // In blocks that stay in the cache, so that each part is read once and the result written once.
  constexpr int64_t kBlock = 2048;
  std::array<T, kBlock> sum;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t count = std::min(kBlock, size - begin);
    std::memcpy(sum.data(), parts[0] + begin, static_cast<std::size_t>(count) * sizeof(T));
    for (std::size_t p = 1; p < parts.size(); ++p) {
      const T* part = parts[p] + begin;
      for (int64_t i = 0; i < count; ++i) {
        sum[static_cast<std::size_t>(i)] += part[i];
      }
    }
    std::memcpy(place + begin, sum.data(), static_cast<std::size_t>(count) * sizeof(T));
  }
}

class Run {
 public:
  Run(const MemberProgram& program, const std::vector<int>& ranks, MessageTag tag, at::Tensor& data,
      at::Tensor& scratch, Channel& channel, const Codec* codec)
      : program_(program),
        ranks_(ranks),
        tag_(tag),
        data_(data),
        scratch_(scratch),
        channel_(channel),
        codec_(codec),
        num_sent_(ranks.size()),
        num_received_(ranks.size()) {}

  double run() {
    double wait_s = 0;
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const CollectiveOp& op = program_.ops[i];
      switch (op.kind) {
        case Kind::kSend:
          if (codec_ != nullptr) {
            send_encoded(op);
          } else {
            land_next(i);
            channel_.send_part(rank_of(op), numbered(num_sent_, op), view(op.place));
          }
          break;
        case Kind::kReceive:
          if (codec_ != nullptr) {
            receive_encoded(op, wait_s);
          } else {
            at::Tensor part = view(op.place);
            channel_.receive_part(rank_of(op), numbered(num_received_, op), part, wait_s);
          }
          break;
        case Kind::kSum:
          sum(op);
          break;
      }
    }
    channel_.finish();
    return wait_s;
  }

 private:
  int rank_of(const CollectiveOp& op) const { return ranks_[static_cast<std::size_t>(op.peer)]; }

  // Messages between two members are matched in order: the next one's tag.
  MessageTag numbered(std::vector<int32_t>& counts, const CollectiveOp& op) const {
    MessageTag tag = tag_;
    tag.tensor += counts[static_cast<std::size_t>(op.peer)]++;
    return tag;
  }

  at::Tensor view(const Place& place) const {
    const at::Tensor& base = place.space == Space::kData ? data_ : scratch_;
    return base.narrow(0, place.begin, place.size());
  }

  // Before a send: the receives that follow with nothing but sends between may land where they
  // belong. What lands later could meet a place that is still read.
  void land_next(std::size_t i) {
    std::vector<int32_t> ahead = num_received_;
    for (std::size_t next = std::max(i + 1, landed_); next < program_.ops.size(); ++next) {
      const CollectiveOp& op = program_.ops[next];
      if (op.kind != Kind::kReceive) {
        if (op.kind == Kind::kSum || landed_ > i) {
          return;
        }
        continue;
      }
      channel_.land(rank_of(op), numbered(ahead, op), view(op.place));
      landed_ = next + 1;
      return;
    }
  }

  // Each block of a message is encoded by itself.
  template <class Visit>
  void for_each_block(const CollectiveOp& op, const Visit& visit) const {
    if (op.parts.empty()) {
      visit(op.place);
    }
    for (const Place& block : op.parts) {
      visit(block);
    }
  }

  at::Tensor encoded_bytes(const CollectiveOp& op) const {
    int64_t bytes = 0;
    for_each_block(op, [&](const Place& block) { bytes += codec_->wire_bytes(block.size()); });
    return at::empty({bytes}, at::kByte);
  }

  std::span<float> values(const Place& block) const {
    return {pointer<float>(block), static_cast<std::size_t>(block.size())};
  }

  std::span<std::byte> next_bytes(std::byte*& at, const Place& block) const {
    const auto size = static_cast<std::size_t>(codec_->wire_bytes(block.size()));
    return {std::exchange(at, at + size), size};
  }

  void send_encoded(const CollectiveOp& op) {
    const at::Tensor message = encoded_bytes(op);
    auto* at = static_cast<std::byte*>(message.data_ptr());
    for_each_block(op, [&](const Place& block) {
      const std::span<std::byte> bytes = next_bytes(at, block);
      codec_->encode(values(block), bytes);
      if (op.final) {
        codec_->decode(bytes, values(block));  // what the others will have
      }
    });
    channel_.send_part(rank_of(op), numbered(num_sent_, op), message);
  }

  void receive_encoded(const CollectiveOp& op, double& wait_s) {
    at::Tensor message = encoded_bytes(op);
    channel_.receive_part(rank_of(op), numbered(num_received_, op), message, wait_s);
    auto* at = static_cast<std::byte*>(message.data_ptr());
    for_each_block(
        op, [&](const Place& block) { codec_->decode(next_bytes(at, block), values(block)); });
  }

  void sum(const CollectiveOp& op) {
    if (data_.scalar_type() == at::kFloat) {
      sum_as<float>(op);
    } else {
      sum_as<double>(op);
    }
  }

  template <class T>
  void sum_as(const CollectiveOp& op) {
    std::vector<const T*> parts;
    parts.reserve(op.parts.size());
    for (const Place& part : op.parts) {
      parts.push_back(pointer<T>(part));
    }
    sum_parts(pointer<T>(op.place), parts, op.place.size());
  }

  template <class T>
  T* pointer(const Place& place) const {
    const at::Tensor& base = place.space == Space::kData ? data_ : scratch_;
    return base.data_ptr<T>() + place.begin;
  }

  const MemberProgram& program_;
  const std::vector<int>& ranks_;
  const MessageTag tag_;
  at::Tensor& data_;
  at::Tensor& scratch_;
  Channel& channel_;
  const Codec* codec_;
  std::vector<int32_t> num_sent_;
  std::vector<int32_t> num_received_;
  std::size_t landed_ = 0;  // operations before it have landing places already
};

}  // namespace

double run_program(const MemberProgram& program, const std::vector<int>& ranks, MessageTag tag,
                   at::Tensor& data, at::Tensor& scratch, Channel& channel, const Codec* codec) {
  if (program.scratch_elements > 0 &&
      (!scratch.defined() || scratch.scalar_type() != data.scalar_type() ||
       scratch.numel() < program.scratch_elements)) {
    scratch = at::empty({program.scratch_elements}, data.options());
  }
  return Run(program, ranks, tag, data, scratch, channel, codec).run();
}

}  // namespace millrace
