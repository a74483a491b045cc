// RequestOrder: finds the order in which a server took the replicas' requests, from what they got
// back. Which order that is depends on timing; that there is one which explains every reply is the
// law of rules with a server.
//
// Searched on one number a vector (its product with fixed draws), so that each try costs a few
// operations; whoever asked compares whole vectors along the order found. Replies that match are
// taken at once, since only one order gives just these sums, those first that leave the vector as
// it is; what nobody sees, a push without a reply, is tried. One thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <vector>

namespace millrace::internal {

struct ServerRequest {
  int64_t step = 0;     // of the replica's update
  double keep = 1;      // the server's vector becomes keep x itself + add
  at::Tensor add{};     // undefined: nothing
  at::Tensor reply{};   // undefined: nobody sees one
  bool before = false;  // the reply is of the vector before the request was taken in
};

class RequestOrder {
 public:
  // Replies wait until somebody is let go (`held`), then with a lead of at most `most_lead` updates
  // over the slowest of those with requests left; else they are given at once.
  struct Release {
    bool held = false;
    int64_t most_lead = std::numeric_limits<int64_t>::max();
  };
  // Something that happened at the server: it took in a replica's next request, or let it go on.
  struct Event {
    int replica = 0;
    bool takes_in = true;
    bool replies = false;
  };

  RequestOrder(const at::Tensor& initial, const std::vector<std::vector<ServerRequest>>& requests,
               const Release& release);

  // An order that explains all; else the longest part of one that was met. Nothing when there were
  // too many to try.
  std::optional<std::vector<Event>> find();
  bool found_all() const { return found_all_; }

 private:
  struct Seen {
    double keep = 1;
    double add = 0;
    double reply = 0;
    bool has_reply = false;
    bool before = false;
    bool changes = false;  // the server's vector
  };
  struct State {
    double vector = 0;
    std::vector<int16_t> taken;    // by replica
    std::vector<int16_t> replied;  // of those, let go
    auto key() const { return std::pair(taken, replied); }
  };

  double project(const at::Tensor& tensor) const;
  bool matches(double a, double b) const;
  bool waits(const State& state, std::size_t replica) const;
  bool may_go(const State& state, std::size_t replica) const;
  bool search(State& state);
  bool go_on(State& state, const Event& event);

  at::Tensor draws_;
  double slack_ = 0;
  Release release_;
  std::vector<std::vector<Seen>> requests_;
  double initial_ = 0;
  std::set<std::pair<std::vector<int16_t>, std::vector<int16_t>>> failed_;
  std::vector<Event> path_;
  std::vector<Event> longest_;
  bool found_all_ = false;
  bool gave_up_ = false;
};

}  // namespace millrace::internal
