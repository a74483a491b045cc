#include "millrace/core/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

#include "millrace/base/text.h"

namespace millrace {
namespace {

const std::vector<std::string>& measured_fields() {
  static const std::vector<std::string> kFields = {
      "forward_s",   "input_gradient_s", "weight_gradient_s",
      "update_s",    "output_bytes",     "parameter_bytes",
      "stash_bytes", "kept_bytes",       "shared_stash_bytes"};
  return kFields;
}

std::vector<int64_t> shape_from(Reader& reader, const std::string& key) {
  std::vector<int64_t> shape;
  if (!reader.has(key)) {
    return shape;
  }
  for (const double extent : reader.numbers(key)) {
    if (!(extent >= 0) || extent > 1e15 || extent != std::floor(extent)) {
      throw reader.error(key, fmt::format("expected whole numbers from 0, found {}", extent));
    }
    shape.push_back(static_cast<int64_t>(extent));
  }
  return shape;
}

Value list_of(const std::vector<int64_t>& shape) {
  Value list = Value::list();
  for (const int64_t extent : shape) {
    list.push(Value::of(extent));
  }
  return list;
}

LayerProfile layer_from(Reader& reader) {
  LayerProfile layer;
  layer.name = reader.text("name");
  if (layer.name.empty()) {
    throw reader.error("name", "expected the layer's name, found empty text");
  }
  layer.forward_s = reader.quantity("forward_s");
  layer.input_gradient_s = reader.quantity("input_gradient_s");
  layer.weight_gradient_s = reader.quantity("weight_gradient_s");
  layer.update_s = reader.quantity("update_s", 0.0);
  layer.output_bytes = reader.count("output_bytes", 0);
  layer.parameter_bytes = reader.count("parameter_bytes", 0);
  layer.stash_bytes = reader.count("stash_bytes", 0);
  layer.kept_bytes = reader.count("kept_bytes", 0, layer.stash_bytes);
  layer.shared_stash_bytes = reader.count("shared_stash_bytes", 0, 0);
  layer.forward_spread_s = reader.quantity("forward_spread_s", 0.0);
  layer.input_gradient_spread_s = reader.quantity("input_gradient_spread_s", 0.0);
  layer.weight_gradient_spread_s = reader.quantity("weight_gradient_spread_s", 0.0);
  layer.forward_flops = reader.quantity("forward_flops", 0.0);
  layer.input_gradient_flops = reader.quantity("input_gradient_flops", 0.0);
  layer.weight_gradient_flops = reader.quantity("weight_gradient_flops", 0.0);
  layer.kind = reader.text("kind", "");
  layer.input_shape = shape_from(reader, "input_shape");
  layer.output_shape = shape_from(reader, "output_shape");
  layer.weight_shape = shape_from(reader, "weight_shape");
  if (reader.has("estimated")) {
    layer.estimated = reader.texts("estimated");
  }
  std::set<std::string> seen;
  for (const std::string& field : layer.estimated) {
    const auto& fields = measured_fields();
    if (std::find(fields.begin(), fields.end(), field) == fields.end()) {
      throw reader.error("estimated",
                         fmt::format("expected names of this layer's numbers, found {}{}",
                                     in_quotes(field), did_you_mean(field, fields)));
    }
    if (!seen.insert(field).second) {
      throw reader.error("estimated", fmt::format("{} stands there twice", in_quotes(field)));
    }
  }
  reader.finish();
  return layer;
}

using Indices = std::unordered_map<std::string, std::size_t>;
using Successors = std::vector<std::vector<std::size_t>>;

// Some cycle among the layers that a topological order could not place (num_missing > 0 edges
// left).
std::string describe_cycle(const std::vector<LayerProfile>& layers, const Successors& successors,
                           const std::vector<std::size_t>& num_missing) {
  // Walk backwards: every layer left has a predecessor left, so the walk must meet itself.
  std::vector<std::size_t> predecessor(layers.size(), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const std::size_t next : successors[i]) {
      if (num_missing[i] > 0) {
        predecessor[next] = i;
      }
    }
  }
  std::size_t at = 0;
  while (num_missing[at] == 0) {
    ++at;
  }
  std::vector<bool> visited(layers.size(), false);
  while (!visited[at]) {
    visited[at] = true;
    at = predecessor[at];
  }
  std::vector<std::string> names = {in_quotes(layers[at].name)};
  for (std::size_t i = predecessor[at]; i != at; i = predecessor[i]) {
    names.push_back(in_quotes(layers[i].name));
  }
  names.push_back(names.front());
  std::reverse(names.begin(), names.end());
  return join(names, " -> ");
}

void read_edges(Profile& profile, Reader& reader, const Indices& indices) {
  std::vector<std::string> names;
  for (const LayerProfile& layer : profile.layers) {
    names.push_back(layer.name);
  }
  std::set<std::pair<std::string, std::string>> seen;
  for (Reader& item : reader.objects("edges")) {
    ProfileEdge edge{item.text("from"), item.text("to")};
    item.finish();
    for (const auto& [key, name] : {std::pair("from", &edge.from), std::pair("to", &edge.to)}) {
      if (indices.count(*name) == 0) {
        throw item.error(key, fmt::format("no layer is called {}{}", in_quotes(*name),
                                          did_you_mean(*name, names)));
      }
    }
    if (edge.from == edge.to) {
      throw item.error("to", fmt::format("layer {} cannot feed itself", in_quotes(edge.to)));
    }
    if (!seen.emplace(edge.from, edge.to).second) {
      throw item.error("", fmt::format("the edge from {} to {} stands there twice",
                                       in_quotes(edge.from), in_quotes(edge.to)));
    }
    profile.edges.push_back(std::move(edge));
  }
}

}  // namespace

