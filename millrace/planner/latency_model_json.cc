// The JSON form of a LatencyModel.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/planner/internal/layer_features.h"
#include "millrace/planner/latency_model.h"

namespace millrace {
namespace {

constexpr std::array<const char*, kLayerPasses.size()> kPassKeys = {"forward", "input_gradient",
                                                                    "weight_gradient"};

Value list_of(const std::vector<double>& numbers) {
  Value list = Value::list();
  for (const double number : numbers) {
    list.push(Value::of(number));
  }
  return list;
}

Value to_value(const LatencyCurve& curve) {
  Value item = Value::map();
  item.set("base", list_of({curve.base.begin(), curve.base.end()}));
  item.set("means", list_of(curve.means));
  item.set("scales", list_of(curve.scales));
  item.set("intercept", Value::of(curve.intercept));
  item.set("slopes", list_of(curve.slopes));
  item.set("length", Value::of(curve.length));
  item.set("power", Value::of(curve.power));
  item.set("weights", list_of(curve.weights));
  Value points = Value::list();
  for (const std::vector<double>& point : curve.points) {
    points.push(list_of(point));
  }
  item.set("points", std::move(points));
  return item;
}

void expect_count(const Reader& reader, const std::string& key, std::size_t found,
                  std::size_t expected) {
  if (found != expected) {
    throw reader.error(key, fmt::format("expected {} numbers, found {}", expected, found));
  }
}

std::vector<double> feature_numbers(Reader& reader, const std::string& key) {
  std::vector<double> numbers = reader.numbers(key);
  expect_count(reader, key, numbers.size(), internal::kLayerFeatures);
  return numbers;
}

LatencyCurve curve_from(Reader& reader) {
  LatencyCurve curve;
  const std::vector<double> base = reader.numbers("base");
  expect_count(reader, "base", base.size(), curve.base.size());
  std::copy(base.begin(), base.end(), curve.base.begin());
  if (!(*std::min_element(base.begin(), base.end()) >= 0) ||
      *std::max_element(base.begin(), base.end()) == 0) {
    throw reader.error("base", "expected three numbers from 0, not all 0");
  }
  curve.means = feature_numbers(reader, "means");
  curve.scales = feature_numbers(reader, "scales");
  for (const double scale : curve.scales) {
    if (scale < 0) {
      throw reader.error("scales", fmt::format("expected numbers from 0, found {}", scale));
    }
  }
  curve.intercept = reader.number("intercept");
  curve.slopes = feature_numbers(reader, "slopes");
  curve.length = reader.number("length");
  if (curve.length <= 0) {
    throw reader.error("length", fmt::format("expected a length above 0, found {}", curve.length));
  }
  curve.power = reader.number("power");
  if (curve.power != 1 && curve.power != 2) {
    throw reader.error("power", fmt::format("expected 1 or 2, found {}", curve.power));
  }
  curve.weights = reader.numbers("weights");
  const Value* points = reader.raw("points");
  if (points == nullptr || points->kind != Value::Kind::kArray) {
    throw reader.error("points", "expected a list of lists of numbers");
  }
  expect_count(reader, "points", points->array.size(), curve.weights.size());
  for (const Value& item : points->array) {
    std::vector<double> point;
    for (const Value& number : item.array) {
      if (number.kind != Value::Kind::kInteger && number.kind != Value::Kind::kFloat) {
        throw reader.error("points", "expected lists of numbers alone");
      }
      point.push_back(number.number);
    }
    expect_count(reader, "points", point.size(), internal::kLayerFeatures);
    curve.points.push_back(std::move(point));
  }
  reader.finish();
  return curve;
}

}  // namespace

LatencyModel latency_model_from(const Document& document) {
  Reader reader(document);
  expect_artifact(reader, "latency_model", 1);
  LatencyModel model;
  model.machine = reader.text("machine");
  model.dtype = reader.text("dtype");
  model.num_layers = reader.count("num_layers", 0);
  model.update_s = reader.quantity("update_s");
  model.update_s_per_byte = reader.quantity("update_s_per_byte");
  for (Reader& item : reader.objects("kinds")) {
    const std::string kind = item.text("kind");
    if (model.kinds.count(kind) != 0) {
      throw item.error("kind", fmt::format("kind {} stands there twice", in_quotes(kind)));
    }
    std::array<LatencyCurve, kLayerPasses.size()>& curves = model.kinds[kind];
    for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
      if (item.has(kPassKeys[p])) {
        Reader curve = item.object(kPassKeys[p]);
        curves[p] = curve_from(curve);
      }
    }
    item.finish();
  }
  if (model.kinds.count("") == 0) {
    throw reader.error("kinds", "expected one of kind \"\", for kinds that were not learned");
  }
  reader.finish();
  return model;
}

Value to_value(const LatencyModel& model) {
  Value root = Value::map();
  root.set("artifact", Value::of("latency_model"));
  root.set("version", Value::of(1));
  root.set("machine", Value::of(model.machine));
  root.set("dtype", Value::of(model.dtype));
  root.set("num_layers", Value::of(model.num_layers));
  root.set("update_s", Value::of(model.update_s));
  root.set("update_s_per_byte", Value::of(model.update_s_per_byte));
  Value kinds = Value::list();
  for (const auto& [kind, curves] : model.kinds) {
    Value item = Value::map();
    item.set("kind", Value::of(kind));
    for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
      if (!curves[p].means.empty()) {
        item.set(kPassKeys[p], to_value(curves[p]));
      }
    }
    kinds.push(std::move(item));
  }
  root.set("kinds", std::move(kinds));
  return root;
}

}  // namespace millrace
