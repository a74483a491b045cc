// Everything that can be named in run.toml or on the command line, by kind. Built from the
// registries and, for folders that need libtorch, from their builtin.def files alone.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/core/run_config.h"

namespace millrace::cli {

struct CatalogItem {
  std::string name;
  std::string text;
  // More facts in order: {"formula", "..."}, {"options", "depth=8 width=256"}, {"conserves", ...}.
  std::vector<std::pair<std::string, std::string>> facts;
};

struct CatalogKind {
  // "schedules", "policies", "rules", "planners", "models", "datasets",
  // "optimizers", "lr-schedules", "collectives", "codecs", "engines"
  std::string kind;
  std::vector<CatalogItem> items;
};

const std::vector<CatalogKind>& catalog();
// For a program that brings more of a kind than the builtins: replaces all items of a kind that
// there is. Not thread-safe.
void set_catalog_items(const std::string& kind, std::vector<CatalogItem> items);
// The singular is accepted too. Throws Error(kInvalidArgument) with the nearest name.
const CatalogKind& find_kind(const std::string& kind);
// The same for an item; the message lists what there is.
const CatalogItem& find_item(const CatalogKind& kind, const std::string& name);

// Reads run.toml, applies settings, checks keys, ranges, batch arithmetic, registry names, the
// model's and dataset's option keys (unknown: error with nearest name; a number where text is due
// and the reverse), schedule offers and policy, and the plan and cluster files it names. What the
// light program checks before it starts anything; the torch program calls it too. Every refusal
// names file, line and key.
RunConfig read_run_config(const std::string& file, const std::vector<std::string>& settings);

}  // namespace millrace::cli
