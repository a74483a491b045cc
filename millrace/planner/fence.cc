#include "millrace/planner/internal/fence.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace millrace::internal {
namespace {

constexpr double kGap = 2;

// Root of a device's set.
int root_of(std::vector<int>& parent, int device) {
  while (parent[static_cast<std::size_t>(device)] != device) {
    int& up = parent[static_cast<std::size_t>(device)];
    up = parent[static_cast<std::size_t>(up)];
    device = up;
  }
  return device;
}

// Slower links do not join; 0 when all do.
double least_fast_bandwidth(const Cluster& cluster, int workers) {
  std::set<double> bandwidths;
  for (int a = 0; a < workers; ++a) {
    for (int b = a + 1; b < workers; ++b) {
      bandwidths.insert(cluster.bandwidth_between(a, b));
    }
  }
  double fast = 0;
  double widest = kGap;
  double slower = 0;
  for (const double bandwidth : bandwidths) {
    if (slower > 0 && bandwidth / slower >= widest) {
      // Of equal gaps the first, which splits least.
      if (fast == 0 || bandwidth / slower > widest) {
        fast = bandwidth;
      }
      widest = bandwidth / slower;
    }
    slower = bandwidth;
  }
  return fast;
}

std::vector<int> fastest_first(const Cluster& cluster, std::vector<int> devices) {
  std::stable_sort(devices.begin(), devices.end(),
                   [&](int a, int b) { return cluster.speed_of(a) > cluster.speed_of(b); });
  return devices;
}

double factorial(std::size_t n) {
  double product = 1;
  for (std::size_t i = 2; i <= n; ++i) {
    product *= static_cast<double>(i);
  }
  return product;
}

// All that tells two orders apart: speeds, and the links between any two places.
std::vector<double> signature(const Cluster& cluster, const std::vector<int>& order) {
  std::vector<double> key;
  for (std::size_t a = 0; a < order.size(); ++a) {
    key.push_back(cluster.speed_of(order[a]));
    for (std::size_t b = 0; b < a; ++b) {
      key.push_back(cluster.bandwidth_between(order[b], order[a]));
      key.push_back(cluster.latency_between(order[b], order[a]));
    }
  }
  return key;
}

// One order of the clusters, by greed.
std::vector<std::size_t> greedy(const Cluster& cluster,
                                const std::vector<std::vector<int>>& clusters) {
  const auto speed_of = [&](std::size_t c) {
    double sum = 0;
    for (const int device : clusters[c]) {
      sum += cluster.speed_of(device);
    }
    return sum;
  };
  std::vector<std::size_t> order;
  std::vector<bool> taken(clusters.size(), false);
  while (order.size() < clusters.size()) {
    std::size_t best = clusters.size();
    std::pair<double, double> best_key;  // link to the last one, speed
    for (std::size_t c = 0; c < clusters.size(); ++c) {
      if (taken[c]) {
        continue;
      }
      double bandwidth = 0;
      if (!order.empty()) {
        for (const int from : clusters[order.back()]) {
          for (const int to : clusters[c]) {
            bandwidth = std::max(bandwidth, cluster.bandwidth_between(from, to));
          }
        }
      }
      const std::pair<double, double> key{bandwidth, speed_of(c)};
      if (best == clusters.size() || key > best_key) {
        best = c;
        best_key = key;
      }
    }
    taken[best] = true;
    order.push_back(best);
  }
  return order;
}

class Orders {
 public:
  Orders(const Cluster& cluster, FenceOrders& made) : cluster_(cluster), made_(made) {}

  // Every order inside the clusters from the `next` on, those before as they stand.
  void permute(const std::vector<std::vector<int>>& clusters, std::size_t next) {
    if (next == clusters.size()) {
      add(clusters);
      return;
    }
    std::vector<std::vector<int>> changed = clusters;
    std::vector<std::size_t> places(clusters[next].size());
    std::iota(places.begin(), places.end(), std::size_t{0});
    do {
      for (std::size_t i = 0; i < places.size(); ++i) {
        changed[next][i] = clusters[next][places[i]];
      }
      permute(changed, next + 1);
    } while (std::next_permutation(places.begin(), places.end()));
  }

