#include "millrace/core/pipedream_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "millrace/base/text.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string node(const std::string& id, const std::string& description,
                 const std::string& activation = "8.000", const std::string& backward = "4.000") {
  return id + " -- " + description +
         " -- forward_compute_time=2.500, backward_compute_time=" + backward +
         ", activation_size=" + activation + ", parameter_size=16.000";
}

std::string text_of(const std::vector<std::string>& lines) { return join(lines, "\n") + "\n"; }

Profile read(const std::vector<std::string>& lines) {
  return profile_from_pipedream_graph(text_of(lines), "g.txt", "net", 64);
}

// Input -> conv -> lstm (three outputs, one of them consumed) -> join, conv -> join
const std::vector<std::string> kGraph = {node("node10", "Linear(in_features=3)"),
                                         node("node1", "Input0", "7", "3"),
                                         node("node3", "LSTM(4, 4)", "[6.000; 3.000; 1.000]"),
                                         node("node4", "__getitem__(0)"),
                                         node("node5", "__getitem__(1)"),
                                         node("node2", "Conv2d(3, 8, kernel_size=(3, 3))"),
                                         "\tnode1 -- node2",
                                         "\tnode2 -- node3",
                                         "\tnode3 -- node4",
                                         "\tnode3 -- node5",
                                         "\tnode4 -- node10",
                                         "\tnode2 -- node10"};

// What works in place keeps nothing beside what was counted where it was made.
TEST(PipedreamGraph, InPlaceLayersStashNothing) {
  const Profile profile =
      read({node("node1", "Conv2d(3, 8)"), node("node2", "ReLU(inplace)"),
            node("node3", "ReLU(inplace=True)"), node("node4", "ReLU(inplace=False)"),
            "\tnode1 -- node2", "\tnode2 -- node3", "\tnode3 -- node4"});
  EXPECT_GT(profile.layers[0].stash_bytes, 0);
  EXPECT_EQ(profile.layers[1].stash_bytes, 0);
  EXPECT_EQ(profile.layers[2].stash_bytes, 0);
  EXPECT_GT(profile.layers[3].stash_bytes, 0);
  EXPECT_GT(profile.layers[1].output_bytes, 0);
}

TEST(PipedreamGraph, BecomesAProfile) {
  const Profile profile = read(kGraph);
  EXPECT_EQ(profile.model, "net");
  EXPECT_EQ(profile.samples_per_microbatch, 64);
  EXPECT_THAT(layer_names(profile), ElementsAre("node1:Input0", "node2:Conv2d", "node3:LSTM",
                                                "node4:__getitem__", "node10:Linear"));
  EXPECT_THAT(profile.edges, ElementsAre(ProfileEdge{"node1:Input0", "node2:Conv2d"},
                                         ProfileEdge{"node2:Conv2d", "node3:LSTM"},
                                         ProfileEdge{"node2:Conv2d", "node10:Linear"},
                                         ProfileEdge{"node3:LSTM", "node4:__getitem__"},
                                         ProfileEdge{"node4:__getitem__", "node10:Linear"}))
      << "what nobody consumes is left out";
  const LayerProfile& lstm = profile.layers[2];
  EXPECT_EQ(lstm.forward_s, 0.0025);
  EXPECT_EQ(lstm.input_gradient_s, 0.002);
  EXPECT_EQ(lstm.weight_gradient_s, 0.002);
  EXPECT_EQ(lstm.output_bytes, 10) << "a list is its sum";
  EXPECT_EQ(lstm.parameter_bytes, 16);
  EXPECT_EQ(lstm.stash_bytes, 10);
  EXPECT_THAT(lstm.estimated, ElementsAre("input_gradient_s", "weight_gradient_s", "update_s",
                                          "stash_bytes", "kept_bytes"));
  LayerProfile nothing;
  nothing.name = "node1:Input0";
  EXPECT_EQ(profile.layers[0], nothing) << "an input costs nothing";
  EXPECT_EQ(profile_from({"p.json", to_value(profile)}), profile);
}

