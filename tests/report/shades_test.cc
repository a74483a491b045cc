#include "millrace/report/internal/shades.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "millrace/report/internal/paint.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

using internal::Colours;
using internal::colours_of;
using internal::Shades;

// Ranks that run these actions one after another.
Trace trace_of(const std::vector<std::vector<std::string>>& ranks) {
  Trace trace;
  for (const std::vector<std::string>& actions : ranks) {
    RankTrace& rank = trace.ranks.emplace_back();
    rank.rank = static_cast<int>(trace.ranks.size()) - 1;
    std::set<int> stages;
    for (const std::string& action : actions) {
      const auto time = static_cast<double>(rank.events.size());
      rank.events.push_back(test::event(action, time, time + 1));
      stages.insert(rank.events.back().action.stage);
    }
    rank.stages.assign(stages.begin(), stages.end());
  }
  return trace;
}

int shade_of(const Trace& trace, int rank, const std::string& action) {
  return Shades(trace).of(trace.ranks[static_cast<std::size_t>(rank)], parse_action(action));
}

TEST(Shades, OneOfOneStageARank) {
  const Trace trace = trace_of({{"0F0", "0F1", "0B0"}, {"1F0", "1B0"}});
  EXPECT_EQ(Shades(trace).size(), 1);
  EXPECT_EQ(shade_of(trace, 1, "1B0"), 0);
}

TEST(Shades, OfReplicasInAnyOrderOne) {
  const Trace trace = trace_of({{"0F0", "0F2"}, {"1F0", "1F1", "1F2"}, {"0F1"}});
  EXPECT_EQ(Shades(trace).size(), 1);
}

TEST(Shades, ChunksInTheOrderOfStages) {
  const Trace looped = trace_of({{"0F0", "2F0"}, {"1F0", "3F0"}});
  EXPECT_EQ(Shades(looped).size(), 2);
  EXPECT_EQ(Shades(looped).name(1), "chunk 1");
  EXPECT_EQ(shade_of(looped, 1, "1F0"), 0);
  EXPECT_EQ(shade_of(looped, 1, "3F0"), 1);
  const Trace v_shape = trace_of({{"0F0", "3F0"}, {"1F0", "2F0"}});
  EXPECT_EQ(shade_of(v_shape, 0, "3W0"), 1);
  EXPECT_EQ(shade_of(v_shape, 1, "2W0"), 1);
}

// The same stages on both ranks, told apart by the way that a microbatch takes.
TEST(Shades, DirectionsOfABidirectionalSchedule) {
  const Trace trace = trace_of({{"0F0", "1F1"}, {"0F1", "1F0"}});
  EXPECT_EQ(Shades(trace).size(), 2);
  EXPECT_EQ(Shades(trace).name(0), "down");
  EXPECT_EQ(Shades(trace).name(1), "up");
  EXPECT_EQ(shade_of(trace, 0, "0F0"), 0);
  EXPECT_EQ(shade_of(trace, 1, "1B0"), 0);
  EXPECT_EQ(shade_of(trace, 1, "0F1"), 1);
  EXPECT_EQ(shade_of(trace, 0, "1B1"), 1);
}

TEST(Shades, ChunksOfBothDirections) {
  const Trace trace = trace_of({{"0F0", "3F0", "1F1", "2F1"}, {"1F0", "2F0", "0F1", "3F1"}});
  EXPECT_EQ(Shades(trace).size(), 4);
  EXPECT_EQ(Shades(trace).name(3), "up, chunk 1");
  EXPECT_EQ(shade_of(trace, 0, "3F0"), 1);
  EXPECT_EQ(shade_of(trace, 1, "3F1"), 3);
}

double luminance(const std::string& colour) {
  const bool brief = colour.size() == 4;
  double sum = 0;
  const double weights[] = {0.2126, 0.7152, 0.0722};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string digits = brief ? std::string(2, colour[1 + i]) : colour.substr(1 + 2 * i, 2);
    const double share = std::stoi(digits, nullptr, 16) / 255.0;
    sum += weights[i] * (share <= 0.04045 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4));
  }
  return sum;
}

TEST(Shades, NumbersCanBeReadOnEveryColour) {
  for (std::size_t paint = 0; paint < internal::kPaints.size(); ++paint) {
    for (const int num_shades : {1, 2, 3, 4, 8}) {
      std::set<std::string> fills;
      for (int shade = 0; shade < num_shades; ++shade) {
        const Colours colours = colours_of(paint, shade, num_shades);
        const double a = luminance(colours.fill);
        const double b = luminance(colours.ink);
        EXPECT_GE((std::max(a, b) + 0.05) / (std::min(a, b) + 0.05), 4.5)
            << colours.ink << " on " << colours.fill;
        fills.insert(colours.fill);
      }
      const bool computes = paint < internal::kNumComputePaints;
      EXPECT_EQ(fills.size(), computes ? static_cast<std::size_t>(num_shades) : 1U);
    }
  }
}

}  // namespace
}  // namespace millrace
