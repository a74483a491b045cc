// The table of exchange rules. builtin.def is read twice: to declare the factories, then to list
// them; a registrar object in each file would vanish from a static library without a warning.
#include <fmt/format.h>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/rule/rule.h"

namespace millrace {

namespace builtin_rules {
#define RULE(name, symbol, text, conserves, sends, staleness) \
  std::unique_ptr<Rule> symbol(const RuleConfig& config);
#include "millrace/rule/builtin.def"
#undef RULE
}  // namespace builtin_rules

const std::vector<RuleEntry>& rules() {
  static const std::vector<RuleEntry> entries = {
#define RULE(name, symbol, text, conserves, sends, staleness) \
  {name, text, conserves, sends, staleness, &builtin_rules::symbol},
#include "millrace/rule/builtin.def"
#undef RULE
  };
  return entries;
}

const RuleEntry& find_rule(const std::string& name) {
  std::vector<std::string> names;
  for (const RuleEntry& entry : rules()) {
    if (entry.name == name) {
      return entry;
    }
    names.push_back(entry.name);
  }
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) {
    hint = fmt::format("; there are: {}", join(names, ", "));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("expected the name of an exchange rule, found `{}`{}", name, hint));
}

void check_rule_config(const RuleConfig& config) {
  if (config.num_replicas < 1 || config.replica < 0 || config.replica >= config.num_replicas) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a rule needs 0 <= replica < num_replicas, found replica {} of {}",
                            config.replica, config.num_replicas));
  }
}

}  // namespace millrace
