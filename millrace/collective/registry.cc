// The table of collectives. builtin.def is read twice: to declare the builtins
// (internal/builtins.h), then to list them; a registrar object in each file would vanish from a
// static library without a warning.
#include <fmt/format.h>

#include "millrace/base/error.h"
#include "millrace/base/find_entry.h"
#include "millrace/collective/internal/builtins.h"
#include "millrace/collective/program.h"

namespace millrace {

const std::vector<CollectiveEntry>& collectives() {
  static const std::vector<CollectiveEntry> entries = {
#define COLLECTIVE(name, symbol, text, steps, sends) \
  {name, text, steps, sends, &builtin_collectives::symbol},
#include "millrace/collective/builtin.def"
#undef COLLECTIVE
      {"native", "the engine's own; ranks of one process first reduce among themselves",
       "the engine's", "the engine's", nullptr},
  };
  return entries;
}

const CollectiveEntry& find_collective(const std::string& name) {
  return find_entry(collectives(), name, "a collective");
}

std::string refusal(const CollectiveEntry& entry, const CollectiveConfig& config) {
  if (entry.builtin == nullptr) {
    return "it is the engine's own and has no program";
  }
  if (config.num_members < 1) {
    return fmt::format("expected at least 1 member, found {}", config.num_members);
  }
  if (config.elements < 0) {
    return fmt::format("expected at least 0 elements, found {}", config.elements);
  }
  const std::size_t num_hosts = config.host_of_member.size();
  if (num_hosts != 0 && num_hosts != static_cast<std::size_t>(config.num_members)) {
    return fmt::format("expected the hosts of {} members, found {}", config.num_members, num_hosts);
  }
  return entry.builtin->offers == nullptr ? "" : entry.builtin->offers(config);
}

CollectiveProgram make_collective(const std::string& name, const CollectiveConfig& config) {
  const CollectiveEntry& entry = find_collective(name);
  const std::string reason = refusal(entry, config);
  if (!reason.empty()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("collective {}: {}", name, reason));
  }
  return entry.builtin->make(config);
}

}  // namespace millrace
