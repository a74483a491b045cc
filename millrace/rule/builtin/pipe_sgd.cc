// Pipe-SGD: the sum of gradients goes on in the background while the next updates are computed.
// Update t (from 0) hands its gradients over and applies the sum of update t - width + 1: with the
// paper's count, weights w_t apply the aggregate of t - width. The first width - 1 updates apply
// nothing, finish() applies the last width - 1 sums, so a segment applies every gradient once.
// width = 1 is synchronous, width = 2 is delayed by one update. The first `warmup` updates are
// synchronous whatever the width: delayed gradients upset a model most while it changes fast. They
// are counted from the start of the program, so a resumed run warms up again.
//
// The learning rate is that of the update in which a sum is applied, and of the last update in
// finish(); a sum is divided by the samples that it was made of.
//
// Source: Li et al., "Pipe-SGD: A Decentralized Pipelined SGD Framework for Distributed Deep Net
// Training", arXiv:1811.03619, algorithm 1. The drain is ours: without it the last gradients are
// lost. A codec in the ring is the reduction's, not the rule's.
#include <cstddef>

#include "millrace/rule/arithmetic.h"
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

class PipeSgd final : public Rule {
 public:
  PipeSgd(int64_t width, int64_t warmup)
      : warmup_(warmup), slots_(static_cast<std::size_t>(width)) {}

  Task begin(Port& port) override {
    for (Slot& slot : slots_) {
      if (slot.sum == nullptr) {
        slot.sum = &port.make_vector(port.num_elements());
      }
    }
    num_started_ = 0;
    num_applied_ = 0;
    co_return;
  }

  Task step(Port& port) override {
    // Its last sum was applied in the update before this one.
    Slot& slot = slot_of(num_started_);
    copy(port, *slot.sum, port.gradient());
    fill(port, port.gradient(), 0);
    slot.samples = port.update().samples;
    slot.reduction = port.start_all_reduce(*slot.sum);
    ++num_started_;
    const std::size_t width = num_updates_++ < warmup_ ? 1 : slots_.size();
    if (num_started_ - num_applied_ < width) {
      copy(port, port.weights(), port.current());
    } else {
      co_await apply_next(port);
    }
  }

  Task finish(Port& port) override {
    while (num_applied_ < num_started_) {
      co_await apply_next(port);
    }
  }

 private:
  struct Slot {
    Vector* sum = nullptr;
    double samples = 0;
    int64_t reduction = 0;
  };

  Slot& slot_of(std::size_t number) { return slots_[number % slots_.size()]; }

  Task apply_next(Port& port) {
    Slot& slot = slot_of(num_applied_);
    co_await port.reduced(slot.reduction);
    if (slot.samples > 0) {
      port.apply(*slot.sum, slot.samples);
    } else {
      copy(port, port.weights(), port.current());
    }
    ++num_applied_;
  }

  const int64_t warmup_;
  int64_t num_updates_ = 0;  // of all segments
  std::vector<Slot> slots_;
  // Sums of this segment.
  std::size_t num_started_ = 0;
  std::size_t num_applied_ = 0;
};

}  // namespace

std::unique_ptr<Rule> pipe_sgd(const RuleConfig& config) {
  check_rule_config(config);
  const int64_t width = config.options.integer("width");
  if (width < 1 || width > 64) {
    refuse_option(config, "width", "a number of updates from 1 to 64");
  }
  const int64_t warmup = config.options.integer("warmup");
  if (warmup < 0) {
    refuse_option(config, "warmup", "0 or more updates");
  }
  return std::make_unique<PipeSgd>(width, warmup);
}

}  // namespace millrace::builtin_rules
