// The engine: when every action of a lowered schedule starts and ends. Single-threaded and
// deterministic.
//
// There is no event queue. A rank runs its list in order, each direction of a link has one rank
// that feeds it, and a group's reductions are asked for in one order; so every time follows from
// the times before it on the same rank, link or group, and ranks may be advanced in any order, each
// until it has to wait for something not known yet.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "millrace/rule/rule.h"
#include "millrace/sim/simulate.h"

namespace millrace::internal {

// An action of the run, with its place in the lowered list (which a flush schedule repeats).
struct RunAction {
  Action action;
  std::size_t index = 0;
  int64_t step = 0;
};

struct RankRun {
  std::vector<RunAction> actions;
  RankTrace trace;              // one event an action
  std::vector<double> taken_s;  // of a send: when the peer's RECV ended; else 0
};

// Repeats (flush) or cuts (no flush: actions of later minibatches left out) each rank's list to the
// steps asked for.
std::vector<RankRun> unroll_lowered(const LoweredSchedule& lowered, int64_t num_steps);

class Engine {
 public:
  explicit Engine(const SimulationInput& input);
  // Once. Throws as simulate() does.
  std::vector<RankRun> run();

 private:
  // What identifies a message: ranks of sender and receiver, their stages, its microbatches. Which
  // of the two stages is the later one says whether it goes forward.
  using Key = std::tuple<int, int, int, int, int64_t, int64_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Message {
    double arrival_s = 0;
    int64_t bytes = 0;
    std::size_t sent_by = 0;  // action of the sender
  };
  struct Collective {
    Range range;
    int num_asked = 0;
    double start_s = 0;  // when the last replica so far asked
  };
  // A REDUCE under way on one rank.
  struct Reduction {
    double start_s = 0;
    double wait_s = 0;
    int64_t bytes = 0;
    std::deque<RuleAction> todo;
    std::optional<AllReduceSum> waiting;
    double asked_s = 0;
  };
  // What a rank does with the other ranks that hold one of its stages.
  struct StageExchange {
    std::unique_ptr<Rule> rule;
    std::optional<Reduction> reduction;
    std::size_t num_asked = 0;  // collectives of the group that this rank asked for
    bool exchanged = false;     // a REDUCE ran and its STEP has not
    bool update_due = false;
    bool released = false;
  };
  struct RankState {
    std::size_t next = 0;  // action
    double clock_s = 0;
    std::map<int, StageExchange> exchanges;  // by stage
    std::size_t num_norms = 0;               // that this rank finished
    std::optional<double> norm_start_s;      // of a NORM under way
  };

  bool advance(int rank);  // one action; false when it has to wait
  void compute(int rank);
  void send(int rank);
  bool receive(int rank);
  bool reduce(int rank);
  bool norm(int rank);
  void step(int rank);
  void ask(int rank, const AllReduceSum& sum);
  double all_reduce_s(const std::vector<int>& ranks, double bytes) const;
  void finish(int rank, double start_s, double end_s, double wait_s, int64_t bytes);
  const RunAction& next_action(int rank) const;
  int64_t message_bytes(const Action& action) const;
  void wake(int rank);
  [[noreturn]] void report_deadlock() const;
  void expect_all_received() const;

  const SimulationInput& input_;
  std::vector<RankRun> runs_;
  std::vector<RankState> states_;
  std::unordered_map<Key, Message, KeyHash> messages_;
  std::vector<std::unordered_map<int, double>> link_free_s_;  // by sender, then receiver
  std::vector<std::vector<Collective>> collectives_;  // of each stage, in the order asked for
  std::vector<int> used_ranks_;
  std::vector<Collective> norms_;  // in the order asked for
  std::deque<int> ready_;
};

}  // namespace millrace::internal