std::optional<std::string> sort_layers(Profile& profile) {
  const std::size_t count = profile.layers.size();
  Indices indices;
  for (std::size_t i = 0; i < count; ++i) {
    indices.emplace(profile.layers[i].name, i);
  }
  Successors successors(count);
  std::vector<std::size_t> num_missing(count, 0);
  for (const ProfileEdge& edge : profile.edges) {
    successors[indices.at(edge.from)].push_back(indices.at(edge.to));
    ++num_missing[indices.at(edge.to)];
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t i = 0; i < count; ++i) {
    if (num_missing[i] == 0) {
      ready.push(i);
    }
  }
  std::vector<LayerProfile> sorted;
  while (!ready.empty()) {
    const std::size_t i = ready.top();
    ready.pop();
    sorted.push_back(profile.layers[i]);
    for (const std::size_t next : successors[i]) {
      if (--num_missing[next] == 0) {
        ready.push(next);
      }
    }
  }
  if (sorted.size() < count) {
    return describe_cycle(profile.layers, successors, num_missing);
  }
  profile.layers = std::move(sorted);
  return std::nullopt;
}

Profile profile_from(const Document& document) {
  Reader reader(document);
  expect_artifact(reader, "profile", 1);
  Profile profile;
  profile.model = reader.text("model");
  profile.machine = reader.text("machine", "");
  profile.dtype = reader.text("dtype", profile.dtype);
  profile.samples_per_microbatch = reader.count("samples_per_microbatch", 1);
  const int64_t busy_ranks = reader.count("busy_ranks", 1, 1);
  if (busy_ranks > std::numeric_limits<int>::max()) {
    throw reader.error("busy_ranks",
                       fmt::format("expected a number of ranks, found {}", busy_ranks));
  }
  profile.busy_ranks = static_cast<int>(busy_ranks);
  profile.peak_flops_per_s = reader.quantity("peak_flops_per_s", 0.0);

  Indices indices;
  for (Reader& item : reader.objects("layers")) {
    LayerProfile layer = layer_from(item);
    const auto [earlier, is_new] = indices.emplace(layer.name, profile.layers.size());
    if (!is_new) {
      throw item.error("name", fmt::format("layer {} stands there twice: also layers[{}]",
                                           in_quotes(layer.name), earlier->second));
    }
    profile.layers.push_back(std::move(layer));
  }
  if (profile.layers.empty()) {
    throw reader.error("layers", "expected at least one layer, found none");
  }
  if (reader.has("edges")) {
    read_edges(profile, reader, indices);
  }
  reader.raw("edges");
  reader.finish();
  if (profile.edges.empty()) {
    make_chain(profile);
  } else {
    if (const std::optional<std::string> cycle = sort_layers(profile)) {
      throw reader.error("edges", "the layers must form no cycle, found " + *cycle);
    }
  }
  return profile;
}

