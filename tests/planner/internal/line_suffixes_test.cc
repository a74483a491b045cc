// The quick search for preferred suffixes of a chain against a plain dynamic program over all first
// stages, written out anew.
#include "millrace/planner/internal/line_suffixes.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using internal::Aim;
using internal::Cuts;
using internal::LineSuffixes;
using internal::PartitionCosts;
using internal::PartitionProblem;
using internal::Suffix;

struct Plain {
  int workers = 0;
  int stages = 0;
  std::vector<int> ends;
  auto key() const { return std::tie(workers, stages, ends); }
};

// Best suffix from each cut to `last`; nothing where there is none.
std::vector<std::optional<Plain>> plain_suffixes(const PartitionCosts& costs, int last,
                                                 double limit) {
  std::vector<std::optional<Plain>> best(static_cast<std::size_t>(last) + 1);
  best.back() = Plain{};
  for (int first = last - 1; first >= 0; --first) {
    for (int cut = first + 1; cut <= last; ++cut) {
      const std::optional<Plain>& rest = best[static_cast<std::size_t>(cut)];
      if (!rest || (cut < last && costs.cut(0, cut) > limit)) {
        continue;
      }
      for (int q = 1; q <= costs.most(0, 0) && q + rest->workers <= costs.size(0); ++q) {
        if (costs.stage(first, cut, q, 0, 0) > limit) {
          continue;
        }
        Plain whole{rest->workers + q, rest->stages + 1, {cut}};
        whole.ends.insert(whole.ends.end(), rest->ends.begin(), rest->ends.end());
        std::optional<Plain>& here = best[static_cast<std::size_t>(first)];
        if (!here || whole.key() < here->key()) {
          here = whole;
        }
      }
    }
  }
  return best;
}

Plain as_plain(const Suffix& suffix) {
  Plain plain{suffix.workers, suffix.stages, {}};
  for (const Suffix* s = &suffix; s != nullptr; s = s->rest) {
    plain.ends.push_back(s->cut);
  }
  return plain;
}

TEST(LineSuffixes, EqualAPlainDynamicProgram) {
  std::mt19937 random(5);
  int found = 0;
  int none = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const auto draw = [&random](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    std::vector<testing::Layer> layers;
    for (int i = draw(2, 30); i > 0; --i) {
      // Few values, so that many plans are equally good; some layers take no time.
      layers.push_back({static_cast<double>(draw(0, 3)), draw(0, 4), draw(0, 12)});
    }
    const Profile profile = testing::chain(layers);
    const Cuts cuts(profile);
    const Cluster cluster = testing::flat(draw(1, 9), 2.0);
    PartitionProblem problem{.cuts = cuts,
                             .network = internal::network_of(cluster, cluster.num_devices()),
                             .stages = {},
                             .replicas = {},
                             .memory_bytes = {}};
    if (draw(0, 4) == 0) {
      problem.replicas = {1};
    }
    const PartitionCosts costs(problem, Aim::kTime, false);
    ASSERT_TRUE(LineSuffixes::applies(costs));
    const double limit = 0.5 * draw(1, 20);
    const int last = draw(1, cuts.whole());
    LineSuffixes line(costs, last, limit);
    const auto plain = plain_suffixes(costs, last, limit);
    for (int first = last - 1; first >= 0; --first) {
      const Suffix* suffix = line.at(first);
      const std::optional<Plain>& expected = plain[static_cast<std::size_t>(first)];
      ASSERT_EQ(suffix != nullptr, expected.has_value()) << trial << " " << first;
      if (expected) {
        EXPECT_EQ(as_plain(*suffix).key(), expected->key()) << trial << " " << first;
      }
      ++(expected ? found : none);
    }
  }
  EXPECT_GT(found, 1500);
  EXPECT_GT(none, 500);
}

TEST(LineSuffixes, LeaveMemoryAndGivenStagesToOthers) {
  const Profile profile = testing::chain({{1, 1, 1}, {1, 1, 1}});
  const Cuts cuts(profile);
  const Cluster cluster = testing::flat(2, 1.0);
  PartitionProblem problem{.cuts = cuts,
                           .network = internal::network_of(cluster, 2),
                           .stages = {},
                           .replicas = {},
                           .memory_bytes = 10.0};
  EXPECT_FALSE(LineSuffixes::applies(PartitionCosts(problem, Aim::kTime, false)));
  problem.memory_bytes.reset();
  problem.stages = 2;
  EXPECT_FALSE(LineSuffixes::applies(PartitionCosts(problem, Aim::kTime, false)));
  problem.stages.reset();
  EXPECT_TRUE(LineSuffixes::applies(PartitionCosts(problem, Aim::kTime, false)));
}

}  // namespace
}  // namespace millrace
