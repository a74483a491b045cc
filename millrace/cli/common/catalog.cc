#include "millrace/cli/common/catalog.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/collective/codec.h"
#include "millrace/collective/program.h"
#include "millrace/core/lr_schedule.h"
#include "millrace/planner/planner.h"
#include "millrace/rule/rule.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/registry.h"

namespace millrace::cli {
namespace {

CatalogKind list_schedules() {
  CatalogKind kind{"schedules", {}};
  for (const ScheduleEntry& entry : schedules()) {
    kind.items.push_back({entry.name,
                          entry.text,
                          {{"policies", join(entry.builtin->policies(), " ")},
                           {"formula", entry.builtin->formula_text}}});
  }
  return kind;
}

CatalogKind list_policies() {
  CatalogKind kind{"policies", {}};
  for (const PolicyEntry& entry : policies()) {
    kind.items.push_back(
        {entry.name, entry.text, {{"schedules", entry.needs_flush ? "with a flush" : "without"}}});
  }
  return kind;
}

CatalogKind list_rules() {
  CatalogKind kind{"rules", {}};
  for (const RuleEntry& entry : rules()) {
    kind.items.push_back({entry.name,
                          entry.text,
                          {{"options", entry.keys.empty() ? "-" : entry.keys},
                           {"conserves", entry.conserves},
                           {"sends", entry.sends},
                           {"staleness", entry.staleness}}});
  }
  return kind;
}

CatalogKind list_planners() {
  CatalogKind kind{"planners", {}};
  for (const PlannerEntry& entry : planners()) {
    kind.items.push_back({entry.name, entry.text, {{"source", entry.source}}});
  }
  return kind;
}

// The entries hold functions of the half that needs libtorch, so only their text is used here.
CatalogKind list_models() {
  return {"models",
          {
#define MODEL(name, symbol, text, options) {name, text, {{"options", options}}},
#include "millrace/model/builtin.def"
#undef MODEL
          }};
}

CatalogKind list_datasets() {
  return {"datasets",
          {
#define DATASET(name, symbol, text, options) {name, text, {{"options", options}}},
#include "millrace/data/builtin.def"
#undef DATASET
          }};
}

CatalogKind list_optimizers() {
  return {"optimizers",
          {
#define OPTIMIZER(name, symbol, text, keys, state) {name, text, {{"keys", keys}, {"state", state}}},
#include "millrace/runtime/builtin.def"
#undef OPTIMIZER
          }};
}

CatalogKind list_lr_schedules() {
  CatalogKind kind{"lr-schedules", {}};
  for (const LrScheduleEntry& entry : lr_schedules()) {
    kind.items.push_back({entry.name, entry.text, {{"keys", entry.keys}}});
  }
  return kind;
}

CatalogKind list_collectives() {
  CatalogKind kind{"collectives", {}};
  for (const CollectiveEntry& entry : collectives()) {
    kind.items.push_back(
        {entry.name, entry.text, {{"steps", entry.steps}, {"sends", entry.sends}}});
  }
  return kind;
}

CatalogKind list_codecs() {
  CatalogKind kind{"codecs", {}};
  for (const CodecEntry& entry : codecs()) {
    kind.items.push_back(
        {entry.name, entry.text, {{"bytes", entry.bytes}, {"error", entry.error}}});
  }
  return kind;
}

CatalogKind list_engines() {
  return {"engines",
          {{"inproc", "ranks are threads of one process; tensors are handed over uncopied", {}},
           {"gloo", "between processes by c10d's Gloo, over TCP", {}},
           {"mpi", "between processes by Open MPI", {}}}};
}

std::string singular(const std::string& kind) {
  const bool ies = kind.size() > 3 && kind.substr(kind.size() - 3) == "ies";
  return ies ? kind.substr(0, kind.size() - 3) + "y" : kind.substr(0, kind.size() - 1);
}

std::vector<CatalogKind>& table() {
  static std::vector<CatalogKind> kinds = {
      list_schedules(),   list_policies(), list_rules(),      list_planners(),
      list_models(),      list_datasets(), list_optimizers(), list_lr_schedules(),
      list_collectives(), list_codecs(),   list_engines()};
  return kinds;
}

}  // namespace

const std::vector<CatalogKind>& catalog() { return table(); }

void set_catalog_items(const std::string& kind, std::vector<CatalogItem> items) {
  const auto found = std::find_if(table().begin(), table().end(),
                                  [&](const CatalogKind& known) { return known.kind == kind; });
  MILLRACE_CHECK(found != table().end(), "no kind " + kind);
  found->items = std::move(items);
}

const CatalogKind& find_kind(const std::string& kind) {
  std::vector<std::string> names;
  for (const CatalogKind& candidate : catalog()) {
    if (kind == candidate.kind || kind == singular(candidate.kind)) {
      return candidate;
    }
    names.push_back(candidate.kind);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("no kind of things is called {}{}; there are {}", in_quotes(kind),
                          did_you_mean(kind, names), join(names, ", ")));
}

const CatalogItem& find_item(const CatalogKind& kind, const std::string& name) {
  std::vector<std::string> names;
  for (const CatalogItem& item : kind.items) {
    if (item.name == name) {
      return item;
    }
    names.push_back(item.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown {} {}{}; there are {}", singular(kind.kind), in_quotes(name),
                          did_you_mean(name, names), join(names, ", ")));
}

}  // namespace millrace::cli
