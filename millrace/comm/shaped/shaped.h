// Shaped links: a wrapper around any engine's communicator that makes messages and reductions last
// as long as they would on an emulated network.
//
// It keeps the simulator's model of links, by the same calendar (core/links.h), so that prediction
// and run speak of one network: a link carries one message at a time for bytes / bandwidth; the
// message arrives the latency later; the sender goes on at once. A group's reduction lasts
// Cluster::all_reduce_s from when its last member asked for it and the links between them are free.
//
// All ranks of a process share one calendar. When a message arrives travels with it as a second
// small message, so ranks may be of several processes of one machine (their clocks must be one);
// but then a process knows only of what its own ranks send, and of reductions whose first member is
// here.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/core/cluster.h"
#include "millrace/core/links.h"

namespace millrace {

// What the ranks of a process share: when the links of the network are busy.
class SharedLinks {
 public:
  explicit SharedLinks(const Cluster& cluster) : calendar_(cluster) {}

  // As LinkCalendar's; `now_s` is of the network's time.
  double carry(int from, int to, double now_s, double bytes);
  double reduce(const std::vector<int>& devices, double at_s, double bytes);

 private:
  std::mutex mutex_;
  LinkCalendar calendar_;
};

struct ShapedNetwork {
  explicit ShapedNetwork(Cluster of)
      : cluster(std::move(of)), links(std::make_shared<SharedLinks>(cluster)) {}

  Cluster cluster;  // device r is rank r
  std::shared_ptr<SharedLinks> links;
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
