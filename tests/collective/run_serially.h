// Executes a collective program on plain vectors, one member after the other as far as each goes.
// What the tests prove results with; shares nothing with the executor on tensors.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "millrace/collective/program.h"

namespace millrace {

// Turns n numbers, a block on the wire, into what its receiver decodes.
template <typename T>
using RoundTrip = std::function<void(T* block, int64_t n)>;

// data[member] holds N numbers and is replaced by the result. With `wire`, every message passes
// through it block by block, and the sender of a final one keeps what the others decode.
template <typename T>
void run_serially(const CollectiveProgram& program, std::vector<std::vector<T>>& data,
                  const RoundTrip<T>& wire = nullptr) {
  using Kind = CollectiveOp::Kind;
  const std::size_t count = program.members.size();
  std::vector<std::vector<T>> scratch(count);
  std::vector<std::size_t> next(count);
  std::map<std::pair<std::size_t, std::size_t>, std::deque<std::vector<T>>> on_way;
  for (std::size_t m = 0; m < count; ++m) {
    scratch[m].resize(static_cast<std::size_t>(program.members[m].scratch_elements));
  }
  const auto at = [&](std::size_t m, const Place& place) {
    return (place.space == Space::kData ? data[m] : scratch[m]).data() + place.begin;
  };
  const auto step = [&](std::size_t m, const CollectiveOp& op) {
    T* place = at(m, op.place);
    const auto peer = static_cast<std::size_t>(op.peer);
    if (op.kind == Kind::kSend) {
      std::vector<T> message(place, place + op.place.size());
      if (wire) {
        const std::vector<Place> whole = {op.place};
        for (const Place& block : op.parts.empty() ? whole : op.parts) {
          wire(message.data() + (block.begin - op.place.begin), block.size());
        }
        if (op.final) {
          std::copy(message.begin(), message.end(), place);
        }
      }
      on_way[{m, peer}].push_back(std::move(message));
    } else if (op.kind == Kind::kReceive) {
      auto& queue = on_way[{peer, m}];
      if (queue.empty()) {
        return false;
      }
      EXPECT_EQ(static_cast<int64_t>(queue.front().size()), op.place.size());
      std::copy(queue.front().begin(), queue.front().end(), place);
      queue.pop_front();
    } else {
      std::vector<T> sum(at(m, op.parts[0]), at(m, op.parts[0]) + op.place.size());
      for (std::size_t k = 1; k < op.parts.size(); ++k) {
        const T* part = at(m, op.parts[k]);
        for (std::size_t i = 0; i < sum.size(); ++i) {
          sum[i] += part[i];
        }
      }
      std::copy(sum.begin(), sum.end(), place);
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t m = 0; m < count; ++m) {
      const std::vector<CollectiveOp>& ops = program.members[m].ops;
      while (next[m] < ops.size() && step(m, ops[next[m]])) {
        ++next[m];
        moved = true;
      }
    }
  }
  for (std::size_t m = 0; m < count; ++m) {
    EXPECT_EQ(next[m], program.members[m].ops.size()) << "member " << m << " waits forever";
  }
  for (const auto& [ends, queue] : on_way) {
    EXPECT_TRUE(queue.empty()) << "a message " << ends.first << ">" << ends.second << " is left";
  }
}

}  // namespace millrace
