#include "millrace/core/pipedream_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

constexpr std::string_view kSeparator = " -- ";
constexpr double kMostBytes = 1e18;  // keeps sums within an int64_t
const std::array<std::string, 4> kNumbers = {"forward_compute_time", "backward_compute_time",
                                             "activation_size", "parameter_size"};

struct Node {
  std::string id;
  std::string description;
  std::array<double, 4> numbers{};  // as kNumbers: milliseconds, bytes
  int line = 0;
};

struct Edge {
  std::string from;
  std::string to;
  int line = 0;
};

// node2 before node10.
bool natural_less(const std::string& a, const std::string& b) {
  return std::pair(a.size(), std::string_view(a)) < std::pair(b.size(), std::string_view(b));
}

bool begins_with(const std::string& text, std::string_view start) {
  return std::string_view(text).substr(0, start.size()) == start;
}

class GraphReader {
 public:
  explicit GraphReader(const std::string& file) : file_(file) {}

  void read(std::string_view text) {
    for (const std::string& raw : split(text, '\n')) {
      ++line_;
      const std::string line = trim(raw);
      if (line.empty()) {
        continue;
      }
      if (raw.front() == '\t') {
        read_edge(line);
      } else {
        read_node(line);
      }
    }
    if (nodes_.empty()) {
      throw error(0, "expected PipeDream's layer graph, one node a line, found no node");
    }
    for (const Edge& edge : edges_) {
      expect_node(edge.from, edge.line);
      expect_node(edge.to, edge.line);
    }
  }

  // Nodes without consumers that only pick a part of what a layer hands on.
  void drop_unused_parts() {
    std::set<std::string> consumed;
    for (const Edge& edge : edges_) {
      consumed.insert(edge.from);
    }
    std::set<std::string> dropped;
    for (const Node& node : nodes_) {
      if (consumed.count(node.id) == 0 && begins_with(node.description, "__getitem__")) {
        dropped.insert(node.id);
      }
    }
    std::erase_if(nodes_, [&](const Node& node) { return dropped.count(node.id) > 0; });
    std::erase_if(edges_, [&](const Edge& edge) { return dropped.count(edge.to) > 0; });
  }

  Error error(int line, std::string message) const {
    return Error(ErrorCode::kBadFile, std::move(message)).in_file(file_, line);
  }

  std::vector<Node>& nodes() { return nodes_; }
  std::vector<Edge>& edges() { return edges_; }

 private:
  void read_edge(const std::string& line) {
    const std::size_t at = line.find(kSeparator);
    if (at == std::string::npos) {
      throw error(line_,
                  fmt::format("expected an edge as `<from> -- <to>`, found {}", in_quotes(line)));
    }
    Edge edge{trim(line.substr(0, at)), trim(line.substr(at + kSeparator.size())), line_};
    if (edge.from == edge.to) {
      throw error(line_, fmt::format("node {} cannot feed itself", in_quotes(edge.to)));
    }
    if (!seen_edges_.emplace(edge.from, edge.to).second) {
      throw error(line_, fmt::format("the edge from {} to {} stands there twice",
                                     in_quotes(edge.from), in_quotes(edge.to)));
    }
    edges_.push_back(std::move(edge));
  }

  void read_node(const std::string& line) {
    const std::size_t first = line.find(kSeparator);
    const std::size_t last = line.rfind(kSeparator);
    if (first == std::string::npos || first == last) {
      throw error(line_,
                  fmt::format("expected a node as `<id> -- <description> -- "
                              "forward_compute_time=..., ...`, or a TAB and an edge, found {}",
                              in_quotes(line)));
    }
    Node node;
    node.id = trim(line.substr(0, first));
    node.description =
        trim(line.substr(first + kSeparator.size(), last - first - kSeparator.size()));
    node.line = line_;
    read_numbers(node, line.substr(last + kSeparator.size()));
    const auto [earlier, is_new] = lines_.emplace(node.id, line_);
    if (!is_new) {
      throw error(line_, fmt::format("node {} stands there twice: also in line {}",
                                     in_quotes(node.id), earlier->second));
    }
    nodes_.push_back(std::move(node));
  }

  void read_numbers(Node& node, const std::string& text) {
    std::array<bool, 4> found{};
    for (const std::string& part : split(text, ',')) {
      const std::size_t equals = part.find('=');
      const std::string name = trim(part.substr(0, equals));
      const auto* const known = std::find(kNumbers.begin(), kNumbers.end(), name);
      if (equals == std::string::npos || known == kNumbers.end()) {
        throw error(line_,
                    fmt::format("node {}: expected `name=number` with the names {}, found {}{}",
                                in_quotes(node.id), join({kNumbers.begin(), kNumbers.end()}, ", "),
                                in_quotes(trim(part)),
                                did_you_mean(name, {kNumbers.begin(), kNumbers.end()})));
      }
      const auto index = static_cast<std::size_t>(known - kNumbers.begin());
      if (std::exchange(found[index], true)) {
        throw error(line_, fmt::format("node {}: {} stands there twice", in_quotes(node.id), name));
      }
      node.numbers[index] = sum_of(node, name, trim(part.substr(equals + 1)));
    }
    for (std::size_t i = 0; i < kNumbers.size(); ++i) {
      if (!found[i]) {
        throw error(line_, fmt::format("node {}: {} is missing", in_quotes(node.id), kNumbers[i]));
      }
    }
  }

