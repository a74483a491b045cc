#include "millrace/cli/common/flops_text.h"

#include <fmt/format.h>

#include <array>

#include "millrace/base/text.h"

namespace millrace::cli {

std::string format_flops(double flops) {
  constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  while (flops >= 1000 && unit + 1 < kUnits.size()) {
    flops /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} FLOP", flops)
                   : fmt::format("{:.2f} {}FLOP", flops, kUnits[unit]);
}

std::string format_share(double flops, double seconds, double peak_flops_per_s) {
  if (flops <= 0 || seconds <= 0 || peak_flops_per_s <= 0) {
    return "-";
  }
  const double percent = 100 * flops / seconds / peak_flops_per_s;
  return percent < 1 ? fmt::format("{:.1f}%", percent) : fmt::format("{:.0f}%", percent);
}

std::string format_spread(double seconds, double spread_s) {
  if (seconds <= 0) {
    return "-";
  }
  return fmt::format("{} +-{:.0f}%", format_seconds(seconds), 100 * spread_s / seconds);
}

}  // namespace millrace::cli
