// Reductions between the threads of one process: what the members of a group share, and one
// member's view of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/transport/meeting.h"

namespace millrace {

// What one member brings to one reduction. Lives in the shared group and not on the member's stack,
// because a member that fails leaves while others may still be reading.
struct Contribution {
  // Up to this size the elements themselves are brought: everybody then sums for itself and no
  // second meeting is needed before the tensors may be touched again.
  static constexpr std::size_t kSmallBytes = 16 * 1024;

  const char* problem = nullptr;  // why the tensor cannot be summed; null when it can
  at::Tensor tensor;              // larger ones: the handle keeps the memory alive
  alignas(64) std::array<std::byte, kSmallBytes> small;
};

class InprocGroupShared {
 public:
  InprocGroupShared(std::vector<int> ranks, double timeout_s, const AbortFlag& abort,
                    double spin_s);

  const std::vector<int>& ranks() const { return ranks_; }
  Meeting& meeting() { return meeting_; }
  // Two alternate, by the parity of the meeting's sequence number: see Meeting on why two are
  // enough.
  Contribution& contribution(int member, uint64_t sequence);

 private:
  std::vector<int> ranks_;
  Meeting meeting_;
  std::vector<std::array<Contribution, 2>> contributions_;
};

class InprocGroup final : public Group {
 public:
  // `shared` is owned by all members: the first to leave must not take it from the others.
  InprocGroup(std::shared_ptr<InprocGroupShared> shared, int member);

  const std::vector<int>& ranks() const override { return shared_->ranks(); }
  int member() const override { return member_; }
  Transfer all_reduce_sum(at::Tensor& tensor) override;
  Transfer barrier() override;

 private:
  const std::vector<void*>& meet(const Fingerprint& fingerprint, void* item, Transfer& transfer);
  void check_usable(const std::vector<void*>& items, const Fingerprint& fingerprint) const;
  template <class T>
  void sum_small(const std::vector<void*>& items, at::Tensor& tensor);
  template <class T>
  void sum_share(const std::vector<void*>& items, int64_t size);

  std::shared_ptr<InprocGroupShared> shared_;
  const int member_;
  uint64_t sequence_ = 0;  // of the next meeting; every member counts alike
};

}  // namespace millrace
