#include "millrace/rule/internal/keyed_values.h"

#include <cstring>
#include <type_traits>

#include "millrace/rule/arithmetic.h"

namespace millrace::internal {
namespace {

constexpr int64_t kKeyBytes = 4;

// body(value of `slots` at `slot` + i, value of `all` at keys[i]) for each key.
template <class Slots, class All, class Body>
void visit_keyed(Slots& slots, int64_t slot, All& all, std::span<const uint32_t> keys,
                 const Body& body) {
  visit(slots, [&](auto values) {
    auto* others = static_cast<typename decltype(values)::element_type*>(all.data);
    auto* value = values.data() + slot;
    for (const uint32_t key : keys) {
      body(*value++, others[key]);
    }
  });
}

char* bytes_at(const Vector& message, int64_t slot) {
  return static_cast<char*>(message.data) + slot * (message.is_double ? 8 : 4);
}

}  // namespace

int64_t key_slots(int64_t num_keys, bool is_double) {
  return is_double ? (num_keys + 1) / 2 : num_keys;
}

void put_keys(Vector& message, int64_t slot, std::span<const uint32_t> keys) {
  if (message.data == nullptr || keys.empty()) {
    return;
  }
  if (message.is_double && keys.size() % 2 != 0) {
    // The half slot that stays free, so that equal keys make equal messages.
    const auto last = static_cast<int64_t>(keys.size() / 2);
    std::memset(bytes_at(message, slot + last), 0, 2 * kKeyBytes);
  }
  std::memcpy(bytes_at(message, slot), keys.data(), keys.size_bytes());
}

std::vector<uint32_t> get_keys(const Vector& message, int64_t slot, int64_t num_keys) {
  std::vector<uint32_t> keys(static_cast<std::size_t>(num_keys));
  if (message.data != nullptr && num_keys > 0) {
    std::memcpy(keys.data(), bytes_at(message, slot),
                static_cast<std::size_t>(num_keys * kKeyBytes));
  }
  return keys;
}

void move_values(Vector& to, int64_t slot, Vector& from, std::span<const uint32_t> keys) {
  visit_keyed(to, slot, from, keys, [](auto& value, auto& other) {
    value = other;
    other = 0;
  });
}

void gather(Vector& to, int64_t slot, const Vector& from, std::span<const uint32_t> keys) {
  visit_keyed(to, slot, from, keys, [](auto& value, const auto& other) { value = other; });
}

void scatter(Vector& to, std::span<const uint32_t> keys, const Vector& from, int64_t slot) {
  visit_keyed(from, slot, to, keys, [](const auto& value, auto& other) { other = value; });
}

void scatter_add_quotient(Vector& to, std::span<const uint32_t> keys, const Vector& from,
                          int64_t slot, double divisor) {
  visit_keyed(from, slot, to, keys, [divisor](const auto& value, auto& other) {
    other += value / static_cast<std::remove_cvref_t<decltype(other)>>(divisor);
  });
}

}  // namespace millrace::internal
