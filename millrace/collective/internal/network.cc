#include "millrace/collective/internal/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <tuple>

#include "millrace/base/error.h"
#include "millrace/core/links.h"

namespace millrace::internal {
namespace {

using Kind = CollectiveOp::Kind;

void check_ranks(const std::vector<int>& ranks, const Cluster& cluster) {
  const int num_devices = cluster.num_devices();
  std::set<int> seen;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= num_devices) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("rank {} needs a device, but the cluster has {}; use a larger cluster", rank,
                      num_devices));
    }
    if (!seen.insert(rank).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("rank {} is two members of one collective", rank));
    }
  }
}

}  // namespace

Network::Network(const std::vector<int>& ranks, const Cluster& cluster)
    : num_members_(static_cast<int>(ranks.size())), overhead_s_(cluster.action_overhead_s) {
  check_ranks(ranks, cluster);
  routes_.resize(ranks.size() * ranks.size());
  const LinkMap map(cluster);
  std::map<int, int> ports;  // by link, of those that are used
  const auto port_of = [&](int link) {
    const auto [found, is_new] = ports.try_emplace(link, num_ports_);
    num_ports_ += is_new ? 1 : 0;
    return found->second;
  };
  for (std::size_t from = 0; from < ranks.size(); ++from) {
    for (std::size_t to = 0; to < ranks.size(); ++to) {
      if (from == to) {
        continue;
      }
      const LinkRoute links = map.route(ranks[from], ranks[to]);
      Route& route = routes_[from * ranks.size() + to];
      route.bandwidth_bytes_per_s = links.bandwidth_bytes_per_s;
      route.latency_s = links.latency_s;
      route.out_port = port_of(links.out_link);
      route.in_port = port_of(links.in_link);
    }
  }
}

namespace {

struct Message {
  int from = 0;
  int to = 0;
  double on_wire_s = 0;
  bool arrived = false;
};

// An outgoing port has a queue, whose first message either is on its way or waits at its incoming
// port.
struct Port {
  bool busy = false;
  bool waits = false;
  std::queue<int> messages;
};

struct Channel {  // of one ordered pair of members
  std::vector<int> messages;
  std::size_t num_taken = 0;
};

// What a member is at: its next operation, and whether it is busy with that one's overhead.
struct Member {
  std::size_t next = 0;
  bool busy = false;
};

struct Event {
  enum class Kind : uint8_t { kLeaves, kArrives, kResumes };
  double time_s = 0;
  int number = 0;  // of equal times the first made comes first
  Kind kind = Kind::kLeaves;
  int subject = 0;  // the message that leaves its ports or arrives, the member that resumes
  bool operator>(const Event& other) const {
    return std::tie(time_s, number) > std::tie(other.time_s, other.number);
  }
};

class Simulation {
 public:
  Simulation(const Network& network, const CollectiveProgram& program, const WireBytes& wire_bytes)
      : network_(network),
        program_(program),
        wire_bytes_(wire_bytes),
        members_(program.members.size()),
        channels_(program.members.size() * program.members.size()),
        ports_(static_cast<std::size_t>(network.num_ports())) {
    timing_.member_s.resize(program.members.size());
  }

  CollectiveTiming run() {
    for (int m = 0; m < network_.num_members(); ++m) {
      advance(m, 0);
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.kind == Event::Kind::kLeaves) {
        leave(event.subject, event.time_s);
      } else if (event.kind == Event::Kind::kArrives) {
        messages_[event.subject].arrived = true;
        advance(messages_[event.subject].to, event.time_s);
      } else {
        members_[event.subject].busy = false;
        complete(event.subject, event.time_s);
        advance(event.subject, event.time_s);
      }
    }
    for (std::size_t m = 0; m < members_.size(); ++m) {
      MILLRACE_CHECK(members_[m].next == program_.members[m].ops.size(),
                     fmt::format("member {} of {} waits forever", m, program_.algorithm));
      timing_.seconds = std::max(timing_.seconds, timing_.member_s[m]);
    }
    return std::move(timing_);
  }

 private:
  const CollectiveOp& next_op(int member) const {
    return program_.members[member].ops[members_[member].next];
  }

