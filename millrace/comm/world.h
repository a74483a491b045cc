// World: all ranks of a run, and those of them that live in this process. Ranks of one process meet
// through `inproc`; where a world spans processes (`joined`), an engine carries the rest. Whoever
// makes a session chooses the world; ranks see only their Communicator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/comm/communicator.h"

namespace millrace {

// A thread of a rank of this process that waits for a message of a certain rank.
struct RankWait {
  int rank = 0;
  int from = 0;
  MessageTag tag;
  double waited_s = 0;
  double last_heard_s = -1;  // since anything came from that rank's process; negative: its own
};

// What every world offers its ranks. Outlives its communicators and their groups.
class World {
 public:
  virtual ~World() = default;
  virtual int num_ranks() const = 0;
  virtual const std::vector<int>& local_ranks() const = 0;  // hosted by this process, ascending
  virtual int process() const = 0;                          // this one's number
  virtual int num_processes() const = 0;
  virtual int process_of(int rank) const = 0;
  virtual std::string engine() const = 0;  // "inproc"; or what carries messages between processes

  virtual std::unique_ptr<Communicator> communicator(int rank) = 0;  // a local one; any thread
  // Ends every wait of every rank, in all processes. Any thread; the first cause wins.
  virtual void abort(const Error& cause) = 0;
  virtual std::optional<Error> first_cause() const = 0;  // what the first abort() was given

  // Between processes, from each process's main thread, in the same order everywhere:
  //
  // Everybody's text, by process. Blocks until all have called, at most `timeout_s`: kTimeout names
  // who is missing. What is gathered this way is small; tensors go between ranks.
  virtual std::vector<std::string> exchange(const std::string& own, double timeout_s) = 0;

  // At any time, from any thread: a note that the other process's listener gets, in the order of
  // sending. Notes that come before a listener is set wait for it. The listener is called on
  // threads of the engine (for a note to oneself: the caller's), must be thread-safe and must not
  // block; an empty one stops listening.
  using Listener = std::function<void(int from_process, const std::string& text)>;
  virtual void tell(int process, const std::string& text) = 0;
  virtual void listen(Listener listener) = 0;

  // Who waits at this moment, in receive(): who takes whatever comes waits for nobody. Any thread.
  virtual std::vector<RankWait> waits() const = 0;

  bool spans_processes() const { return num_processes() > 1; }
  // The first process prints, measures and writes files.
  bool leads() const { return process() == 0; }
};

}  // namespace millrace
