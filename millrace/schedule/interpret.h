// The interpreter: walks one rank's actions and hands each to a handler. The only loop over actions
// there is: the runtime, evaluation and the thread-sanitizer tests run through it.
#pragma once

#include <cstdint>

#include "millrace/core/action.h"
#include "millrace/core/schedule.h"

namespace millrace {

// What a rank does for each kind of action. Called from the rank's own thread, in order.
class ActionHandler {
 public:
  virtual ~ActionHandler() = default;
  virtual void forward(const Action& action) = 0;
  virtual void backward(const Action& action) = 0;  // both halves
  virtual void input_gradient(const Action& action) = 0;
  virtual void weight_gradient(const Action& action) = 0;
  virtual void send(const Action& action) = 0;     // SEND_F, SEND_B: never blocks
  virtual void receive(const Action& action) = 0;  // RECV_F, RECV_B: blocks until its deadline
  virtual void reduce(const Action& action) = 0;   // REDUCE
  virtual void norm(const Action& action) = 0;     // NORM: blocks until all ranks are there
  virtual void step(const Action& action) = 0;
  virtual void gather(const Action& action) = 0;  // GATHER: blocks until the replicas are there
  virtual void free(const Action& action) = 0;    // FREE
  // Asked before the first action of every step: false ends the run, drained, before that step.
  virtual bool enter_step(int64_t step) = 0;
};

// Runs `num_steps` steps of a rank's list. With a flush the list is repeated, microbatches advanced
// by microbatches_per_step and versions by one a step; without, it runs once and must hold at least
// num_steps. After enter_step(k) said false, actions of steps >= k are skipped and those of earlier
// steps complete: the drain. For that all ranks must be given the same answer for a step. Returns
// the number of steps run; an idle rank is asked nothing and returns 0. An exception of the handler
// passes through with the action (and the rank, if it has none) added as coordinate when it is an
// Error without one. Throws Error(kInvalidArgument) for a rank that is not there or a segment too
// short.
int64_t interpret(const LoweredSchedule& lowered, int rank, int64_t num_steps,
                  ActionHandler& handler);

}  // namespace millrace
