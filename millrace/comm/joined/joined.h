// A world of several processes: ranks of this process meet through `inproc`, others through a wire.
// Who uses a Communicator need not know which.
//
// A reduction between processes sums the ranks of each process in place first; one rank of each
// then runs a collective program over the wire (or asks the engine for its own) and hands the sum
// to the others. All members end with the same bits; the order in which an element's parts are
// added depends on ranks and sizes alone.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/collective/codec.h"
#include "millrace/comm/wire.h"
#include "millrace/comm/world.h"

namespace millrace {

struct ChosenCollective {
  std::string name = "ring";  // of `collectives()`
  std::vector<int> grid{};    // of `grid`, see CollectiveConfig
};
// Which collective sums `elements` over the ranks of `leaders` (one a process). Must answer alike
// in all processes.
using ChooseCollective = std::function<ChosenCollective(const std::vector<int>& leaders,
                                                        int64_t elements, int64_t element_bytes)>;

struct JoinedOptions {
  int num_ranks = 1;      // of all processes; blocks of them by process, see core/world_place.h
  double timeout_s = 60;  // of every wait
  ChooseCollective choose;
  // What gradients (reductions of a stage, in float32) are encoded by between processes; null: as
  // they are.
  std::shared_ptr<const Codec> codec;
};

class JoinedWorld final : public World {
 public:
  JoinedWorld(std::unique_ptr<Wire> wire, JoinedOptions options);
  ~JoinedWorld() override;

  int num_ranks() const override;
  const std::vector<int>& local_ranks() const override;
  int process() const override;
  int num_processes() const override;
  int process_of(int rank) const override;
  std::string engine() const override;
  std::unique_ptr<Communicator> communicator(int rank) override;
  void abort(const Error& cause) override;
  std::optional<Error> first_cause() const override;
  std::vector<std::string> exchange(const std::string& own, double timeout_s) override;
  void tell(int process, const std::string& text) override;
  void listen(Listener listener) override;
  std::vector<RankWait> waits() const override;

  // Groups made afterwards reduce by this. In all processes, before the first of them.
  void reduce_by(ChooseCollective choose, std::shared_ptr<const Codec> codec = nullptr);
  // Leaves the world: well, when all ranks are done (waits up to `timeout_s` for the others to say
  // so, too), or at once after a failure, of which the others are told.
  void close(double timeout_s);

 private:
  struct State;
  class Member;
  class ReducingGroup;
  std::shared_ptr<State> state_;  // shared with communicators' groups
};

}  // namespace millrace
