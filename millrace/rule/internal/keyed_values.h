// Keys beside values in one vector: a message's first slots hold values, the rest keys of 4 bytes
// each, bit for bit, one a slot in float32 and two in float64. Pure functions; they do nothing to
// vectors without data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/rule/port.h"

namespace millrace::internal {

// Slots of a vector that `num_keys` keys take.
int64_t key_slots(int64_t num_keys, bool is_double);

// Writes keys into `message` from `slot` on, or reads `num_keys` of them from there (zeros where
// there is no data).
void put_keys(Vector& message, int64_t slot, std::span<const uint32_t> keys);
std::vector<uint32_t> get_keys(const Vector& message, int64_t slot, int64_t num_keys);

// to[slot + i] = from[keys[i]]; from[keys[i]] = 0.
void move_values(Vector& to, int64_t slot, Vector& from, std::span<const uint32_t> keys);
// to[slot + i] = from[keys[i]]
void gather(Vector& to, int64_t slot, const Vector& from, std::span<const uint32_t> keys);
// to[keys[i]] = from[slot + i]
void scatter(Vector& to, std::span<const uint32_t> keys, const Vector& from, int64_t slot);
// to[keys[i]] += from[slot + i] / divisor
void scatter_add_quotient(Vector& to, std::span<const uint32_t> keys, const Vector& from,
                          int64_t slot, double divisor);

}  // namespace millrace::internal
