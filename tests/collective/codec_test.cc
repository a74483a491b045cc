// Properties of all codecs, and of all collectives under each of them.
#include "millrace/collective/codec.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "millrace/base/random.h"
#include "millrace/core/run_config.h"
#include "tests/base/caught.h"
#include "tests/collective/codecs.h"
#include "tests/collective/configs.h"
#include "tests/collective/run_serially.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Blocks of many kinds: sizes around a codec's batches, magnitudes from subnormal to the largest.
std::vector<std::vector<float>> finite_blocks() {
  std::vector<std::vector<float>> blocks = {{},
                                            {0.0F},
                                            {-0.0F, 0.0F, 0.0F},
                                            {1.0F},
                                            {-3.4e38F, 3.4e38F, 1.0F},
                                            {std::numeric_limits<float>::max()},
                                            {0x1p-126F, -0x1p-126F},
                                            {0x1p-149F, -0x1p-140F, 0x1.8p-127F},
                                            {0x1.fffffep-127F, 0x1p-126F, 0x1.000002p-126F}};
  for (const int64_t size : {1, 2, 3, 7, 8, 31, 511, 512, 513, 1001}) {
    for (const double scale : {1.0, 1e-6, 1e4, 1e-38, 1e-42, 1e37}) {
      const RandomKey key = RandomKey(5).with(size).with(static_cast<uint64_t>(scale * 1e3));
      std::vector<float> block;
      for (int64_t i = 0; i < size; ++i) {
        // Every fourth some powers of two smaller.
        const double shrink = i % 4 == 3 ? std::ldexp(1.0, -static_cast<int>(i % 37)) : 1;
        block.push_back(static_cast<float>(key.normal(i) * scale * shrink));
      }
      blocks.push_back(block);
    }
  }
  return blocks;
}

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

TEST(CodecTest, WhatIsDecodedIsWithinTheBound) {
  for_all_codecs([](const std::string& name, const Codec& codec) {
    const CodecBound bound = codec.bound();
    for (const std::vector<float>& block : finite_blocks()) {
      const std::vector<float> decoded = passed(codec, block);
      double largest = 0;
      for (const float x : block) {
        largest = std::max(largest, std::abs(static_cast<double>(x)));
      }
      for (std::size_t i = 0; i < block.size(); ++i) {
        const double x = block[i];
        if (std::abs(x) <= bound.up_to) {
          ASSERT_LE(std::abs(x - decoded[i]),
                    bound.relative * std::abs(x) + bound.of_largest * largest + bound.absolute)
              << name << " " << x << " in a block up to " << largest;
        }
      }
    }
  });
}

// A bound that nothing comes near would say nothing: half of it is exceeded somewhere.
TEST(CodecTest, BoundsAreTight) {
  std::vector<std::vector<float>> blocks(2, {1.0F});
  for (int i = 1; i < 4096; ++i) {
    blocks[0].push_back(1.0F + std::ldexp(static_cast<float>(i), -12));
    blocks[1].push_back(std::ldexp(0x1.fffffep0F, -1 - i % 100));
  }
  for_all_codecs([&blocks](const std::string& name, const Codec& codec) {
    if (name == "none") {
      return;
    }
    const CodecBound bound = codec.bound();
    double worst = 0;
    for (const std::vector<float>& block : blocks) {
      const std::vector<float> decoded = passed(codec, block);
      const double largest = *std::max_element(block.begin(), block.end());
      for (std::size_t i = 0; i < block.size(); ++i) {
        const double x = block[i];
        const double most = bound.relative * x + bound.of_largest * largest + bound.absolute;
        worst = std::max(worst, std::abs(x - decoded[i]) / most);
      }
    }
    EXPECT_GT(worst, 0.5) << name;
    EXPECT_LE(worst, 1) << name;
  });
}

