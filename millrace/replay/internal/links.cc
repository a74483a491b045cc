#include "millrace/replay/internal/links.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace millrace::internal {
namespace {

// Where a link carried sizes that differ by so much, their line says what its latency is.
constexpr double kSpread = 2;

// The part of a link's delays that no bandwidth shortens.
double latency_of(const std::vector<Flight>& flights, const Cluster* cluster,
                  const std::vector<RecordedMessage>& messages) {
  std::map<int64_t, double> least;  // by bytes
  for (const Flight& flight : flights) {
    const RecordedMessage& message = messages[static_cast<std::size_t>(flight.message)];
    if (message.observed) {
      const double delay_s = std::max(0.0, flight.there_s - flight.sent_s);
      const auto [at, fresh] = least.try_emplace(message.bytes, delay_s);
      at->second = std::min(at->second, delay_s);
    }
  }
  if (least.empty()) {
    return 0;
  }
  const auto& [small_bytes, small_s] = *least.begin();
  const auto& [large_bytes, large_s] = *least.rbegin();
  double shortest_s = small_s;
  for (const auto& [bytes, delay_s] : least) {
    shortest_s = std::min(shortest_s, delay_s);
  }
  if (cluster != nullptr) {
    const RecordedMessage& first = messages[static_cast<std::size_t>(flights.front().message)];
    if (std::max(first.from, first.to) < cluster->num_devices()) {
      return std::min(cluster->latency_between(first.from, first.to), shortest_s);
    }
  }
  const auto small = static_cast<double>(small_bytes);
  const auto large = static_cast<double>(large_bytes);
  if (large < kSpread * small || large_s <= small_s) {
    return 0;
  }
  return std::clamp(small_s - (large_s - small_s) / (large - small) * small, 0.0, shortest_s);
}

void time_link(std::vector<Flight>& flights, const Cluster* cluster,
               std::vector<RecordedMessage>& messages) {
  std::stable_sort(flights.begin(), flights.end(),
                   [](const Flight& a, const Flight& b) { return a.sent_s < b.sent_s; });
  const double latency_s = latency_of(flights, cluster, messages);
  std::map<int, std::vector<double>> wires;  // observed, by group
  std::vector<double> per_byte;
  double free_s = -1e300;
  for (const Flight& flight : flights) {
    RecordedMessage& message = messages[static_cast<std::size_t>(flight.message)];
    message.latency_s = latency_s;
    const double begin_s = std::max(flight.sent_s, free_s);
    if (message.observed) {
      message.wire_s = std::max(0.0, flight.there_s - latency_s - begin_s);
      free_s = std::max(flight.there_s - latency_s, begin_s);
      wires[message.group].push_back(message.wire_s);
      if (message.bytes > 0) {
        per_byte.push_back(message.wire_s / static_cast<double>(message.bytes));
      }
    } else {
      const std::vector<double>& known = wires[message.group];
      free_s = std::min(begin_s + (known.empty() ? 0 : known.back()),
                        std::max(begin_s, flight.there_s - latency_s));
    }
  }
  const double byte_s = median(per_byte);
  std::map<int, double> usual_s;
  for (const auto& [group, observed] : wires) {
    usual_s[group] = observed.empty() ? -1 : median(observed);
  }
  for (const Flight& flight : flights) {
    RecordedMessage& message = messages[static_cast<std::size_t>(flight.message)];
    if (!message.observed) {
      const double usual = usual_s[message.group];
      const double wire_s = usual >= 0 ? usual : byte_s * static_cast<double>(message.bytes);
      message.wire_s = std::clamp(flight.there_s - latency_s - flight.sent_s, 0.0, wire_s);
    }
  }
}

}  // namespace

void time_flights(const std::vector<Flight>& flights, const Cluster* cluster,
                  std::vector<RecordedMessage>& messages) {
  std::map<std::tuple<bool, int, int>, std::vector<Flight>> links;
  for (const Flight& flight : flights) {
    links[flight.link].push_back(flight);
  }
  for (auto& [link, own] : links) {
    time_link(own, cluster, messages);
  }
}

}  // namespace millrace::internal
