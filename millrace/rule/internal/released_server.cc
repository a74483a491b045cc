#include "millrace/rule/internal/released_server.h"

namespace millrace {

void ReleasedServer::on_segment() { release_ = Release(config_); }

void ReleasedServer::on_request(Port& port, const Message& request) {
  take_in(port, request);
  let_go(port, release_.on_push(request.from, port.now_s()));
}

void ReleasedServer::on_goodbye(Port& port, int member) {
  let_go(port, release_.on_goodbye(member));
}

void ReleasedServer::let_go(Port& port, const std::vector<int>& members) {
  for (const int member : members) {
    const Numbers numbers{static_cast<double>(release_.lead(member))};
    port.send(member, kReply, &shared(), numbers);
  }
}

}  // namespace millrace
