// Membership: this process's part in a run of several processes: the world it joined, and the
// launcher's board where it says what it is at and why it failed. Used by `train` from the main
// thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "millrace/base/job_board.h"
#include "millrace/comm/joined/joined.h"
#include "millrace/core/plan.h"
#include "millrace/core/world_place.h"

namespace millrace::cli {

class Membership {
 public:
  // `place` as find_world() found it. Opens the launcher's board, if there is one.
  explicit Membership(const WorldPlace& place);
  ~Membership();

  // Joins the world, when it has several processes. Throws what join_world() throws, and
  // kInvalidArgument when the processes were not given equal configurations (`config`, as text).
  void join(int num_ranks, double timeout_s, const std::string& config);

  World* world() { return world_.get(); }  // null: this process is alone
  JoinedWorld* joined() { return world_.get(); }
  bool leads() const { return place_.process == 0; }

  void at(JobPhase phase);
  void at_step(int64_t step);
  // The stages of this process's ranks, for the launcher's words; and by which collectives it
  // reduces.
  void planned(const Plan& plan, const ChooseCollective& choose,
               const std::shared_ptr<const Codec>& codec);

  // All is done: waits for the others to say so, too.
  void leave();
  // Ends the others' waits, where a signal that all of them got ends the run before training.
  void interrupt(const Error& error);
  // Tells the others and the launcher. True when the launcher prints the error, so that this
  // process need not.
  bool fail(const Error& error);

 private:
  const WorldPlace place_;
  std::optional<JobBoard> board_;
  std::unique_ptr<JoinedWorld> world_;
};

}  // namespace millrace::cli
