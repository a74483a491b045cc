// Where the processes of a job find each other: c10d's TCPStore, served by process 0. Also checks
// that those who meet belong together. Used from the main thread while a world is joined.
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
Rendezvous rendezvous(const WorldPlace& place, const PortExchange& ports, double timeout_s);

}  // namespace millrace
