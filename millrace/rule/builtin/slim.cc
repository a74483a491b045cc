// Slim-DP: workers step by themselves and exchange with a server only a part of the vector: the
// core, which the server thinks significant and all know, and explorers, which each draws anew for
// every round from the rest.
//
// Source: Sun et al., Slim-DP: A Light Communication Data Parallelism for DNN, arXiv:1709.09393.
// From there: core and explorer, |w| + c |g| as significance, core values without keys, the pull of
// the same part, local values elsewhere. The paper does not say what the server knows of gradients
// that nobody sent, how ties go, or when it answers; ours:
//
// - a round is synchronous: the server adds what all running members push, in the order of members,
//   a member's push divided by the number of all members, then answers each. So the order of
//   arrival has no part in it. A member that has said goodbye takes part in no more rounds.
// - g is the last delta received of each element. Ties go to the lower index. The first core is the
//   top of |w| where all start, so nobody has to send it.
// - a member's updates wait in a residual until their element's turn: sent + residual =
//   accumulated; server = start + sum of sent / P.
// - a member divides its gradient by an equal share of the update's samples, not by its own, so
//   that the mean over members is the mean over samples: with a full share and linear optimizers
//   this is bsp, to rounding.
//
// A push, and the answer in the same form, is one vector: core values, explorer values, explorer
// keys of 4 bytes; an answer that refreshes the core adds the keys of the new one. With C =
// round(beta n) and E = round((alpha - beta) n) that is 4 C + 8 E bytes in float32 each way and 4 C
// more to refresh; in elements C + 2 E. In float64 two keys share an element: C + E + ceil(E / 2),
// and ceil((E + C) / 2) for both kinds of keys.
// At a segment's end the server sends everybody its vector, for settle(), and, where it changed in
// the segment, the core, since members that went early may have missed it. Local values and
// residuals stay.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/random.h"
#include "millrace/rule/arithmetic.h"
#include "millrace/rule/internal/choose.h"
#include "millrace/rule/internal/keyed_values.h"
#include "millrace/rule/rule.h"

namespace millrace::builtin_rules {
namespace {

using Keys = std::vector<uint32_t>;

enum Kind { kPush, kPull, kCenter, kCore };
// The first of a message's numbers.
constexpr double kMore = 0;     // another push, or an answer that keeps the core
constexpr double kGoodbye = 1;  // on kPush, without a vector
constexpr double kNewCore = 2;  // on kPull and kCenter: keys of the core come with it, or behind

// What a push holds of a vector of `num_elements`.
struct Layout {
  int64_t num_elements = 0;
  int64_t num_core = 0;
  int64_t num_explorers = 0;
  bool is_double = false;

  int64_t keys_at() const { return num_core + num_explorers; }
  int64_t push_size() const { return keys_at() + internal::key_slots(num_explorers, is_double); }
  int64_t refresh_size() const {
    return keys_at() + internal::key_slots(num_explorers + num_core, is_double);
  }
};

struct Options {
  double alpha = 1;
  double beta = 1;
  int64_t period = 1;
  int64_t refresh = 1;
  double weight = 1;
};

Layout layout_of(const Options& options, Port& port) {
  Layout layout{.num_elements = port.num_elements(), .is_double = port.weights().is_double};
  if (layout.num_elements > int64_t{UINT32_MAX}) {
    throw Error(ErrorCode::kUnsupported,
                "rule slim counts elements in 32 bits: expected a stage of at most " +
                    std::to_string(UINT32_MAX) + " parameters, found " +
                    std::to_string(layout.num_elements) + "; cut the model into more stages");
  }
  const auto size = static_cast<double>(layout.num_elements);
  layout.num_core = std::llround(options.beta * size);
  const int64_t num_others = layout.num_elements - layout.num_core;
  // All, whatever is lost in rounding twice.
  layout.num_explorers =
      options.alpha == 1
          ? num_others
          : std::min<int64_t>(num_others, std::llround((options.alpha - options.beta) * size));
  return layout;
}

// The `count` elements of the largest |weights| + weight |deltas|, without data the first; `deltas`
// may be null.
Keys most_significant(Port& port, const Vector& weights, const Vector* deltas, double weight,
                      int64_t count) {
  port.charge(internal::kHighestCost * weights.size);
  Keys keys = internal::first_indices(count);
  visit(weights, [&](auto values) {
    const auto* delta =
        deltas == nullptr
            ? nullptr
            : static_cast<const typename decltype(values)::element_type*>(deltas->data);
    std::vector<double> scores(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double last = delta == nullptr ? 0 : static_cast<double>(delta[i]);
      scores[i] = std::abs(static_cast<double>(values[i])) + weight * std::abs(last);
    }
    keys = internal::highest(scores, count);
  });
  return keys;
}

class Slim final : public Rule {
 public:
  Slim(const Options& options, const RuleConfig& config)
      : options_(options),
        key_(RandomKey(config.seed).with("slim").with(static_cast<uint64_t>(config.member))) {}

