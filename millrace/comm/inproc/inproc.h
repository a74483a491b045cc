// The engine for ranks of one process: tensors are handed over without a copy, reductions run in
// place between threads, each member summing its share of the elements.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/comm/world.h"

namespace millrace {

// The world that the ranks of this process share. Outlives its communicators and their groups.
//
// group() does not block. Who meets whom is decided by counting: a rank's n-th call with some ranks
// joins the n-th group of exactly these ranks, so that asking twice gives a second, distinct group.
// expect() does nothing: a message is here as soon as it is sent.
class InprocWorld final : public World {
 public:
  // Every wait of every rank ends after `timeout_s`. Throws kInvalidArgument unless both are
  // positive.
  InprocWorld(int num_ranks, double timeout_s);
  ~InprocWorld() override;

  int num_ranks() const override;
  const std::vector<int>& local_ranks() const override;
  int process() const override { return 0; }
  int num_processes() const override { return 1; }
  int process_of(int rank) const override;
  std::string engine() const override { return "inproc"; }
  std::unique_ptr<Communicator> communicator(int rank) override;
  void abort(const Error& cause) override;
  std::optional<Error> first_cause() const override;
  std::vector<std::string> exchange(const std::string& own, double timeout_s) override;
  void tell(int process, const std::string& text) override;
  void listen(Listener listener) override;
  std::vector<RankWait> waits() const override;

  std::size_t held(int rank) const;  // messages sent to `rank` and not yet taken
  // A message that another process's rank sent, brought here by an engine. Throws as
  // Mailboxes::send.
  void deliver(int from, int to, const MessageTag& tag, const Fingerprint& fingerprint,
               at::Tensor tensor);
  // Ends waits of this process's ranks: for an engine's own.
  const AbortFlag& abort_flag() const;

 private:
  struct State;
  class Member;  // one rank's communicator
  std::unique_ptr<State> state_;
};

}  // namespace millrace