  void schedule(double time_s, Event::Kind kind, int subject) {
    events_.push({time_s, num_events_++, kind, subject});
  }

  // Runs a member's operations until one waits for a message or takes time.
  void advance(int member, double now_s) {
    Member& self = members_[member];
    while (!self.busy && self.next < program_.members[member].ops.size()) {
      const CollectiveOp& op = next_op(member);
      if (op.kind == Kind::kReceive && !has_arrived(op.peer, member)) {
        return;
      }
      if (op.kind == Kind::kSum || network_.overhead_s() == 0) {
        complete(member, now_s);
      } else {
        self.busy = true;
        schedule(now_s + network_.overhead_s(), Event::Kind::kResumes, member);
      }
    }
  }

  bool has_arrived(int from, int to) {
    const Channel& channel = channel_of(from, to);
    return channel.num_taken < channel.messages.size() &&
           messages_[channel.messages[channel.num_taken]].arrived;
  }

  void complete(int member, double now_s) {
    const CollectiveOp& op = next_op(member);
    ++members_[member].next;
    if (op.kind == Kind::kSend) {
      send(member, op, now_s);
    } else if (op.kind == Kind::kReceive) {
      ++channel_of(op.peer, member).num_taken;
      timing_.member_s[member] = std::max(timing_.member_s[member], now_s);
    }
  }

  void send(int from, const CollectiveOp& op, double now_s) {
    double bytes = op.parts.empty() ? wire_bytes_(op.place.size()) : 0;
    for (const Place& block : op.parts) {
      bytes += wire_bytes_(block.size());
    }
    const Route& route = network_.route(from, op.peer);
    const int message = static_cast<int>(messages_.size());
    messages_.push_back({from, op.peer, bytes / route.bandwidth_bytes_per_s});
    channel_of(from, op.peer).messages.push_back(message);
    ports_[route.out_port].messages.push(message);
    try_next(route.out_port, now_s);
  }

  void try_next(int out_port, double now_s) {
    Port& out = ports_[out_port];
    if (out.busy || out.waits || out.messages.empty()) {
      return;
    }
    const int message = out.messages.front();
    Port& in = ports_[route_of(message).in_port];
    if (in.busy) {
      out.waits = true;
      in.messages.push(message);
    } else {
      enter(message, now_s);
    }
  }

  void enter(int message, double now_s) {
    const Route& route = route_of(message);
    Port& out = ports_[route.out_port];
    out.busy = ports_[route.in_port].busy = true;
    out.waits = false;
    out.messages.pop();
    schedule(now_s + messages_[message].on_wire_s, Event::Kind::kLeaves, message);
  }

  void leave(int message, double now_s) {
    const Route& route = route_of(message);
    Port& in = ports_[route.in_port];
    ports_[route.out_port].busy = in.busy = false;
    double& sender_s = timing_.member_s[messages_[message].from];
    sender_s = std::max(sender_s, now_s);
    schedule(now_s + route.latency_s, Event::Kind::kArrives, message);
    if (!in.messages.empty()) {
      const int first = in.messages.front();
      in.messages.pop();
      enter(first, now_s);
    }
    try_next(route.out_port, now_s);
  }

  const Route& route_of(int message) const {
    return network_.route(messages_[message].from, messages_[message].to);
  }
  Channel& channel_of(int from, int to) { return channels_[from * network_.num_members() + to]; }

  const Network& network_;
  const CollectiveProgram& program_;
  const WireBytes& wire_bytes_;
  CollectiveTiming timing_;
  std::vector<Member> members_;
  std::vector<Message> messages_;
  std::vector<Channel> channels_;
  std::vector<Port> ports_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int num_events_ = 0;
};

}  // namespace

CollectiveTiming time_on(const Network& network, const CollectiveProgram& program,
                         const WireBytes& wire_bytes) {
  if (static_cast<int>(program.members.size()) != network.num_members()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("collective {}: expected a rank for each of {} members, found {}",
                            program.algorithm, program.members.size(), network.num_members()));
  }
  return Simulation(network, program, wire_bytes).run();
}

}  // namespace millrace::internal
