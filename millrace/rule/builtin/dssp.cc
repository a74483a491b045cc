// Dynamic stale-synchronous parameter server: as server-bounded with s_low, but the fastest replica
// may get up to `range` updates more where that shortens its wait. With `cap`, leads stay within
// s_low + range; without, nothing bounds them, since credits can be granted again and again.
//
// Source: Zhao et al., Dynamic Stale Synchronous Parallel Distributed Training, arXiv:1908.11848;
// what is ours is said in release.h.
#include "millrace/rule/internal/released_server.h"

namespace millrace::builtin_rules {

std::unique_ptr<Rule> dssp(const RuleConfig& config) {
  check_rule_config(config);
  const int64_t low = config.options.integer("s_low");
  const int64_t range = config.options.integer("range");
  if (low < 0) {
    refuse_option(config, "s_low", "a whole number of at least 0");
  }
  if (range < 0 || range > 1000) {
    refuse_option(config, "range", "a whole number from 0 to 1000");
  }
  const Release::Config release{.num_members = config.num_members,
                                .low = low,
                                .range = range,
                                .cap = config.options.flag("cap")};
  return std::make_unique<ReleasedServer>(release);
}

}  // namespace millrace::builtin_rules
