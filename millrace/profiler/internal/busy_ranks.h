// Measuring on one thread while others keep the machine busy, as the ranks of a run do.
#pragma once

#include <functional>

namespace millrace::internal {

// Runs `measure` on one thread and `keep_busy` on ranks - 1 others, each with one intra-op thread,
// and returns when all have ended; these are to end soon after `give_up()` is called, which any
// thread that throws does (from that thread). Rethrows the first failure.
void run_among_busy(int ranks, const std::function<void()>& measure,
                    const std::function<void()>& keep_busy, const std::function<void()>& give_up);

}  // namespace millrace::internal
