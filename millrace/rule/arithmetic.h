// Arithmetic of rules on a replica's vectors, torch-free: one pass each, every operation rounded
// by itself, so that two programs that agree on the formula agree on the bits. Tells the port of
// each pass; where only sizes are simulated that is all it does. Sizes must be equal.
#pragma once

#include <cstdint>
#include <span>

#include "millrace/rule/port.h"

namespace millrace {

// Calls `body` with the vector's elements, a span of float or of double; not at all where there is
// no data.
template <class Body>
void visit(const Vector& vector, const Body& body) {
  if (vector.data == nullptr) {
    return;
  }
  const auto size = static_cast<std::size_t>(vector.size);
  if (vector.is_double) {
    body(std::span<double>(static_cast<double*>(vector.data), size));
  } else {
    body(std::span<float>(static_cast<float*>(vector.data), size));
  }
}

void fill(Port& port, Vector& to, double value);
void copy(Port& port, Vector& to, const Vector& from);      // nothing when both are one
void add(Port& port, Vector& to, const Vector& from);       // to += from
void subtract(Port& port, Vector& to, const Vector& from);  // to -= from
void scale(Port& port, Vector& to, double factor);          // to *= factor
void add_scaled(Port& port, Vector& to, double factor, const Vector& from);  // to += factor from
// to = a + b; any of the three may be one.
void sum(Port& port, Vector& to, const Vector& a, const Vector& b);
// d = share (to - goal); to -= d. Two sides that move towards each other by the same share from
// their old values keep their sum to rounding.
void move_towards(Port& port, Vector& to, const Vector& goal, double share);
// to = a to + b other
void mix(Port& port, Vector& to, double a, double b, const Vector& other);

}  // namespace millrace
