// The one definition of which part of a sharded stage's flat buffers each of its replicas keeps
// (see Shard in core/plan.h). Pure function.
#pragma once

#include <cstdint>

namespace millrace {

// Elements [begin, end) of a flat buffer.
struct ShardRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const ShardRange&) const = default;
};

// Of member `member` (by ascending rank) of `members`: ranges cover all elements in member order
// and begin on multiples of 16 elements, sizes as equal as that allows; empty where there are
// fewer multiples than members.
ShardRange shard_range(int member, int members, int64_t elements);

}  // namespace millrace
