// Asynchronous parameter server: takes each replica's update as it comes and lets the replica go on
// at once with the weights of that moment.
//
// Source: the asynchronous parameter server compared in arXiv:2505.12832.
#include "millrace/rule/internal/first_come.h"
#include "millrace/rule/internal/scaled_push.h"

namespace millrace::builtin_rules {
namespace {

class ServerAsync final : public FirstCome<ScaledPush> {
  void on_request(Port& port, const Message& request) override {
    take_in(port, request);
    port.send(request.from, kReply, shared());
  }
};

}  // namespace

std::unique_ptr<Rule> server_async(const RuleConfig& config) {
  check_rule_config(config);
  return std::make_unique<ServerAsync>();
}

}  // namespace millrace::builtin_rules
