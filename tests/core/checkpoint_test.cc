#include "millrace/core/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/core/core_testing.h"

namespace millrace {
namespace {

using testing::as_document;
using testing::Draws;
using testing::expect_round_trip;
using ::testing::HasSubstr;
using testing::with;
using testing::without;

CheckpointManifest random_manifest(uint64_t seed) {
  Draws draws(seed);
  CheckpointManifest manifest;
  manifest.model = draws.name();
  manifest.step = draws.bytes();
  manifest.epoch = draws.between(0, 90);
  manifest.step_in_epoch = draws.between(0, 1000);
  manifest.batch = draws.between(1, 4096);
  manifest.samples = draws.bytes();
  manifest.seed = static_cast<uint64_t>(draws.bytes());
  manifest.optimizer = "sgd";
  for (int64_t i = draws.between(0, 6); i > 0; --i) {
    TensorEntry tensor;
    tensor.layer = draws.name();
    tensor.name = tensor.layer + ".weight/" + std::to_string(i);
    tensor.dtype = draws.coin() ? "float32" : "float64";
    for (int64_t d = draws.between(0, 4); d > 0; --d) {
      tensor.shape.push_back(draws.between(0, 512));
    }
    tensor.crc32 = static_cast<uint32_t>(draws.between(0, 0xFFFFFFFF));
    manifest.tensors.push_back(tensor);
  }
  return manifest;
}

TEST(CheckpointTest, RandomManifestsRoundTrip) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    expect_round_trip(random_manifest(seed), manifest_from);
  }
}

TEST(CheckpointTest, KeepsTheBordersOfNumbers) {
  CheckpointManifest manifest = random_manifest(1);
  manifest.seed = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  manifest.tensors = {{"a", "l", "float32", {}, 0xFFFFFFFF}};
  expect_round_trip(manifest, manifest_from);
  manifest.seed += 1;
  EXPECT_EQ(caught([&] { to_value(manifest); }).code(), ErrorCode::kInternal);
}

TEST(CheckpointTest, RefusesBadManifests) {
  CheckpointManifest manifest = random_manifest(2);
  manifest.tensors = {{"a", "l", "float32", {2, 3}, 1}, {"b", "l", "float32", {}, 2}};
  const Value good = to_value(manifest);
  const auto refuse = [&](const std::string& path, const Value& item, const std::string& key,
                          const std::string& part) {
    const Error error = caught([&] { manifest_from(as_document(with(good, path, item))); });
    EXPECT_EQ(error.key(), key) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(part));
  };
  refuse("tensors.1.name", Value::of("a"), "tensors[1].name", "`a` stands there twice");
  refuse("tensors.1.name", Value::of(""), "tensors[1].name", "empty");
  refuse("tensors.0.shape.1", Value::of(-3), "tensors[0].shape", "0 or more");
  refuse("tensors.0.shape", Value::list({Value::of(int64_t{1} << 40), Value::of(int64_t{1} << 40)}),
         "tensors[0].shape", "64 bits");
  refuse("tensors.0.crc32", Value::of(int64_t{1} << 32), "tensors[0].crc32", "32 bits");
  refuse("tensors.0.crc32", Value::of(-1), "tensors[0].crc32", "0 or more");
  refuse("step", Value::of(-1), "step", "0 or more");
  refuse("batch", Value::of(0), "batch", "1 or more");
  refuse("artifact", Value::of("plan"), "artifact", "expected a checkpoint file");
  for (const auto& member : good.object) {
    EXPECT_EQ(caught([&] { manifest_from(as_document(without(good, member.first))); }).key(),
              member.first);
  }
}

}  // namespace
}  // namespace millrace
