#include "millrace/rule/internal/keyed_values.h"

#include <gmock/gmock.h>

namespace millrace::internal {
namespace {

using testing::ElementsAre;

template <class T>
Vector view(std::vector<T>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), sizeof(T) == 8};
}

TEST(KeyedValues, SlotsOfKeys) {
  EXPECT_EQ(key_slots(5, false), 5);
  EXPECT_EQ(key_slots(5, true), 3);
  EXPECT_EQ(key_slots(4, true), 2);
  EXPECT_EQ(key_slots(0, true), 0);
}

// Among them the bits of a quiet and of a signalling NaN, and denormals.
const std::vector<uint32_t> kKeys = {0, 1, 0x7fc00001U, 0xff800001U, 0xffffffffU};

TEST(KeyedValues, KeysKeepTheirBitsInFloat32) {
  std::vector<float> slots(7, 1);
  Vector message = view(slots);
  put_keys(message, 2, kKeys);
  EXPECT_EQ(get_keys(message, 2, 5), kKeys);
  EXPECT_EQ(slots[1], 1);
}

TEST(KeyedValues, TwoKeysShareASlotInFloat64) {
  std::vector<double> slots(5, 1);
  Vector message = view(slots);
  put_keys(message, 1, kKeys);
  EXPECT_EQ(get_keys(message, 1, 5), kKeys);
  EXPECT_THAT(get_keys(message, 3, 2), ElementsAre(0xffffffffU, 0U));  // the free half
  EXPECT_EQ(slots[0], 1);
  EXPECT_EQ(slots[4], 1);
}

TEST(KeyedValues, GoByTheirKeys) {
  std::vector<float> all = {10, 11, 12, 13};
  std::vector<float> slots = {0, 0, 0};
  Vector vector = view(all);
  Vector message = view(slots);
  const std::vector<uint32_t> keys = {1, 3};
  gather(message, 1, vector, keys);
  EXPECT_THAT(slots, ElementsAre(0, 11, 13));
  scatter_add_quotient(vector, keys, message, 1, 2);
  EXPECT_THAT(all, ElementsAre(10, 16.5, 12, 19.5));
  scatter(vector, keys, message, 0);
  EXPECT_THAT(all, ElementsAre(10, 0, 12, 11));
  move_values(message, 0, vector, std::vector<uint32_t>{0, 2});
  EXPECT_THAT(slots, ElementsAre(10, 12, 13));
  EXPECT_THAT(all, ElementsAre(0, 0, 0, 11));
}

TEST(KeyedValues, NothingHappensWithoutData) {
  Vector nothing{nullptr, 4, false};
  const std::vector<uint32_t> keys = {1, 3};
  put_keys(nothing, 0, keys);
  EXPECT_THAT(get_keys(nothing, 0, 2), ElementsAre(0, 0));
  gather(nothing, 0, nothing, keys);
  scatter(nothing, keys, nothing, 0);
  scatter_add_quotient(nothing, keys, nothing, 0, 2);
  move_values(nothing, 0, nothing, keys);
}

}  // namespace
}  // namespace millrace::internal
