#include "millrace/cli/common/catalog.h"

#include <gmock/gmock.h>

#include "millrace/collective/codec.h"
#include "millrace/collective/program.h"
#include "millrace/planner/planner.h"
#include "millrace/rule/rule.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/registry.h"
#include "tests/base/caught.h"

namespace millrace::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::vector<std::string> names_of(const CatalogKind& kind) {
  std::vector<std::string> names;
  for (const CatalogItem& item : kind.items) {
    names.push_back(item.name);
  }
  return names;
}

template <typename Entries>
std::vector<std::string> names_in(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    names.push_back(entry.name);
  }
  return names;
}

TEST(CatalogTest, HoldsEveryKindThatThisBuildHas) {
  std::vector<std::string> kinds;
  for (const CatalogKind& kind : catalog()) {
    kinds.push_back(kind.kind);
    EXPECT_FALSE(kind.items.empty()) << kind.kind;
    for (const CatalogItem& item : kind.items) {
      EXPECT_FALSE(item.name.empty()) << kind.kind;
      EXPECT_FALSE(item.text.empty()) << item.name;
    }
  }
  EXPECT_THAT(kinds, ElementsAre("schedules", "policies", "rules", "planners", "models", "datasets",
                                 "optimizers", "lr-schedules", "collectives", "codecs", "engines"));
}

TEST(CatalogTest, ListsWhatTheRegistriesHold) {
  EXPECT_THAT(names_of(find_kind("schedules")), ElementsAreArray(names_in(schedules())));
  EXPECT_THAT(names_of(find_kind("policies")), ElementsAreArray(names_in(policies())));
  EXPECT_THAT(names_of(find_kind("rules")), ElementsAreArray(names_in(rules())));
  EXPECT_THAT(names_of(find_kind("planners")), ElementsAreArray(names_in(planners())));
  EXPECT_THAT(names_of(find_kind("collectives")), ElementsAreArray(names_in(collectives())));
  EXPECT_THAT(names_of(find_kind("codecs")), ElementsAreArray(names_in(codecs())));
}

TEST(CatalogTest, ModelsAndDatasetsTellTheirOptions) {
  const CatalogItem& mlp = find_item(find_kind("models"), "mlp");
  ASSERT_EQ(mlp.facts.size(), 1U);
  EXPECT_EQ(mlp.facts[0].first, "options");
  EXPECT_THAT(mlp.facts[0].second, HasSubstr("depth="));
  EXPECT_THAT(find_item(find_kind("datasets"), "synthetic").facts[0].second, HasSubstr("samples="));
}

TEST(CatalogTest, AProgramCanBringItsOwnItems) {
  const std::vector<CatalogItem> builtin = find_kind("models").items;
  std::vector<CatalogItem> more = builtin;
  more.push_back({"own", "a model of the program's own", {{"options", "width=3"}}});
  set_catalog_items("models", more);
  EXPECT_EQ(find_item(find_kind("models"), "own").facts[0].second, "width=3");
  EXPECT_EQ(find_kind("models").items.size(), builtin.size() + 1);
  set_catalog_items("models", builtin);
  EXPECT_EQ(caught([] { set_catalog_items("modles", {}); }).code(), ErrorCode::kInternal);
}

TEST(CatalogTest, TheSingularOfAKindWillDo) {
  for (const CatalogKind& kind : catalog()) {
    EXPECT_EQ(&find_kind(kind.kind), &kind);
  }
  EXPECT_EQ(&find_kind("policy"), &find_kind("policies"));
  EXPECT_EQ(&find_kind("schedule"), &find_kind("schedules"));
  EXPECT_EQ(&find_kind("dataset"), &find_kind("datasets"));
}

TEST(CatalogTest, UnknownNamesGetTheNearest) {
  EXPECT_THAT(caught([] { find_kind("scheduls"); }).message(),
              HasSubstr("did you mean `schedules`?"));
  EXPECT_THAT(caught([] { find_kind("zzzzzz"); }).message(), HasSubstr("there are schedules"));
  const Error model = caught([] { find_item(find_kind("models"), "lennet"); });
  EXPECT_THAT(model.message(), HasSubstr("unknown model `lennet`; did you mean `lenet`?"));
  EXPECT_EQ(model.code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::cli
