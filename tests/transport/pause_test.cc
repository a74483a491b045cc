// Waiting for a moment: never too short, ended by an abort. How late a pause ends depends on the
// machine and is not tested.
#include "millrace/transport/pause.h"

#include <gmock/gmock.h>

#include "tests/base/caught.h"
#include "tests/transport/threads.h"

namespace millrace {
namespace {

TEST(Pause, LastsUntilItsDeadline) {
  const AbortFlag abort;
  for (const double seconds : {0.0, 1e-5, 0.001, 0.03, 0.05}) {
    for (const double spin_s : {0.0, kLongestSpinS, 1.0}) {
      const double deadline_s = monotonic_s() + seconds;
      pause_until(deadline_s, abort, spin_s);
      EXPECT_GE(monotonic_s(), deadline_s) << seconds << ", " << spin_s;
    }
  }
}

TEST(Pause, ReturnsFromThePast) {
  const AbortFlag abort;
  pause_until(monotonic_s() - 1, abort, kLongestSpinS);
  pause_until(0, abort);
}

TEST(Pause, EndsWithTheFirstCause) {
  AbortFlag abort;
  const auto errors = run_ranks(3, [&](int rank) {
    if (rank == 0) {
      abort.raise(Error(ErrorCode::kOutOfMemory, "no room").at_rank(0));
    } else {
      pause_until(monotonic_s() + 1e9, abort);  // would outlast us all
    }
  });
  EXPECT_FALSE(errors[0].has_value());
  for (const int rank : {1, 2}) {
    ASSERT_TRUE(errors[static_cast<std::size_t>(rank)].has_value());
    EXPECT_EQ(errors[static_cast<std::size_t>(rank)]->code(), ErrorCode::kPeerLost);
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)]->message(),
                testing::HasSubstr("rank 0 failed: no room"));
  }
  EXPECT_EQ(caught([&] { pause_until(0, abort); }).code(), ErrorCode::kPeerLost);
}

}  // namespace
}  // namespace millrace
