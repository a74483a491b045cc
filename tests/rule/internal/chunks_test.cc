#include "millrace/rule/internal/chunks.h"

#include <gmock/gmock.h>

namespace millrace::internal {
namespace {

using testing::ElementsAre;

template <class T>
Vector view(std::vector<T>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), sizeof(T) == 8};
}

TEST(Chunks, TheLastHasWhatRemains) {
  const Chunks chunks{10, 4};
  EXPECT_EQ(chunks.count(), 3);
  EXPECT_EQ(chunks.range(0), (Range{0, 4}));
  EXPECT_EQ(chunks.range(2), (Range{8, 10}));
  EXPECT_EQ((Chunks{8, 4}.count()), 2);
  EXPECT_EQ((Chunks{0, 4}.count()), 0);
}

TEST(Chunks, ShareGoesDownInEqualSteps) {
  EXPECT_EQ(share_of_update(0.1, 0, 0, 0), 0.1);
  EXPECT_EQ(share_of_update(0.2, 2, 3, 1), 1);
  EXPECT_DOUBLE_EQ(share_of_update(0.2, 2, 3, 2), 0.8);
  EXPECT_DOUBLE_EQ(share_of_update(0.2, 2, 3, 3), 0.6);
  EXPECT_DOUBLE_EQ(share_of_update(0.2, 2, 3, 4), 0.4);
  EXPECT_EQ(share_of_update(0.2, 2, 3, 5), 0.2);
  EXPECT_EQ(share_of_update(0.2, 2, 3, 500), 0.2);
}

TEST(Chunks, NumberSentIsRoundedUpButNotForARoundingError) {
  EXPECT_EQ(num_chunks_sent(0.1, 106), 11);
  EXPECT_EQ(num_chunks_sent(0.1, 1), 1);
  EXPECT_EQ(num_chunks_sent(1, 7), 7);
  EXPECT_EQ(num_chunks_sent(0.5, 0), 0);
  const double share = 0.1 + 0.2;  // above 0.3
  EXPECT_GT(share * 10, 3);
  EXPECT_EQ(num_chunks_sent(share, 10), 3);
}

TEST(Chunks, NormsAreSumsOfMagnitudes) {
  std::vector<float> values = {1, -2, 3, -4, 5, -6, 7};
  std::vector<float> norms(3, -1);
  Vector into = view(norms);
  chunk_norms({7, 3}, view(values), into);
  EXPECT_THAT(norms, ElementsAre(6, 15, 7));
  EXPECT_THAT(largest_chunks(into, 2), ElementsAre(1, 2));
}

TEST(Chunks, WithoutDataNormsAreEqual) {
  const Vector norms{nullptr, 5, false};
  EXPECT_THAT(largest_chunks(norms, 3), ElementsAre(0, 1, 2));
  Vector nothing{nullptr, 5, false};
  move_out(nothing, {0, 3}, nothing, 2);
  subtract_quotient(nothing, {0, 3}, nothing, 2, 2);
  chunk_norms({5, 1}, nothing, nothing);
  correct_momentum({}, {0, 5}, nothing, nothing, nothing, nothing);
}

TEST(Chunks, MomentumIsCorrectedWithinTheRange) {
  std::vector<double> u = {1, 1, 1};
  std::vector<double> r = {10, 10, 10};
  std::vector<double> g = {4, 8, 12};
  std::vector<double> w = {100, 200, 300};
  Vector velocity = view(u);
  Vector residual = view(r);
  Vector gradient = view(g);
  correct_momentum({.momentum = 0.5, .decay = 0.25, .lr = 2, .gradient_scale = 0.25}, {1, 3},
                   velocity, residual, gradient, view(w));
  EXPECT_THAT(u, ElementsAre(1, 52.5, 78.5));
  EXPECT_THAT(r, ElementsAre(10, 115, 167));
  EXPECT_THAT(g, ElementsAre(4, 0, 0));
}

TEST(Chunks, MovedOutAndSubtracted) {
  std::vector<float> from = {1, 2, 3, 4, 5};
  std::vector<float> packed = {9, 9, 9, 9};
  std::vector<float> weights = {10, 10, 10, 10, 10};
  Vector residual = view(from);
  Vector to = view(packed);
  Vector w = view(weights);
  move_out(residual, {2, 4}, to, 1);
  EXPECT_THAT(from, ElementsAre(1, 2, 0, 0, 5));
  EXPECT_THAT(packed, ElementsAre(9, 3, 4, 9));
  subtract_quotient(w, {2, 4}, to, 1, 2);
  EXPECT_THAT(weights, ElementsAre(10, 10, 8.5, 8, 10));
}

}  // namespace
}  // namespace millrace::internal
