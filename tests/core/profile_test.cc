#include "millrace/core/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/core_testing.h"

namespace millrace {
namespace {

using testing::as_document;
using testing::Draws;
using testing::expect_round_trip;
using ::testing::HasSubstr;
using testing::with;
using testing::without;

LayerProfile layer(const std::string& name) {
  LayerProfile result;
  result.name = name;
  result.forward_s = 1e-3;
  result.output_bytes = 100;
  return result;
}

Profile chain(const std::vector<std::string>& names) {
  Profile profile;
  profile.model = "m";
  for (const std::string& name : names) {
    profile.layers.push_back(layer(name));
  }
  make_chain(profile);
  return profile;
}

Value edge(const std::string& from, const std::string& to) {
  Value value = Value::map();
  value.set("from", Value::of(from));
  value.set("to", Value::of(to));
  return value;
}

Profile read(const Value& value) { return profile_from(as_document(value)); }

Profile random_profile(uint64_t seed) {
  Draws draws(seed);
  Profile profile;
  profile.model = draws.name();
  profile.machine = draws.coin() ? draws.name() : "";
  profile.dtype = draws.coin() ? "float32" : "float64";
  profile.samples_per_microbatch = draws.between(1, 512);
  profile.busy_ranks = static_cast<int>(draws.between(1, 64));
  profile.peak_flops_per_s = draws.zero_or_more();
  const int64_t count = draws.between(1, 12);
  for (int64_t i = 0; i < count; ++i) {
    LayerProfile one;
    one.name = draws.name() + "/" + std::to_string(i);
    one.forward_s = draws.zero_or_more();
    one.input_gradient_s = draws.zero_or_more();
    one.weight_gradient_s = draws.zero_or_more();
    one.update_s = draws.zero_or_more();
    one.output_bytes = draws.bytes();
    one.parameter_bytes = draws.bytes();
    one.stash_bytes = draws.bytes();
    one.forward_spread_s = draws.zero_or_more();
    one.input_gradient_spread_s = draws.zero_or_more();
    one.weight_gradient_spread_s = draws.zero_or_more();
    one.forward_flops = draws.zero_or_more();
    one.input_gradient_flops = draws.zero_or_more();
    one.weight_gradient_flops = draws.zero_or_more();
    if (draws.coin()) {
      one.kind = draws.name();
      one.input_shape = {draws.between(1, 9), draws.between(0, 9)};
      one.output_shape = {draws.between(1, 9)};
      one.weight_shape.resize(static_cast<std::size_t>(draws.between(0, 3)), 5);
    }
    if (draws.coin()) {
      one.estimated = {"stash_bytes", "update_s"};
    }
    profile.layers.push_back(one);
  }
  // A random DAG: forward edges only, so that the order holds; at least one when there are two.
  make_chain(profile);
  for (int64_t from = 0; from + 2 < count; ++from) {
    if (draws.coin()) {
      const int64_t to = draws.between(from + 2, count - 1);
      profile.edges.push_back({profile.layers[static_cast<std::size_t>(from)].name,
                               profile.layers[static_cast<std::size_t>(to)].name});
    }
  }
  return profile;
}

TEST(ProfileTest, RandomProfilesRoundTrip) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    expect_round_trip(random_profile(seed), profile_from);
  }
}

TEST(ProfileTest, NoEdgesInAFileMeanAChain) {
  const Profile profile = chain({"a", "b", "c"});
  EXPECT_TRUE(is_chain(profile));
  EXPECT_EQ(read(without(to_value(profile), "edges")), profile);
  EXPECT_EQ(read(with(to_value(profile), "edges", Value::list())), profile);
  EXPECT_TRUE(is_chain(chain({"only"})));
}

TEST(ProfileTest, IsChainSeesSkipsAndGaps) {
  Profile profile = chain({"a", "b", "c"});
  profile.edges.push_back({"a", "c"});
  EXPECT_FALSE(is_chain(profile));
  profile.edges = {{"b", "c"}, {"a", "b"}};
  EXPECT_TRUE(is_chain(profile)) << "the order of edges does not matter";
  profile.edges = {{"a", "b"}, {"a", "c"}};
  EXPECT_FALSE(is_chain(profile));
}

TEST(ProfileTest, SortsLayersStably) {
  // d needs c and b; c needs a. a and b are free, in file order b, a.
  Value value = to_value(chain({"d", "b", "c", "a"}));
  value.set("edges", Value::list({edge("b", "d"), edge("c", "d"), edge("a", "c")}));
  std::vector<std::string> names;
  for (const LayerProfile& one : read(value).layers) {
    names.push_back(one.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"b", "a", "c", "d"}));
}

TEST(ProfileTest, OptionalMembersHaveDefaults) {
  Value value = to_value(chain({"a"}));
  for (const char* path :
       {"machine", "dtype", "busy_ranks", "edges", "layers.0.update_s", "layers.0.forward_spread_s",
        "layers.0.forward_flops", "peak_flops_per_s"}) {
    value = without(value, path);
  }
  EXPECT_EQ(read(value), chain({"a"}));
}

