#include "millrace/rule/arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/base/caught.h"
#include "tests/rule/rule_world.h"

namespace millrace {
namespace {

WorldConfig one_of(bool is_double) {
  WorldConfig config;
  config.num_members = 1;
  config.num_elements = 3;
  config.is_double = is_double;
  return config;
}

// A port and three vectors of it.
struct Bench {
  explicit Bench(bool is_double) : world("bsp", Value::map(), one_of(is_double)) {
    set_values(a, 0, {1, -2, 0.5});
    set_values(b, 0, {4, 8, -16});
  }
  RuleWorld world;
  Port& port = world.port(0);
  Vector& a = port.make_vector(3);
  Vector& b = port.make_vector(3);
  Vector& c = port.make_vector(3);
};

class Arithmetic : public testing::TestWithParam<bool> {};

TEST_P(Arithmetic, DoesWhatItSays) {
  Bench bench(GetParam());
  auto& [world, port, a, b, c] = bench;
  fill(port, c, 7);
  EXPECT_EQ(values_of(c), (Values{7, 7, 7}));
  copy(port, c, a);
  EXPECT_EQ(values_of(c), values_of(a));
  add(port, c, b);
  EXPECT_EQ(values_of(c), (Values{5, 6, -15.5}));
  subtract(port, c, a);
  EXPECT_EQ(values_of(c), values_of(b));
  scale(port, c, 0.5);
  EXPECT_EQ(values_of(c), (Values{2, 4, -8}));
  add_scaled(port, c, -2, a);
  EXPECT_EQ(values_of(c), (Values{0, 8, -9}));
  sum(port, c, a, b);
  EXPECT_EQ(values_of(c), (Values{5, 6, -15.5}));
  sum(port, c, c, c);
  EXPECT_EQ(values_of(c), (Values{10, 12, -31}));
  mix(port, c, 0.5, 2, a);
  EXPECT_EQ(values_of(c), (Values{7, 2, -14.5}));
  move_towards(port, c, a, 0.25);
  EXPECT_EQ(values_of(c), (Values{5.5, 1, -10.75}));
}

TEST_P(Arithmetic, TellsThePortOfEachPass) {
  Bench bench(GetParam());
  auto& [world, port, a, b, c] = bench;
  fill(port, a, 1);
  copy(port, a, b);
  copy(port, a, a);  // nothing
  add(port, a, b);
  subtract(port, a, b);
  scale(port, a, 2);
  add_scaled(port, a, 2, b);
  sum(port, c, a, b);
  move_towards(port, a, b, 0.5);
  mix(port, a, 1, 1, b);
  EXPECT_EQ(world.port(0).charged(), 9 * 3);
}

TEST_P(Arithmetic, RefusesUnlikeVectors) {
  Bench bench(GetParam());
  auto& [world, port, a, b, c] = bench;
  Vector& longer = port.make_vector(4);
  EXPECT_EQ(caught([&] { add(port, a, longer); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(caught([&] { sum(port, c, a, longer); }).code(), ErrorCode::kInternal);
  Bench other(!GetParam());
  EXPECT_EQ(caught([&] { copy(port, a, other.a); }).code(), ErrorCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Arithmetic, testing::Values(false, true));

TEST(ArithmeticWithoutData, ChargesAndNothingElse) {
  Bench bench(true);
  Vector sizes_only{nullptr, 5, false};
  Vector others{nullptr, 5, false};
  add(bench.port, sizes_only, others);
  sum(bench.port, sizes_only, others, others);
  copy(bench.port, sizes_only, others);
  fill(bench.port, sizes_only, 1);
  EXPECT_EQ(bench.world.port(0).charged(), 4 * 5);
}

// Each operation is rounded by itself: a fused one gives other bits here. 2^-12 squared is lost
// beside 1 in float32 unless the product is kept whole.
TEST(ArithmeticRounding, ProductsAreRoundedBeforeTheyAreAdded) {
  Bench bench(false);
  const double x = 1 + std::ldexp(1, -12);
  set_values(bench.a, 0, {-(1 + std::ldexp(1, -11)), 0, 0});
  set_values(bench.b, 0, {x, 0, 0});
  add_scaled(bench.port, bench.a, x, bench.b);  // x x = 1 + 2^-11 + 2^-24, rounded 1 + 2^-11
  EXPECT_EQ(values_of(bench.a)[0], 0);
}

}  // namespace
}  // namespace millrace
