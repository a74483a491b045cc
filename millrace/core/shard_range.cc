#include "millrace/core/shard_range.h"

#include <algorithm>

#include "millrace/base/error.h"

namespace millrace {

ShardRange shard_range(int member, int members, int64_t elements) {
  MILLRACE_CHECK(0 <= member && member < members, "a shard of a member that there is not");
  constexpr int64_t kUnit = 16;
  const int64_t units = (elements + kUnit - 1) / kUnit;
  const auto border = [&](int64_t index) {
    return std::min(elements, units * index / members * kUnit);
  };
  return {border(member), border(member + 1)};
}

}  // namespace millrace
