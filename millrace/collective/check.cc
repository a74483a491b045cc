#include "millrace/collective/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

using Kind = CollectiveOp::Kind;

bool overlap(const Place& a, const Place& b) {
  return a.space == b.space && a.begin < b.end && b.begin < a.end;
}

std::string to_text(const Place& place) {
  return fmt::format("{}[{}, {})", place.space == Space::kData ? "data" : "scratch", place.begin,
                     place.end);
}

// Operations (member, index) of the messages of one ordered pair, in order.
struct Channel {
  std::vector<int> sends;
  std::vector<int> receives;
};
using Channels = std::map<std::pair<int, int>, Channel>;  // by (from, to)

class Checker {
 public:
  explicit Checker(const CollectiveProgram& program) : program_(program) {}

  std::vector<ProgramFinding> run() {
    const int count = static_cast<int>(program_.members.size());
    for (int member = 0; member < count; ++member) {
      check_operations(member);
    }
    if (findings_.empty()) {
      check_messages();
    }
    if (findings_.empty()) {
      check_progress();
    }
    return std::move(findings_);
  }

 private:
  const CollectiveOp& op_at(int member, int op) const { return program_.members[member].ops[op]; }

  void report(int member, int op, std::string text) {
    findings_.push_back({member, op, std::move(text)});
  }

  void check_place(int member, int op, const Place& place) {
    const int64_t size =
        place.space == Space::kData ? program_.elements : program_.members[member].scratch_elements;
    if (place.begin < 0 || place.end > size || place.begin >= place.end) {
      report(member, op, fmt::format("{} is not a place of a buffer of {}", to_text(place), size));
    }
  }

  void check_parts(int member, int index) {
    const CollectiveOp& op = op_at(member, index);
    for (const Place& part : op.parts) {
      check_place(member, index, part);
    }
    if (op.kind == Kind::kSum) {
      const auto unequal = [&op](const Place& part) { return part.size() != op.place.size(); };
      const auto shifted = [&op](const Place& part) {
        return overlap(part, op.place) && !(part == op.place);
      };
      if (op.parts.empty() || std::any_of(op.parts.begin(), op.parts.end(), unequal)) {
        report(member, index,
               "the parts of a sum differ in size from its place, or there are none");
      }
      if (std::any_of(op.parts.begin(), op.parts.end(), shifted)) {
        report(member, index, fmt::format("{} overlaps a part", to_text(op.place)));
      }
      return;
    }
    int64_t next = op.place.begin;
    for (const Place& block : op.parts) {
      next = block.space == op.place.space && block.begin == next ? block.end : -1;
    }
    if (!op.parts.empty() && next != op.place.end) {
      report(member, index, fmt::format("blocks do not tile {}", to_text(op.place)));
    }
  }

  void check_operations(int member) {
    const MemberProgram& list = program_.members[member];
    int sent = -1;  // step of the last one
    int received = -1;
    for (int i = 0; i < static_cast<int>(list.ops.size()); ++i) {
      const CollectiveOp& op = list.ops[i];
      check_place(member, i, op.place);
      check_parts(member, i);
      if (op.step < 0 || op.step >= program_.num_steps) {
        report(member, i, fmt::format("step {} of {}", op.step, program_.num_steps));
      }
      if (op.kind == Kind::kSum) {
        continue;
      }
      if (op.peer < 0 || op.peer >= static_cast<int>(program_.members.size()) ||
          op.peer == member) {
        report(member, i, fmt::format("no peer {}", op.peer));
        continue;
      }
      int& last = op.kind == Kind::kSend ? sent : received;
      if (op.step <= last) {
        report(member, i,
               fmt::format("a message of step {} after one of step {} in the same direction",
                           op.step, last));
      }
      if (op.kind == Kind::kSend && op.step <= received) {
        report(member, i,
               fmt::format("sends in step {} after it received in step {}", op.step, received));
      }
      last = op.step;
      Channel& channel =
          op.kind == Kind::kSend ? channels_[{member, op.peer}] : channels_[{op.peer, member}];
      (op.kind == Kind::kSend ? channel.sends : channel.receives).push_back(i);
    }
  }