  // "12.5", or "[12.5; 3]", which means the sum.
  double sum_of(const Node& node, const std::string& name, const std::string& text) const {
    const bool list = text.size() >= 2 && text.front() == '[' && text.back() == ']';
    double sum = 0;
    for (const std::string& part : split(list ? text.substr(1, text.size() - 2) : text, ';')) {
      const std::string digits = trim(part);
      double value = 0;
      const char* const end = digits.data() + digits.size();
      const auto [stop, failure] = std::from_chars(digits.data(), end, value);
      if (failure != std::errc() || stop != end || !std::isfinite(value) || value < 0) {
        throw error(line_,
                    fmt::format("node {}: {}: expected a number of 0 or more{}, found {}",
                                in_quotes(node.id), name, list ? " in each place of the list" : "",
                                in_quotes(digits)));
      }
      sum += value;
    }
    if (sum > kMostBytes) {
      throw error(line_, fmt::format("node {}: {}: expected at most {:g}, found {:g}",
                                     in_quotes(node.id), name, kMostBytes, sum));
    }
    return sum;
  }

  void expect_node(const std::string& id, int line) const {
    if (lines_.count(id) > 0) {
      return;
    }
    std::vector<std::string> ids;
    ids.reserve(nodes_.size());
    for (const Node& node : nodes_) {
      ids.push_back(node.id);
    }
    throw error(line, fmt::format("no node is called {}{}", in_quotes(id), did_you_mean(id, ids)));
  }

  const std::string& file_;
  int line_ = 0;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::unordered_map<std::string, int> lines_;
  std::set<std::pair<std::string, std::string>> seen_edges_;
};

LayerProfile layer_of(const Node& node, const std::string& name) {
  LayerProfile layer;
  layer.name = name;
  if (begins_with(node.description, "Input")) {
    return layer;  // its numbers are those of loading data
  }
  const auto [forward_ms, backward_ms, activation_bytes, parameter_bytes] = node.numbers;
  const double backward_s = backward_ms / 1e3;
  layer.forward_s = forward_ms / 1e3;
  layer.parameter_bytes = std::llround(parameter_bytes);
  layer.output_bytes = std::llround(activation_bytes);
  const bool in_place = node.description.find("inplace") != std::string::npos &&
                        node.description.find("inplace=False") == std::string::npos;
  layer.stash_bytes = in_place ? 0 : layer.output_bytes;
  layer.kept_bytes = layer.stash_bytes;
  layer.weight_gradient_s = layer.parameter_bytes > 0 ? backward_s / 2 : 0;
  layer.input_gradient_s = backward_s - layer.weight_gradient_s;
  layer.estimated = {"input_gradient_s", "weight_gradient_s", "update_s", "stash_bytes",
                     "kept_bytes"};
  return layer;
}

}  // namespace

Profile profile_from_pipedream_graph(std::string_view text, const std::string& file,
                                     const std::string& model, int64_t samples) {
  GraphReader reader(file);
  reader.read(text);
  reader.drop_unused_parts();
  std::sort(reader.nodes().begin(), reader.nodes().end(),
            [](const Node& a, const Node& b) { return natural_less(a.id, b.id); });
  std::sort(reader.edges().begin(), reader.edges().end(), [](const Edge& a, const Edge& b) {
    return a.from != b.from ? natural_less(a.from, b.from) : natural_less(a.to, b.to);
  });

  Profile profile;
  profile.model = model;
  profile.samples_per_microbatch = samples;
  std::map<std::string, std::string> names;
  for (const Node& node : reader.nodes()) {
    const std::string type = node.description.substr(0, node.description.find_first_of("( "));
    const std::string& name = names[node.id] = fmt::format("{}:{}", node.id, type);
    profile.layers.push_back(layer_of(node, name));
  }
  for (const Edge& edge : reader.edges()) {
    profile.edges.push_back({names.at(edge.from), names.at(edge.to)});
  }
  if (profile.layers.empty()) {
    throw reader.error(0, "expected at least one layer, found only parts that nothing consumes");
  }
  if (profile.layers.size() > 1 && profile.edges.empty()) {
    throw reader.error(0,
                       fmt::format("expected edges among the {} nodes, a TAB and `<from> -- <to>` "
                                   "a line, found none",
                                   profile.layers.size()));
  }
  if (const std::optional<std::string> cycle = sort_layers(profile)) {
    throw reader.error(0, "the layers must form no cycle, found " + *cycle);
  }
  return profile;
}

}  // namespace millrace
