// What layers say of their work, against counts by hand.
#include <gtest/gtest.h>

#include "millrace/model/layers.h"
#include "millrace/model/opaque.h"

namespace millrace {
namespace {

double flops(const LayerPtr& layer, const std::vector<std::vector<int64_t>>& shapes,
             at::ScalarType dtype = at::kFloat) {
  TensorSpecs inputs;
  for (const std::vector<int64_t>& shape : shapes) {
    inputs.push_back({shape, dtype});
  }
  layer->output(inputs);  // refuses shapes that the layer does not take
  return layer->forward_flops(inputs);
}

TEST(Flops, ProductsCountTwoAMultiplyAdd) {
  EXPECT_EQ(flops(linear("l", 7, 5), {{7}}), 2 * 7 * 5);
  EXPECT_EQ(flops(linear("l", 7, 5, false), {{7}}), 2 * 7 * 5);
  EXPECT_EQ(flops(linear("l", 7, 5), {{11, 7}}), 2 * 7 * 5 * 11) << "at every position";
  // [3, 10, 8] by 4 kernels of 3 x 3, padded by 1, every second place: [4, 5, 4].
  EXPECT_EQ(flops(conv2d("l", 3, 4, 3, 1, 2), {{3, 10, 8}}), 2 * (3 * 3 * 3) * (4 * 5 * 4));
  // Gates [4 x 6] from 5 inputs at 9 steps, from 6 states at 8.
  EXPECT_EQ(flops(lstm("l", 5, 6), {{9, 5}}), 2 * (4 * 6) * (5 * 9 + 6 * 8));
}

TEST(Flops, AttentionCountsTwoProductsAHeadAndItsSoftmax) {
  // 3 heads of 4 over 5 positions: scores and weighted values, 5 x 5 x 4 each, and 5 x 5 shares.
  EXPECT_EQ(flops(attention("l", 12, 3), {{5, 36}}), 3 * (2 * (2 * 5 * 5 * 4) + 5 * 5));
}

TEST(Flops, PointwiseLayersCountOneAnElement) {
  EXPECT_EQ(flops(relu("l"), {{3, 4}}), 12);
  EXPECT_EQ(flops(tanh("l"), {{3, 4}}), 12);
  EXPECT_EQ(flops(gelu("l"), {{3, 4}}), 12);
  EXPECT_EQ(flops(dropout("l", 0.5), {{3, 4}}), 12);
  EXPECT_EQ(flops(layer_norm("l", 4), {{3, 4}}), 12);
  EXPECT_EQ(flops(batch_norm2d("l", 2), {{2, 3, 4}}), 24);
  EXPECT_EQ(flops(position_embedding("l", 9, 4, 0.02), {{3, 4}}), 12);
  EXPECT_EQ(flops(add("l"), {{3, 4}, {3, 4}}), 12);
  EXPECT_EQ(flops(add("l"), {{3, 4}, {3, 4}, {3, 4}}), 24);
}

TEST(Flops, PoolsCountWhatTheyLookAt) {
  // 2 x 2 windows of [5, 6, 7]: [5, 3, 3], the last column is left.
  EXPECT_EQ(flops(max_pool2d("l", 2), {{5, 6, 7}}), 4 * 5 * 3 * 3);
  EXPECT_EQ(flops(global_average_pool("l"), {{5, 6, 7}}), 5 * 6 * 7);
}

TEST(Flops, WhatOnlyMovesOrIsUnknownCountsNothing) {
  EXPECT_EQ(flops(flatten("l"), {{3, 4}}), 0);
  EXPECT_EQ(flops(embedding("l", 9, 4, at::kFloat, 0.02), {{3}}, at::kLong), 0);
  EXPECT_EQ(flops(opaque_function("l", [](at::TensorList in) { return in[0] + in[0]; }), {{3}}), 0);
}

TEST(Flops, PartsOfALayerCountTheirOwnWork) {
  const auto expect_parts = [](const LayerPtr& whole, const std::vector<int64_t>& shape) {
    double sum = 0;
    for (int part = 0; part < 3; ++part) {
      const LayerPtr piece = whole->split(part, 3);
      const double own = flops(piece, {shape});
      EXPECT_LE(own, flops(whole, {shape}) / 2) << whole->kind();
      sum += own;
    }
    EXPECT_EQ(sum, flops(whole, {shape})) << whole->kind();
  };
  expect_parts(linear("l", 7, 5), {7});
  expect_parts(conv2d("l", 3, 4, 3, 1, 2), {3, 10, 8});
  expect_parts(lstm("l", 5, 6), {9, 5});
}

}  // namespace
}  // namespace millrace
