// GradientFlow: gradients are reduced while the backward goes on, joined until a message is worth
// its latency; with density < 1 only the chunks that matter most are sent, the same on all
// replicas, and what is not sent waits.
//
// Source: Sun et al., Optimizing Network Performance for Distributed DNN Training on GPU Clusters:
// ImageNet/AlexNet Training in 1.5 Minutes, arXiv:1902.06855: lazy all-reduce and coarse-grained
// sparse communication with momentum correction and warm-up dense training. The order of its
// passes is our reconstruction, chosen so that a sum is conserved:
//
//   u = momentum u + P/samples g + decay w    velocity of this replica, never masked
//   r = r + lr u                              what is still to be applied, this update's lr inside
//   w[mask] -= (sum of r[mask]) / P;  r[mask] = 0
//   norms = sum over replicas of |r|, chunk by chunk
//   mask of the next update = the ceil(share x chunks) largest, ties to the lower index
//
// P/samples: the mean over replicas then is the mean over samples. So sum applied + mean r = sum of
// lr x mean u, and w - mean(r) is what dense training does for the same gradients. A full mask is
// SGD with momentum, to rounding. Norms travel beside the last chunks.
//
// With density < 1 the rule makes the step itself; the run's optimizer is not asked. So `momentum`
// and `decay` are the run's, for whoever makes the rule to fill in; -1, unset, counts as 0.
// Replicas must tell of their ranges in the same order, as any reduction needs it.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/rule/arithmetic.h"
#include "millrace/rule/internal/chunks.h"
#include "millrace/rule/internal/ready_ranges.h"
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

using internal::Chunks;

struct Options {
  int64_t threshold_bytes = 0;
  double density = 1;
  int64_t chunk = 1;
  int64_t warmup = 0;
  int64_t ramp = 0;
  double momentum = 0;
  double decay = 0;
};

// Elements of a message that reaches the threshold.
int64_t threshold_elements(const Options& options, const Vector& vector) {
  const int64_t element_bytes = vector.is_double ? 8 : 4;
  return (options.threshold_bytes + element_bytes - 1) / element_bytes;
}

// Density 1: all gradients, the run's optimizer.
class DenseFlow final : public Rule {
 public:
  explicit DenseFlow(const Options& options) : options_(options) {}

  Task gradients_ready(Port& port, Range range, bool last) override {
    const int64_t threshold = threshold_elements(options_, port.gradient());
    if (const std::optional<Range> joined = ready_.add(range, threshold)) {
      reduce(port, *joined);
    }
    if (!last) {
      co_return;
    }
    const std::vector<Range> rest = ready_.take_rest();
    for (const Range& joined : rest) {
      reduce(port, joined);
    }
    for (const int64_t number : under_way_) {
      co_await port.reduced(number);
    }
    under_way_.clear();
  }

  Task step(Port& port) override {
    port.apply(port.gradient(), port.update().samples);
    co_return;
  }

 private:
  void reduce(Port& port, Range range) {
    under_way_.push_back(port.start_all_reduce(port.gradient(), range, Port::kEverybody));
  }

  Options options_;
  internal::ReadyRanges ready_;
  std::vector<int64_t> under_way_;
};

// Density below 1: chunks of the mask, packed in the order in which they become ready.
class SparseFlow final : public Rule {
 public:
  explicit SparseFlow(const Options& options) : options_(options) {}

  Task begin(Port& port) override {
    if (velocity_ == nullptr) {
      const int64_t size = port.num_elements();
      chunks_ = {size, std::min(options_.chunk, std::max<int64_t>(size, 1))};
      velocity_ = &port.make_vector(size);
      residual_ = &port.make_vector(size);
      norms_ = &port.make_vector(chunks_.count());
      const bool all_at_first = options_.warmup + options_.ramp > 0;
      packed_ =
          &port.make_vector(all_at_first ? size : std::min(size, num_sent(0) * chunks_.chunk));
    }
    co_return;
  }

  Task gradients_ready(Port& port, Range range, bool last) override {
    if (!update_is_open_) {
      open_update();
    }
    take_in(port, range);
    const int64_t waiting = packed_end_ - started_end_;
    if (waiting > 0 && (last || waiting >= threshold_elements(options_, *packed_))) {
      const Range message{started_end_, packed_end_};
      under_way_.push_back(port.start_all_reduce(*packed_, message, Port::kEverybody));
      started_end_ = packed_end_;
    }
    if (!last) {
      co_return;
    }
    start_norms(port);
    for (const int64_t number : under_way_) {
      co_await port.reduced(number);
    }
    under_way_.clear();
  }

  Task step(Port& port) override {
    copy(port, port.weights(), port.current());
    port.charge(packed_end_);
    for (const Packed& packed : packed_chunks_) {
      internal::subtract_quotient(port.weights(), chunks_.range(packed.chunk), *packed_, packed.at,
                                  port.num_members());
    }
    // Now, since the next ranges come while a backward runs, which waits for nobody.
    if (norms_under_way_) {
      co_await port.reduced(*norms_under_way_);
      norms_under_way_.reset();
    }
    update_is_open_ = false;
    ++update_;
  }

