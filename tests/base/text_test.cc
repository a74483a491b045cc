#include "millrace/base/text.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/base/caught.h"

namespace millrace {
namespace {

const std::vector<std::string> kKeys = {"epochs",      "batch",    "lr",
                                        "lr_schedule", "momentum", "dtype"};

TEST(TextTest, NearestTakesInsertDeleteReplaceAndSwapAsOneEach) {
  EXPECT_EQ(nearest("epoch", kKeys), "epochs");
  EXPECT_EQ(nearest("eepochs", kKeys), "epochs");
  EXPECT_EQ(nearest("bitch", kKeys), "batch");
  EXPECT_EQ(nearest("bacth", kKeys), "batch");
  EXPECT_EQ(nearest("MOMENTUM", kKeys), "momentum");
  // Two swaps are two, not four: within max(2, 6/3).
  EXPECT_EQ(nearest("peohcs", kKeys), "epochs");
}

TEST(TextTest, NearestRefusesWhatIsFar) {
  EXPECT_EQ(nearest("optimizer", kKeys), "");
  EXPECT_EQ(nearest("", kKeys), "");
  EXPECT_EQ(nearest("xy", kKeys), "") << "every letter replaced is not near";
  EXPECT_EQ(nearest(std::string(1 << 20, 'a'), kKeys), "");
  EXPECT_EQ(nearest("batch", {}), "");
}

TEST(TextTest, NearestKnowsInitials) {
  EXPECT_EQ(nearest("learning_rte", kKeys), "lr");
  EXPECT_EQ(nearest("learning-rate", kKeys), "lr");
  EXPECT_EQ(did_you_mean("learning_rte", kKeys), "; did you mean `lr`?");
  EXPECT_EQ(did_you_mean("zzzzzzz", kKeys), "");
}

TEST(TextTest, NearestPrefersTheClosestAndThenTheFirst) {
  EXPECT_EQ(nearest("gpip", {"gpipe2", "gpipe", "pipe"}), "gpipe");
  EXPECT_EQ(nearest("1f1c", {"1f1b", "1f1a"}), "1f1b");
}

TEST(TextTest, InQuotesKeepsMessagesOnOneLine) {
  EXPECT_EQ(in_quotes("plain"), "`plain`");
  EXPECT_EQ(in_quotes("a\nb\t\x1b["), "`a\\nb\\t\\x1b[`");
  EXPECT_EQ(in_quotes(std::string(100, 'x')), "`" + std::string(60, 'x') + "...`");
  // A cut never splits a code point.
  std::string accents;
  for (int i = 0; i < 40; ++i) {
    accents += "\xC3\xA9";
  }
  EXPECT_EQ(in_quotes("a" + accents), "`a" + accents.substr(0, 60) + "...`");
}

TEST(TextTest, JoinSplitTrim) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a", "", "c"}, ", "), "a, , c");
  EXPECT_EQ(split("a..b", '.'), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  EXPECT_EQ(split("a,", ','), (std::vector<std::string>{"a", ""}));
  for (const std::string text : {"a.b.c", "", "...", "x"}) {
    EXPECT_EQ(join(split(text, '.'), "."), text);
  }
  EXPECT_EQ(trim(" \t a b \r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(TextTest, FormatsNumbersWithUnits) {
  EXPECT_EQ(format_seconds(1.2341), "1.234 s");
  EXPECT_EQ(format_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(format_seconds(45.6e-6), "45.6 us");
  EXPECT_EQ(format_seconds(0.99999), "1.000 s") << "never 1000 ms";
  EXPECT_EQ(format_seconds(123.4), "123 s");
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(-0.5), "-500 ms");
  EXPECT_EQ(format_seconds(3e-9), "3.000 ns");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(4.2e6), "4.2 MB");
  EXPECT_EQ(format_bytes(999999), "1.0 MB") << "never 1000.0 kB";
  EXPECT_EQ(format_bytes(16e9), "16.0 GB");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1226810), "1,226,810");
  EXPECT_EQ(format_count(-1000), "-1,000");
  EXPECT_EQ(format_count(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(TextTest, TableAlignsColumnsByCodePoints) {
  TextTable table({"stage", "time"});
  table.row({"0", "1.5 ms"});
  table.row({"caf\xC3\xA9 12", "9 us"});
  table.row({"last"});
  EXPECT_EQ(table.str(),
            "stage      time\n"
            "-------  ------\n"
            "0        1.5 ms\n"
            "caf\xC3\xA9 12    9 us\n"
            "last\n");
  EXPECT_EQ(caught([&] { table.row({"1", "2", "3"}); }).code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace millrace
