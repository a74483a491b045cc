#include "millrace/data/internal/crop_mirror.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "tests/base/caught.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kBlack = -7;

// Two channels of `side` pixels squared, every pixel of every sample its own number.
class Numbered final : public Dataset {
 public:
  explicit Numbered(int64_t side) : side_(side) {}
  int64_t size() const override { return 1000; }
  TensorSpec input() const override { return {{2, side_, side_}, at::kFloat}; }
  TensorSpec target() const override { return {{}, at::kLong}; }
  int64_t num_classes() const override { return 1000; }
  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    Batch batch{at::empty({count, 2, side_, side_}, at::kDouble), at::empty({count}, at::kLong)};
    const int64_t values = 2 * side_ * side_;
    for (int64_t i = 0; i < count; ++i) {
      batch.target.data_ptr<int64_t>()[i] = indices[i];
      for (int64_t p = 0; p < values; ++p) {
        batch.input.data_ptr<double>()[i * values + p] =
            static_cast<double>(indices[i] * values + p);
      }
    }
    batch.input = batch.input.to(dtype);
    return batch;
  }

 private:
  int64_t side_;
};

std::unique_ptr<Dataset> changing(int64_t side) {
  return internal::with_crop_mirror(std::make_unique<Numbered>(side), kBlack);
}

std::vector<int64_t> first(int64_t count) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(i);
  }
  return indices;
}

// The only down, right and mirror that turn the image of a sample into `found`.
std::vector<std::tuple<int64_t, int64_t, bool>> explanations(const at::Tensor& image,
                                                             const at::Tensor& found,
                                                             int64_t padding) {
  const int64_t side = image.size(1);
  at::Tensor padded = at::full({2, side + 2 * padding, side + 2 * padding}, kBlack, at::kDouble);
  padded.narrow(1, padding, side).narrow(2, padding, side).copy_(image);
  std::vector<std::tuple<int64_t, int64_t, bool>> fitting;
  for (int64_t down = 0; down <= 2 * padding; ++down) {
    for (int64_t right = 0; right <= 2 * padding; ++right) {
      const at::Tensor crop = padded.narrow(1, down, side).narrow(2, right, side);
      for (const bool mirrored : {false, true}) {
        if (at::equal(mirrored ? crop.flip({2}) : crop, found)) {
          fitting.emplace_back(down, right, mirrored);
        }
      }
    }
  }
  return fitting;
}

TEST(CropMirror, EveryImageIsACropOfItsPaddedSelfAndAllCropsOccur) {
  for (const auto& [side, padding] : {std::pair<int64_t, int64_t>{6, 2}, {28, 2}, {29, 4}}) {
    const int64_t count = padding == 2 ? 600 : 100;
    const std::unique_ptr<Dataset> data = changing(side);
    const std::unique_ptr<Dataset> epoch = data->in_epoch(1, 0);
    const Batch plain = data->get(first(count).data(), count, at::kDouble);
    const Batch changed = epoch->get(first(count).data(), count, at::kDouble);
    EXPECT_TRUE(at::equal(changed.target, plain.target));
    std::set<std::tuple<int64_t, int64_t, bool>> seen;
    for (int64_t i = 0; i < count; ++i) {
      const auto fitting = explanations(plain.input[i], changed.input[i], padding);
      ASSERT_EQ(fitting.size(), 1U) << "sample " << i << " of side " << side;
      seen.insert(fitting.front());
    }
    if (padding == 2) {
      EXPECT_EQ(seen.size(), 50U) << "5 x 5 places, mirrored or not";
    } else {
      EXPECT_GT(seen.size(), 50U);
    }
  }
}

// So that any layout, and any part of a minibatch, sees the same.
TEST(CropMirror, DependsOnSeedEpochAndSampleAlone) {
  const std::unique_ptr<Dataset> data = changing(8);
  const auto draw = [&](uint64_t seed, int64_t epoch, const std::vector<int64_t>& indices) {
    return data->in_epoch(seed, epoch)
        ->get(indices.data(), static_cast<int64_t>(indices.size()), at::kDouble)
        .input;
  };
  const at::Tensor all = draw(1, 0, first(20));
  EXPECT_TRUE(at::equal(draw(1, 0, {13}).squeeze(0), all[13]));
  EXPECT_TRUE(at::equal(draw(1, 0, {7, 3})[1], all[3]));
  EXPECT_FALSE(at::equal(draw(1, 1, first(20)), all));
  EXPECT_FALSE(at::equal(draw(2, 0, first(20)), all));
  const std::vector<int64_t> indices = first(20);
  EXPECT_TRUE(at::equal(data->in_epoch(1, 0)->get(indices.data(), 20, at::kFloat).input,
                        all.to(at::kFloat)));
}

TEST(CropMirror, IsForTrainingAlone) {
  const std::unique_ptr<Dataset> data = changing(8);
  const std::vector<int64_t> indices = first(20);
  EXPECT_TRUE(at::equal(data->get(indices.data(), 20, at::kDouble).input,
                        Numbered(8).get(indices.data(), 20, at::kDouble).input))
      << "as an evaluation reads it";
  EXPECT_EQ(Numbered(8).in_epoch(1, 0), nullptr);
}

TEST(CropMirror, RefusesAnUnknownName) {
  const Document document = parse_json(R"({"augment": "crop-miror"})", "options");
  Reader reader(document);
  const Error error = caught([&] { internal::reads_crop_mirror(reader); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("augment"), HasSubstr("crop-mirror")));
}

}  // namespace
}  // namespace millrace
