// Stale-synchronous parameter server: a replica goes on while it is at most `staleness` updates
// ahead of the slowest, and is held until it is. 0 is synchronous, with sums in order of arrival.
// With one replica that is always slow everybody soon goes at its speed.
//
// Source: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter
// Server, NIPS 2013; the bounded server compared in arXiv:2505.12832.
#include "millrace/rule/internal/released_server.h"

namespace millrace::builtin_rules {

std::unique_ptr<Rule> server_bounded(const RuleConfig& config) {
  check_rule_config(config);
  const int64_t staleness = config.options.integer("staleness");
  if (staleness < 0) {
    refuse_option(config, "staleness", "a whole number of at least 0");
  }
  const Release::Config release{.num_members = config.num_members, .low = staleness};
  return std::make_unique<ReleasedServer>(release);
}

}  // namespace millrace::builtin_rules
