// Which collective sums gradients between processes, and for how long.
#include "millrace/sim/reductions.h"

#include <gmock/gmock.h>

#include <numeric>

namespace millrace {
namespace {

// `inside` ranks a process with 10 GB/s, processes joined by 100 MB/s and 1 ms.
Cluster cluster_of(int inside, int processes) {
  Cluster cluster;
  NetworkLevel in;
  in.size = inside;
  in.bandwidth_bytes_per_s = 1e10;
  NetworkLevel out;
  out.size = processes;
  out.bandwidth_bytes_per_s = 1e8;
  out.latency_s = 1e-3;
  cluster.levels = {in, out};
  return cluster;
}

std::vector<int> all_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(Reductions, ARingBetweenProcessesTakesItsClosedForm) {
  const Reductions reductions(cluster_of(1, 4), 4, 4, "ring");
  // 2(P-1) steps of a latency and a quarter of the bytes each.
  EXPECT_NEAR(reductions.seconds(all_ranks(4), 4e6), 6 * (1e-3 + 1e6 / 1e8), 1e-9);
  EXPECT_EQ(reductions.seconds({2}, 4e6), 0);
}

TEST(Reductions, RanksOfAProcessSumBeforeAndAreHandedTheResult) {
  const Cluster cluster = cluster_of(2, 2);
  const Reductions reductions(cluster, 4, 2, "ring");
  const double between_s = 2 * (1e-3 + 2e6 / 1e8);
  const double inside_s = cluster.all_reduce_s({0, 1}, 4e6) + 4e6 / 1e10;
  EXPECT_NEAR(reductions.seconds(all_ranks(4), 4e6), between_s + inside_s, 1e-9);
  // All in one process: no program.
  EXPECT_NEAR(reductions.seconds({2, 3}, 4e6), cluster.all_reduce_s({2, 3}, 4e6), 1e-12);
}

TEST(Reductions, AutoIsNeverSlowerThanAnyOther) {
  const Cluster cluster = cluster_of(1, 4);
  const Reductions chosen(cluster, 4, 4, "auto");
  for (const double bytes : {4.0, 4e3, 4e6}) {
    for (const std::string name : {"ring", "tree", "halving-doubling", "asa", "server"}) {
      const Reductions one(cluster, 4, 4, name);
      EXPECT_LE(chosen.seconds(all_ranks(4), bytes), one.seconds(all_ranks(4), bytes) + 1e-12)
          << name << " " << bytes;
    }
  }
}

TEST(Reductions, WhatWasMeasuredCountsForSoManyMembers) {
  const std::vector<CollectiveFit> fits = {{"ring", 2, 4000, 1e-3, 4'004'000, 41e-3},
                                           {"tree", 2, 4000, 0.5e-3, 4'004'000, 80.5e-3},
                                           {"native", 2, 4000, 9e-3, 4'004'000, 10e-3}};
  const Reductions all(cluster_of(1, 2), 2, 2, "auto", nullptr, fits);
  EXPECT_EQ(all.choose({0, 1}, 1000, 4).name, "tree");
  EXPECT_EQ(all.choose({0, 1}, 1'001'000, 4).name, "native");
  EXPECT_NEAR(all.seconds({0, 1}, 2'004'000), 9.5e-3, 1e-9);
  EXPECT_NEAR(all.seconds({0, 1}, 8), 0.5e-3, 1e-9) << "no less than the smallest size took";
  const Reductions ring(cluster_of(1, 2), 2, 2, "ring", nullptr, fits);
  EXPECT_NEAR(ring.seconds({0, 1}, 8'004'000), 81e-3, 1e-9);
  // Of three members nothing was measured.
  const Reductions more(cluster_of(1, 3), 3, 3, "ring", nullptr, fits);
  EXPECT_NEAR(more.seconds(all_ranks(3), 6e6), 4 * (1e-3 + 2e6 / 1e8), 1e-9);
  EXPECT_EQ(collective_fits_from(parse_json(to_json(to_value(fits)), "fits"))[1].large_s, 80.5e-3);
}

TEST(Reductions, ACodecSparesBytesAndTheEnginesOwnHasNone) {
  const std::shared_ptr<const Codec> half = find_codec("fp16").make({});
  const Reductions plain(cluster_of(1, 2), 2, 2, "ring");
  const Reductions encoded(cluster_of(1, 2), 2, 2, "ring", half);
  EXPECT_NEAR(encoded.seconds({0, 1}, 8e6), plain.seconds({0, 1}, 4e6), 1e-9);
  EXPECT_THAT([&] { Reductions(cluster_of(1, 2), 2, 2, "native", half); },
              testing::Throws<Error>(testing::Property(&Error::code, ErrorCode::kInvalidArgument)));
  EXPECT_THROW(Reductions(cluster_of(1, 2), 2, 2, "rings"), Error);
  const std::vector<CollectiveFit> fits = {{"ring", 2, 4000, 1e-3, 4'004'000, 41e-3},
                                           {"native", 2, 4000, 1e-6, 4'004'000, 1e-5}};
  const Reductions measured(cluster_of(1, 2), 2, 2, "auto", half, fits);
  EXPECT_EQ(measured.choose({0, 1}, 1000, 4).name, "ring");
  EXPECT_NEAR(measured.seconds({0, 1}, 8'008'000), 41e-3, 1e-9);
}

}  // namespace
}  // namespace millrace
