// FirstCome: a server that takes requests in the order of their arrival, one at a time, until all
// members have said goodbye. `Base` is a ServerRule, which says what replicas do.
#pragma once

#include "millrace/rule/internal/server_rule.h"

namespace millrace {

template <class Base>
class FirstCome : public Base {
 public:
  using Base::Base;

  Task serve(Port& port) final {
    this->open(port);
    on_segment();
    int num_present = port.num_members();
    while (num_present > 0) {
      const Message message = co_await port.receive_any(&this->incoming());
      if (this->what_of(message) == 0) {
        --num_present;
        on_goodbye(port, message.from);
      } else {
        on_request(port, message);
      }
    }
  }

 private:
  // None of them waits. Before the first request of a segment.
  virtual void on_segment() {}
  // `request` has the flags; incoming() its vector, where it adds.
  virtual void on_request(Port& port, const Message& request) = 0;
  // `member` sends nothing more in this segment.
  virtual void on_goodbye(Port& /*port*/, int /*member*/) {}
};

}  // namespace millrace
