#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "millrace/core/run_config.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Case {
  int64_t batch;
  std::optional<int64_t> size;
  int64_t microbatches;
  int64_t replicas;
};

std::string refusal(const Case& c) {
  const Error error = caught([&] { check_batch(c.batch, c.size, c.microbatches, c.replicas); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  return error.message();
}

TEST(BatchTest, RefusesInconsistentNumbersWithTheEquationAndWaysOut) {
  EXPECT_EQ(
      refusal({8, 2, 1, 8}),
      "batch = microbatch_size x microbatches x replicas must hold, but batch is 8 and 2 x 1 x "
      "8 = 16; use microbatch_size = 1, or batch = 16");
  EXPECT_EQ(
      refusal({10, 4, 1, 1}),
      "batch = microbatch_size x microbatches x replicas must hold, but batch is 10 and 4 x 1 "
      "x 1 = 4; use microbatch_size = 10, or batch = 4, or batch = 8 with microbatches = 2, or "
      "batch = 12 with microbatches = 3");
  EXPECT_THAT(refusal({0, 1, 1, 1}), HasSubstr("expected batch of 1 or more, found 0"));
  EXPECT_THAT(refusal({8, -1, 1, 2}), HasSubstr("expected microbatch_size of 1 or more, found -1"));
  EXPECT_THAT(refusal({8, 16, 1, 1}),
              AllOf(HasSubstr("16 x 1 x 1 = 16"), HasSubstr("microbatch_size = 8"),
                    HasSubstr("batch = 16")));
  EXPECT_THAT(refusal({8, 2, 1, 1}), HasSubstr("use microbatches = 4"));
  EXPECT_THAT(refusal({8, {}, 0, 1}), HasSubstr("microbatches of 1 or more"));
  EXPECT_THAT(refusal({8, {}, 1, 0}), HasSubstr("replicas of 1 or more"));
}

TEST(BatchTest, RefusesMorePartsThanSamples) {
  EXPECT_EQ(
      refusal({8, {}, 16, 1}),
      "a batch of 8 cannot be cut into microbatches x replicas = 16 x 1 = 16 parts of a sample "
      "or more; use batch = 16, or microbatches = 8");
  EXPECT_THAT(refusal({8, {}, 4, 4}), AllOf(HasSubstr("batch = 16"), HasSubstr("microbatches = 2"),
                                            HasSubstr("replicas = 2")));
  EXPECT_NO_THROW(check_batch(10, {}, 4, 1)) << "uneven parts are fine";
  EXPECT_NO_THROW(check_batch(8, {}, 8, 1));
}

TEST(BatchTest, HugeNumbersDoNotOverflow) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(refusal({8, most, most, most}), HasSubstr("use "));
  EXPECT_THAT(refusal({8, {}, most, most}), HasSubstr("use smaller numbers"));
}

// By brute force: accepted exactly when the equation holds, and each way out that is offered works.
TEST(BatchTest, SuggestionsHold) {
  for (int64_t batch = 1; batch <= 12; ++batch) {
    for (int64_t size = 1; size <= 6; ++size) {
      for (int64_t microbatches = 1; microbatches <= 4; ++microbatches) {
        for (int64_t replicas = 1; replicas <= 4; ++replicas) {
          if (batch == size * microbatches * replicas) {
            EXPECT_NO_THROW(check_batch(batch, size, microbatches, replicas));
            continue;
          }
          const std::string text = refusal({batch, size, microbatches, replicas});
          std::string ways = text.substr(text.find("; use ") + 6);
          int num_ways = 0;
          while (!ways.empty()) {
            const std::size_t end = ways.find(", or ");
            const std::string way = ways.substr(0, end);
            ways = end == std::string::npos ? "" : ways.substr(end + 5);
            Case changed{batch, size, microbatches, replicas};
            long long first = 0;
            long long second = 0;
            if (std::sscanf(way.c_str(), "batch = %lld with microbatches = %lld", &first,
                            &second) == 2) {
              changed.batch = first;
              changed.microbatches = second;
            } else if (std::sscanf(way.c_str(), "batch = %lld", &first) == 1) {
              changed.batch = first;
            } else if (std::sscanf(way.c_str(), "microbatch_size = %lld", &first) == 1) {
              changed.size = first;
            } else if (std::sscanf(way.c_str(), "microbatches = %lld", &first) == 1) {
              changed.microbatches = first;
            } else {
              ADD_FAILURE() << "unknown way out: " << way;
            }
            EXPECT_NO_THROW(
                check_batch(changed.batch, changed.size, changed.microbatches, changed.replicas))
                << text << " / " << way;
            ++num_ways;
          }
          EXPECT_GE(num_ways, 1) << text;
        }
      }
    }
  }
}

TEST(BatchTest, EquationIsShown) {
  EXPECT_EQ(batch_equation(128, 4, 2),
            "batch 128 = microbatch_size 16 x microbatches 4 x replicas 2");
  EXPECT_EQ(batch_equation(10, 4, 1), "batch 10 = microbatches 4 x replicas 1 of 2 or 3 samples");
}

TEST(BatchTest, SplitEvenlyPutsLargerPartsFirst) {
  EXPECT_EQ(split_evenly(10, 4), (std::vector<int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(split_evenly(2, 4), (std::vector<int64_t>{1, 1, 0, 0}));
  for (int64_t total = 0; total < 30; ++total) {
    for (int64_t parts = 1; parts < 10; ++parts) {
      const std::vector<int64_t> sizes = split_evenly(total, parts);
      EXPECT_EQ(sizes.size(), static_cast<std::size_t>(parts));
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), total);
      EXPECT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend()));
      EXPECT_LE(sizes.front() - sizes.back(), 1);
    }
  }
  EXPECT_EQ(caught([] { split_evenly(4, 0); }).code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace millrace
