// What the entries bitpipe and bitpipe-published share: two pipelines in opposite directions, each
// of which goes over all ranks and back. Source: "BitPipe: Bidirectional Interleaved Pipeline
// Parallelism for Accelerating Large Models Training" (Wu, Chen, Yu, 2024); the order is a
// reconstruction from the authors' code. Pure functions.
#pragma once

#include "millrace/core/schedule.h"
#include "millrace/schedule/registry.h"

namespace millrace::internal {

// Two stages of each direction.
inline constexpr int kBitpipeChunks = 2;

// Even P, and M a multiple of it.
std::optional<std::string> bitpipe_offers(const ScheduleConfig& config);

// With the published order: that of M = P, and M/P of these joined where one drains into the next.
Schedule bitpipe_published_schedule(const char* name, const ScheduleConfig& config);
// Idle slots of a rank in that order: for M = P, and for more with b = 2f.
double bitpipe_published_idle(const ScheduleConfig& config, double f, double b);
std::vector<int> bitpipe_published_stash(const ScheduleConfig& config);

}  // namespace millrace::internal
