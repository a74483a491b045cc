#include "millrace/collective/check.h"

#include <gmock/gmock.h>

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Kind = CollectiveOp::Kind;

CollectiveProgram ring() { return make_collective("ring", {3, 7, {}, {}}); }

CollectiveOp& find_op(CollectiveProgram& program, int member, Kind kind, int nth = 0) {
  for (CollectiveOp& op : program.members[member].ops) {
    if (op.kind == kind && nth-- == 0) {
      return op;
    }
  }
  throw std::out_of_range("no such operation");
}

std::string findings_of(const CollectiveProgram& program) {
  std::string text;
  for (const ProgramFinding& finding : check_program(program)) {
    text += std::to_string(finding.member) + ":" + std::to_string(finding.op) + " " + finding.text +
            "\n";
  }
  return text;
}

TEST(CheckProgramTest, FindsNothingInARing) { EXPECT_THAT(check_program(ring()), IsEmpty()); }

TEST(CheckProgramTest, PlacesLieInsideTheirBuffers) {
  CollectiveProgram program = ring();
  find_op(program, 1, Kind::kSend).place.end = 8;
  EXPECT_THAT(findings_of(program), HasSubstr("1:0 data[3, 8) is not a place of a buffer of 7"));
  program = ring();
  program.members[2].scratch_elements = 1;
  EXPECT_THAT(findings_of(program), HasSubstr("scratch[0, 2) is not a place of a buffer of 1"));
  program = ring();
  find_op(program, 0, Kind::kSend).place.end = 0;
  EXPECT_THAT(findings_of(program), HasSubstr("0:0 data[0, 0) is not a place"));
}

TEST(CheckProgramTest, BlocksTileTheirMessage) {
  CollectiveProgram program = ring();
  for (const int cut : {1, 2}) {
    find_op(program, 0, Kind::kSend).parts = {{Space::kData, 0, cut}, {Space::kData, 2, 3}};
    EXPECT_EQ(findings_of(program).find("blocks do not tile data[0, 3)") != std::string::npos,
              cut == 1);
  }
  // Well formed by itself, but not what the receiver decodes.
  EXPECT_THAT(findings_of(program), HasSubstr("differs in blocks"));
}

TEST(CheckProgramTest, SumsAreOfEqualSizesAndInPlaceOrApart) {
  CollectiveProgram program = ring();
  find_op(program, 0, Kind::kSum).parts.pop_back();
  EXPECT_THAT(findings_of(program), IsEmpty());  // a copy
  find_op(program, 0, Kind::kSum).parts.clear();
  EXPECT_THAT(findings_of(program), HasSubstr("or there are none"));
  program = ring();
  find_op(program, 0, Kind::kSum).parts[1] = {Space::kData, 4, 6};
  find_op(program, 0, Kind::kSum).place = {Space::kData, 5, 7};
  EXPECT_THAT(findings_of(program), HasSubstr("data[5, 7) overlaps a part"));
}

TEST(CheckProgramTest, EveryMessageHasTwoEndsOfOneSize) {
  CollectiveProgram program = ring();
  program.members[1].ops.pop_back();
  EXPECT_THAT(findings_of(program), HasSubstr("member 1 never receives this"));
  program = ring();
  program.members[1].ops.erase(program.members[1].ops.begin());
  EXPECT_THAT(findings_of(program), HasSubstr("message 0 from member 1 is of"));
  EXPECT_THAT(findings_of(program), HasSubstr("member 1 never sends this"));
  program = ring();
  find_op(program, 2, Kind::kSend).final = true;
  EXPECT_THAT(findings_of(program), HasSubstr("`final`"));
  program = ring();
  find_op(program, 2, Kind::kSend).peer = 2;
  EXPECT_THAT(findings_of(program), HasSubstr("2:0 no peer 2"));
}

TEST(CheckProgramTest, AStepHoldsOneMessageEachWay) {
  CollectiveProgram program = ring();
  find_op(program, 0, Kind::kSend, 1).step = 0;
  EXPECT_THAT(findings_of(program),
              HasSubstr("a message of step 0 after one of step 0 in the same"));
  EXPECT_THAT(findings_of(program), HasSubstr("sends in step 0 after it received in step 0"));
  program = ring();
  program.num_steps = 3;
  EXPECT_THAT(findings_of(program), HasSubstr("step 3 of 3"));
}

// Two members that each wait for the other before they send: whatever their steps say, those are
// not in order on one side, or differ between the ends of a message.
TEST(CheckProgramTest, ACircleOfWaitsIsFound) {
  for (const int late : {0, 1}) {
    for (const int early : {0, 1}) {
      CollectiveProgram program = {"own", 1, 2, {}};
      for (const int peer : {1, 0}) {
        program.members.push_back(
            {{{Kind::kReceive, peer, early, false, {Space::kScratch, 0, 1}, {}},
              {Kind::kSend, peer, late, false, {Space::kData, 0, 1}, {}}},
             1});
      }
      EXPECT_NE(findings_of(program), "") << early << late;
    }
  }
}

TEST(CheckProgramTest, ASentPlaceIsNotWrittenBeforeItsReceiverHasIt) {
  const Place place{Space::kData, 0, 1};
  const Place other{Space::kData, 1, 2};
  // Member 0 sends `place`, then receives into it: from member 1, who has it by then.
  CollectiveProgram program = {"own", 2, 2, {}};
  program.members = {
      {{{Kind::kSend, 1, 0, false, place, {}}, {Kind::kReceive, 1, 1, false, place, {}}}, 0},
      {{{Kind::kReceive, 0, 0, false, place, {}}, {Kind::kSend, 0, 1, false, place, {}}}, 0}};
  EXPECT_THAT(findings_of(program), IsEmpty());
  // Member 1 answers without having received: nothing proves that the place is free.
  std::swap(program.members[1].ops[0], program.members[1].ops[1]);
  program.members[1].ops[0].place = other;
  program.members[0].ops[0].step = 0;
  program.members[0].ops[1].step = program.members[1].ops[0].step = 0;
  program.members[1].ops[1].step = 0;
  EXPECT_THAT(findings_of(program),
              HasSubstr("0:1 writes data[0, 1) while member 1 may not have what operation 0 sent"));
  // A sum is a write too.
  program.members[0].ops = {{Kind::kSend, 1, 0, false, place, {}},
                            {Kind::kSum, -1, 0, false, place, {place, other}}};
  program.members[1].ops = {{Kind::kReceive, 0, 0, false, place, {}}};
  EXPECT_THAT(findings_of(program), HasSubstr("0:1 writes data[0, 1)"));
}

TEST(CountProgramTest, CountsWhatIsSent) {
  const ProgramCounts counts = count_program(ring());  // chunks of 3, 2 and 2 elements
  EXPECT_THAT(counts.sent_elements, testing::ElementsAre(14 - 2 - 2, 14 - 2 - 3, 14 - 3 - 2));
  EXPECT_EQ(counts.total_elements, 28);
  EXPECT_EQ(counts.num_messages, 12);
  EXPECT_EQ(counts.num_steps, 4);
}

}  // namespace
}  // namespace millrace
