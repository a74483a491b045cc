// The links that the messages between some devices use, as ports that serve one message at a time,
// and the simulation of a program on them. Used by cost.cc and choose.cc; single-threaded.
#pragma once

#include <vector>

#include "millrace/collective/cost.h"

namespace millrace::internal {

// What a message from one member to another takes, and which two ports it occupies meanwhile.
struct Route {
  int out_port = -1;
  int in_port = -1;
  double bandwidth_bytes_per_s = 0;
  double latency_s = 0;
};

class Network {
 public:
  // Throws as time_program().
  Network(const std::vector<int>& ranks, const Cluster& cluster);

  int num_members() const { return num_members_; }
  int num_ports() const { return num_ports_; }
  double overhead_s() const { return overhead_s_; }  // of either end of a message
  const Route& route(int from, int to) const { return routes_[from * num_members_ + to]; }

 private:
  int num_members_ = 0;
  int num_ports_ = 0;
  double overhead_s_ = 0;
  std::vector<Route> routes_;
};

CollectiveTiming time_on(const Network& network, const CollectiveProgram& program,
                         const WireBytes& wire_bytes);

}  // namespace millrace::internal