  void check_messages() {
    for (const auto& [ends, channel] : channels_) {
      const auto [from, to] = ends;
      const std::size_t both = std::min(channel.sends.size(), channel.receives.size());
      for (std::size_t k = 0; k < both; ++k) {
        const CollectiveOp& send = op_at(from, channel.sends[k]);
        const CollectiveOp& receive = op_at(to, channel.receives[k]);
        const bool same_blocks = std::equal(
            send.parts.begin(), send.parts.end(), receive.parts.begin(), receive.parts.end(),
            [](const Place& a, const Place& b) { return a.size() == b.size(); });
        if (send.place.size() != receive.place.size() || send.step != receive.step ||
            send.final != receive.final || !same_blocks) {
          report(to, channel.receives[k],
                 fmt::format("message {} from member {} is of {} elements in step {}, here {} in "
                             "step {}, or differs in blocks or `final`",
                             k, from, send.place.size(), send.step, receive.place.size(),
                             receive.step));
        }
      }
      if (channel.sends.size() > both) {
        report(from, channel.sends[both], fmt::format("member {} never receives this", to));
      }
      if (channel.receives.size() > both) {
        report(to, channel.receives[both], fmt::format("member {} never sends this", from));
      }
    }
  }

  struct Sent {
    int op = 0;
    int to = 0;
    int receive = 0;  // index of the receiving operation
  };
  // What a member has done, and what it can know that others have done: operations completed, by
  // member.
  struct Progress {
    int next = 0;
    std::vector<int> known;
    std::vector<Sent> sent;
  };

  void check_overwrite(int member, int index, const Progress& progress) {
    const CollectiveOp& op = op_at(member, index);
    for (const Sent& sent : progress.sent) {
      if (overlap(op_at(member, sent.op).place, op.place) &&
          progress.known[sent.to] <= sent.receive) {
        report(member, index,
               fmt::format("writes {} while member {} may not have what operation {} sent",
                           to_text(op.place), sent.to, sent.op));
      }
    }
  }

  // Walks every member as far as it goes until nobody can go on. Sends carry what their sender
  // knows.
  void check_progress() {
    const int count = static_cast<int>(program_.members.size());
    std::vector<Progress> members(count);
    std::map<std::pair<int, int>, std::vector<std::vector<int>>> on_way;
    std::map<std::pair<int, int>, std::size_t> num_taken;
    for (Progress& member : members) {
      member.known.resize(count);
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int m = 0; m < count; ++m) {
        Progress& self = members[m];
        while (self.next < static_cast<int>(program_.members[m].ops.size())) {
          const CollectiveOp& op = op_at(m, self.next);
          if (op.kind == Kind::kSend) {
            auto& messages = on_way[{m, op.peer}];
            self.sent.push_back(
                {self.next, op.peer, channels_.at({m, op.peer}).receives[messages.size()]});
            messages.push_back(self.known);
          } else if (op.kind == Kind::kReceive) {
            const auto& messages = on_way[{op.peer, m}];
            std::size_t& taken = num_taken[{op.peer, m}];
            if (taken == messages.size()) {
              break;
            }
            learn(self.known, messages[taken++]);
          }
          if (op.kind != Kind::kSend) {
            check_overwrite(m, self.next, self);
          }
          self.known[m] = ++self.next;
          moved = true;
        }
      }
    }
    // Steps rise along every list and each message stays in its own, sends first: no circle of
    // waits.
    for (int m = 0; m < count; ++m) {
      MILLRACE_CHECK(members[m].next == static_cast<int>(program_.members[m].ops.size()),
                     fmt::format("member {} of {} waits forever", m, program_.algorithm));
    }
  }

  static void learn(std::vector<int>& known, const std::vector<int>& more) {
    std::transform(more.begin(), more.end(), known.begin(), known.begin(),
                   [](int a, int b) { return std::max(a, b); });
  }

  const CollectiveProgram& program_;
  Channels channels_;
  std::vector<ProgramFinding> findings_;
};

}  // namespace

std::vector<ProgramFinding> check_program(const CollectiveProgram& program) {
  return Checker(program).run();
}

ProgramCounts count_program(const CollectiveProgram& program) {
  ProgramCounts counts;
  std::set<int> steps;
  for (const MemberProgram& member : program.members) {
    int64_t sent = 0;
    for (const CollectiveOp& op : member.ops) {
      if (op.kind == Kind::kSend) {
        sent += op.place.size();
        ++counts.num_messages;
        steps.insert(op.step);
      }
    }
    counts.sent_elements.push_back(sent);
    counts.total_elements += sent;
  }
  counts.num_steps = static_cast<int>(steps.size());
  return counts;
}

}  // namespace millrace
