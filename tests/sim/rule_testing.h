// Rules written as lambdas, and flat data parallelism to run them in, for the simulator's tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/rule/arithmetic.h"
#include "tests/sim/sim_testing.h"

namespace millrace::testing {

// What a test's rule does; what is not set does nothing.
struct Parts {
  std::function<Task(Port&)> begin{};
  std::function<Task(Port&, Range, bool)> ready{};
  std::function<Task(Port&)> step{};
  std::function<Task(Port&)> finish{};
  std::function<Task(Port&)> serve{};
};

class PartsRule final : public Rule {
 public:
  explicit PartsRule(Parts parts) : parts_(std::move(parts)) {}
  Task begin(Port& port) override { return parts_.begin ? parts_.begin(port) : nothing(); }
  Task gradients_ready(Port& port, Range range, bool last) override {
    return parts_.ready ? parts_.ready(port, range, last) : nothing();
  }
  Task step(Port& port) override { return parts_.step ? parts_.step(port) : nothing(); }
  Task finish(Port& port) override { return parts_.finish ? parts_.finish(port) : nothing(); }
  Task serve(Port& port) override { return parts_.serve(port); }

 private:
  static Task nothing() { co_return; }
  Parts parts_;
};

// `make`: the parts of one member's rule, whose captures must outlive the simulation.
inline OwnRule own_rule(std::function<Parts(const RuleConfig&)> make, RuleTraits traits = {}) {
  return {[make = std::move(make)](const RuleConfig& config) {
            return std::make_unique<PartsRule>(make(config));
          },
          traits};
}

// One stage on so many replicas, one microbatch each: a step is F, B, REDUCE, STEP.
inline LoweredSchedule flat(int replicas) {
  const Plan plan = replicated(1, replicas, "gpipe", 1);
  return lower(make_schedule("gpipe", schedule_config(plan)), plan, 1);
}

inline constexpr RuleTraits kSums{.equal_replicas = true, .sums_gradients = true};
inline constexpr RuleTraits kServer{.serves = true, .ordered = true};

// F + B = 3 s, 100 elements of 400 bytes.
inline StageCost unit_cost(double update_s = 0) {
  StageCost cost = stage(1, 2, 0, 400);
  cost.update_s = update_s;
  return cost;
}

// Workers push and wait for an answer; the server answers all when all have pushed.
inline OwnRule synchronous_server() {
  return own_rule(
      [](const RuleConfig&) {
        Parts parts;
        parts.step = [](Port& port) -> Task {
          port.send(Port::kServer, 1, port.gradient());
          co_await port.receive(Port::kServer, 2, &port.weights());
        };
        parts.finish = [](Port& port) -> Task {
          port.send(Port::kServer, 0, nullptr, {});
          co_return;
        };
        parts.serve = [](Port& port) -> Task {
          Vector& got = port.make_vector(port.num_elements());
          int gone = 0;
          int pushed = 0;
          while (gone < port.num_members()) {
            const Message message = co_await port.receive_any(&got);
            gone += message.kind == 0 ? 1 : 0;
            if (message.kind == 1) {
              port.charge(got.size);
              ++pushed;
            }
            if (pushed == port.num_members()) {
              port.apply(got, 1);
              pushed = 0;
              for (int member = 0; member < port.num_members(); ++member) {
                port.send(member, 2, got);
              }
            }
          }
        };
        return parts;
      },
      kServer);
}

}  // namespace millrace::testing
