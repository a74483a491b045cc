#include "millrace/rule/internal/delta_rule.h"

#include "millrace/rule/arithmetic.h"

namespace millrace {

Task DeltaRule::begin(Port& port) {
  if (gathered_ == nullptr) {
    gathered_ = &port.make_vector(port.num_elements());
    latest_ = most_ > 1 ? &port.make_vector(port.num_elements()) : nullptr;
  }
  Task rest = ServerRule::begin(port);
  co_await rest;
}

Task DeltaRule::finish(Port& port) {
  if (gathered_any()) {
    request(port, kAdds, gathered_);
    clear();
  }
  Task rest = ServerRule::finish(port);
  co_await rest;
}

Vector& DeltaRule::update_locally(Port& port) {
  Vector& delta = gathered_any() ? *latest_ : *gathered_;
  if (port.update().own_samples > 0) {
    port.apply_to(delta, port.gradient(), port.update().own_samples);
  } else {
    fill(port, delta, 0);
  }
  if (gathered_any()) {
    add(port, *gathered_, delta);
  }
  ++num_gathered_;
  return delta;
}

void DeltaRule::on_request(Port& port, const Message& request) {
  const bool asks = (what_of(request) & kAsks) != 0;
  if (asks && replies_before_adding()) {
    port.send(request.from, kReply, shared());
  }
  if ((what_of(request) & kAdds) != 0) {
    add(port, shared(), incoming());
  }
  if (asks && !replies_before_adding()) {
    port.send(request.from, kReply, shared());
  }
}

}  // namespace millrace
