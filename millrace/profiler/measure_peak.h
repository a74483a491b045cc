// Measures what this machine can do at most: multiply-adds in matrix products and bytes moved
// between memory and processor. Profiles say by it what share of the machine a layer used;
// `millrace doctor --measure` prints it.
//
// Every rank is a thread with no threads inside its operations, as in training.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace millrace {

// Most FLOPs a second (two a multiply-add) of one rank while `ranks` of them multiply square
// matrices that fit into the caches: over several sizes, each one's median of repeats. Takes about
// `seconds`, at least one product a size. `dtype`: float32 or float64.
double measure_gemm_flops_per_s(int ranks, at::ScalarType dtype, double seconds);

// Bytes a second, read and written ones together, at which `ranks` threads copy an array of
// `array_bytes` each to another one, all threads together. Takes about `seconds` beside the time
// that the system needs to hand out the memory.
double measure_copy_bytes_per_s(int ranks, int64_t array_bytes, double seconds);

// An array so large that what `ranks` threads copy does not fit into the caches: 64 to 128 MiB,
// since a virtual machine may report a cache of which it has but a part.
int64_t array_beyond_caches(int ranks);

}  // namespace millrace
