#include "millrace/comm/inproc/group.h"

#include <fmt/format.h>

#include <cstring>

#include "millrace/base/text.h"
#include "millrace/comm/inproc/sum.h"

namespace millrace {
namespace {

const char* problem_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "is undefined";
  }
  if (!tensor.device().is_cpu()) {
    return "is not in host memory";
  }
  if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kDouble) {
    return "is of another dtype";
  }
  if (!tensor.is_contiguous()) {
    return "is not contiguous";
  }
  return nullptr;
}

const Contribution& brought(const std::vector<void*>& items, std::size_t member) {
  return *static_cast<const Contribution*>(items[member]);
}

}  // namespace

InprocGroupShared::InprocGroupShared(std::vector<int> ranks, double timeout_s,
                                     const AbortFlag& abort, double spin_s)
    : ranks_(std::move(ranks)),
      meeting_(ranks_, timeout_s, abort, spin_s),
      contributions_(ranks_.size()) {}

Contribution& InprocGroupShared::contribution(int member, uint64_t sequence) {
  return contributions_[static_cast<std::size_t>(member)][sequence % 2];
}

InprocGroup::InprocGroup(std::shared_ptr<InprocGroupShared> shared, int member)
    : shared_(std::move(shared)), member_(member) {}

const std::vector<void*>& InprocGroup::meet(const Fingerprint& fingerprint, void* item,
                                            Transfer& transfer) {
  double waited_s = 0;
  const auto& items = shared_->meeting().arrive(member_, sequence_++, fingerprint, item, &waited_s);
  transfer.wait_s += waited_s;
  return items;
}

// All members see the same contributions and so come to the same verdict.
void InprocGroup::check_usable(const std::vector<void*>& items,
                               const Fingerprint& fingerprint) const {
  std::vector<std::string> problems;
  for (std::size_t member = 0; member < items.size(); ++member) {
    if (const char* problem = brought(items, member).problem; problem != nullptr) {
      problems.push_back(fmt::format("that of rank {} {}", ranks()[member], problem));
    }
  }
  if (!problems.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a sum over ranks needs contiguous float32 or float64 tensors in host "
                            "memory, found {}: {}",
                            to_string(fingerprint), join(problems, "; ")))
        .at_rank(ranks()[static_cast<std::size_t>(member_)]);
  }
}

template <class T>
void InprocGroup::sum_small(const std::vector<void*>& items, at::Tensor& tensor) {
  std::vector<const T*> sources;
  sources.reserve(items.size());
  for (std::size_t member = 0; member < items.size(); ++member) {
    sources.push_back(reinterpret_cast<const T*>(brought(items, member).small.data()));
  }
  sum_into<T>(sources, tensor.numel(), tensor.data_ptr<T>());
}

template <class T>
void InprocGroup::sum_share(const std::vector<void*>& items, int64_t size) {
  // Handles of our own: a member that gives up in the second meeting may free its tensor.
  std::vector<at::Tensor> tensors;
  std::vector<T*> buffers;
  tensors.reserve(items.size());
  buffers.reserve(items.size());
  for (std::size_t member = 0; member < items.size(); ++member) {
    tensors.push_back(brought(items, member).tensor);
    buffers.push_back(tensors.back().data_ptr<T>());
  }
  const Share share = share_of(member_, static_cast<int>(items.size()), size, sizeof(T));
  sum_into_all<T>(buffers, share.begin, share.end);
}

Transfer InprocGroup::all_reduce_sum(at::Tensor& tensor) {
  Transfer transfer;
  const Fingerprint fingerprint = fingerprint_of(tensor);
  Contribution& own = shared_->contribution(member_, sequence_);
  own.problem = problem_of(tensor);
  const std::size_t bytes = own.problem == nullptr ? tensor.nbytes() : 0;
  const bool small = bytes <= Contribution::kSmallBytes;
  if (small && bytes > 0) {
    std::memcpy(own.small.data(), tensor.data_ptr(), bytes);
  }
  own.tensor = small ? at::Tensor() : tensor;

  const std::vector<void*>& items = meet(fingerprint, &own, transfer);
  check_usable(items, fingerprint);
  const int num_members = static_cast<int>(items.size());
  const bool is_double = tensor.scalar_type() == at::kDouble;
  const auto element_bytes = static_cast<int64_t>(tensor.element_size());
  const Share share = share_of(member_, num_members, tensor.numel(), element_bytes);
  transfer.bytes = 2 * (num_members - 1) * (share.end - share.begin) * element_bytes;

  if (small) {
    is_double ? sum_small<double>(items, tensor) : sum_small<float>(items, tensor);
    return transfer;
  }
  if (num_members > 1) {
    is_double ? sum_share<double>(items, tensor.numel()) : sum_share<float>(items, tensor.numel());
    meet(fingerprint, nullptr, transfer);
  }
  own.tensor.reset();
  return transfer;
}

Transfer InprocGroup::barrier() {
  Transfer transfer;
  Fingerprint fingerprint;
  fingerprint.dtype = Fingerprint::kBarrier;
  meet(fingerprint, nullptr, transfer);
  return transfer;
}

}  // namespace millrace
