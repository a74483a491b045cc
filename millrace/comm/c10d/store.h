// Where the processes of a job find each other: c10d's TCPStore, served by process 0. Also checks
// that those who meet belong together.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "millrace/comm/engines.h"

namespace millrace {

struct Rendezvous {
  c10::intrusive_ptr<c10d::TCPStore> store;
  std::vector<std::string> hosts;  // name of each process's host
  std::string address;             // this process's own, as the others reach it
};

// Blocks until all processes of `place` are there, at most `timeout_s`. `publish_port` is called by
// process 0 once its store listens; `find_port` by others when place.store_port is 0, and waits for
// it. Throws kInvalidArgument when the port is in use, when another job answers on it, or when two
// processes claim one number; kUnsupported for a Millrace of another layout; kTimeout naming who is
// missing.
// From the main thread, once.
Rendezvous rendezvous(const WorldPlace& place, const PortExchange& ports, double timeout_s);

// A connection of its own to the store where the processes of `place` met: whoever waits for a key
// keeps all others of the same connection waiting, so that two groups which form at once, in
// another order in another process, need two. Any thread. Throws kPeerLost.
c10::intrusive_ptr<c10d::TCPStore> connect_again(const WorldPlace& place,
                                                 const c10d::TCPStore& store, double timeout_s);

}  // namespace millrace
