// ServerRule: what all rules with a server share. Members send it requests, one kind for all of
// them so that none overtakes another; each segment ends with a goodbye, and the server leaves when
// it has heard all of them. Its vector lasts over segments and is what settle() gives.
//
// One object a replica (see rule.h). `shared_` and `incoming_` are the server's, used from its
// thread while it serves; the rest is the replica's.
//
// Source: Theano-MPI, arXiv:1605.08325, its server rules. There the server hands out work as well;
// here members know their own.
#pragma once

#include "millrace/rule/rule.h"

namespace millrace {

class ServerRule : public Rule {
 public:
  Task begin(Port& port) override;
  // Says goodbye.
  Task finish(Port& port) override;
  // The server's vector. Before the first segment: the weights, which then are equal.
  Task settle(Port& port, Vector& result) override;

 protected:
  // The first of a request's numbers is a sum of these; 0 is the goodbye.
  static constexpr int kAdds = 1;  // carries a vector
  static constexpr int kAsks = 2;  // waits for a reply
  static constexpr int kRequest = 0;
  static constexpr int kReply = 1;

  // --- the replica's side
  void request(Port& port, int what, const Vector* vector) const;
  // Receives the server's reply into reply().
  Wait reply_from(Port& port) { return port.receive(Port::kServer, kReply, reply_); }
  Vector& reply() { return *reply_; }

  // --- the server's side
  static int what_of(const Message& request) { return static_cast<int>(request.numbers[0]); }
  Vector& shared() { return *shared_; }
  Vector& incoming() { return *incoming_; }

  // Makes the server's vectors, at the first segment from the weights.
  void open(Port& port);

 private:
  Vector* reply_ = nullptr;
  Vector* shared_ = nullptr;
  Vector* incoming_ = nullptr;
};

}  // namespace millrace
