// Everything that can be named in run.toml or on the command line, by kind. Built from the registries and, for folders
// that need libtorch, from their builtin.def files alone.
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
  std::string kind;  // "schedules", "policies", "rules", "planners", "models", "datasets", "engines"
  std::vector<CatalogItem> items;
};

const std::vector<CatalogKind>& catalog();
const CatalogKind& find_kind(const std::string& kind);  // singular accepted; error with the nearest name

// Reads run.toml, applies settings, checks keys, ranges, batch arithmetic, registry names, the model's and dataset's
// option keys (unknown: error with nearest name; a number where text is due and the reverse), schedule offers and policy. What
// the light program checks before it starts anything; the torch program calls it too.
RunConfig read_run_config(const std::string& file, const std::vector<std::string>& settings);

}  // namespace millrace::cli
