#include "millrace/core/world_place.h"

#include <gmock/gmock.h>

#include "millrace/base/error.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(WorldPlaceTest, TheLargerBlocksComeFirst) {
  EXPECT_THAT(ranks_of_process(10, 4, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(ranks_of_process(10, 4, 1), ElementsAre(3, 4, 5));
  EXPECT_THAT(ranks_of_process(10, 4, 2), ElementsAre(6, 7));
  EXPECT_THAT(ranks_of_process(10, 4, 3), ElementsAre(8, 9));
}

TEST(WorldPlaceTest, BlocksCoverTheRanksInOrderAndDifferByOneAtMost) {
  for (int num_ranks = 1; num_ranks <= 20; ++num_ranks) {
    for (int num_processes = 1; num_processes <= num_ranks; ++num_processes) {
      int next = 0;
      for (int process = 0; process < num_processes; ++process) {
        const std::vector<int> ranks = ranks_of_process(num_ranks, num_processes, process);
        const int size = static_cast<int>(ranks.size());
        EXPECT_GE(size, num_ranks / num_processes);
        EXPECT_LE(size, (num_ranks + num_processes - 1) / num_processes);
        for (int rank : ranks) {
          EXPECT_EQ(rank, next++);
          EXPECT_EQ(process_of_rank(rank, num_ranks, num_processes), process)
              << rank << " of " << num_ranks << " on " << num_processes;
        }
      }
      EXPECT_EQ(next, num_ranks);
    }
  }
}

TEST(WorldPlaceTest, MoreProcessesThanRanksAreRefusedWithWhatToDo) {
  try {
    ranks_of_process(2, 3, 0);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("2 ranks and 3 processes"));
    EXPECT_THAT(error.what(), HasSubstr("-n"));
  }
  EXPECT_THROW(process_of_rank(0, 2, 3), Error);
  EXPECT_THROW(ranks_of_process(4, 2, 2), Error);
  EXPECT_THROW(process_of_rank(4, 4, 2), Error);
}

}  // namespace
}  // namespace millrace
