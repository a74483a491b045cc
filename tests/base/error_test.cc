#include "millrace/base/error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/base/caught.h"

namespace millrace {
namespace {

TEST(ErrorTest, ComposesOneLineWithAllCoordinates) {
  Error error(ErrorCode::kBadFile, "expected a number, found `x`");
  EXPECT_STREQ(error.what(), "expected a number, found `x`");
  error.in_file("plan.json", 12).at_key("stages[1].ranks");
  EXPECT_STREQ(error.what(), "plan.json:12: stages[1].ranks: expected a number, found `x`");
  error.at_rank(3).at_stage(1).at_microbatch(7).at_action("1F7");
  EXPECT_STREQ(error.what(),
               "plan.json:12: stages[1].ranks: expected a number, found `x` (rank 3, stage 1, "
               "microbatch 7, action 1F7)");
  EXPECT_EQ(error.message(), "expected a number, found `x`");
  EXPECT_EQ(error.rank(), 3);
  EXPECT_EQ(error.stage(), 1);
  EXPECT_EQ(error.microbatch(), 7);
  EXPECT_EQ(error.action(), "1F7");
  EXPECT_EQ(error.line(), 12);
}

TEST(ErrorTest, LeavesOutWhatIsUnknown) {
  Error error(ErrorCode::kTimeout, "late");
  error.in_file("a.toml", 0).at_key("");
  EXPECT_STREQ(error.what(), "a.toml: late");
  EXPECT_FALSE(error.line().has_value());
  // A later place without a line forgets the earlier line.
  error.in_file("b", 4).in_file("c");
  EXPECT_STREQ(error.what(), "c: late");
}

TEST(ErrorTest, PutsCoordinatesOnTheFirstLineOfALongMessage) {
  Error error(ErrorCode::kInvalidArgument, "deadlock\nrank 0 | 0F0");
  error.at_rank(2);
  EXPECT_STREQ(error.what(), "deadlock (rank 2)\nrank 0 | 0F0");
}

TEST(ErrorTest, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    names.insert(to_string(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), 9u);
  EXPECT_EQ(std::string(to_string(ErrorCode::kInvalidArgument)), "invalid-argument");
  EXPECT_EQ(std::string(to_string(ErrorCode::kPeerLost)), "peer-lost");
}

TEST(ErrorTest, CheckThrowsOnlyWhenFalseAndSaysWhere) {
  EXPECT_NO_THROW(MILLRACE_CHECK(1 + 1 == 2, "never"));
  const Error error = caught([] { MILLRACE_CHECK(1 + 1 == 3, "sums are off"); });
  EXPECT_EQ(error.code(), ErrorCode::kInternal);
  EXPECT_NE(error.message().find("1 + 1 == 3"), std::string::npos);
  EXPECT_NE(error.message().find("error_test.cc"), std::string::npos);
  EXPECT_NE(error.message().find("sums are off"), std::string::npos);
}

}  // namespace
}  // namespace millrace
