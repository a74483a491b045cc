// Synchronous parameter server: takes the updates of all replicas, then lets them go on with the
// new weights. Takes them in the order of members, so that sums have the same bits in every run. A
// replica that has finished is not waited for.
//
// Source: the synchronous parameter server compared in arXiv:2505.12832.
#include "millrace/rule/internal/scaled_push.h"

namespace millrace::builtin_rules {
namespace {

class ServerSync final : public ScaledPush {
 public:
  Task serve(Port& port) override {
    open(port);
    std::vector<int> present;
    for (int member = 0; member < port.num_members(); ++member) {
      present.push_back(member);
    }
    while (!present.empty()) {
      std::vector<int> waiting;
      for (const int member : present) {
        const Message message = co_await port.receive(member, kRequest, &incoming());
        if (what_of(message) != 0) {
          take_in(port, message);
          waiting.push_back(member);
        }
      }
      for (const int member : waiting) {
        port.send(member, kReply, shared());
      }
      present = waiting;
    }
  }
};

}  // namespace

std::unique_ptr<Rule> server_sync(const RuleConfig& config) {
  check_rule_config(config);
  return std::make_unique<ServerSync>();
}

}  // namespace millrace::builtin_rules