TEST(PipedreamGraph, OrderOfLinesAndLineEndsAreIrrelevant) {
  const Profile expected = read(kGraph);
  std::mt19937 random(3);
  std::vector<std::string> lines = kGraph;
  for (int round = 0; round < 20; ++round) {
    std::shuffle(lines.begin(), lines.end(), random);
    EXPECT_EQ(read(lines), expected);
  }
  EXPECT_EQ(profile_from_pipedream_graph(join(lines, "\r\n"), "g.txt", "net", 64), expected);
}

TEST(PipedreamGraph, HalvesAddUpToTheBackward) {
  for (const char* ms : {"0.1", "7.197", "18.335", "0.000", "3e-7"}) {
    const Profile profile = read({node("a", "Linear(3)", "1", ms)});
    const LayerProfile& layer = profile.layers[0];
    EXPECT_EQ(layer.input_gradient_s + layer.weight_gradient_s, std::stod(ms) / 1e3);
    EXPECT_EQ(layer.weight_gradient_s, std::stod(ms) / 2e3);
  }
  std::string relu = node("a", "ReLU(inplace)");
  relu.replace(relu.find("parameter_size=16"), 17, "parameter_size=0");
  EXPECT_EQ(read({relu}).layers[0].weight_gradient_s, 0) << "no parameters, no gradient of them";
  EXPECT_EQ(read({relu}).layers[0].input_gradient_s, 0.004);
}

TEST(PipedreamGraph, RefusalsNameTheLine) {
  const std::string a = node("a", "Linear(1)");
  const std::string b = node("b", "Linear(2)");
  const auto refuse = [](const std::vector<std::string>& lines, int line, const std::string& part) {
    const Error error = caught([&] { read(lines); });
    EXPECT_EQ(error.code(), ErrorCode::kBadFile) << part;
    EXPECT_EQ(error.file(), "g.txt");
    EXPECT_EQ(error.line().value_or(0), line) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(part));
  };
  const auto edit = [](std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  };
  refuse({""}, 0, "found no node");
  refuse({a, "", "b Linear"}, 3, "expected a node as `<id> -- <description>");
  refuse({a, "b -- Linear(2)"}, 2, "expected a node as");
  refuse({a, b, "\ta b"}, 3, "expected an edge as");
  refuse({a, b, "\ta -- c"}, 3, "no node is called `c`");
  refuse({a, b, "\ta -- a"}, 3, "cannot feed itself");
  refuse({a, b, "\ta -- b", "\ta -- b"}, 4, "stands there twice");
  refuse({a, b, a}, 3, "node `a` stands there twice: also in line 1");
  refuse({a, b}, 0, "expected edges among the 2 nodes");
  refuse({a, b, "\ta -- b", "\tb -- a"}, 0, "`a:Linear` -> `b:Linear` -> `a:Linear`");
  refuse({edit(a, "forward_compute_time=2.500", "forward_compute_time=-1")}, 1,
         "forward_compute_time: expected a number of 0 or more, found `-1`");
  refuse({edit(a, "2.500", "fast")}, 1, "found `fast`");
  refuse({edit(a, "2.500", "nan")}, 1, "found `nan`");
  refuse({edit(a, "2.500", "inf")}, 1, "found `inf`");
  refuse({edit(a, "=8.000", "=[8.0; x]")}, 1, "in each place of the list, found `x`");
  refuse({edit(a, "8.000", "1e300")}, 1, "expected at most 1e+18");
  refuse({edit(a, "parameter_size", "parameters_size")}, 1, "did you mean `parameter_size`?");
  refuse({edit(a, ", parameter_size=16.000", "")}, 1, "parameter_size is missing");
  refuse({a + ", parameter_size=1"}, 1, "parameter_size stands there twice");
  refuse({node("a", "__getitem__(0)")}, 0, "only parts that nothing consumes");
}

}  // namespace
}  // namespace millrace
