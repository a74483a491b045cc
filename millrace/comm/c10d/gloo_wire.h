// The wire over c10d's Gloo: TCP between the processes of a world, on CPUs.
#pragma once

#include <memory>

#include "millrace/comm/c10d/store.h"
#include "millrace/comm/wire.h"

namespace millrace {

// Blocks until every process of `place` has joined, at most `timeout_s`. Throws what rendezvous()
// throws; kTimeout or kPeerLost when connections between processes cannot be made.
std::unique_ptr<Wire> join_gloo(const WorldPlace& place, const PortExchange& ports,
                                double timeout_s);

}  // namespace millrace
