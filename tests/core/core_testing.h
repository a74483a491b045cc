// Shared by core's tests: round trips through both text forms, and edited documents.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "millrace/base/document.h"
#include "millrace/base/random.h"
#include "tests/base/caught.h"

namespace millrace::testing {

inline Document as_document(const Value& value) { return {"f.json", value}; }

// What reading the text of `artifact` gives; through TOML as well when it has that form.
template <typename T, typename Read>
void expect_round_trip(const T& artifact, const Read& read, bool through_toml = true) {
  const std::string json = to_json(to_value(artifact));
  ASSERT_EQ(read(parse_json(json, "f.json")), artifact) << json;
  if (through_toml) {
    const std::string toml = to_toml(to_value(artifact));
    ASSERT_EQ(read(parse_toml(toml, "f.toml")), artifact) << toml;
  }
}

// `value` with the member at `path` ("stages.1.ranks") set, or taken out when `item` is null.
inline Value edited(Value value, const std::string& path, const Value* item) {
  const std::size_t dot = path.find('.');
  const std::string head = path.substr(0, dot);
  const bool last = dot == std::string::npos;
  if (value.kind == Value::Kind::kArray) {
    Value& child = value.array.at(std::stoul(head));
    child = last ? *item : edited(child, path.substr(dot + 1), item);
    return value;
  }
  if (last && item == nullptr) {
    std::erase_if(value.object, [&](const auto& member) { return member.first == head; });
    return value;
  }
  value.set(head, last ? *item : edited(*value.find(head), path.substr(dot + 1), item));
  return value;
}

inline Value with(const Value& value, const std::string& path, const Value& item) {
  return edited(value, path, &item);
}

inline Value without(const Value& value, const std::string& path) {
  return edited(value, path, nullptr);
}

// Draws for random artifacts: each call takes the next number of a printed seed.
class Draws {
 public:
  explicit Draws(uint64_t seed) : key_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(key_.below(next_++, static_cast<uint64_t>(high - low + 1)));
  }
  bool coin() { return between(0, 1) == 1; }
  // Positive, over many magnitudes, with all digits.
  double positive() {
    const double exponent = static_cast<double>(between(-9, 12));
    return (key_.uniform(next_++) + 1e-3) * std::pow(10.0, exponent);
  }
  double zero_or_more() { return between(0, 3) == 0 ? 0.0 : positive(); }
  int64_t bytes() { return between(0, int64_t{1} << between(0, 60)); }
  std::string name() {
    static const char* const kNames[] = {"conv1", "fc", "caf\xC3\xA9", "a \"b\"", "x.y",
                                         "\\n",   "#"};
    return kNames[between(0, 6)] + std::to_string(next_);
  }

 private:
  RandomKey key_;
  uint64_t next_ = 0;
};

}  // namespace millrace::testing