TEST(CodecTest, DecodedBlocksPassUnchanged) {
  for_all_codecs([](const std::string& name, const Codec& codec) {
    for (std::vector<float> block : finite_blocks()) {
      for (const bool with_others : {false, true}) {
        if (with_others) {
          block.insert(block.end(), {kInfinity, -kInfinity, kNan, -kNan});
        }
        const std::vector<float> once = passed(codec, block);
        const std::vector<float> twice = passed(codec, once);
        for (std::size_t i = 0; i < once.size(); ++i) {
          ASSERT_EQ(bits_of(once[i]), bits_of(twice[i])) << name << " " << block[i];
        }
      }
    }
  });
}

TEST(CodecTest, ZerosNansAndInfinitiesSurvive) {
  const float low_nan = std::bit_cast<float>(0x7f800001U);  // its payload is in the lowest bit
  for_all_codecs([low_nan](const std::string& name, const Codec& codec) {
    const std::vector<float> block =
        passed(codec, {0.0F, -0.0F, kNan, low_nan, -low_nan, kInfinity, -kInfinity, 1.5F});
    EXPECT_EQ(block[0], 0) << name;
    EXPECT_EQ(block[1], 0) << name;
    for (const int i : {2, 3, 4}) {
      EXPECT_TRUE(std::isnan(block[i])) << name << i;
    }
    const bool as_nan = name == "quantize8";
    EXPECT_EQ(std::isnan(block[5]), as_nan) << name;
    EXPECT_EQ(block[5] == kInfinity, !as_nan) << name;
    EXPECT_EQ(block[6] == -kInfinity, !as_nan) << name;
    // Others of the block are as exact as without them.
    EXPECT_NEAR(block[7], 1.5, 1.5 / 253) << name;
  });
}

TEST(CodecTest, NothingIsWrittenBesideABlock) {
  for_all_codecs([](const std::string& name, const Codec& codec) {
    for (const int64_t n : {0, 1, 2, 3, 5, 8, 33, 600}) {
      const auto size = static_cast<std::size_t>(codec.wire_bytes(n));
      EXPECT_EQ(codec.wire_bytes(0), 0);
      std::vector<std::byte> bytes(size + 8, std::byte{0xa5});
      std::vector<float> values(static_cast<std::size_t>(n) + 2, 42.0F);
      codec.encode({values.data(), static_cast<std::size_t>(n)}, {bytes.data(), size});
      std::fill_n(values.begin(), n, 0.0F);
      codec.decode({bytes.data(), size}, {values.data(), static_cast<std::size_t>(n)});
      for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_EQ(bytes[size + i], std::byte{0xa5}) << name;
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(values[i], 42.0F, 42.0 / 4) << name << " " << n;  // accept:3,2 is the coarsest
      }
      EXPECT_EQ(values[n], 42.0F);
      EXPECT_EQ(caught([&] {
                  codec.encode(values, {bytes.data(), size});
                }).code(),
                ErrorCode::kInternal);
    }
  });
}

TEST(CodecRegistryTest, AnUnknownNameGetsTheNearestOne) {
  EXPECT_EQ(find_codec("bf16").name, "bf16");
  EXPECT_THAT(caught([] { find_codec("quantise8"); }).what(),
              HasSubstr("did you mean `quantize8`?"));
  for (const CodecEntry& entry : codecs()) {
    EXPECT_FALSE(entry.text.empty() || entry.bytes.empty() || entry.error.empty()) << entry.name;
  }
}

// Magnitudes that differ much between the chunks of a message, so that blocks have scales of their
// own.
std::vector<std::vector<float>> uneven(int num_members, int64_t elements) {
  std::vector<std::vector<float>> data(num_members);
  for (int m = 0; m < num_members; ++m) {
    const RandomKey key = RandomKey(23).with(m);
    for (int64_t i = 0; i < elements; ++i) {
      const double scale = std::pow(10.0, static_cast<double>(i * 13 / elements % 7) - 3);
      data[m].push_back(static_cast<float>(key.normal(i) * scale));
    }
  }
  return data;
}

bool all_equal(const std::vector<std::vector<float>>& data) {
  return std::all_of(data.begin(), data.end(), [&data](const std::vector<float>& member) {
    return std::memcmp(member.data(), data[0].data(), member.size() * sizeof(float)) == 0;
  });
}

