// What the communicators of one process share in a world of several: the ranks' mailboxes, where
// messages may land, notes, and what is known of the other processes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "millrace/comm/inproc/inproc.h"
#include "millrace/comm/joined/joined.h"
#include "millrace/comm/notes.h"

namespace millrace {

// Kinds of messages of this engine, above those of actions.
inline constexpr uint8_t kProgramMessage = 110;  // `stage` is the group's key
inline constexpr uint8_t kShareMessage = 111;    // a leader's sum for the ranks of its process

// Lock order: none is held while another is taken, or while the wire or a mailbox is called.
struct JoinedWorld::State final : public WireListener {
  State(std::unique_ptr<Wire> engine, JoinedOptions own_options);

  // A message of a rank here for a rank of another process.
  uint64_t send(int from, int to, const MessageTag& tag, const at::Tensor& tensor);
  // A program's message to a rank here may be received straight into `part`, until it is forgotten.
  void land(int to, int from, const MessageTag& tag, const at::Tensor& part);
  void forget_landing(int to, int from, const MessageTag& tag);
  void abort(const Error& cause);
  std::string describe(int process) const;  // "process 2 (ranks 4, 5) on node7"

  // WireListener
  at::Tensor landing(const Frame& frame) override;
  void on_frame(int from_process, const Frame& frame, at::Tensor payload) override;
  void on_lost(int process, const std::string& why) override;

  std::string exchange_problem(int64_t number, double waited_s) const;  // needs exchange_mutex

  const std::unique_ptr<Wire> wire;
  JoinedOptions options;
  InprocWorld inner;
  std::vector<int> local_ranks;
  NoteQueue notes;

  std::mutex landings_mutex;
  // To, from, lane, stage, microbatch, tensor.
  using Place = std::tuple<int, int, uint16_t, int, int64_t, int>;
  std::map<Place, at::Tensor> landings;

  std::mutex groups_mutex;
  // By lane, stage, ranks, rank.
  std::map<std::tuple<uint16_t, int, std::vector<int>, int>, int64_t> num_groups;

  mutable std::mutex exchange_mutex;
  std::condition_variable exchanged;
  int64_t next_exchange = 0;
  std::map<int64_t, std::map<int, std::string>> texts;  // by number, by process

  std::vector<std::atomic<double>> last_heard_s;  // by process
  std::atomic<bool> told_cause{false};            // a failure's own cause was sent to the others
  std::atomic<bool> told_loss{false};             // so was the loss of a peer
  std::atomic<bool> closed{false};
};

}  // namespace millrace
