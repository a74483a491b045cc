#include "millrace/replay/fusion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "millrace/base/random.h"

namespace millrace {
namespace {

class Draws {
 public:
  explicit Draws(uint64_t seed) : key_(seed) {}
  double uniform() { return key_.uniform(count_++); }

 private:
  RandomKey key_;
  uint64_t count_ = 0;
};

std::vector<ReadyTensor> random_tensors(Draws& draws, int most) {
  std::vector<ReadyTensor> tensors;
  double ready_s = 0;
  for (int i = 1 + static_cast<int>(draws.uniform() * most); i > 0; --i) {
    ready_s += draws.uniform();
    tensors.push_back({ready_s, std::floor(1000 * draws.uniform())});
  }
  return tensors;
}

// The end of the messages that `cuts` makes: bit i set, a message ends after tensor i.
double end_of(const std::vector<ReadyTensor>& tensors, const MessageSeconds& seconds,
              unsigned cuts) {
  double end_s = 0;
  double bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bytes += tensors[i].bytes;
    if (i + 1 == tensors.size() || (cuts >> i & 1U) != 0) {
      end_s = std::max(tensors[i].ready_s, end_s) + seconds(bytes, 1);
      bytes = 0;
    }
  }
  return end_s;
}

TEST(FusionTest, IsTheBestOfAllContiguousFusions) {
  int num_joined = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Draws draws(seed);
    const std::vector<ReadyTensor> tensors = random_tensors(draws, 10);
    const double latency_s = draws.uniform();
    const double byte_s = draws.uniform() / 500;
    const MessageSeconds seconds = [=](double bytes, int) { return latency_s + byte_s * bytes; };
    double best_s = std::numeric_limits<double>::infinity();
    for (unsigned cuts = 0; cuts < 1U << (tensors.size() - 1); ++cuts) {
      best_s = std::min(best_s, end_of(tensors, seconds, cuts));
    }
    const Fusion fusion = best_fusion(tensors, seconds);
    EXPECT_NEAR(fusion.end_s, best_s, 1e-12 * best_s);
    // Its messages are what it says.
    unsigned cuts = 0;
    int next = 0;
    for (const FusedMessage& message : fusion.messages) {
      EXPECT_EQ(message.first, next);
      next = message.last + 1;
      cuts |= 1U << message.last;
    }
    EXPECT_EQ(next, static_cast<int>(tensors.size()));
    EXPECT_NEAR(end_of(tensors, seconds, cuts), best_s, 1e-12 * best_s);
    num_joined += fusion.messages.size() < tensors.size() ? 1 : 0;
    for (const double threshold : {0.0, 500.0, 1500.0, 1e9}) {
      EXPECT_GE(threshold_fusion(tensors, seconds, threshold).end_s, best_s * (1 - 1e-12));
    }
  }
  EXPECT_GT(num_joined, 300);  // the draws do ask for fusion
}

TEST(FusionTest, TakesTheFastestNumberOfParts) {
  // Parts overlap: k parts of a large message are faster until their own cost counts.
  const MessageSeconds seconds = [](double bytes, int parts) {
    return bytes / 100 / parts + 0.5 * parts;
  };
  const Fusion whole = best_fusion({{0, 800}}, seconds, 1);
  const Fusion parted = best_fusion({{0, 800}}, seconds, 8);
  EXPECT_DOUBLE_EQ(whole.end_s, 8.5);
  EXPECT_EQ(parted.messages.at(0).parts, 4);  // 800/100/4 + 2
  EXPECT_DOUBLE_EQ(parted.end_s, 4);
}

TEST(FusionTest, AThresholdJoinsUntilSoManyBytesAreTogether) {
  const MessageSeconds seconds = [](double bytes, int) { return 1 + bytes / 100; };
  const std::vector<ReadyTensor> tensors = {{1, 100}, {2, 100}, {3, 300}, {4, 50}};
  const Fusion fusion = threshold_fusion(tensors, seconds, 200);
  ASSERT_EQ(fusion.messages.size(), 3U);
  EXPECT_EQ(fusion.messages[0].last, 1);  // 2 + 3
  EXPECT_DOUBLE_EQ(fusion.messages[0].end_s, 5);
  EXPECT_DOUBLE_EQ(fusion.messages[1].end_s, 9);     // after it: 5 + 4
  EXPECT_DOUBLE_EQ(fusion.messages[2].end_s, 10.5);  // what is left over
  EXPECT_DOUBLE_EQ(fusion.end_s, 10.5);
  EXPECT_TRUE(threshold_fusion({}, seconds, 1).messages.empty());
}

// Ends of all messages where operators last p and their messages q; `joined` and the one after it
// are one operator of `fused` seconds, -1: none.
double all_end(const std::vector<double>& p, const std::vector<double>& q, int joined,
               double fused) {
  double computed = 0;
  double sent = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (static_cast<int>(i) == joined) {
      computed += fused;  // both gradients are there only now
    } else if (static_cast<int>(i) != joined + 1 || joined < 0) {
      computed += p[i];
    }
    sent = std::max(computed, sent) + q[i];
  }
  return sent;
}

TEST(FusionTest, TheOperatorRuleNeverMakesItWorse) {
  int num_sound = 0;
  int num_better = 0;
  int num_missed = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Draws draws(seed);
    const int n = 2 + static_cast<int>(5 * draws.uniform());
    std::vector<double> p;
    std::vector<double> q;
    for (int i = 0; i < n; ++i) {
      p.push_back(draws.uniform());
      q.push_back(draws.uniform());
    }
    const int joined = static_cast<int>((n - 1) * draws.uniform());
    const double sum =
        p[static_cast<std::size_t>(joined)] + p[static_cast<std::size_t>(joined) + 1];
    const double fused = sum * draws.uniform();
    const double before = all_end(p, q, -1, 0);
    const double after = all_end(p, q, joined, fused);
    if (operator_fusion_is_sound(q[static_cast<std::size_t>(joined)],
                                 p[static_cast<std::size_t>(joined)],
                                 p[static_cast<std::size_t>(joined) + 1], fused)) {
      ++num_sound;
      EXPECT_LE(after, before + 1e-12) << seed;
      num_better += after < before - 1e-12 ? 1 : 0;
    } else {
      num_missed += after < before - 1e-12 ? 1 : 0;
    }
  }
  EXPECT_GT(num_sound, 5000);
  EXPECT_GT(num_better, 2500);
  EXPECT_GT(num_missed, 0);  // it is sufficient, not necessary
}

}  // namespace
}  // namespace millrace
