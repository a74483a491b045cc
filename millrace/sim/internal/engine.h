// The engine: when every action of a lowered schedule starts and ends, and what rules do at them.
// Single-threaded and deterministic.
//
// Two orders of work. Where nothing depends on the order of arrival there is no event queue: a rank
// runs its list in order, each direction of a link has one rank that feeds it, and a group's
// reductions are asked for in one order; so every time follows from the times before it on the
// same rank, link or group, and ranks may be advanced in any order, each until it has to wait for
// something not known yet. Links that several ranks feed, a rule that looks at what has arrived, or
// has a server, and parts that go to whoever asks first need strict order of time: turns of ranks
// and servers, and messages that leave, are taken from queues, and nothing happens before what is
// earlier has happened.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "millrace/core/links.h"
#include "millrace/rule/rule.h"
#include "millrace/sim/internal/parts.h"
#include "millrace/sim/internal/rule_port.h"
#include "millrace/sim/internal/run_list.h"
#include "millrace/sim/simulate.h"

namespace millrace::internal {

class Engine final : public PortHost {
 public:
  explicit Engine(const SimulationInput& input);
  // Once. Throws as simulate() does.
  std::vector<RankRun> run();

  void dispatch(const Letter& letter) override;
  void wake(SimPort& port, double at_s, bool looks) override;
  bool keeps_order() const override { return keeps_order_; }
  double reduce(const std::vector<int>& ranks, double at_s, double bytes) override;

 private:
  // What identifies a message of the schedule: ranks of sender and receiver, their stages, its
  // microbatches. Which of the two stages is the later one says whether it goes forward.
  using Key = std::tuple<int, int, int, int, int64_t, int64_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Tensor {
    double arrival_s = 0;
    int64_t bytes = 0;
    std::size_t sent_by = 0;  // action of the sender
  };
  struct Norm {
    int num_asked = 0;
    double start_s = 0;  // when the last rank so far asked
  };
  // GATHERs or REDUCEs of a sharded stage that belong together.
  struct ShardMeeting {
    int num_asked = 0;
    double start_s = 0;                  // when the last replica so far asked
    std::vector<double> parts_here_s{};  // by member: when all parts so far are with it
  };
  // A stage with replicas that a rank holds.
  struct Held {
    int stage = 0;
    SimPort* port = nullptr;
    std::unique_ptr<Rule> rule;
    std::vector<int64_t> microbatches;  // of the list, that the rank runs
    std::vector<int64_t> ends_update;   // see updates_ended_by(); empty unless the rule overlaps
    bool announced = false;             // the pieces of this update's gradient
  };
  struct RankState {
    std::size_t next = 0;  // action
    double clock_s = 0;
    std::vector<Held> held;
    std::size_t num_begun = 0;  // of held: whose begin() ended
    std::size_t num_ended = 0;  // of held: whose finish() ended
    bool is_blocked = false;    // in an action of the schedule, by another rank
    bool wants_part = false;    // asks for one when its list ends: not all are dealt
    std::size_t num_norms = 0;  // that this rank finished
    std::map<int, std::size_t> num_shard_meetings{};  // that it finished, by stage
    std::optional<double> shard_start_s;              // of one under way
    std::optional<double> norm_start_s;               // of a NORM under way
  };
  // When time is ordered: a rank or a server may go on. `looking`: it looks at its messages.
  struct Turn {
    double time_s = 0;
    int entity = 0;   // rank; or number of ranks + stage of the server
    int asking = -1;  // copy of the model that asks for a part
    SimPort* looking = nullptr;
    bool operator<(const Turn& other) const;  // is later
  };
  struct LeavesLater {
    bool operator()(const Letter& a, const Letter& b) const;
  };

  void hold_stages(int stage, const RuleTraits& traits);
  void run_unordered();
  void run_ordered();
  void take_turn(const Turn& turn);
  void give_turn(int rank, double at_s);
  bool is_done(int rank) const;
  bool asks(int rank) const;
  bool advance(int rank);  // one action, begin() or finish(); false when it has to wait
  template <class MakeTask>
  bool run_task(Held& held, double at_s, const MakeTask& make_task);
  bool begin(int rank);
  bool end(int rank);
  void pass_time(int rank, Held& held);
  void compute(int rank);
  void announce(Held& held, double start_s, double work_s, const Action& action);
  void send(int rank);
  bool receive(int rank);
  bool reduce(int rank);
  bool norm(int rank);
  bool step(int rank);
  double all_reduce_s(const std::vector<int>& ranks, double bytes) const;
  bool meet_shards(int rank);
  std::optional<double> shard_reduction_s(const std::vector<int>& ranks, double bytes) const;
  void free(int rank);
  Update update_of(int rank, const Held& held, std::size_t index, int64_t step) const;
  void record(int rank, double start_s, double end_s, double wait_s, int64_t bytes);
  const RunAction& next_action(int rank) const;
  Held* find_held(int rank, int stage);
  int64_t message_bytes(const Action& action) const;
  void wake(int rank);
  std::string describe_wait(int rank) const;
  void expect_all_done() const;
  void expect_all_received() const;
  void expect_all_taken() const;

  const SimulationInput& input_;
  RuleOptions options_;
  bool keeps_order_ = false;
  std::optional<Parts> parts_;  // on demand
  std::vector<RankRun> runs_;
  std::vector<RankState> states_;
  std::unordered_map<Key, Tensor, KeyHash> tensors_;
  LinkCalendar links_;
  std::vector<std::unique_ptr<StagePorts>> stages_;  // null where a stage has no replicas
  std::vector<int> used_ranks_;
  std::vector<Norm> norms_;                                // in the order asked for
  std::vector<std::vector<ShardMeeting>> shard_meetings_;  // by stage, in the order asked for
  std::deque<int> ready_;                                  // unordered
  // Ordered:
  double now_s_ = 0;
  std::priority_queue<Turn> turns_;
  std::priority_queue<Letter, std::vector<Letter>, LeavesLater> leaving_;
};

}  // namespace millrace::internal
