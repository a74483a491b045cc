#include "millrace/profiler/measure_layer.h"

#include <gtest/gtest.h>

#include "millrace/model/layers.h"

namespace millrace {
namespace {

LayerAlone small_linear() { return {linear("fc", 64, 32), {{64}, at::kFloat}, 1, 0, 16}; }

TEST(MeasureLayer, MeasuresAllPassesAndSaysWhatItIs) {
  const LayerProfile layer = measure_layer(small_linear(), 0);
  EXPECT_EQ(layer.name, "fc");
  EXPECT_EQ(layer.kind, "linear");
  EXPECT_GT(layer.forward_s, 0);
  EXPECT_GT(layer.input_gradient_s, 0);
  EXPECT_GT(layer.weight_gradient_s, 0);
  EXPECT_GT(layer.update_s, 0);
  EXPECT_EQ(layer.parameter_bytes % 4, 0);
  EXPECT_GE(layer.parameter_bytes, (64 * 32 + 32) * 4);
  EXPECT_EQ(layer.input_shape, std::vector<int64_t>{64});
  EXPECT_EQ(layer.output_shape, std::vector<int64_t>{32});
}

TEST(MeasureLayer, TakesTokensAndSeveralInputs) {
  const LayerProfile table =
      measure_layer({embedding("table", 10, 8), {{5}, at::kLong}, 1, 10, 4}, 0);
  EXPECT_EQ(table.kind, "embedding");
  EXPECT_EQ(table.input_gradient_s, 0) << "tokens have no gradient";
  EXPECT_GT(table.weight_gradient_s, 0);
  const LayerProfile sum = measure_layer({add("sum"), {{5}, at::kFloat}, 2, 0, 4}, 0);
  EXPECT_EQ(sum.kind, "add");
  EXPECT_GT(sum.forward_s, 0);
}

// What a slowed device does beside the layer takes longer than the layer by so much that a busy
// machine cannot hide it.
TEST(MeasureLayer, ASlowedDeviceIsSlower) {
  const double plain_s = measure_layer(small_linear(), 0).forward_s;
  EXPECT_GT(measure_layer(small_linear(), 0, {.sleep = 1e3}).forward_s, 5 * plain_s);
  EXPECT_GT(measure_layer(small_linear(), 0, {.flops = 1e7}).forward_s, 5 * plain_s);
  EXPECT_GT(measure_layer(small_linear(), 0, {.bytes = 2e7}).forward_s, 5 * plain_s);
}

}  // namespace
}  // namespace millrace