TEST(CodecInCollectiveTest, AllMembersEndWithTheSameBits) {
  for_all_codecs([](const std::string& name, const Codec& codec) {
    for_all_programs([&](const CollectiveEntry& entry, const CollectiveConfig& config,
                         const CollectiveProgram& program) {
      if (config.elements != 7 && config.elements != 64) {
        return;  // blocks of one or no element, and of several
      }
      std::vector<std::vector<float>> data = uneven(config.num_members, config.elements);
      run_serially<float>(program, data,
                          [&codec](float* block, int64_t n) { pass_through(codec, block, n); });
      ASSERT_TRUE(all_equal(data)) << name << " " << entry.name << " " << to_text(config);
    });
  });
}

// What `final` and blocks are for: without either, replicas drift apart.
TEST(CodecInCollectiveTest, WithoutFinalOrBlocksMembersDiffer) {
  const std::unique_ptr<Codec> codec = find_codec("quantize8").make({});
  const auto equal_after = [&codec](const CollectiveProgram& program) {
    std::vector<std::vector<float>> data =
        uneven(static_cast<int>(program.members.size()), program.elements);
    run_serially<float>(program, data,
                        [&codec](float* block, int64_t n) { pass_through(*codec, block, n); });
    return all_equal(data);
  };
  CollectiveProgram ring = make_collective("ring", {4, 1000, {}, {}});
  EXPECT_TRUE(equal_after(ring));
  for (MemberProgram& member : ring.members) {
    for (CollectiveOp& op : member.ops) {
      op.final = false;
    }
  }
  EXPECT_FALSE(equal_after(ring));
  CollectiveProgram folded = make_collective("halving-doubling", {6, 1000, {}, {}});
  EXPECT_TRUE(equal_after(folded));
  for (MemberProgram& member : folded.members) {
    for (CollectiveOp& op : member.ops) {
      op.parts = op.kind == CollectiveOp::Kind::kSum ? op.parts : std::vector<Place>{};
    }
  }
  EXPECT_FALSE(equal_after(folded));
}

// ASA16: every share and the sum are rounded once, sums are of floats.
TEST(CodecInCollectiveTest, Asa16IsWithinItsBound) {
  const std::unique_ptr<Codec> codec = find_codec("fp16").make({});
  for (const int p : {2, 3, 4, 8}) {
    for (const double scale : {1.0, 1e-6}) {
      const int64_t n = 1000;
      std::vector<std::vector<float>> data(p);
      for (int m = 0; m < p; ++m) {
        for (int64_t i = 0; i < n; ++i) {
          data[m].push_back(static_cast<float>(RandomKey(3).with(m).normal(i) * scale));
        }
      }
      std::vector<std::vector<float>> sums = data;
      run_serially<float>(
          make_collective("asa", {p, n, {}, {}}), sums,
          [&codec](float* block, int64_t size) { pass_through(*codec, block, size); });
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        double magnitude = 0;
        for (int m = 0; m < p; ++m) {
          sum += data[m][i];
          magnitude += std::abs(data[m][i]);
        }
        // The sums in float add a little of their own: 2^-24 for each of p - 1 additions.
        EXPECT_LE(std::abs(sums[0][i] - sum),
                  (0x1p-11 + p * 0x1p-24) * (magnitude + std::abs(sum)) + (p + 1) * 0x1p-25);
      }
    }
  }
}

TEST(Codecs, AcceptsWidthsAreKeysOfTheRun) {
  ParallelConfig config;
  config.codec = "accept";
  EXPECT_EQ(make_codec(config)->wire_bytes(800), 1 + 800);  // 1 + 5 + 2 bits each
  config.codec_exponent_bits = 4;
  config.codec_mantissa_bits = 7;
  EXPECT_EQ(make_codec(config)->wire_bytes(800), 1 + 1200);
  EXPECT_EQ(make_codec(config)->bound().relative, 0x1p-7);
  config.codec_mantissa_bits = 13;
  EXPECT_THAT(caught([&] { make_codec(config); }).message(), HasSubstr("at most 16 bits"));
}

}  // namespace
}  // namespace millrace
