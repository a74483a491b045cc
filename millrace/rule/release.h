// Release: when a server lets the replicas that pushed to it go on. Counts pushes; a replica's lead
// is its count less the least of those that are still there, so one that has finished holds nobody.
//
// Stale-synchronous (range = 0): goes on while its lead is at most `low`, else is held until it is.
// Dynamic (range > 0): the fastest, when it would be held, gets as many further updates as it takes
// for its wait to be the shortest, as intervals between pushes foretell; with `cap` nobody is let
// go with a lead above low + range. Then, at every release: lead <= low + range; at every push the
// counts of those still there are within low + range + 1; and with range = 0, between a read and
// its push the others make at most (members - 1)(2 low + 1).
//
// Pure: no clock, no messages; used by the server's thread, and by tests that replay timings.
//
// Source: Zhao et al., Dynamic Stale Synchronous Parallel Distributed Training, arXiv:1908.11848,
// algorithms 1 and 2; the stale-synchronous rule is Ho et al., NIPS 2013. Ours: the cap, which the
// published bound needs (leads of 25 to 1001 were seen without); that the release which grants
// credits is the first of them; that among equally short waits the most updates are granted, since
// at exactly 1:2 the fewest fall back to the stale-synchronous rule.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace {

class Release {
 public:
  struct Config {
    int num_members = 1;
    int64_t low = 0;    // >= 0
    int64_t range = 0;  // >= 0
    bool cap = true;
  };
  explicit Release(const Config& config);

  // Each gives who goes on now, in this order. `now_s` never goes back.
  std::vector<int> on_push(int member, double now_s);
  std::vector<int> on_goodbye(int member);

  int64_t lead(int member) const;

 private:
  struct Member {
    int64_t pushes = 0;
    double latest_s = 0;
    double previous_s = 0;
    int64_t credits = 0;
    bool present = true;
  };

  bool goes_on(int member);
  bool within_cap(int64_t lead) const;
  bool is_fastest(int member) const;
  // Least count; of those, least number. -1: nobody is there.
  int slowest() const;
  // The controller: how many updates more, 0 to range.
  int64_t further_updates(const Member& fast) const;
  void free_held(std::vector<int>& released);

  Config config_;
  std::vector<Member> members_;
  std::vector<int> held_;  // earliest first
};

}  // namespace millrace
