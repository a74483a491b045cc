// Coordination: what the processes of a run tell each other while ranks train: losses go to the
// leading process, and a stop that any of them asks for becomes one step at which all stop.
//
// One object a session and process; thread-safe. With one process the same notes go from it to
// itself.
//
// A stop: whoever wants it tells the leader; the leader asks all to freeze their gates; each
// answers with the furthest step that a rank of it has entered; the greatest decides for all.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "millrace/comm/world.h"
#include "millrace/runtime/board.h"
#include "millrace/runtime/gate.h"

namespace millrace {

class Coordination {
 public:
  explicit Coordination(World& world);
  ~Coordination();

  // A segment begins here: its gate, the board of its reports (used where this process leads), and
  // its steps. Notes about it that came earlier are heard now. Both outlive the segment.
  void begin(StepGate& gate, StepBoard& board);
  void end();

  // Where this process's ranks report steps of the current segment.
  StepReporter& reporter();

  // Asks that the current segment stops as soon as it can. Repeated calls change nothing.
  void request_stop();

 private:
  class Remote;
  struct Note {
    std::string what;
    int64_t segment = 0;
    std::vector<std::string> words;
  };
  using Outgoing = std::vector<std::pair<int, std::string>>;

  void hear(int from, const std::string& text);
  void handle(int from, const Note& note, Outgoing& out);  // needs mutex_
  void send(const Outgoing& out);

  World& world_;
  std::mutex mutex_;
  int64_t segment_ = -1;  // the current one's number, or of the last
  StepGate* gate_ = nullptr;
  StepBoard* board_ = nullptr;
  bool asked_ = false;                       // this process has asked for a stop of this segment
  bool freezing_ = false;                    // as leader: all were asked to freeze
  std::map<int, int64_t> furthest_;          // as leader: answers, by process
  std::vector<std::pair<int, Note>> early_;  // notes about segments to come
  std::unique_ptr<Remote> remote_;
};

}  // namespace millrace
