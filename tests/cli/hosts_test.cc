#include "millrace/cli/common/hosts.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdio>

#include "millrace/base/error.h"

namespace millrace::cli {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    parse_hosts(text, "hosts.txt");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    return error.what();
  }
  return "accepted";
}

TEST(HostsTest, OneALineWithSlotsAndComments) {
  const std::vector<Host> hosts =
      parse_hosts("# the rack\nnode1 slots=2\n\n  me@node2\t # one\n10.0.0.3 slots=3", "h");
  ASSERT_EQ(hosts.size(), 3U);
  EXPECT_EQ(hosts[0].name, "node1");
  EXPECT_EQ(hosts[0].slots, 2);
  EXPECT_EQ(hosts[1].name, "me@node2");
  EXPECT_EQ(hosts[1].slots, 1);
  EXPECT_EQ(hosts[2].slots, 3);
  EXPECT_EQ(total_slots(hosts), 6);
}

TEST(HostsTest, WhatIsWrongIsNamedWithItsLine) {
  EXPECT_THAT(refusal("a\nb slots=0"), HasSubstr("hosts.txt:2: "));
  EXPECT_THAT(refusal("a\nb slots=0"), HasSubstr("found `slots=0`"));
  EXPECT_THAT(refusal("b slots=2x"), HasSubstr("found `slots=2x`"));
  EXPECT_THAT(refusal("b slots="), HasSubstr("hosts.txt:1: "));
  EXPECT_THAT(refusal("b 2"), HasSubstr("found `2`"));
  EXPECT_THAT(refusal("b slots=2 c"), HasSubstr("found `c` too"));
  EXPECT_THAT(refusal("slots=2"), HasSubstr("a host's name, found `slots=2`"));
  EXPECT_THAT(refusal("-oProxyCommand"), HasSubstr("a host's name"));
  EXPECT_THAT(refusal("a\n#\na"), HasSubstr("hosts.txt:3: the host `a` stands here twice"));
  EXPECT_THAT(refusal("# nothing\n"), HasSubstr("found none"));
}

TEST(HostsTest, HostsAreFilledInOrder) {
  const std::vector<Host> hosts = {{"a", 2}, {"b", 1}, {"c", 4}};
  const std::vector<HostPlace> places = place_on_hosts(hosts, 4);
  ASSERT_EQ(places.size(), 4U);
  EXPECT_EQ(places[0].host, "a");
  EXPECT_EQ(places[1].host, "a");
  EXPECT_EQ(places[1].local_process, 1);
  EXPECT_EQ(places[2].host, "b");
  EXPECT_EQ(places[2].local_process, 0);
  EXPECT_EQ(places[3].host, "c");
  EXPECT_THROW(place_on_hosts(hosts, 8), Error);
}

// The shell gives back what was quoted.
TEST(HostsTest, TheShellReadsWordsAsTheyWere) {
  for (const std::string word : {"plain", "", "it's", "a b\t$HOME `ls` \"x\" \\ * ;&|", "l1\nl2"}) {
    const std::string command = "printf %s " + shell_quoted(word);
    FILE* output = ::popen(command.c_str(), "r");
    ASSERT_NE(output, nullptr);
    std::array<char, 256> buffer = {};
    const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), output);
    EXPECT_EQ(::pclose(output), 0);
    EXPECT_EQ(std::string(buffer.data(), bytes), word);
  }
}

}  // namespace
}  // namespace millrace::cli
