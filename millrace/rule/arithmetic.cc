#include "millrace/rule/arithmetic.h"

#include <algorithm>
#include <type_traits>

#include "millrace/base/error.h"

namespace millrace {
namespace {

// body(to, from) on the elements of both.
template <class Body>
void visit_pair(Port& port, Vector& to, const Vector& from, const Body& body) {
  MILLRACE_CHECK(to.size == from.size && to.is_double == from.is_double,
                 "vectors of unlike size or dtype");
  port.charge(to.size);
  visit(to, [&](auto values) {
    using T = typename decltype(values)::element_type;
    const T* other = static_cast<const T*>(from.data);
    for (std::size_t i = 0; i < values.size(); ++i) {
      body(values[i], other[i]);
    }
  });
}

}  // namespace

void fill(Port& port, Vector& to, double value) {
  port.charge(to.size);
  visit(to, [&](auto values) {
    std::fill(values.begin(), values.end(),
              static_cast<typename decltype(values)::element_type>(value));
  });
}

void copy(Port& port, Vector& to, const Vector& from) {
  if (to.data == nullptr || to.data != from.data) {
    visit_pair(port, to, from, [](auto& a, auto b) { a = b; });
  }
}

void add(Port& port, Vector& to, const Vector& from) {
  visit_pair(port, to, from, [](auto& a, auto b) { a += b; });
}

void subtract(Port& port, Vector& to, const Vector& from) {
  visit_pair(port, to, from, [](auto& a, auto b) { a -= b; });
}

void scale(Port& port, Vector& to, double factor) {
  port.charge(to.size);
  visit(to, [&](auto values) {
    const auto f = static_cast<typename decltype(values)::element_type>(factor);
    for (auto& value : values) {
      value *= f;
    }
  });
}

void add_scaled(Port& port, Vector& to, double factor, const Vector& from) {
  visit_pair(port, to, from, [factor](auto& a, auto b) {
    a += static_cast<std::remove_cvref_t<decltype(a)>>(factor) * b;
  });
}

void sum(Port& port, Vector& to, const Vector& a, const Vector& b) {
  MILLRACE_CHECK(to.size == a.size && a.size == b.size && to.is_double == a.is_double &&
                     a.is_double == b.is_double,
                 "vectors of unlike size or dtype");
  port.charge(to.size);
  visit(to, [&](auto values) {
    using T = typename decltype(values)::element_type;
    const T* x = static_cast<const T*>(a.data);
    const T* y = static_cast<const T*>(b.data);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = x[i] + y[i];
    }
  });
}

void move_towards(Port& port, Vector& to, const Vector& goal, double share) {
  visit_pair(port, to, goal, [share](auto& a, auto b) {
    a -= static_cast<std::remove_cvref_t<decltype(a)>>(share) * (a - b);
  });
}

void mix(Port& port, Vector& to, double a, double b, const Vector& other) {
  visit_pair(port, to, other, [a, b](auto& x, auto y) {
    using T = std::remove_cvref_t<decltype(x)>;
    x = static_cast<T>(a) * x + static_cast<T>(b) * y;
  });
}

}  // namespace millrace
