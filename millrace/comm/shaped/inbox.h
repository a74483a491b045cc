// Inbox: what a rank has been sent over shaped links and has not taken, at one lane: messages that
// the engine brought before they are to arrive. Of the thread that waits at the lane.
#pragma once

#include <optional>
#include <vector>

#include "millrace/comm/communicator.h"

namespace millrace {

// Says when a message arrives, and goes ahead of it with its tag, but for one bit of the kind:
// kinds of actions and of engines are below it.
MessageTag stamp_of(MessageTag tag);

class Inbox {
 public:
  struct Message {
    double arrival_s = 0;
    Arrived content;
  };

  // A stamp or a message, as the engine brings them: in the order of sending for each sender and
  // tag. A message whose stamp did not come is an Error(kInternal).
  void put(Arrived content);

  // The first arrival of all; null when there is none.
  const Message* earliest() const;
  Arrived take_earliest();  // not empty

  // The first message that was sent with this tag, or only its stamp, which came alone.
  std::optional<Message> take(int from, const MessageTag& tag);
  std::optional<double> take_stamp(int from, const MessageTag& tag);

 private:
  struct Stamp {
    int from = 0;
    MessageTag tag;  // the message's
    double arrival_s = 0;
  };

  std::vector<Stamp> stamps_;      // of messages that are not here
  std::vector<Message> messages_;  // in the order that they were put
};

}  // namespace millrace
