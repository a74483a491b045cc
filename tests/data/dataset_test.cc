#include "millrace/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "tests/data/idx_files.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DataSplits load(const std::string& name, const Value& options, uint64_t seed = 1) {
  const Document document{"options", options};
  Reader reader(document);
  DataSplits splits = find_dataset(name).make(reader, seed);
  reader.finish();
  return splits;
}

DataSplits load_from(const std::string& folder) {
  Value options = Value::map();
  options.set("path", Value::of(folder));
  return load("fashion-mnist", options);
}

std::string message_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

Batch all_of(const Dataset& data, at::ScalarType dtype = at::kFloat) {
  std::vector<int64_t> indices(static_cast<std::size_t>(data.size()));
  std::iota(indices.begin(), indices.end(), 0);
  return data.get(indices.data(), data.size(), dtype);
}

TEST(FashionMnist, ValuesOfATinySet) {
  const TemporaryFolder folder;
  folder.write_tiny_set();
  const DataSplits splits = load_from(folder.path());
  EXPECT_EQ(splits.train->size(), 2);
  EXPECT_EQ(splits.test->size(), 1);
  EXPECT_EQ(splits.train->num_classes(), 10);
  EXPECT_EQ(splits.train->input(), (TensorSpec{{1, 1, 2}}));
  EXPECT_EQ(splits.train->target(), (TensorSpec{{}, at::kLong}));

  const std::vector<int64_t> order = {1, 0, 1};
  const Batch batch = splits.train->get(order.data(), 3, at::kDouble);
  EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({3, 1, 1, 2}));
  const double* x = batch.input.data_ptr<double>();
  const std::vector<double> pixels = {51, 102, 0, 255, 51, 102};
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    EXPECT_DOUBLE_EQ(x[i], (pixels[i] / 255 - 0.2860) / 0.3530) << i;
  }
  EXPECT_EQ(batch.target.scalar_type(), at::kLong);
  EXPECT_EQ(batch.target.data_ptr<int64_t>()[0], 0);
  EXPECT_EQ(batch.target.data_ptr<int64_t>()[1], 9);
  const Batch rounded = splits.train->get(order.data(), 3, at::kFloat);
  EXPECT_TRUE(rounded.input.equal(batch.input.to(at::kFloat)));
  EXPECT_EQ(splits.train->get(order.data(), 0, at::kFloat).input.size(0), 0);
  const int64_t beyond = 2;
  EXPECT_THROW(splits.train->get(&beyond, 1, at::kFloat), Error);
}

TEST(FashionMnist, MissingFolderNamesThePackage) {
  const TemporaryFolder folder;
  const std::string none = folder.path() + "/none";
  EXPECT_THAT(message_of([&] { load_from(none); }, ErrorCode::kBadFile),
              AllOf(HasSubstr("dataset-fashion-mnist"), HasSubstr(none),
                    HasSubstr("train-images-idx3-ubyte.gz")));
}

TEST(FashionMnist, OneLabelForEachImage) {
  const TemporaryFolder folder;
  folder.write_tiny_set();
  folder.write_compressed("train-labels-idx1-ubyte.gz", idx_labels({1, 2, 3}));
  EXPECT_THAT(message_of([&] { load_from(folder.path()); }, ErrorCode::kBadFile),
              AllOf(HasSubstr("train-labels-idx1-ubyte.gz"), HasSubstr("expected 2"),
                    HasSubstr("found 3")));
}

TEST(FashionMnist, TestImagesAreOfTheTrainingImagesShape) {
  const TemporaryFolder folder;
  folder.write_tiny_set();
  folder.write("t10k-images-idx3-ubyte", idx_images(1, 2, 2, Bytes(4)));
  EXPECT_THAT(message_of([&] { load_from(folder.path()); }, ErrorCode::kBadFile),
              AllOf(HasSubstr("[1, 1, 2]"), HasSubstr("[1, 2, 2]")));
}

TEST(FashionMnist, TheRealOne) {
  // Only its absence is a reason to skip: a set that is there must load.
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist")) {
    GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed";
  }
  const DataSplits splits = load("fashion-mnist", Value::map());
  EXPECT_EQ(splits.train->size(), 60000);
  EXPECT_EQ(splits.test->size(), 10000);
  EXPECT_EQ(splits.train->input(), (TensorSpec{{1, 28, 28}}));
  for (const auto& [data, count] :
       {std::pair{splits.train.get(), 6000}, {splits.test.get(), 1000}}) {
    std::vector<int> seen(10);
    std::vector<int64_t> indices(static_cast<std::size_t>(data->size()));
    std::iota(indices.begin(), indices.end(), 0);
    double sum = 0;
    double squares = 0;
    for (int64_t begin = 0; begin < data->size(); begin += 1000) {
      const Batch batch = data->get(indices.data() + begin, 1000, at::kFloat);
      for (int64_t i = 0; i < 1000; ++i) {
        ++seen[static_cast<std::size_t>(batch.target.data_ptr<int64_t>()[i])];
      }
      const at::Tensor wide = batch.input.to(at::kDouble);
      sum += wide.sum().item<double>();
      squares += wide.pow(2).sum().item<double>();
    }
    EXPECT_EQ(seen, std::vector<int>(10, count));
    if (data == splits.train.get()) {  // the stated mean and deviation have four digits
      const double n = 60000.0 * 784;
      EXPECT_NEAR(sum / n, 0.0, 2e-4);
      EXPECT_NEAR(std::sqrt(squares / n), 1.0, 2e-4);
    }
  }
}

