#include <fmt/format.h>
#include <fmt/ranges.h>

#include "millrace/base/error.h"
#include "millrace/schedule/language/language.h"

namespace millrace {

std::string schedule_text(const Schedule& schedule, const std::string& text) {
  std::vector<std::vector<int>> routes;
  for (const std::vector<int>& positions : schedule.stage_ranks) {
    routes.resize(positions.size());
    for (std::size_t route = 0; route < positions.size(); ++route) {
      routes[route].push_back(positions[route]);
    }
  }
  bool even = true;
  for (const std::vector<int>& route : routes) {
    even = even && route.size() == schedule.stage_ranks.size();
  }
  if (!schedule.flush || !even) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("schedule {}: the schedule language writes out orders with a flush whose "
                    "stages stand on equally many ranks each; use JSON for this one",
                    schedule.name));
  }
  std::string result = fmt::format("schedule \"{}\"", schedule.name);
  if (!text.empty()) {
    result += fmt::format(" \"{}\"", text);
  }
  result += fmt::format("\nranks {}\nmicrobatches {}\nplacement explicit", schedule.num_ranks,
                        schedule.num_microbatches);
  for (const std::vector<int>& route : routes) {
    result += fmt::format(" {{ {} }}", fmt::join(route, " "));
  }
  result += "\nactions {\n";
  for (std::size_t rank = 0; rank < schedule.period.size(); ++rank) {
    result += fmt::format("  rank {} \"{}\"\n", rank, to_string(schedule.period[rank]));
  }
  return result + "}\n";
}

}  // namespace millrace