  Task begin(Port& port) override {
    if (delta_ == nullptr) {
      layout_ = layout_of(options_, port);
      delta_ = &port.make_vector(layout_.num_elements);
      residual_ = &port.make_vector(layout_.num_elements);
      push_ = &port.make_vector(layout_.push_size());
      answer_ = &port.make_vector(0);
      core_ = most_significant(port, port.weights(), nullptr, 0, layout_.num_core);
    }
    co_return;
  }

  Task step(Port& port) override {
    port.apply_to(*delta_, port.gradient(), port.update().samples / port.num_members());
    sum(port, port.weights(), port.current(), *delta_);
    add(port, *residual_, *delta_);
    if (++steps_since_exchange_ < options_.period) {
      co_return;
    }
    steps_since_exchange_ = 0;
    pack(port);
    port.give(Port::kServer, kPush, *push_, {kMore});
    const Message answer = co_await port.receive(Port::kServer, kPull, answer_);
    unpack(port, answer.numbers[0] == kNewCore);
  }

  Task finish(Port& port) override {
    port.send(Port::kServer, kPush, nullptr, {kGoodbye});
    if (center_ == nullptr) {
      center_ = &port.make_vector(0);
    }
    const Message center = co_await port.receive(Port::kServer, kCenter, center_);
    if (center.numbers[0] == kNewCore) {
      co_await port.receive(Port::kServer, kCore, answer_);
      core_ = internal::get_keys(*answer_, 0, layout_.num_core);
    }
  }

  Task settle(Port& port, Vector& result) override {
    copy(port, result, center_ == nullptr ? port.weights() : *center_);
    co_return;
  }

  Task serve(Port& port) override { return server_.serve(port, options_); }

 private:
  // The server's, beside member 0.
  class Server {
   public:
    Task serve(Port& port, const Options& options) {
      if (center_ == nullptr) {
        open(port, options);
      }
      std::vector<int> running;
      for (int member = 0; member < port.num_members(); ++member) {
        running.push_back(member);
      }
      bool new_core = false;
      while (!running.empty()) {
        std::vector<int> pushed;
        for (const int member : running) {
          Vector* push = pushes_[static_cast<std::size_t>(member)];
          const Message message = co_await port.receive(member, kPush, push);
          if (message.numbers[0] != kGoodbye) {
            merge(port, *push);
            pushed.push_back(member);
          }
        }
        running = pushed;
        if (!pushed.empty() && ++num_rounds_ % options.refresh == 0) {
          Keys core = most_significant(port, *center_, last_, options.weight, layout_.num_core);
          answer_with(port, pushed, core);
          core_ = std::move(core);
          new_core = true;
        } else {
          answer(port, pushed);
        }
      }
      say_goodbye(port, new_core);
    }

   private:
    void open(Port& port, const Options& options) {
      layout_ = layout_of(options, port);
      center_ = &port.make_vector(layout_.num_elements);
      last_ = &port.make_vector(layout_.num_elements);
      refresh_ = &port.make_vector(layout_.refresh_size());
      core_keys_ = &port.make_vector(internal::key_slots(layout_.num_core, layout_.is_double));
      for (int member = 0; member < port.num_members(); ++member) {
        pushes_.push_back(&port.make_vector(layout_.push_size()));
      }
      copy(port, *center_, port.weights());
      core_ = most_significant(port, *center_, nullptr, 0, layout_.num_core);
    }

    void merge(Port& port, const Vector& push) {
      const Keys explorers = internal::get_keys(push, layout_.keys_at(), layout_.num_explorers);
      port.charge(2 * internal::kPickCost * layout_.keys_at());
      internal::scatter_add_quotient(*center_, core_, push, 0, port.num_members());
      internal::scatter_add_quotient(*center_, explorers, push, layout_.num_core,
                                     port.num_members());
      internal::scatter(*last_, core_, push, 0);
      internal::scatter(*last_, explorers, push, layout_.num_core);
    }