Value synthetic_options(int64_t samples, double noise) {
  Value options = Value::map();
  options.set("samples", Value::of(samples));
  options.set("test_samples", Value::of(30));
  options.set("classes", Value::of(3));
  options.set("channels", Value::of(2));
  options.set("height", Value::of(4));
  options.set("width", Value::of(5));
  options.set("noise", Value::of(noise));
  return options;
}

TEST(Synthetic, SizesFollowTheOptions) {
  const DataSplits splits = load("synthetic", synthetic_options(60, 1.0));
  EXPECT_EQ(splits.train->size(), 60);
  EXPECT_EQ(splits.test->size(), 30);
  EXPECT_EQ(splits.train->num_classes(), 3);
  EXPECT_EQ(splits.train->input(), (TensorSpec{{2, 4, 5}}));
  const Batch batch = all_of(*splits.train);
  EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({60, 2, 4, 5}));
  for (int64_t c = 0; c < 3; ++c) {
    EXPECT_EQ(batch.target.eq(c).sum().item<int64_t>(), 20);
  }
  EXPECT_EQ(load("synthetic", Value::map()).train->size(), 2048);
}

TEST(Synthetic, WithoutNoiseASampleIsItsClassPattern) {
  const DataSplits splits = load("synthetic", synthetic_options(60, 0.0));
  const Batch train = all_of(*splits.train);
  const Batch test = all_of(*splits.test);
  std::vector<at::Tensor> patterns;
  for (int64_t c = 0; c < 3; ++c) {
    patterns.push_back(train.input[train.target.eq(c).nonzero()[0].item<int64_t>()]);
  }
  EXPECT_FALSE(patterns[0].equal(patterns[1]));
  for (const Batch& batch : {train, test}) {
    for (int64_t i = 0; i < batch.input.size(0); ++i) {
      const auto c = static_cast<std::size_t>(batch.target[i].item<int64_t>());
      EXPECT_TRUE(batch.input[i].equal(patterns[c])) << i;
    }
  }
}

TEST(Synthetic, NoiseIsStandardAndOfEachSampleItsOwn) {
  const Batch noisy = all_of(*load("synthetic", synthetic_options(3000, 1.0)).train, at::kDouble);
  const Batch plain = all_of(*load("synthetic", synthetic_options(3000, 0.0)).train, at::kDouble);
  const at::Tensor noise = noisy.input.sub(plain.input);
  EXPECT_NEAR(noise.mean().item<double>(), 0.0, 0.02);
  EXPECT_NEAR(noise.pow(2).mean().item<double>(), 1.0, 0.03);
  for (int64_t i = 1; i < 200; ++i) {
    EXPECT_FALSE(noise[i].equal(noise[i - 1])) << i;
  }
  const DataSplits splits = load("synthetic", synthetic_options(30, 1.0));
  EXPECT_FALSE(all_of(*splits.train).input.equal(all_of(*splits.test).input));
}

TEST(Synthetic, SameSeedSameDataWhateverTheBatchAndType) {
  const DataSplits one = load("synthetic", synthetic_options(60, 0.5), 9);
  const Batch whole = all_of(*one.train);
  EXPECT_TRUE(
      whole.input.equal(all_of(*load("synthetic", synthetic_options(60, 0.5), 9).train).input));
  EXPECT_FALSE(
      whole.input.equal(all_of(*load("synthetic", synthetic_options(60, 0.5), 10).train).input));
  EXPECT_TRUE(all_of(*one.train, at::kDouble).input.equal(whole.input.to(at::kDouble)));
  const std::vector<int64_t> two = {41, 7};
  const Batch part = one.train->get(two.data(), 2, at::kFloat);
  EXPECT_TRUE(part.input[0].equal(whole.input[41]));
  EXPECT_TRUE(part.input[1].equal(whole.input[7]));
  EXPECT_EQ(part.target[1].item<int64_t>(), whole.target[7].item<int64_t>());
}

TEST(Synthetic, OptionsAreChecked) {
  for (const char* key : {"samples", "classes", "height"}) {
    Value options = Value::map();
    options.set(key, Value::of(0));
    EXPECT_THAT(message_of([&] { load("synthetic", options); }, ErrorCode::kInvalidArgument),
                HasSubstr(key));
  }
  Value negative = Value::map();
  negative.set("noise", Value::of(-1.0));
  EXPECT_THAT(message_of([&] { load("synthetic", negative); }, ErrorCode::kInvalidArgument),
              HasSubstr("noise"));
  Value misspelt = Value::map();
  misspelt.set("hieght", Value::of(3));
  EXPECT_THAT(message_of([&] { load("synthetic", misspelt); }, ErrorCode::kInvalidArgument),
              HasSubstr("`height`"));
  Value huge = Value::map();
  huge.set("height", Value::of(int64_t{1} << 40));
  huge.set("width", Value::of(int64_t{1} << 40));
  EXPECT_THAT(message_of([&] { load("synthetic", huge); }, ErrorCode::kInvalidArgument),
              HasSubstr("1099511627776"));
}

TEST(Datasets, UnknownNameIsAnsweredWithTheNearest) {
  EXPECT_THAT(message_of([] { find_dataset("fashion_mnist"); }, ErrorCode::kInvalidArgument),
              AllOf(HasSubstr("\"fashion_mnist\""), HasSubstr("`fashion-mnist`")));
  EXPECT_EQ(datasets().size(), 4U);
}

}  // namespace
}  // namespace millrace::testing
