#include <fmt/format.h>

#include <array>
#include <cmath>
#include <vector>

#include "millrace/base/text.h"
#include "millrace/report/internal/stage_rows.h"
#include "millrace/report/report.h"

namespace millrace {
namespace {

// What can differ, and what is then likely.
struct Cause {
  double StageTimes::*time;
  const char* what;
  const char* slower;
  const char* faster;
};

constexpr std::array<Cause, 3> kCauses = {{
    {&StageTimes::compute_s, "computing",
     "something else uses its cores, or the profile is of a quieter machine or another one; "
     "measure "
     "the layers again with --fresh",
     "the machine was busier while the layers were profiled; measure them again with --fresh"},
    {&StageTimes::communicate_s, "communication",
     "links or memory are slower than the cluster says; measure them with `millrace doctor "
     "--measure`, or again with --fresh",
     "links are faster than the cluster says; measure them with `millrace doctor --measure`, or "
     "again with --fresh"},
    {&StageTimes::update_s, "updates",
     "the optimizer's memory is slower here than while it was profiled; measure again with --fresh",
     "the optimizer was slower while it was profiled; measure again with --fresh"},
}};

std::string warning(const std::vector<int>& stages, const StageTimes& predicted,
                    const StageTimes& measured) {
  const bool slower = internal::busy_s(measured) > internal::busy_s(predicted);
  const Cause* most = kCauses.data();
  for (const Cause& cause : kCauses) {
    const auto change = [&](const Cause& of) {
      const double more = measured.*(of.time) - predicted.*(of.time);
      return slower ? more : -more;
    };
    most = change(cause) > change(*most) ? &cause : most;
  }
  return fmt::format(
      "{} took {} against its prediction, most of it in {} ({} against {} a step): {}",
      describe_stages(stages),
      internal::difference(internal::busy_s(predicted), internal::busy_s(measured)), most->what,
      format_seconds(measured.*(most->time)), format_seconds(predicted.*(most->time)),
      slower ? most->slower : most->faster);
}

}  // namespace

std::vector<std::string> stage_warnings(const Plan& plan, const Trace& predicted,
                                        const Trace& measured, double tolerance) {
  std::vector<std::string> warnings;
  for (const internal::StageRow& row : internal::stage_rows(plan, &predicted, &measured)) {
    if (!row.predicted || !row.measured) {
      continue;
    }
    const double expected_s = internal::busy_s(*row.predicted);
    const double away_s = std::abs(internal::busy_s(*row.measured) - expected_s);
    if (expected_s > 0 && away_s > tolerance * expected_s) {
      warnings.push_back(warning(row.stages, *row.predicted, *row.measured));
    }
  }
  return warnings;
}

}  // namespace millrace