 private:
  struct Packed {
    int64_t chunk = 0;
    int64_t at = 0;  // its first element in packed_
  };

  int64_t num_sent(int64_t update) const {
    const double share =
        internal::share_of_update(options_.density, options_.warmup, options_.ramp, update);
    return internal::num_chunks_sent(share, chunks_.count());
  }

  // Chooses the mask. Norms that nobody has sent are zeros: nothing waits after a full mask.
  void open_update() {
    in_mask_.assign(static_cast<std::size_t>(chunks_.count()), false);
    for (const uint32_t chunk : internal::largest_chunks(*norms_, num_sent(update_))) {
      in_mask_[chunk] = true;
    }
    missing_.resize(in_mask_.size());
    for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk) {
      missing_[static_cast<std::size_t>(chunk)] = chunks_.range(chunk).size();
    }
    packed_chunks_.clear();
    packed_end_ = 0;
    started_end_ = 0;
    update_is_open_ = true;
  }

  void take_in(Port& port, Range range) {
    const Update& update = port.update();
    const internal::MomentumStep step{
        .momentum = options_.momentum,
        .decay = options_.decay,
        .lr = update.lr,
        .gradient_scale = update.samples > 0 ? port.num_members() / update.samples : 0};
    port.charge(2 * range.size());
    internal::correct_momentum(step, range, *velocity_, *residual_, port.gradient(),
                               port.current());
    for (int64_t chunk = range.begin / chunks_.chunk;
         chunk < chunks_.count() && chunk * chunks_.chunk < range.end; ++chunk) {
      const auto index = static_cast<std::size_t>(chunk);
      const Range all = chunks_.range(chunk);
      missing_[index] -= std::min(range.end, all.end) - std::max(range.begin, all.begin);
      if (missing_[index] == 0 && in_mask_[index]) {
        port.charge(all.size());
        internal::move_out(*residual_, all, *packed_, packed_end_);
        packed_chunks_.push_back({chunk, packed_end_});
        packed_end_ += all.size();
      }
    }
  }

  void start_norms(Port& port) {
    const auto num_packed = static_cast<int64_t>(packed_chunks_.size());
    if (num_packed < chunks_.count()) {
      port.charge(chunks_.num_elements);
      internal::chunk_norms(chunks_, *residual_, *norms_);
      norms_under_way_ = port.start_all_reduce(*norms_);
    }
  }

  Options options_;
  Chunks chunks_;
  Vector* velocity_ = nullptr;
  Vector* residual_ = nullptr;
  Vector* norms_ = nullptr;
  Vector* packed_ = nullptr;
  int64_t update_ = 0;  // of this rule's, from 0
  std::optional<int64_t> norms_under_way_;

  // Of the update at hand.
  bool update_is_open_ = false;
  std::vector<bool> in_mask_;
  std::vector<int64_t> missing_;  // elements of each chunk that are not ready
  std::vector<Packed> packed_chunks_;
  int64_t packed_end_ = 0;   // elements packed
  int64_t started_end_ = 0;  // of those, elements in messages that have begun
  std::vector<int64_t> under_way_;
};

// A key of the run's optimizer: -1 where it has none.
double optimizer_key(const RuleConfig& config, const char* key, double below) {
  const double value = config.options.number(key);
  if (value == -1) {
    return 0;
  }
  if (!(value >= 0 && value < below)) {
    refuse_option(config, key,
                  std::isinf(below) ? "0 or more, or -1 (unset)" : "0 <= x < 1, or -1 (unset)");
  }
  return value;
}

int64_t whole_number(const RuleConfig& config, const char* key, int64_t least) {
  const int64_t value = config.options.integer(key);
  if (value < least) {
    refuse_option(config, key, "a whole number of at least " + std::to_string(least));
  }
  return value;
}

}  // namespace

std::unique_ptr<Rule> gradient_flow(const RuleConfig& config) {
  check_rule_config(config);
  Options options;
  // Above any buffer nothing changes any more.
  constexpr int64_t kMostKib = int64_t{1} << 40;
  options.threshold_bytes = 1024 * std::min(kMostKib, whole_number(config, "threshold_kib", 0));
  options.density = config.options.number("density");
  if (!(options.density > 0 && options.density <= 1)) {
    refuse_option(config, "density", "a share of the chunks, 0 < density <= 1,");
  }
  options.chunk = whole_number(config, "chunk", 1);
  options.warmup = whole_number(config, "warmup", 0);
  options.ramp = whole_number(config, "ramp", 0);
  options.momentum = optimizer_key(config, "momentum", 1);
  options.decay = optimizer_key(config, "decay", INFINITY);
  if (options.density == 1) {
    return std::make_unique<DenseFlow>(options);
  }
  return std::make_unique<SparseFlow>(options);
}

}  // namespace millrace::builtin_rules
