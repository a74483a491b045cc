// Links: which links of a cluster a message takes, and a calendar of what they carry. One
// definition for the simulator (virtual time), for emulated links (real time) and for the time of
// collective programs.
//
// A message between two devices takes the level at which they meet: there the outgoing link of the
// sender's component and the incoming link of the receiver's (of the devices themselves at level
// 0), so all devices of a machine share its links. An override is a link of its own in each
// direction. A link carries one thing at a time.
//
// In a calendar each ordered pair of devices that meet at level 0 has a link of its own: what
// passes inside a machine is copied by its receiver, and several copy at once. Where single devices
// share a network, level 0 has size 1.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "millrace/core/cluster.h"

namespace millrace {

struct LinkRoute {
  int out_link = -1;
  int in_link = -1;
  double bandwidth_bytes_per_s = 0;
  double latency_s = 0;
  bool inside = false;  // they meet at level 0
};

class LinkMap {
 public:
  explicit LinkMap(const Cluster& cluster);

  const Cluster& cluster() const { return cluster_; }
  // Between two different devices. Links are numbered from 0, the same for the same cluster.
  LinkRoute route(int from, int to) const;

  // What a reduction over these devices keeps busy, in both directions, and for how long: on each
  // level above 0 where some of them meet the links of the components there, for the bytes of a
  // ring, 2(r-1)/r of them over r components.
  struct Share {
    std::vector<int> links;
    double seconds = 0;  // over the slowest of them
  };
  Share share_of(const std::vector<int>& devices, double bytes) const;

  // Whether things that some of these devices send may meet on a link: only then does it matter in
  // which order they are given to a calendar.
  bool shares_links(const std::vector<int>& devices) const;

 private:
  int link(std::size_t level, int component, bool in) const;

  Cluster cluster_;
  std::vector<int> below_;  // devices in a component of the level below, by level
  std::vector<int> first_;  // link of each level; last: of overrides
};

// When links are busy. Things are given in the order of `at_s`, or nearly so: each takes the
// earliest time at which its links are free for as long as it needs, and keeps it, whatever comes
// later. So a short message may pass a long one of other ends that waits for a busy link; those of
// one sender and receiver keep their order. A free link (infinite bandwidth) carries any number at
// once.
class LinkCalendar {
 public:
  explicit LinkCalendar(const Cluster& cluster) : map_(cluster) {}

  const LinkMap& map() const { return map_; }
  // When a message that is sent at `at_s` arrives. To oneself: at once.
  double carry(int from, int to, double at_s, double bytes);
  // When a reduction ends that could begin at `at_s` and takes `seconds` where links are free.
  double reduce(const std::vector<int>& devices, double at_s, double bytes, double seconds);

  // Nothing will be given any more with an earlier `at_s`; what ended before is forgotten.
  void forget_before(double now_s) { horizon_s_ = now_s; }

 private:
  struct Busy {
    double begin_s = 0;
    double end_s = 0;
  };
  using Pages = std::deque<Busy>;  // in order of time, none overlapping

  double earliest(std::span<const int> links, double at_s, double length_s);
  void take(std::span<const int> links, double begin_s, double end_s);

  LinkMap map_;
  double horizon_s_ = -std::numeric_limits<double>::infinity();
  std::unordered_map<int, Pages> pages_;          // by link
  std::unordered_map<int64_t, double> last_end_;  // of a message, by sender and receiver
};

}  // namespace millrace
