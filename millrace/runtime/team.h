// Team: the ranks of this process as threads. A rank that throws aborts the others; all are joined;
// the first cause is what the caller sees.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "millrace/base/error.h"

namespace millrace {

// Runs `work(rank)` for each of `ranks` on a thread of its own, with one intra-op thread each, and
// joins them. On the first exception `abort` is told its cause, so that no other rank waits for
// ever; after the join that first cause is thrown, with its rank.
void run_ranks(const std::vector<int>& ranks, const std::function<void(const Error&)>& abort,
               const std::function<void(int)>& work);

}  // namespace millrace
