#include "millrace/core/optimizer_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

// What stands behind "key=" in "a=1 b=2".
std::string default_of(std::string_view keys, std::string_view key) {
  for (const std::string& item : split(keys, ' ')) {
    const std::size_t equals = item.find('=');
    if (std::string_view(item).substr(0, equals) == key) {
      return equals == std::string::npos ? "" : item.substr(equals + 1);
    }
  }
  return "";
}

}  // namespace

const std::vector<OptimizerKey>& optimizer_keys() {
  using Range = OptimizerKey::Range;
  static const std::vector<OptimizerKey> keys = {
      {"momentum", &TrainConfig::momentum, Range::kFraction},
      {"weight_decay", &TrainConfig::weight_decay, Range::kZeroOrMore},
      {"beta1", &TrainConfig::beta1, Range::kFraction},
      {"beta2", &TrainConfig::beta2, Range::kFraction},
      {"epsilon", &TrainConfig::epsilon, Range::kAboveZero},
      {"accumulate", &TrainConfig::accumulate, Range::kCount},
  };
  return keys;
}

bool takes_key(std::string_view keys, std::string_view key) {
  const std::vector<std::string> items = split(keys, ' ');
  return std::any_of(items.begin(), items.end(), [key](const std::string& item) {
    return std::string_view(item).substr(0, item.find('=')) == key;
  });
}

void settle_optimizer(TrainConfig& config, const std::vector<OptimizerText>& offered) {
  const auto chosen = std::find_if(offered.begin(), offered.end(), [&](const OptimizerText& text) {
    return text.name == config.optimizer;
  });
  if (chosen == offered.end()) {
    std::vector<std::string> names;
    for (const OptimizerText& text : offered) {
      names.push_back(text.name);
    }
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("unknown optimizer {}{}; there are {}", in_quotes(config.optimizer),
                            did_you_mean(config.optimizer, names), join(names, ", ")))
        .at_key("train.optimizer");
  }
  for (const OptimizerKey& key : optimizer_keys()) {
    std::optional<double>& value = config.*key.member;
    if (takes_key(chosen->keys, key.name)) {
      if (!value) {
        value = std::strtod(default_of(chosen->keys, key.name).c_str(), nullptr);
      }
      continue;
    }
    if (value) {
      std::vector<std::string> users;
      for (const OptimizerText& text : offered) {
        if (takes_key(text.keys, key.name)) {
          users.push_back(text.name);
        }
      }
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("optimizer {} does not use this; {}", in_quotes(config.optimizer),
                              users.empty() ? "none does" : join(users, " or ") + " does"))
          .at_key(fmt::format("train.{}", key.name));
    }
  }
}

}  // namespace millrace
