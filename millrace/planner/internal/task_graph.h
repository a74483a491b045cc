// The task graph of one training iteration under a strategy, and its simulation: all of it, or
// after an edit only what comes later than the edit. Used by the search of FlexFlow's planner. One
// thread.
//
// Source: "Beyond Data and Model Parallelism for Deep Neural Networks" (FlexFlow), SysML 2019,
// section 5: full and delta simulation; every device and link takes tasks in the order in which
// they become ready. Of the tasks, and of what is simulated again, this much is our reconstruction:
// - a forward and a backward task a part; one transfer each way for every pair of parts of a
//   producer and a consumer that have bytes in common and are on different devices; for the
//   parameters of a part that s parts hold in all, a ring over these s, one reduction a link of it,
//   which starts when the backward tasks at both its ends are done. Updates are not counted.
// - every ordered pair of devices has a queue of its own. Tasks that become ready at one moment are
//   taken by key: phase and operator, then parts, whatever order tasks were made in.
// - delta simulation rewinds: the tasks that were ready before the earliest end among the producers
//   of what was edited cannot have changed and are kept. From there on it simulates until nothing
//   is left of the edit but a shift: every task that may still matter ended as much later (or
//   earlier) as the others, so all that follows does, up to the next task that the edit made or
//   took away, usually of the backward. What lies between is shifted, not simulated. Times are
//   whole ticks, so that adding the shift gives the same bits as simulating.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "millrace/planner/internal/soap.h"

namespace millrace::internal {

// One task, as tests see it.
struct TaskTime {
  uint64_t key = 0;  // of all tasks of a strategy, different
  int queue = 0;     // a device, or num_devices + from x num_devices + to
  double ready_s = 0;
  double end_s = 0;
  bool operator==(const TaskTime&) const = default;
};

class TaskGraph {
 public:
  using Edit = std::pair<int, Configuration>;  // an operator's new one

  // Builds and simulates. `problem` must outlive the graph.
  TaskGraph(const SoapProblem& problem, Strategy strategy);
  TaskGraph(const TaskGraph&) = delete;
  TaskGraph& operator=(const TaskGraph&) = delete;

  double cost_s() const { return cost_s_; }  // the last end
  const Strategy& strategy() const { return strategy_; }
  int64_t num_tasks() const { return static_cast<int64_t>(order_.size()); }
  // Tasks simulated, and shifted, so far, by the constructor and all edits.
  int64_t num_simulated() const { return num_simulated_; }
  int64_t num_shifted() const { return num_shifted_; }

  // Gives operators, each at most once, other configurations; returns the cost. The same bits as
  // building anew. Undone by undo() until the next edit.
  double edit(const std::vector<Edit>& edits);
  // Takes the last edit back. At most once an edit.
  void undo();

  // By key.
  std::vector<TaskTime> times() const;

 private:
  static constexpr int kGone = -2;
  enum class Kind : uint32_t { kForward, kBackward, kReduce, kForwardTransfer, kBackwardTransfer };
  struct Task {
    Kind kind = Kind::kForward;
    int owner = 0;  // operator, or edge of a transfer
    int index = 0;  // part, or pair of a transfer
    int queue = 0;
    int waits_for = 0;  // tasks that are not done
    int place = -1;     // in before_; -1: made by the edit in work; kGone: taken away by it
    double duration_s = 0;
    uint64_t key = 0;
    double ready_s = 0;
    double end_s = 0;
  };
  // tasks: forward of each part, backward of each part, then the reduction of each part's link to
  // the next holder of its parameters, where there are several.
  struct OperatorTasks {
    int parts = 0;
    int shards = 0;   // parts of the parameters
    int holders = 0;  // of each
    bool reduces = false;
    bool fresh = false;  // made by the edit in work
    std::vector<Task> tasks;
  };
  struct Pair {
    int producer = 0;
    int consumer = 0;
    int transfer = -1;  // tasks[transfer] forwards, the next one back; -1: on one device
  };
  struct EdgeTasks {
    bool fresh = false;
    std::vector<Pair> pairs;       // by producer
    std::vector<int> of_producer;  // pairs of part i: of_producer[i]..of_producer[i + 1]
    std::vector<int> by_consumer;  // pairs by consumer
    std::vector<int> of_consumer;
    std::vector<Task> tasks;
  };
  struct Ready {
    double ready_s = 0;
    uint64_t key = 0;
    Task* task = nullptr;
    bool operator>(const Ready& other) const {
      return ready_s != other.ready_s ? ready_s > other.ready_s : key > other.key;
    }
  };
  // A task as it was before the edit in work.
  struct Before {
    Task* task = nullptr;
    double ready_s = 0;
    double end_s = 0;
    bool gone = false;  // taken away
    bool done = false;  // simulated or shifted
  };
  // Latest ends of the tasks done so far that one shift moved from before to now.
  struct Shifted {
    double shift_s = 0;
    double before_s = 0;
    double now_s = 0;
  };
  // What undo() needs.
  struct Journal {
    double cost_s = 0;
    std::vector<Edit> configurations;
    std::vector<std::pair<int, OperatorTasks>> operators;
    std::vector<std::pair<int, EdgeTasks>> edges;
    std::size_t kept = 0;  // tasks of order_
  };

  OperatorTasks make_operator(int op) const;
  EdgeTasks make_edge(int edge) const;
  Task make_task(Kind kind, int owner, int index, int queue, double duration_s, int rank,
                 uint64_t part) const;
  double earliest_effect_s(const std::vector<Edit>& edits) const;
  void simulate_from(double begin_s);
  void rewind_all(double begin_s);
  template <typename Tasks, typename WaitsFor>
  void rewind(Tasks& block, double begin_s, const WaitsFor& waits_for);
  void release(Task& task, double end_s);
  void finish(const Task& task);
  void note_end(const Task& task);
  void note_ends(const Shifted& ends);
  bool only_shifted(double& shift_s) const;
  void shift_on(double shift_s);

  const SoapProblem& problem_;
  Strategy strategy_;
  std::vector<OperatorTasks> operators_;
  std::vector<EdgeTasks> edges_;
  std::vector<Task*> order_;  // as simulated: ready_s ascends
  double cost_s_ = 0;
  int64_t num_simulated_ = 0;
  int64_t num_shifted_ = 0;
  Journal journal_;
  std::vector<Before> before_;     // behind the tasks that the edit in work keeps, as simulated
  std::vector<std::size_t> gone_;  // places of those taken away, ascending, and before_.size()
  std::size_t next_gone_ = 0;      // of these, the first that is not passed
  std::size_t passed_ = 0;         // all of before_ before it are done or gone
  int64_t ahead_ = 0;              // done behind it
  int64_t made_ = 0;               // tasks that the edit made and that are not done
  std::vector<Shifted> shifted_;   // first, of no one shift: made, taken away, and many others
  bool shifting_ = false;
  std::vector<Task*> released_;  // while shifting
  std::vector<double> free_s_;   // of each queue
  std::vector<Ready> heap_;
};

}  // namespace millrace::internal
