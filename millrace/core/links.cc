#include "millrace/core/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "millrace/base/error.h"

namespace millrace {

LinkMap::LinkMap(const Cluster& cluster) : cluster_(cluster) {
  int below = 1;
  int first = 0;
  for (const NetworkLevel& level : cluster_.levels) {
    below_.push_back(below);
    first_.push_back(first);
    first += 2 * (cluster_.num_devices() / below);
    below *= level.size;
  }
  first_.push_back(first);
}

int LinkMap::link(std::size_t level, int component, bool in) const {
  return first_[level] + 2 * component + (in ? 1 : 0);
}

LinkRoute LinkMap::route(int from, int to) const {
  LinkRoute route;
  for (std::size_t i = 0; i < cluster_.links.size(); ++i) {
    const LinkOverride& own = cluster_.links[i];
    const bool there = own.from == from && own.to == to;
    if (there || (own.from == to && own.to == from)) {
      route.out_link = first_.back() + 4 * static_cast<int>(i) + (there ? 0 : 2);
      route.in_link = route.out_link + 1;
      route.bandwidth_bytes_per_s = own.bandwidth_bytes_per_s;
      route.latency_s = own.latency_s;
      return route;
    }
  }
  MILLRACE_CHECK(from >= 0 && to >= 0 && from != to,
                 fmt::format("no link between {} and {}", from, to));
  std::size_t level = 0;
  while (level + 1 < below_.size() && from / below_[level + 1] != to / below_[level + 1]) {
    ++level;
  }
  route.out_link = link(level, from / below_[level], false);
  route.in_link = link(level, to / below_[level], true);
  route.bandwidth_bytes_per_s = cluster_.levels[level].bandwidth_bytes_per_s;
  route.latency_s = cluster_.levels[level].latency_s;
  route.inside = level == 0;
  return route;
}

LinkMap::Share LinkMap::share_of(const std::vector<int>& devices, double bytes) const {
  Share share;
  for (std::size_t level = 1; level < below_.size(); ++level) {
    const NetworkLevel& own = cluster_.levels[level];
    const double bandwidth =
        own.all_reduce_bandwidth_bytes_per_s.value_or(own.bandwidth_bytes_per_s);
    // Components of the level below, by the component of this level that they are part of.
    std::unordered_map<int, std::set<int>> parts;
    for (const int device : devices) {
      parts[device / below_[level] / own.size].insert(device / below_[level]);
    }
    for (const auto& [whole, components] : parts) {
      const auto count = static_cast<double>(components.size());
      if (count < 2 || std::isinf(bandwidth)) {
        continue;
      }
      share.seconds = std::max(share.seconds, 2 * (count - 1) / count * bytes / bandwidth);
      for (const int component : components) {
        share.links.push_back(link(level, component, false));
        share.links.push_back(link(level, component, true));
      }
    }
  }
  std::sort(share.links.begin(), share.links.end());
  return share;
}

bool LinkMap::shares_links(const std::vector<int>& devices) const {
  return devices.size() > 2 && std::any_of(cluster_.levels.begin() + 1, cluster_.levels.end(),
                                           [](const NetworkLevel& level) {
                                             return level.size > 1 &&
                                                    !std::isinf(level.bandwidth_bytes_per_s);
                                           });
}

double LinkCalendar::carry(int from, int to, double at_s, double bytes) {
  if (from == to) {
    return at_s;
  }
  const LinkRoute route = map_.route(from, to);
  if (std::isinf(route.bandwidth_bytes_per_s)) {
    return at_s + route.latency_s;
  }
  const double length_s = bytes / route.bandwidth_bytes_per_s;
  double& last_end_s =
      last_end_.try_emplace((int64_t{from} << 32) + to, -std::numeric_limits<double>::infinity())
          .first->second;
  const std::array<int, 2> links{route.out_link, route.in_link};
  if (route.inside) {
    last_end_s = std::max(at_s, last_end_s) + length_s;
    return last_end_s + route.latency_s;
  }
  const double begin_s = earliest(links, std::max(at_s, last_end_s), length_s);
  last_end_s = begin_s + length_s;
  take(links, begin_s, last_end_s);
  return last_end_s + route.latency_s;
}

double LinkCalendar::reduce(const std::vector<int>& devices, double at_s, double bytes,
                            double seconds) {
  const LinkMap::Share share = map_.share_of(devices, bytes);
  const double length_s = std::min(share.seconds, seconds);
  if (length_s <= 0) {
    return at_s + seconds;
  }
  const double begin_s = earliest(share.links, at_s, length_s);
  take(share.links, begin_s, begin_s + length_s);
  return begin_s + seconds;
}

double LinkCalendar::earliest(std::span<const int> links, double at_s, double length_s) {
  double begin_s = at_s;
  for (bool moved = true; moved;) {
    moved = false;
    for (const int link : links) {
      Pages& pages = pages_[link];
      while (!pages.empty() && pages.front().end_s <= horizon_s_) {
        pages.pop_front();
      }
      auto next =
          std::upper_bound(pages.begin(), pages.end(), begin_s,
                           [](double time_s, const Busy& busy) { return time_s < busy.end_s; });
      // The first that ends later; it is in the way if it begins before this would end.
      while (next != pages.end() &&
             (next->begin_s < begin_s + length_s || next->begin_s <= begin_s)) {
        begin_s = next->end_s;
        moved = true;
        ++next;
      }
    }
  }
  return begin_s;
}

void LinkCalendar::take(std::span<const int> links, double begin_s, double end_s) {
  if (end_s <= begin_s) {
    return;
  }
  for (const int link : links) {
    Pages& pages = pages_[link];
    const auto behind =
        std::upper_bound(pages.begin(), pages.end(), begin_s,
                         [](double time_s, const Busy& busy) { return time_s < busy.begin_s; });
    pages.insert(behind, {begin_s, end_s});
  }
}

}  // namespace millrace
