#include "millrace/replay/fusion.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

double fastest(const MessageSeconds& seconds, double bytes, int most_parts, int& parts) {
  double best_s = std::numeric_limits<double>::infinity();
  for (int count = 1; count <= most_parts; ++count) {
    const double each_s = seconds(bytes, count);
    if (each_s < best_s) {
      best_s = each_s;
      parts = count;
    }
  }
  return best_s;
}

}  // namespace

Fusion best_fusion(const std::vector<ReadyTensor>& tensors, const MessageSeconds& seconds,
                   int most_parts) {
  MILLRACE_CHECK(most_parts >= 1);
  const std::size_t n = tensors.size();
  // best[j]: the end of the first j tensors' messages, and the last of these.
  std::vector<FusedMessage> best(n + 1);
  for (std::size_t j = 1; j <= n; ++j) {
    best[j].end_s = std::numeric_limits<double>::infinity();
    double bytes = 0;
    for (std::size_t i = j; i-- > 0;) {
      bytes += tensors[i].bytes;
      int parts = 1;
      const double start_s =
          i == 0 ? tensors[j - 1].ready_s : std::max(tensors[j - 1].ready_s, best[i].end_s);
      const double end_s = start_s + fastest(seconds, bytes, most_parts, parts);
      if (end_s < best[j].end_s) {
        best[j] = {static_cast<int>(i), static_cast<int>(j) - 1, parts, end_s};
      }
    }
  }
  Fusion fusion;
  fusion.end_s = n == 0 ? 0 : best[n].end_s;
  for (std::size_t j = n; j > 0; j = static_cast<std::size_t>(best[j].first)) {
    fusion.messages.push_back(best[j]);
  }
  std::reverse(fusion.messages.begin(), fusion.messages.end());
  return fusion;
}

Fusion threshold_fusion(const std::vector<ReadyTensor>& tensors, const MessageSeconds& seconds,
                        double threshold_bytes) {
  Fusion fusion;
  double bytes = 0;
  int first = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bytes += tensors[i].bytes;
    if (bytes >= threshold_bytes || i + 1 == tensors.size()) {
      const double start_s =
          fusion.messages.empty() ? tensors[i].ready_s : std::max(tensors[i].ready_s, fusion.end_s);
      fusion.end_s = start_s + seconds(bytes, 1);
      fusion.messages.push_back({first, static_cast<int>(i), 1, fusion.end_s});
      first = static_cast<int>(i) + 1;
      bytes = 0;
    }
  }
  return fusion;
}

bool operator_fusion_is_sound(double q_s, double p1_s, double p2_s, double fused_s) {
  return q_s <= p1_s + p2_s - fused_s;
}

}  // namespace millrace