void expect_refused(const Value& value, const std::string& key, const std::string& part) {
  const Error error = caught([&] { read(value); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
  EXPECT_EQ(error.key(), key) << error.what();
  EXPECT_THAT(error.message(), HasSubstr(part));
}

TEST(ProfileTest, RefusesBadMembers) {
  const Value good = to_value(chain({"a", "b", "c"}));
  EXPECT_NO_THROW(read(good));
  for (const char* key : {"artifact", "version", "model", "samples_per_microbatch", "layers",
                          "layers.1.name", "layers.1.forward_s", "layers.1.stash_bytes"}) {
    EXPECT_THAT(caught([&] { read(without(good, key)); }).message(), HasSubstr("missing")) << key;
  }
  expect_refused(with(good, "layers.1.forward_s", Value::of(-1e-9)), "layers[1].forward_s",
                 "0 or more");
  expect_refused(with(good, "layers.1.forward_s", Value::of(std::nan(""))), "layers[1].forward_s",
                 "finite");
  expect_refused(with(good, "layers.0.output_bytes", Value::of(1.5)), "layers[0].output_bytes",
                 "whole number");
  expect_refused(with(good, "layers.0.stash_bytes", Value::of(-1)), "layers[0].stash_bytes",
                 "0 or more");
  const Value half = Value::list({Value::of(2), Value::of(1.5)});
  const Value negative = Value::list({Value::of(-2)});
  for (const char* shape : {"input_shape", "output_shape", "weight_shape"}) {
    const std::string key = std::string("layers[0].") + shape;
    const std::string path = std::string("layers.0.") + shape;
    expect_refused(with(good, path, half), key, "whole numbers from 0, found 1.5");
    expect_refused(with(good, path, negative), key, "whole numbers from 0, found -2");
  }
  expect_refused(with(good, "layers.1.forward_flops", Value::of(-1.0)), "layers[1].forward_flops",
                 "0 or more");
  expect_refused(with(good, "layers.1.forward_spread_s", Value::of(-1.0)),
                 "layers[1].forward_spread_s", "0 or more");
  expect_refused(with(good, "peak_flops_per_s", Value::of(-1.0)), "peak_flops_per_s", "0 or more");
  expect_refused(with(good, "samples_per_microbatch", Value::of(0)), "samples_per_microbatch",
                 "1 or more");
  expect_refused(with(good, "layers", Value::list()), "layers", "at least one layer");
  expect_refused(with(good, "layers.2.name", Value::of("a")), "layers[2].name", "also layers[0]");
  expect_refused(with(good, "layers.2.name", Value::of("")), "layers[2].name", "empty");
  expect_refused(with(good, "layers.0.forwards_s", Value::of(1)), "layers[0].forwards_s",
                 "did you mean `forward_s`");
  expect_refused(with(good, "layers.0.estimated", Value::list({Value::of("stash_byte")})),
                 "layers[0].estimated", "did you mean `stash_bytes`");
  expect_refused(with(good, "extra", Value::of(1)), "extra", "unknown key");
}

TEST(ProfileTest, RefusesBadEdges) {
  const Value good = to_value(chain({"a", "b", "c"}));
  const auto with_edges = [&](std::vector<Value> edges) {
    return with(good, "edges", Value::list(std::move(edges)));
  };
  expect_refused(with_edges({edge("a", "conv9")}), "edges[0].to", "no layer is called `conv9`");
  expect_refused(with_edges({edge("b", "b")}), "edges[0].to", "cannot feed itself");
  expect_refused(with_edges({edge("a", "b"), edge("a", "b")}), "edges[1]", "twice");
  expect_refused(with_edges({edge("a", "b"), edge("b", "c"), edge("c", "b")}), "edges", "cycle");
}

TEST(ProfileTest, NamesTheLayersOfACycle) {
  // "in" feeds the cycle and "out" hangs behind it: neither is on it.
  Value value = to_value(chain({"out", "in", "x", "y", "z"}));
  value.set("edges", Value::list({edge("in", "x"), edge("x", "y"), edge("y", "z"), edge("z", "x"),
                                  edge("z", "out")}));
  const std::string message = caught([&] { read(value); }).message();
  const bool rotated = message.find("`x` -> `y` -> `z` -> `x`") != std::string::npos ||
                       message.find("`y` -> `z` -> `x` -> `y`") != std::string::npos ||
                       message.find("`z` -> `x` -> `y` -> `z`") != std::string::npos;
  EXPECT_TRUE(rotated) << message;
  EXPECT_EQ(message.find("`in`"), std::string::npos);
  EXPECT_EQ(message.find("`out`"), std::string::npos);
}

}  // namespace
}  // namespace millrace
