// Shaped links: a wrapper around any engine's communicator that makes messages and reductions last
// as long as they would on an emulated network.
//
// It keeps the simulator's model of links (sim/internal/engine.cc), so that prediction and run
// speak of one network: a queue for each ordered pair of ranks, which carries one message at a time
// for bytes / bandwidth; the message arrives the latency later; the sender goes on at once. A
// group's reduction lasts Cluster::all_reduce_s from when its last member asked for it.
//
// When a message arrives travels with it as a second small message, so nothing is shared between
// ranks but the engine; their clocks must be one (ranks of one machine). Threads of one rank share
// its links. Reductions take none: those of a lane do not wait for those of another, nor for
// messages.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/core/cluster.h"

namespace millrace {

struct ShapedNetwork {
  Cluster cluster;  // device r is rank r
  // Every time of the network lasts so many times as long.
  double time_scale = 1;
  // Bytes that the network counts, where they are not the tensor's own. May be empty.
  std::function<double(int from, int to, const MessageTag& tag, const at::Tensor& tensor)>
      message_bytes;
  std::function<double(int stage, const at::Tensor& tensor)>
      reduction_bytes;  // stage: as in group()
  double spin_s = 0;    // before each moment waited for, see pause_until
};

// The communicator of one rank; its other threads' are made by on_lane(). `network` and `abort`
// outlive them. What receive_any() gives has arrived by then, the first arrival first, whatever was
// sent first. Waits for the network count as wait_s of a receive; of
// a reduction only the wait for its last member does, since its duration is communication. `bytes`
// of a transfer are the network's. abort() of the result raises `abort` as well, and whoever aborts
// the engine's world itself raises it too: it ends pauses. A barrier and a message to oneself cost
// nothing.
std::unique_ptr<Communicator> shape_links(std::unique_ptr<Communicator> engine,
                                          const ShapedNetwork& network, AbortFlag& abort);

}  // namespace millrace