Value to_value(const Profile& profile) {
  Value root = Value::map();
  root.set("artifact", Value::of("profile"));
  root.set("version", Value::of(1));
  root.set("model", Value::of(profile.model));
  root.set("machine", Value::of(profile.machine));
  root.set("dtype", Value::of(profile.dtype));
  root.set("samples_per_microbatch", Value::of(profile.samples_per_microbatch));
  root.set("busy_ranks", Value::of(profile.busy_ranks));
  root.set("peak_flops_per_s", Value::of(profile.peak_flops_per_s));
  Value layers = Value::list();
  for (const LayerProfile& layer : profile.layers) {
    Value item = Value::map();
    item.set("name", Value::of(layer.name));
    item.set("forward_s", Value::of(layer.forward_s));
    item.set("input_gradient_s", Value::of(layer.input_gradient_s));
    item.set("weight_gradient_s", Value::of(layer.weight_gradient_s));
    item.set("update_s", Value::of(layer.update_s));
    item.set("output_bytes", Value::of(layer.output_bytes));
    item.set("parameter_bytes", Value::of(layer.parameter_bytes));
    item.set("stash_bytes", Value::of(layer.stash_bytes));
    item.set("kept_bytes", Value::of(layer.kept_bytes));
    item.set("shared_stash_bytes", Value::of(layer.shared_stash_bytes));
    item.set("forward_spread_s", Value::of(layer.forward_spread_s));
    item.set("input_gradient_spread_s", Value::of(layer.input_gradient_spread_s));
    item.set("weight_gradient_spread_s", Value::of(layer.weight_gradient_spread_s));
    item.set("forward_flops", Value::of(layer.forward_flops));
    item.set("input_gradient_flops", Value::of(layer.input_gradient_flops));
    item.set("weight_gradient_flops", Value::of(layer.weight_gradient_flops));
    if (!layer.kind.empty()) {
      item.set("kind", Value::of(layer.kind));
      item.set("input_shape", list_of(layer.input_shape));
      item.set("output_shape", list_of(layer.output_shape));
      item.set("weight_shape", list_of(layer.weight_shape));
    }
    if (!layer.estimated.empty()) {
      Value estimated = Value::list();
      for (const std::string& field : layer.estimated) {
        estimated.push(Value::of(field));
      }
      item.set("estimated", std::move(estimated));
    }
    layers.push(std::move(item));
  }
  root.set("layers", std::move(layers));
  Value edges = Value::list();
  for (const ProfileEdge& edge : profile.edges) {
    Value item = Value::map();
    item.set("from", Value::of(edge.from));
    item.set("to", Value::of(edge.to));
    edges.push(std::move(item));
  }
  root.set("edges", std::move(edges));
  return root;
}

void make_chain(Profile& profile) {
  profile.edges.clear();
  for (std::size_t i = 1; i < profile.layers.size(); ++i) {
    profile.edges.push_back({profile.layers[i - 1].name, profile.layers[i].name});
  }
}

bool is_chain(const std::vector<std::string>& layers, const std::vector<ProfileEdge>& edges) {
  if (edges.size() + 1 != std::max<std::size_t>(layers.size(), 1)) {
    return false;
  }
  std::set<std::pair<std::string, std::string>> listed;
  for (const ProfileEdge& edge : edges) {
    listed.emplace(edge.from, edge.to);
  }
  for (std::size_t i = 1; i < layers.size(); ++i) {
    if (listed.count({layers[i - 1], layers[i]}) == 0) {
      return false;
    }
  }
  return true;
}

bool is_chain(const Profile& profile) { return is_chain(layer_names(profile), profile.edges); }

std::vector<std::string> layer_names(const Profile& profile) {
  std::vector<std::string> names;
  names.reserve(profile.layers.size());
  for (const LayerProfile& layer : profile.layers) {
    names.push_back(layer.name);
  }
  return names;
}

}  // namespace millrace
