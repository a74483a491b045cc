#include "millrace/rule/internal/server_rule.h"

#include "millrace/rule/arithmetic.h"

namespace millrace {

Task ServerRule::begin(Port& port) {
  if (reply_ == nullptr) {
    reply_ = &port.make_vector(port.num_elements());
  }
  co_return;
}

Task ServerRule::finish(Port& port) {
  request(port, 0, nullptr);
  co_return;
}

Task ServerRule::settle(Port& port, Vector& result) {
  if (port.member() == 0) {
    copy(port, result, shared_ != nullptr ? *shared_ : port.weights());
  } else {
    fill(port, result, 0);
  }
  co_await port.all_reduce(result);
}

void ServerRule::request(Port& port, int what, const Vector* vector) const {
  const Numbers numbers{static_cast<double>(what)};
  port.send(Port::kServer, kRequest, vector, numbers);
}

void ServerRule::open(Port& port) {
  if (shared_ == nullptr) {
    shared_ = &port.make_vector(port.num_elements());
    incoming_ = &port.make_vector(port.num_elements());
    copy(port, *shared_, port.weights());
  }
}

}  // namespace millrace
