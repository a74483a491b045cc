#include "millrace/report/internal/shades.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include "millrace/report/internal/paint.h"

namespace millrace::internal {
namespace {

using Rgb = std::array<double, 3>;  // 0 to 255

Rgb parse(std::string_view colour) {
  Rgb rgb{};
  for (std::size_t i = 0; i < rgb.size(); ++i) {
    int value = 0;
    std::from_chars(colour.data() + 1 + 2 * i, colour.data() + 3 + 2 * i, value, 16);
    rgb[i] = value;
  }
  return rgb;
}

// Relative luminance of WCAG 2.
double luminance(const Rgb& rgb) {
  const auto linear = [](double value) {
    const double share = value / 255;
    return share <= 0.04045 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2]);
}

// From dark to light where there are several shades. Yellow alone is the paint's own; its dark end
// is an olive, as a lighter yellow is hard to tell from the paper.
struct Ramp {
  std::string_view first;
  std::string_view last;
};
constexpr std::array<Ramp, kNumComputePaints> kRamps = {{
    {"#0072b2", "#8fc8ea"},
    {"#e69f00", "#f7d98d"},
    {"#d55e00", "#f4aa7f"},
    {"#8c8500", "#f0e442"},
}};

}  // namespace

Shades::Shades(const Trace& trace) {
  find_directions(trace);
  for (const RankTrace& rank : trace.ranks) {
    if (num_directions_ == 1) {
      of_ranks_[{rank.rank, false}] = rank.stages;
      continue;
    }
    std::map<bool, std::set<int>> stages;
    for (const TraceEvent& event : rank.events) {
      if (is_compute(event.action.kind)) {
        stages[goes_up(event.action)].insert(event.action.stage);
      }
    }
    for (const auto& [up, held] : stages) {
      of_ranks_[{rank.rank, up}].assign(held.begin(), held.end());
    }
  }
  for (const auto& [key, stages] : of_ranks_) {
    num_chunks_ = std::max(num_chunks_, static_cast<int>(stages.size()));
  }
}

// There are two when a rank runs some stages only for microbatches that go one way over the ranks,
// and others only for those that go the other way. (Ranks that stand in any order, and traces that
// begin in the middle, do not look so.)
void Shades::find_directions(const Trace& trace) {
  std::map<int64_t, std::map<int, int>> routes;  // microbatch -> stage -> rank
  for (const RankTrace& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) {
      if (event.action.kind == ActionKind::kForward) {
        for (int64_t m = event.action.first; m <= event.action.last; ++m) {
          routes[m][event.action.stage] = rank.rank;
        }
      }
    }
  }
  std::map<int, std::array<std::set<int>, 2>> stages;  // rank -> those it runs in each direction
  for (const auto& [microbatch, route] : routes) {
    const auto turn =
        std::adjacent_find(route.begin(), route.end(),
                           [](const auto& a, const auto& b) { return a.second != b.second; });
    if (turn == route.end()) {
      continue;
    }
    const bool up = std::next(turn)->second < turn->second;
    up_[microbatch] = up;
    for (const auto& [stage, rank] : route) {
      stages[rank][up ? 1 : 0].insert(stage);
    }
  }
  const bool both = std::any_of(stages.begin(), stages.end(), [](const auto& entry) {
    const auto& [down, up] = entry.second;
    return !down.empty() && !up.empty() &&
           std::none_of(up.begin(), up.end(), [&](int stage) { return down.contains(stage); });
  });
  num_directions_ = both ? 2 : 1;
}

bool Shades::goes_up(const Action& action) const {
  const auto found = num_directions_ == 1 ? up_.end() : up_.find(action.first);
  return found != up_.end() && found->second;
}

int Shades::of(const RankTrace& rank, const Action& action) const {
  const bool up = goes_up(action);
  const auto stages = of_ranks_.find({rank.rank, up});
  if (stages == of_ranks_.end()) {
    return 0;
  }
  const auto found = std::find(stages->second.begin(), stages->second.end(), action.stage);
  return found == stages->second.end()
             ? 0
             : (up ? num_chunks_ : 0) + static_cast<int>(found - stages->second.begin());
}

std::string Shades::name(int shade) const {
  const char* direction = shade >= num_chunks_ ? "up" : "down";
  if (num_chunks_ == 1) {
    return direction;
  }
  const std::string chunk = fmt::format("chunk {}", shade % num_chunks_);
  return num_directions_ == 1 ? chunk : fmt::format("{}, {}", direction, chunk);
}

Colours colours_of(std::size_t paint, int shade, int num_shades) {
  const bool ramp = paint < kRamps.size() && num_shades > 1;
  const Rgb first = parse(ramp ? kRamps[paint].first : kPaints[paint].fill);
  const Rgb last = parse(ramp ? kRamps[paint].last : kPaints[paint].fill);
  const double share = num_shades > 1 ? static_cast<double>(shade) / (num_shades - 1) : 0;
  Rgb mixed{};
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    mixed[i] = std::round(first[i] + share * (last[i] - first[i]));
  }
  // White text on the base colours where it can be read; black has the higher contrast elsewhere.
  const double on_white = 1.05 / (luminance(mixed) + 0.05);
  return {fmt::format("#{:02x}{:02x}{:02x}", static_cast<int>(mixed[0]), static_cast<int>(mixed[1]),
                      static_cast<int>(mixed[2])),
          on_white >= 4.5 ? "#fff" : "#000"};
}

}  // namespace millrace::internal
