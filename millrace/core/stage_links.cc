#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/core/plan.h"

namespace millrace {

std::vector<StageLink> stage_links(const Plan& plan, const std::vector<ProfileEdge>& edges) {
  std::unordered_map<std::string, int> stage_of;
  for (int s = 0; s < plan.num_stages(); ++s) {
    for (const std::string& layer : plan.stages[static_cast<std::size_t>(s)].layers) {
      stage_of.emplace(layer, s);
    }
  }
  const auto find = [&](const std::string& layer) {
    const auto found = stage_of.find(layer);
    if (found == stage_of.end()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("layer {} of the model is in no stage of the plan", in_quotes(layer)));
    }
    return found->second;
  };
  std::vector<StageLink> links;
  for (const ProfileEdge& edge : edges) {
    const StageLink link{find(edge.from), find(edge.to)};
    if (link.from != link.to) {
      links.push_back(link);
    }
  }
  std::sort(links.begin(), links.end());
  links.erase(std::unique(links.begin(), links.end()), links.end());
  return links;
}

std::vector<StageLink> chain_links(int num_stages) {
  std::vector<StageLink> links;
  for (int s = 0; s + 1 < num_stages; ++s) {
    links.push_back({s, s + 1});
  }
  return links;
}

}  // namespace millrace
