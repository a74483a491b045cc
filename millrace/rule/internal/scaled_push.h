// ScaledPush: what replicas do under the rules of a parameter server (server-sync, server-async,
// server-bounded, dssp): an update's delta, made by the replica's own optimizer from its own
// samples, goes to the server times its share of the update's samples; the weights that come back
// when the server lets it go on are the next version. The server only adds.
//
// Velocities stay with the replicas and deltas are scaled, so that, where nobody may run ahead and
// shares stay as they are, the sum of deltas is the one of bsp, momentum and decay included: both
// are linear in the gradient. A server with a velocity is not (measured: 0.36 off after 20 steps),
// and stays stable only for smaller learning rates. This is our choice; the studies do not say.
//
// Source: the parameter servers compared in arXiv:2505.12832.
#pragma once

#include "millrace/rule/internal/server_rule.h"

namespace millrace {

class ScaledPush : public ServerRule {
 public:
  Task begin(Port& port) override;
  Task step(Port& port) override;

 protected:
  // The server's side: adds what a request carries.
  void take_in(Port& port, const Message& request);

 private:
  Vector* delta_ = nullptr;
};

}  // namespace millrace