  void add(const std::vector<std::vector<int>>& clusters) {
    std::vector<int> order;
    for (const std::vector<int>& devices : clusters) {
      order.insert(order.end(), devices.begin(), devices.end());
    }
    if (order.size() > kMostCompared || seen_.insert(signature(cluster_, order)).second) {
      made_.orders.push_back(std::move(order));
    }
  }

 private:
  static constexpr std::size_t kMostCompared = 64;

  const Cluster& cluster_;
  FenceOrders& made_;
  std::set<std::vector<double>> seen_;
};

}  // namespace

std::vector<std::vector<int>> fence_clusters(const Cluster& cluster, int workers) {
  const double fast = least_fast_bandwidth(cluster, workers);
  std::vector<int> parent(static_cast<std::size_t>(workers));
  std::iota(parent.begin(), parent.end(), 0);
  for (int a = 0; a < workers; ++a) {
    for (int b = a + 1; b < workers; ++b) {
      if (cluster.bandwidth_between(a, b) >= fast) {
        const int one = root_of(parent, a);
        const int other = root_of(parent, b);
        parent[static_cast<std::size_t>(std::max(one, other))] = std::min(one, other);
      }
    }
  }
  std::vector<std::vector<int>> clusters;
  std::vector<int> cluster_of(static_cast<std::size_t>(workers), -1);
  for (int device = 0; device < workers; ++device) {
    int& cluster_number = cluster_of[static_cast<std::size_t>(root_of(parent, device))];
    if (cluster_number == -1) {
      cluster_number = static_cast<int>(clusters.size());
      clusters.emplace_back();
    }
    clusters[static_cast<std::size_t>(cluster_number)].push_back(device);
  }
  return clusters;
}

FenceOrders fence_orders(const Cluster& cluster, const std::vector<std::vector<int>>& clusters,
                         double most_orders) {
  std::vector<std::vector<int>> sorted;
  std::size_t devices = 0;
  double inner_orders = 1;
  for (const std::vector<int>& members : clusters) {
    sorted.push_back(fastest_first(cluster, members));
    devices += members.size();
    inner_orders *= factorial(members.size());
  }
  const double outer_orders = factorial(clusters.size());
  FenceOrders made;
  made.every_outer = clusters.size() <= static_cast<std::size_t>(kMostPermutedClusters) &&
                     outer_orders <= most_orders;
  made.every_inner = made.every_outer &&
                     devices <= static_cast<std::size_t>(kMostPermutedDevices) &&
                     outer_orders * inner_orders <= most_orders;
  Orders orders(cluster, made);
  std::vector<std::size_t> outer(clusters.size());
  std::iota(outer.begin(), outer.end(), std::size_t{0});
  const auto in_this_order = [&] {
    std::vector<std::vector<int>> ordered;
    for (const std::size_t c : outer) {
      ordered.push_back(sorted[c]);
    }
    return ordered;
  };
  if (!made.every_outer) {
    outer = greedy(cluster, clusters);
    orders.add(in_this_order());
    return made;
  }
  do {
    if (made.every_inner) {
      orders.permute(in_this_order(), 0);
    } else {
      orders.add(in_this_order());
    }
  } while (std::next_permutation(outer.begin(), outer.end()));
  return made;
}

int crossings(const std::vector<int>& devices, const std::vector<std::vector<int>>& clusters) {
  const auto cluster_of = [&](int device) {
    return std::find_if(clusters.begin(), clusters.end(), [&](const std::vector<int>& members) {
      return std::binary_search(members.begin(), members.end(), device);
    });
  };
  int count = 0;
  for (std::size_t i = 1; i < devices.size(); ++i) {
    count += cluster_of(devices[i - 1]) != cluster_of(devices[i]) ? 1 : 0;
  }
  return count;
}

}  // namespace millrace::internal
