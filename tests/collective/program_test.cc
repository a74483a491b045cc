// Properties of all collectives, over members, sizes, grids and hosts.
#include "millrace/collective/program.h"

#include <gmock/gmock.h>

#include <numeric>

#include "millrace/collective/check.h"
#include "tests/base/caught.h"
#include "tests/collective/configs.h"
#include "tests/collective/run_serially.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// Exact in float up to sums over 16 members, and different at every member and element.
std::vector<std::vector<float>> integers(const CollectiveConfig& config) {
  std::vector<std::vector<float>> data(config.num_members);
  for (int m = 0; m < config.num_members; ++m) {
    for (int64_t i = 0; i < config.elements; ++i) {
      data[m].push_back(static_cast<float>((i * 31 + m * 1009 + 7) % 65521 - 30000));
    }
  }
  return data;
}

TEST(CollectiveProgramTest, EveryMemberEndsWithTheSerialSum) {
  int num_programs = 0;
  for_all_programs([&](const CollectiveEntry& entry, const CollectiveConfig& config,
                       const CollectiveProgram& program) {
    SCOPED_TRACE(entry.name + " " + to_text(config));
    std::vector<std::vector<float>> data = integers(config);
    std::vector<float> sum(config.elements);
    for (const std::vector<float>& member : data) {
      std::transform(sum.begin(), sum.end(), member.begin(), sum.begin(), std::plus<>());
    }
    run_serially(program, data);
    for (const std::vector<float>& member : data) {
      ASSERT_EQ(member, sum);
    }
    ++num_programs;
  });
  EXPECT_GT(num_programs, 2500);
}

TEST(CollectiveProgramTest, EveryProgramIsWellFormed) {
  for_all_programs([](const CollectiveEntry& entry, const CollectiveConfig& config,
                      const CollectiveProgram& program) {
    for (const ProgramFinding& finding : check_program(program)) {
      ADD_FAILURE() << entry.name << " " << to_text(config) << " member " << finding.member
                    << " op " << finding.op << ": " << finding.text;
    }
    EXPECT_EQ(program.algorithm, entry.name);
    EXPECT_EQ(program.elements, config.elements);
    EXPECT_EQ(static_cast<int>(program.members.size()), config.num_members);
  });
}

TEST(CollectiveProgramTest, EveryProgramSendsTwicePMinusOneTimesN) {
  for_all_programs([](const CollectiveEntry& entry, const CollectiveConfig& config,
                      const CollectiveProgram& program) {
    EXPECT_EQ(count_program(program).total_elements, 2 * (config.num_members - 1) * config.elements)
        << entry.name << " " << to_text(config);
  });
}

TEST(CollectiveProgramTest, NothingToSumHasNoOperations) {
  for_all_programs([](const CollectiveEntry& entry, const CollectiveConfig& config,
                      const CollectiveProgram& program) {
    const bool nothing = config.num_members == 1 || config.elements == 0;
    EXPECT_EQ(program.num_steps == 0, nothing) << entry.name << " " << to_text(config);
    for (const MemberProgram& member : program.members) {
      EXPECT_EQ(member.ops.empty(), nothing) << entry.name << " " << to_text(config);
    }
  });
}

// What every member ends with was sent as final or is its own finished chunk: each element of each
// member is, last of all, received by a final message, sent by one, or both.
TEST(CollectiveProgramTest, FinalMessagesReachEveryElement) {
  for_all_programs([](const CollectiveEntry& entry, const CollectiveConfig& config,
                      const CollectiveProgram& program) {
    if (config.num_members == 1) {
      return;
    }
    for (const MemberProgram& member : program.members) {
      std::vector<char> reached(config.elements);
      for (const CollectiveOp& op : member.ops) {
        if (op.final) {
          ASSERT_EQ(op.place.space, Space::kData);
          std::fill(reached.begin() + op.place.begin, reached.begin() + op.place.end, 1);
        } else if (op.kind != CollectiveOp::Kind::kSend && op.place.space == Space::kData) {
          std::fill(reached.begin() + op.place.begin, reached.begin() + op.place.end, 0);
        }
      }
      EXPECT_EQ(std::accumulate(reached.begin(), reached.end(), int64_t{0}), config.elements)
          << entry.name << " " << to_text(config);
    }
  });
}

TEST(CollectiveRegistryTest, NativeAloneHasNoProgram) {
  int num_native = 0;
  for (const CollectiveEntry& entry : collectives()) {
    EXPECT_FALSE(entry.text.empty());
    EXPECT_FALSE(entry.steps.empty());
    EXPECT_FALSE(entry.sends.empty());
    num_native += entry.builtin == nullptr ? 1 : 0;
  }
  EXPECT_EQ(num_native, 1);
  const Error error = caught([] { make_collective("native", {2, 10, {}, {}}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("collective native: it is the engine's own"));
}

TEST(CollectiveRegistryTest, AnUnknownNameGetsTheNearestOne) {
  EXPECT_EQ(find_collective("ring").name, "ring");
  const Error near = caught([] { find_collective("halving-doubeling"); });
  EXPECT_EQ(near.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(near.what(), HasSubstr("did you mean `halving-doubling`?"));
  EXPECT_THAT(caught([] { find_collective("q"); }).what(),
              HasSubstr("there are: ring, halving-doubling, tree, grid"));
}

TEST(CollectiveRegistryTest, ConfigsThatMakeNoSenseAreRefused) {
  const auto why = [](const CollectiveConfig& config) {
    return refusal(find_collective("ring"), config);
  };
  EXPECT_EQ(why({3, 5, {}, {}}), "");
  EXPECT_EQ(why({0, 5, {}, {}}), "expected at least 1 member, found 0");
  EXPECT_EQ(why({2, -1, {}, {}}), "expected at least 0 elements, found -1");
  EXPECT_EQ(why({2, 5, {}, {1, 2, 3}}), "expected the hosts of 2 members, found 3");
}

}  // namespace
}  // namespace millrace
