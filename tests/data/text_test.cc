#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "millrace/data/dataset.h"
#include "tests/data/idx_files.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Text : public ::testing::Test {
 protected:
  std::string write(const std::string& text) const {
    return folder_.write("a.txt", Bytes(text.begin(), text.end()));
  }

  static DataSplits load(const Value& options) {
    const Document document{"options", options};
    Reader reader(document);
    DataSplits splits = find_dataset("text").make(reader, 1);
    reader.finish();
    return splits;
  }

  DataSplits load(const std::string& text, int64_t length, double test_share = 0.1) const {
    Value options = Value::map();
    options.set("path", Value::of(write(text)));
    options.set("length", Value::of(length));
    options.set("test_share", Value::of(test_share));
    return load(options);
  }

  static std::string refusal(const std::function<void()>& call, ErrorCode code) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "no error";
  }

  static std::vector<int64_t> row(const at::Tensor& batch, int64_t i) {
    const at::Tensor one = batch.select(0, i).contiguous();
    return {one.data_ptr<int64_t>(), one.data_ptr<int64_t>() + one.numel()};
  }

  TemporaryFolder folder_;
};

TEST_F(Text, SamplesFollowOneAnotherAndTargetsAreOneByteFurther) {
  // Three samples of four bytes, each beginning with the last byte of the one before, and a rest.
  const DataSplits splits = load("abcdefghij\xFF!", 3);
  ASSERT_EQ(splits.train->size(), 2);
  ASSERT_EQ(splits.test->size(), 1);
  EXPECT_EQ(splits.train->input(), (TensorSpec{{3}, at::kLong}));
  EXPECT_EQ(splits.train->target(), (TensorSpec{{3}, at::kLong}));
  EXPECT_EQ(splits.train->num_classes(), 256);

  const std::vector<int64_t> order = {1, 0};
  const Batch batch = splits.train->get(order.data(), 2, at::kDouble);
  EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(batch.input.scalar_type(), at::kLong) << "tokens are not converted";
  EXPECT_THAT(row(batch.input, 0), ElementsAre('d', 'e', 'f'));
  EXPECT_THAT(row(batch.target, 0), ElementsAre('e', 'f', 'g'));
  EXPECT_THAT(row(batch.input, 1), ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(row(batch.target, 1), ElementsAre('b', 'c', 'd'));
  const std::vector<int64_t> first = {0};
  const Batch last = splits.test->get(first.data(), 1, at::kFloat);
  EXPECT_THAT(row(last.input, 0), ElementsAre('g', 'h', 'i'));
  EXPECT_THAT(row(last.target, 0), ElementsAre('h', 'i', 'j'));
  EXPECT_EQ(splits.train->get(first.data(), 0, at::kFloat).input.size(0), 0);
  const int64_t beyond = 2;
  EXPECT_THROW(splits.train->get(&beyond, 1, at::kFloat), Error);
}

TEST_F(Text, BytesAboveTheAlphabetAreNotNegative) {
  const DataSplits splits = load(std::string("\xFF\x80\x7F\0z", 5), 2, 0.5);
  const std::vector<int64_t> first = {0};
  EXPECT_THAT(row(splits.train->get(first.data(), 1, at::kFloat).input, 0), ElementsAre(255, 128));
}

TEST_F(Text, TheTestShareIsTheEndAndNeitherPartIsEmpty) {
  const std::string hundred(101, 'x');
  EXPECT_EQ(load(hundred, 1, 0.25).test->size(), 25);
  EXPECT_EQ(load(hundred, 1, 0.001).test->size(), 1);
  EXPECT_EQ(load(hundred, 1, 0.999).train->size(), 1);
  for (const double share : {0.0, 1.0}) {
    EXPECT_THAT(refusal([&] { load(hundred, 1, share); }, ErrorCode::kInvalidArgument),
                HasSubstr("between 0 and 1"));
  }
}

TEST_F(Text, FilesThatWillNotDoAreNamed) {
  EXPECT_THAT(refusal([&] { load("abcdef", 3); }, ErrorCode::kBadFile),
              AllOf(HasSubstr("a.txt"), HasSubstr("6 bytes"), HasSubstr("at least 7")));
  EXPECT_EQ(load("abcdefg", 3).train->size(), 1);
  EXPECT_THAT(refusal([&] { load("", 3); }, ErrorCode::kBadFile), HasSubstr("0 bytes"));
  const auto from = [](const std::string& path) {
    Value options = Value::map();
    options.set("path", Value::of(path));
    return refusal([&] { load(options); }, ErrorCode::kBadFile);
  };
  EXPECT_THAT(from(folder_.path() + "/none.txt"),
              AllOf(HasSubstr("none.txt"), HasSubstr("data.path"), HasSubstr("base-files")));
  EXPECT_THAT(from(folder_.path()), HasSubstr(folder_.path()));
}

TEST_F(Text, TheDefaultIsOnEveryDebian) {
  if (!std::filesystem::exists("/usr/share/common-licenses/GPL-3")) {
    GTEST_SKIP() << "not a Debian";
  }
  const DataSplits splits = load(Value::map());
  EXPECT_EQ(splits.train->size() + splits.test->size(), (35149 - 1) / 128);
  EXPECT_EQ(splits.train->input(), (TensorSpec{{128}, at::kLong}));
}

}  // namespace
}  // namespace millrace::testing