    // The part that a member pushed, as it is now. Its keys are still in place.
    Keys fill(Port& port, int member, Vector& reply) {
      const Vector& push = *pushes_[static_cast<std::size_t>(member)];
      Keys explorers = internal::get_keys(push, layout_.keys_at(), layout_.num_explorers);
      port.charge(internal::kPickCost * layout_.keys_at());
      internal::gather(reply, 0, *center_, core_);
      internal::gather(reply, layout_.num_core, *center_, explorers);
      return explorers;
    }

    void answer(Port& port, const std::vector<int>& members) {
      for (const int member : members) {
        Vector& reply = *pushes_[static_cast<std::size_t>(member)];
        fill(port, member, reply);
        port.give(member, kPull, reply, {kMore});
      }
    }

    void answer_with(Port& port, const std::vector<int>& members, const Keys& core) {
      for (const int member : members) {
        Keys keys = fill(port, member, *refresh_);
        keys.insert(keys.end(), core.begin(), core.end());
        internal::put_keys(*refresh_, layout_.keys_at(), keys);
        port.give(member, kPull, *refresh_, {kNewCore});
      }
    }

    void say_goodbye(Port& port, bool new_core) {
      internal::put_keys(*core_keys_, 0, core_);
      for (int member = 0; member < port.num_members(); ++member) {
        port.send(member, kCenter, center_, {new_core ? kNewCore : kMore});
        if (new_core) {
          port.send(member, kCore, *core_keys_);
        }
      }
    }

    Layout layout_;
    Vector* center_ = nullptr;
    Vector* last_ = nullptr;     // delta received of each element
    Vector* refresh_ = nullptr;  // an answer with a new core
    Vector* core_keys_ = nullptr;
    std::vector<Vector*> pushes_;
    Keys core_;
    int64_t num_rounds_ = 0;
  };

  void pack(Port& port) {
    Keys explorers = internal::first_indices(layout_.num_explorers);
    if (residual_->data != nullptr) {
      const RandomKey round = key_.with(static_cast<uint64_t>(num_exchanges_));
      explorers = internal::draw_others(round, layout_.num_elements, core_, layout_.num_explorers);
    }
    ++num_exchanges_;
    port.charge(internal::kSkimCost * layout_.num_elements +
                internal::kDrawCost * layout_.num_explorers +
                internal::kPickCost * layout_.keys_at());
    internal::move_values(*push_, 0, *residual_, core_);
    internal::move_values(*push_, layout_.num_core, *residual_, explorers);
    internal::put_keys(*push_, layout_.keys_at(), explorers);
  }

  void unpack(Port& port, bool new_core) {
    const int64_t num_keys = layout_.num_explorers + (new_core ? layout_.num_core : 0);
    const Keys keys = internal::get_keys(*answer_, layout_.keys_at(), num_keys);
    const auto explorers_end = keys.begin() + layout_.num_explorers;
    port.charge(internal::kPickCost * layout_.keys_at());
    internal::scatter(port.weights(), core_, *answer_, 0);
    internal::scatter(port.weights(), std::span(keys.begin(), explorers_end), *answer_,
                      layout_.num_core);
    if (new_core) {
      core_.assign(explorers_end, keys.end());
    }
  }

  Options options_;
  RandomKey key_;
  Layout layout_;
  Vector* delta_ = nullptr;
  Vector* residual_ = nullptr;  // accumulated and not sent
  Vector* push_ = nullptr;
  Vector* answer_ = nullptr;
  Vector* center_ = nullptr;  // the server's vector at the last segment's end
  Keys core_;
  int64_t steps_since_exchange_ = 0;
  int64_t num_exchanges_ = 0;
  Server server_;
};

}  // namespace

std::unique_ptr<Rule> slim(const RuleConfig& config) {
  check_rule_config(config);
  const Options options{.alpha = config.options.number("alpha"),
                        .beta = config.options.number("beta"),
                        .period = config.options.integer("period"),
                        .refresh = config.options.integer("refresh"),
                        .weight = config.options.number("weight")};
  if (!(options.alpha > 0 && options.alpha <= 1)) {
    refuse_option(config, "alpha", "a share of the parameters, 0 < alpha <= 1,");
  }
  if (!(options.beta >= 0 && options.beta <= options.alpha)) {
    refuse_option(config, "beta", "a share of the parameters, 0 <= beta <= alpha,");
  }
  if (options.period < 1) {
    refuse_option(config, "period", "a number of updates of at least 1");
  }
  if (options.refresh < 1) {
    refuse_option(config, "refresh", "a number of rounds of at least 1");
  }
  if (!(options.weight >= 0 && std::isfinite(options.weight))) {
    refuse_option(config, "weight", "0 or more");
  }
  return std::make_unique<Slim>(options, config);
}

}  // namespace millrace::builtin_rules
