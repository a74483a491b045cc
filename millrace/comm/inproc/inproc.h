// The engine for ranks of one process: tensors are handed over without a copy, reductions run in
// place between threads, each member summing its share of the elements.
#pragma once

#include <memory>
#include <optional>

#include "millrace/comm/communicator.h"

namespace millrace {

// The world that the ranks of this process share. Outlives its communicators and their groups.
//
// group() does not block. Who meets whom is decided by counting: a rank's n-th call with some ranks
// joins the n-th group of exactly these ranks, so that asking twice gives a second, distinct group.
// expect() does nothing: a message is here as soon as it is sent.
class InprocWorld {
 public:
  // Every wait of every rank ends after `timeout_s`. Throws kInvalidArgument unless both are
  // positive.
  InprocWorld(int num_ranks, double timeout_s);
  ~InprocWorld();

  std::unique_ptr<Communicator> communicator(int rank);  // any thread
  std::size_t held(int rank) const;          // messages sent to `rank` and not yet taken
  void abort(const Error& cause);            // any thread
  std::optional<Error> first_cause() const;  // what the first abort() was given

 private:
  struct State;
  class Member;  // one rank's communicator
  std::unique_ptr<State> state_;
};

}  // namespace millrace
