#include "millrace/rule/internal/scaled_push.h"

#include "millrace/rule/arithmetic.h"

namespace millrace {

Task ScaledPush::begin(Port& port) {
  if (delta_ == nullptr) {
    delta_ = &port.make_vector(port.num_elements());
  }
  Task rest = ServerRule::begin(port);
  co_await rest;
}

Task ScaledPush::step(Port& port) {
  const Update& update = port.update();
  if (update.own_samples > 0) {
    port.apply_to(*delta_, port.gradient(), update.own_samples);
    scale(port, *delta_, update.own_samples / update.samples);
    request(port, kAdds | kAsks, delta_);
  } else {
    request(port, kAsks, nullptr);  // counts as a push all the same
  }
  co_await reply_from(port);
  copy(port, port.weights(), reply());
}

void ScaledPush::take_in(Port& port, const Message& request) {
  if ((what_of(request) & kAdds) != 0) {
    add(port, shared(), incoming());
  }
}

}  // namespace millrace
