// Orders of devices for a pipeline that crosses slow links rarely: OP-Fence of "FusionLLM: A
// Decentralized LLM Training System on Geo-distributed GPUs with Adaptive Compression", arXiv
// 2410.12707. Used by builtin/fusion_llm.cc and its tests. Pure functions.
#pragma once

#include <vector>

#include "millrace/core/cluster.h"

namespace millrace::internal {

// Up to so many devices every order inside the clusters is offered, and up to so many clusters
// every order of them.
constexpr int kMostPermutedDevices = 8;
constexpr int kMostPermutedClusters = 6;

// Devices 0..workers-1 in clusters that fast links join. Fast is what lies above the largest gap
// among the links' bandwidths, as a ratio of neighbours, where that is at least 2; else all are one
// cluster. Devices ascend within a cluster, clusters by their first device. Our reconstruction: the
// paper asks for community detection and does not say which.
std::vector<std::vector<int>> fence_clusters(const Cluster& cluster, int workers);

struct FenceOrders {
  std::vector<std::vector<int>> orders;  // at least one; a cluster's devices stand together
  bool every_inner = false;              // all orders inside the clusters are here
  bool every_outer = false;              // all orders of the clusters are here
};

// Each order once, of those that the planner cannot tell apart (equal speeds and links) the first.
// Inside a cluster the fastest first, ties by number, before the other inner orders. At most
// `most_orders` where that leaves the choice: inner orders are given up first, then orders of
// clusters, in whose place one goes from the cluster of the greatest speed to that with the fastest
// link to it, and so on.
FenceOrders fence_orders(const Cluster& cluster, const std::vector<std::vector<int>>& clusters,
                         double most_orders);

// Borders between neighbours of `devices` that belong to different clusters.
int crossings(const std::vector<int>& devices, const std::vector<std::vector<int>>& clusters);

}  // namespace millrace::internal
