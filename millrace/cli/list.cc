// millrace list: what can be named, by kind.
#include <fmt/format.h>

#include <algorithm>

#include "millrace/cli/commands.h"
#include "millrace/cli/common/catalog.h"

namespace millrace::cli {
namespace {

Value to_value(const CatalogKind& kind) {
  Value items = Value::list();
  for (const CatalogItem& item : kind.items) {
    Value entry = Value::map();
    entry.set("name", Value::of(item.name));
    entry.set("text", Value::of(item.text));
    for (const auto& [fact, text] : item.facts) {
      entry.set(fact, Value::of(text));
    }
    items.push(std::move(entry));
  }
  return items;
}

std::string describe(const CatalogKind& kind, bool with_facts) {
  std::size_t width = 0;
  for (const CatalogItem& item : kind.items) {
    width = std::max(width, item.name.size());
  }
  std::string text = kind.kind + "\n";
  for (const CatalogItem& item : kind.items) {
    text += fmt::format("  {:<{}}  {}\n", item.name, width, item.text);
    for (const auto& [fact, value] : item.facts) {
      if (with_facts && !value.empty()) {
        text += fmt::format("  {:<{}}    {}: {}\n", "", width, fact, value);
      }
    }
  }
  return text;
}

}  // namespace

int run_list(const ListArgs& args, Output& output) {
  std::vector<const CatalogKind*> shown;
  if (!args.kind.empty()) {
    shown.push_back(&find_kind(args.kind));
  } else {
    for (const CatalogKind& kind : catalog()) {
      shown.push_back(&kind);
    }
  }
  Value answer = Value::map();
  std::string text;
  for (const CatalogKind* kind : shown) {
    answer.set(kind->kind, to_value(*kind));
    text += (text.empty() ? "" : "\n") + describe(*kind, !args.kind.empty());
  }
  output.document(answer);
  if (!output.json()) {  // it would say the same again
    output.text(text);
  }
  return 0;
}

}  // namespace millrace::cli
