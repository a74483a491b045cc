// ReleasedServer: a parameter server that takes updates as they come and lets replicas go on when a
// Release says so, with the weights of that moment. A reply's first number is the replica's lead
// then. Leads and intervals begin anew in each segment.
#pragma once

#include "millrace/rule/internal/first_come.h"
#include "millrace/rule/internal/scaled_push.h"
#include "millrace/rule/release.h"

namespace millrace {

class ReleasedServer final : public FirstCome<ScaledPush> {
 public:
  explicit ReleasedServer(const Release::Config& config) : config_(config), release_(config) {}

 private:
  void on_segment() override;
  void on_request(Port& port, const Message& request) override;
  void on_goodbye(Port& port, int member) override;
  void let_go(Port& port, const std::vector<int>& members);

  Release::Config config_;
  Release release_;
};

}  // namespace millrace
